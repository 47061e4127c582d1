package cache_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/cache"
)

// TestStress writes, commits, publishes, reads and evicts at the same time, under
// a small budget and with a remote that comes and goes.
func TestStress(t *testing.T) {
	f := newFixture(t)
	f.o.Size, f.o.SpaceWait = 6<<20, 20*time.Second
	c := f.open()
	var (
		wg   sync.WaitGroup
		stop atomic.Bool
		mu   sync.Mutex
		all  []chunk // of published commits
	)
	seeds := [4]uint64{f.rng.Uint64(), f.rng.Uint64(), f.rng.Uint64(), f.rng.Uint64()}
	wg.Go(func() { // the committer: it also publishes, as a volume does
		defer stop.Store(true)
		rng := rand.New(rand.NewPCG(seeds[0], 0))
		for range 25 {
			var chunks []chunk
			for range 40 {
				data := randomBytes(rng, 1+rng.IntN(8000))
				var ck chunk
				err := c.WithRoom(t.Context(), int64(len(data)), func() (err error) {
					ck, err = f.tryAdd(data)
					return err
				})
				if err != nil {
					t.Errorf("add: %v", err)
					return
				}
				chunks = append(chunks, ck)
			}
			if _, err := f.tryCommit(chunks, "s"); err != nil {
				t.Errorf("commit: %v", err)
				return
			}
			p, err := c.PackForPublication(t.Context(), nil)
			if err == nil {
				err = c.Published(p)
			}
			if err != nil {
				t.Errorf("publish: %v", err)
				return
			}
			mu.Lock()
			all = append(all, chunks...)
			mu.Unlock()
		}
	})
	for _, seed := range seeds[1:3] {
		wg.Go(func() { // readers
			rng := rand.New(rand.NewPCG(seed, 0))
			for !stop.Load() {
				mu.Lock()
				n := len(all)
				var ck chunk
				if n > 0 {
					ck = all[rng.IntN(n)]
				}
				mu.Unlock()
				if n == 0 {
					runtime.Gosched()
					continue
				}
				got, err := c.Chunk(t.Context(), ck.ref)
				if err != nil && !errors.Is(err, errAway) || err == nil && string(got) != string(ck.data) {
					t.Errorf("read: %v", err)
					return
				}
			}
		})
	}
	wg.Go(func() { // the weather
		rng := rand.New(rand.NewPCG(seeds[3], 0))
		for !stop.Load() {
			f.st.away.Store(rng.IntN(3) == 0)
			time.Sleep(time.Duration(rng.IntN(10)) * time.Millisecond)
			c.DropMemoryForTest()
			if p := c.Pending(); p.Used > f.o.Size+1<<20 {
				t.Errorf("%d bytes in use, more than %d", p.Used, f.o.Size)
				return
			}
		}
		f.st.away.Store(false)
	})
	wg.Wait()
	f.st.away.Store(false)
	c.DropMemoryForTest()
	f.check(c, all)
}

// TestSmallDisk runs on a real file system that is too small.
func TestSmallDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := mountTmpfs(dir, "size=64m"); err != nil {
		t.Skipf("mount a small tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unmountTmpfs(dir); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	f := newFixture(t)
	f.o.Files, f.o.Size = nil, 1<<30 // the disk is full long before the budget
	f.o.Segment = 4 << 20
	f.openDir(filepath.Join(dir, "cache"))
	t.Cleanup(func() { f.c.Close() }) // before the disk goes
	f.st.away.Store(true)
	chunks := f.addRandom(100, 8000)
	var err error
	for i := 0; err == nil && i < 10000; i++ {
		_, _, err = f.c.Log().Append(cache.FirstType, nil, randomBytes(f.rng, 20000))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("Append: %v, want ENOSPC", err)
	}
	ctx, cancel := contextWithTimeout(t)
	for err = nil; err == nil || errors.Is(err, syscall.ENOSPC); {
		data := randomBytes(f.rng, 8000)
		_, err = f.c.AddChunk(ctx, f.repo.ChunkID(data), data, nil)
	}
	cancel()
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("AddChunk with the remote away and the disk full: %v, want that of its context", err)
	}
	if _, _, err := f.c.Log().Append(cache.FirstType, []byte("unlink"), nil); err != nil {
		t.Errorf("record without data on a full disk: %v", err)
	}
	if err := f.c.Log().Sync(f.c.Log().End()); err != nil {
		t.Errorf("Sync on a full disk: %v", err)
	}
	f.check(f.c, chunks)
	f.st.away.Store(false)
	// There is room again once uploads work and the log is cut.
	deadline := time.Now().Add(10 * time.Second)
	for {
		if _, err = f.tryCommit(chunks, "t"); err == nil || time.Now().After(deadline) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		t.Fatalf("commit on a full disk: %v", err)
	}
	f.publish()
	f.check(f.c, chunks)
	f.addRandom(50, 8000)
}
