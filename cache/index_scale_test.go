package cache

import (
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/store"
)

var indexChunks = flag.Int("chunks", 0, "chunks of the repository whose hooks TestIndexMemory puts into an index")

// TestIndexMemory puts the hooks of a very large repository into an index, as its database is opened by a cache, and
// looks at the memory that it takes: a billion chunks with DEDUPFS_LONG.
func TestIndexMemory(t *testing.T) {
	const (
		budget        = 128 << 20
		perMultichunk = 1000 // chunks
		hooks         = 64   // of each
		batch         = 1000 // multichunks
	)
	chunks := *indexChunks
	if chunks == 0 {
		chunks = 2_000_000
		if os.Getenv("DEDUPFS_LONG") != "" {
			chunks = 1_000_000_000
		}
	}
	before := heapAlive()
	dir := t.TempDir()
	db, err := openDB(dir, budget)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	x := store.NewIndex(db, &store.IndexOptions{Memory: budget / 4})
	hookOf := func(multichunk, i int) (h store.Hook) {
		rng := rand.New(rand.NewPCG(uint64(multichunk), uint64(i)))
		binary.BigEndian.PutUint64(h[:], rng.Uint64())
		return h
	}
	began, cpuBefore, most := time.Now(), cpuTime(), int64(0)
	for first := 0; first < chunks/perMultichunk; first += batch {
		list := make([]store.HookedMultichunk, batch)
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
		if first%(chunks/perMultichunk/20) < batch {
			alive := heapAlive() - before
			most = max(most, alive)
			if testing.Verbose() {
				t.Logf("%d million chunks: heap %d MiB, %v of processor, %d MiB on disk", (first+batch)*perMultichunk/1_000_000, alive>>20, (cpuTime() - cpuBefore).Round(time.Second), bytesIn(t, dir)>>20)
			}
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
	most = max(most, heapAlive()-before)
	disk := bytesIn(t, dir)
	x = store.NewIndex(db, &store.IndexOptions{Memory: budget / 4})
	began = time.Now()
	if err := x.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d chunks, %d hooks: added in %v and %v of processor, %d MiB on disk, heap at most %d MiB, loaded in %v; of 20,000 hooks %d are kept, %v each; of 200,000 other chunks %d are taken for hooks, %v each",
		chunks, chunks/perMultichunk*hooks, added.Round(time.Millisecond), cpu.Round(time.Millisecond), disk>>20, most>>20, time.Since(began).Round(time.Millisecond), some, hit, none, miss)
	if most > budget {
		t.Errorf("the index takes %d bytes of heap, want at most %d", most, budget)
	}
	if some < 4000 || none > 10 {
		t.Errorf("%d of 20,000 hooks are found, and %d of 200,000 other chunks", some, none)
	}
}

// heapAlive returns the bytes of all that is alive.
func heapAlive() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
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
