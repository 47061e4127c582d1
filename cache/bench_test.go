package cache_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/storetest"
)

func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{0, 4 << 10, 128 << 10} {
		b.Run(byteSize(size), func(b *testing.B) {
			l, err := cache.OpenTestLog(cache.OSFiles(b.TempDir()), 0, 64<<20)
			if err != nil {
				b.Fatal(err)
			}
			defer l.CloseForTest()
			body, data := make([]byte, 40), make([]byte, size)
			b.SetBytes(int64(size))
			for b.Loop() {
				if _, _, err := l.Append(cache.FirstType, body, data); err != nil {
					b.Fatal(err)
				}
				if l.UsedForTest() > 512<<20 {
					b.StopTimer()
					l.Sync(l.End())
					l.SetCutForTest(l.End())
					for n := int64(1); n > 0; {
						n, _ = l.EvictForTest()
					}
					b.StartTimer()
				}
			}
		})
	}
}

func byteSize(n int) string { return fmt.Sprintf("%dK", n>>10) }

// BenchmarkSync is the time of a small record that has to last, for parallel writers.
func BenchmarkSync(b *testing.B) {
	l, err := cache.OpenTestLog(cache.OSFiles(b.TempDir()), 0, 64<<20)
	if err != nil {
		b.Fatal(err)
	}
	defer l.CloseForTest()
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			pos, _, err := l.Append(cache.FirstType, make([]byte, 100), nil)
			if err == nil {
				err = l.Sync(pos)
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkAddChunk stores new chunks of 8 KiB, all the way to a remote in memory.
func BenchmarkAddChunk(b *testing.B) {
	const size = 8 << 10
	repo := storetest.NewConfig(b, remotetest.NewMem(), store.Config{SettleTime: store.NoSettleTime})
	c, err := cache.Open(b.Context(), b.TempDir(), repo, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	data := randomBytes(rng, size)
	b.SetBytes(size)
	for b.Loop() {
		for i := range 32 {
			data[i*256] = byte(rng.Uint32())
		}
		_, at, err := c.Log().Append(cache.FirstType, nil, data)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := c.AddChunk(b.Context(), repo.ChunkID(data), data, cache.Place{{Pos: at, Len: size}}); err != nil {
			b.Fatal(err)
		}
	}
}
