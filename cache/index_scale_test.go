package cache

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/store"
)

var indexChunks = flag.Int("chunks", 0, "chunks of the repository whose hooks TestIndexMemory puts into an index")

var indexGrows = flag.Bool("grows", false, "do not tell the index of TestIndexMemory beforehand how many chunks there are")

// TestIndexMemory puts the hooks of a very large repository into an index, in lists as long as there are, as its database is opened
// by a cache, and looks at the memory that it takes: a billion chunks with DEDUPFS_LONG.
func TestIndexMemory(t *testing.T) {
	const (
		budget        = 128 << 20
		perMultichunk = 1000   // chunks
		hooks         = 64     // of each
		longest       = 16_000 // multichunks in a list of hooks
	)
	chunks := *indexChunks
	if chunks == 0 {
		chunks = 2_000_000
		if os.Getenv("DEDUPFS_LONG") != "" {
			chunks = 1_000_000_000
		}
	}
	batch := min(longest, max(chunks/perMultichunk/20, 1))
	dir := t.TempDir()
	memory := watchMemory(t)
	db, err := openDB(dir, budget)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	keepDatabaseSmall(t, dir)
	x := store.NewIndex(db, &store.IndexOptions{Memory: budget / 4})
	hookOf := func(multichunk, i int) (h store.Hook) {
		rng := rand.New(rand.NewPCG(uint64(multichunk), uint64(i)))
		binary.BigEndian.PutUint64(h[:], rng.Uint64())
		return h
	}
	began, cpuBefore := time.Now(), cpuTime()
	if !*indexGrows {
		if err := x.Expect(t.Context(), uint64(chunks/perMultichunk*hooks)); err != nil {
			t.Fatal(err)
		}
	}
	for first, step := 0, 0; first < chunks/perMultichunk; first += batch {
		list := make([]store.HookedMultichunk, min(batch, chunks/perMultichunk-first))
		for i := range list {
			binary.BigEndian.PutUint64(list[i].Name[:], uint64(first+i+1))
			list[i].Hooks = make([]store.Hook, hooks)
			for j := range list[i].Hooks {
				list[i].Hooks[j] = hookOf(first+i, j)
			}
		}
		if err := x.AddHooks(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		if now := 20 * (first + len(list)) / (chunks / perMultichunk); now > step && testing.Verbose() {
			step = now
			t.Logf("%d million chunks: %v, %v of processor, %d MiB on disk", (first+len(list))*perMultichunk/1_000_000, memory, (cpuTime() - cpuBefore).Round(time.Second), bytesIn(t, dir)>>20)
		}
	}
	added, cpu := time.Since(began), cpuTime()-cpuBefore
	lookUp := func(n int, id func() store.ID) (found int, each time.Duration) {
		t.Helper()
		began := time.Now()
		for range n {
			_, ok, err := x.Champion(id())
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				found++
			}
		}
		return found, time.Since(began) / time.Duration(n)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	some, hit := lookUp(20_000, func() (id store.ID) {
		h := hookOf(rng.IntN(chunks/perMultichunk), rng.IntN(hooks))
		copy(id[:], h[:])
		return id
	})
	none, miss := lookUp(200_000, func() (id store.ID) {
		for i := range id {
			id[i] = byte(rng.Uint32())
		}
		return id
	})
	disk := bytesIn(t, dir)
	x = store.NewIndex(db, &store.IndexOptions{Memory: budget / 4})
	began = time.Now()
	if err := x.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d chunks, %d hooks: added in %v and %v of processor, %d MiB on disk, %v, loaded in %v; of 20,000 hooks %d are kept, %v each; of 200,000 other chunks %d are taken for hooks, %v each",
		chunks, chunks/perMultichunk*hooks, added.Round(time.Millisecond), cpu.Round(time.Millisecond), disk>>20, memory, time.Since(began).Round(time.Millisecond), some, hit, none, miss)
	if most := memory.live.Load(); most > budget {
		t.Errorf("the index takes %d bytes of heap, want at most %d", most, budget)
	}
	if some < 4000 || none > 10 {
		t.Errorf("%d of 20,000 hooks are found, and %d of 200,000 other chunks", some, none)
	}
}

// peaks are the most that was seen of what memory this process takes, in bytes.
type peaks struct {
	live     atomic.Int64 // heap that the garbage collector found alive, beyond what it was at first
	resident atomic.Int64 // with the garbage, and pages of the program and the database
}

func (p *peaks) String() string {
	return fmt.Sprintf("at most %d MiB of live heap, %d MiB resident", p.live.Load()>>20, p.resident.Load()>>20)
}

// watchMemory looks at the memory of this process until the test ends.
func watchMemory(t *testing.T) *peaks {
	runtime.GC()
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	first := int64(live[0].Value.Uint64())
	p, stop := &peaks{}, make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
			metrics.Read(live)
			p.live.Store(max(p.live.Load(), int64(live[0].Value.Uint64())-first))
			all, _ := residentBytes()
			p.resident.Store(max(p.resident.Load(), all))
		}
	})
	t.Cleanup(func() { close(stop); all.Wait() })
	return p
}

// keepDatabaseSmall does until the test ends what a cache does with the pages of its database.
func keepDatabaseSmall(t *testing.T, dir string) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		m := newMappings(dir, 1<<40)
		for ctx.Err() == nil {
			time.Sleep(mappedEvery)
			m.shrink()
		}
	})
	t.Cleanup(func() { cancel(); all.Wait() })
}

// bytesIn returns the bytes of the disk that all files in dir take.
func bytesIn(t *testing.T, dir string) (n int64) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if info, err := f.Info(); err == nil { // or it was just deleted
			n += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
	}
	return n
}

// cpuTime returns what this process has used of all processors.
func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
