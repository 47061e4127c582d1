package fs

import (
	"cmp"
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/storetest"
	"github.com/dedupfs/dedupfs/store/tree"
	"github.com/dgraph-io/badger/v4"
)

// distant is a remote with latency that counts what passes.
type distant struct {
	*remotetest.Fault
	calls, got atomic.Int64
	hooksAt    atomic.Int64 // calls when hooks began to be looked for, in the background; 0 before
}

func newDistant(mem *remotetest.Mem, latency time.Duration) *distant {
	return &distant{Fault: remotetest.NewFault(mem, &remotetest.FaultOptions{Latency: latency})}
}

// Get counts what it returns.
func (d *distant) Get(ctx context.Context, name string, off, n int64) ([]byte, error) {
	b, err := d.Fault.Get(ctx, name, off, n)
	d.calls.Add(1)
	d.got.Add(int64(len(b)))
	return b, err
}

// List notes when hooks begin to be looked for.
func (d *distant) List(ctx context.Context, dir string, fn func(remote.Entry) error) error {
	if dir == "hooks" {
		d.hooksAt.CompareAndSwap(0, d.calls.Load())
	}
	return d.Fault.List(ctx, dir, fn)
}

// mountCalls returns the gets of mounting, without those of the background.
func (d *distant) mountCalls() int64 {
	if n := d.hooksAt.Load(); n > 0 {
		return n
	}
	return d.calls.Load()
}

// machine is a client with a cache directory, at a distance from the remote.
type machine struct {
	*env
	far *distant
	dir string
}

func newMachine(t testing.TB, mem *remotetest.Mem, latency time.Duration) *machine {
	t.Helper()
	m := &machine{env: &env{t: t, st: mem}, far: newDistant(mem, latency), dir: t.TempDir()}
	m.mount()
	t.Cleanup(m.unmount)
	return m
}

func (m *machine) mount() {
	m.t.Helper()
	var err error
	m.repo = storetest.Open(m.t, m.far)
	if m.ca, err = cache.Open(ctx, m.dir, m.repo, nil); err != nil {
		m.t.Fatal(err)
	}
	m.v, err = Open(ctx, m.ca, m.repo, &Options{CommitAfter: time.Hour, CommitEvery: time.Hour, Poll: -1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) unmount() { m.env.close() }

// Many multichunks have about a thousand chunks, 64 hooks among them.
const (
	simulatedChunks = 1000
	simulatedHooks  = 64
	simulatedBatch  = 8 // multichunks in a commit
)

// addChunks has another client announce multichunks with so many chunks in all, which are not there, and list their hooks.
func addChunks(t testing.TB, mem *remotetest.Mem, chunks int) {
	t.Helper()
	repo := storetest.Open(t, mem)
	heads, err := repo.Poll(ctx, new(store.Trust))
	if err != nil {
		t.Fatal(err)
	}
	newest, err := repo.MaximalHeads(ctx, heads)
	if err != nil || len(newest) != 1 {
		t.Fatalf("%d heads, %v, want one", len(newest), err)
	}
	base, err := repo.GetCommit(ctx, newest[0])
	if err != nil {
		t.Fatal(err)
	}
	reg, key, err := repo.Register(ctx, store.NewClientID(), "other")
	if err != nil {
		t.Fatal(err)
	}
	db, err := badger.Open(badger.DefaultOptions("").WithInMemory(true).WithLogger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	lists := repo.NewHookLoader(store.NewIndex(db, nil), store.HookLoaderOptions{Client: reg.Client})
	var last *store.Commit
	for n := 0; n < chunks || last == nil; n += simulatedBatch * simulatedChunks {
		c := reg.Next(last)
		c.Seen, c.Volume, c.Root, c.Snapshots = heads, base.Volume, base.Root, base.Snapshots
		for range simulatedBatch {
			m := store.MultichunkInfo{Kind: store.KindData, Hooks: make([]store.ID, simulatedHooks)}
			rand.Read(m.Name[:])
			for i := range m.Hooks {
				rand.Read(m.Hooks[i][:])
			}
			c.Multichunks = append(c.Multichunks, m)
		}
		if _, err := repo.PutCommit(ctx, c, key); err != nil {
			t.Fatal(err)
		}
		last = c
		if c.Seq%32 == 0 {
			if err := lists.Load(ctx, []store.Head{c.Head()}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// addTree gives a client n empty files in directories of a thousand, as one commit.
func (m *machine) addTree(t testing.TB, n int) {
	t.Helper()
	v := m.v
	lc := m.ca.NewLocalCommit()
	edits := func(yield func(tree.Edit) bool) {
		put := func(k string, value []byte) bool {
			return yield(tree.Edit{Key: []byte(k), Entry: &store.Entry{Key: []byte(k), Value: value}})
		}
		const perDir = 1000
		dirs := (n + perDir - 1) / perDir
		first := Root + 1
		names := func(parent Ino, prefix string, at Ino, count int) bool {
			type entry struct {
				key string
				ino Ino
			}
			entries := make([]entry, count)
			for i := range entries {
				name := fmt.Appendf(nil, "%s%d", prefix, i)
				entries[i] = entry{entryKey(parent, v.cookieBase(parent, name), name), at + Ino(i)}
			}
			slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.key, b.key) })
			for _, e := range entries {
				kind := uint32(syscall.S_IFREG)
				if parent == Root {
					kind = syscall.S_IFDIR
				}
				if !put(e.key, entryValue(e.ino, kind)) {
					return false
				}
			}
			return true
		}
		dirAttrs := appendAttrs(nil, &attrs{Mode: syscall.S_IFDIR | 0o755, Nlink: 2})
		fileAttrs := appendAttrs(nil, &attrs{Mode: syscall.S_IFREG | 0o644, Nlink: 1})
		if !put(inodeKey(Root), appendAttrs(nil, &attrs{Mode: syscall.S_IFDIR | 0o755, Nlink: uint32(2 + dirs)})) || !names(Root, "dir", first, dirs) {
			return
		}
		for d := range dirs {
			dir, count := first+Ino(d), min(perDir, n-d*perDir)
			if !put(inodeKey(dir), dirAttrs) || !names(dir, "file", first+Ino(dirs+d*perDir), count) ||
				!put(linkKey(dir, Root, fmt.Appendf(nil, "dir%d", d)), nil) {
				return
			}
		}
		for i := range n {
			ino := first + Ino(dirs+i)
			if !put(inodeKey(ino), fileAttrs) || !put(linkKey(ino, first+Ino(i/perDir), fmt.Appendf(nil, "file%d", i%perDir)), nil) {
				return
			}
		}
	}
	root, err := tree.New(lc, store.Ref{}, v.treeOptions()).Apply(ctx, edits)
	if err != nil {
		t.Fatal(err)
	}
	if err := lc.Finish(root, store.Ref{}, m.ca.Log().End(), nil); err != nil {
		t.Fatal(err)
	}
	if err := v.commits.publishAll(ctx, nil); err != nil {
		t.Fatal(err)
	}
}

// newRemote makes a repository with a tree of n files, and one client's real data in it.
func newRemote(t testing.TB, files int) (*remotetest.Mem, *machine) {
	t.Helper()
	mem := remotetest.NewMem()
	storetest.NewConfig(t, mem, store.Config{SettleTime: store.NoSettleTime})
	m := newMachine(t, mem, 0)
	if files > 0 {
		m.addTree(t, files)
		m.unmount()
		m.mount()
	}
	return mem, m
}

// TestNewMachineFarAway mounts a repository with a long history by a new client, 50 ms away, and copies a tree that is stored
// already right away: the mount waits for no hooks, which take little, and the copy uploads next to nothing.
func TestNewMachineFarAway(t *testing.T) {
	chunks := 300_000
	if os.Getenv("DEDUPFS_LONG") != "" {
		chunks = 10_000_000
	}
	files := someFiles(newRand(t), 2000)
	mem, a := newRemote(t, 0)
	total := a.writeAll("a ", files)
	a.write("read me", 0, []byte("at once"))
	a.sync()
	a.unmount()
	addChunks(t, mem, chunks)
	began := time.Now()
	b := newMachine(t, mem, 50*time.Millisecond)
	mounted, calls := time.Since(began), b.far.mountCalls()
	b.read("read me")
	b.write("write me", 0, []byte("at once"))
	ready := time.Since(began)
	before := mem.Bytes()
	b.writeAll("b ", files)
	b.sync()
	t.Logf("%d chunks: mounted after %v and %d gets, ready after %v, all is stored after %v; %d KiB fetched, %.2f%% of %d KiB uploaded", chunks,
		mounted.Round(time.Millisecond), calls, ready.Round(time.Millisecond), time.Since(began).Round(time.Millisecond),
		b.far.got.Load()>>10, 100*float64(mem.Bytes()-before)/float64(total), total>>10)
	if calls > 30 {
		t.Errorf("%d gets to mount, want a number that does not grow", calls)
	}
	if got := b.far.got.Load(); got > 20<<20 {
		t.Errorf("%d bytes fetched, want less than 20 MiB", got)
	}
	if grown := mem.Bytes() - before; grown > total*15/1000 {
		t.Errorf("%d bytes uploaded for a copy of %d", grown, total)
	}
}

var mountSizes = flag.String("sizes", "", "sizes of repositories for TestMountBySize, as in \"10000,10000 1000000,10000\": chunks and files")

// TestMountBySize prints how long mounting takes, and what memory, by the size of the repository: it should not depend on it.
func TestMountBySize(t *testing.T) {
	type size struct{ chunks, files int }
	sizes := []size{{10_000, 1000}, {100_000, 10_000}}
	if os.Getenv("DEDUPFS_LONG") != "" {
		sizes = []size{{10_000, 10_000}, {1_000_000, 10_000}, {10_000_000, 10_000}, {100_000_000, 10_000}, {10_000, 1_000_000}, {10_000, 10_000_000}}
	}
	if *mountSizes != "" {
		sizes = nil
		for _, f := range strings.Fields(*mountSizes) {
			var s size
			if _, err := fmt.Sscanf(f, "%d,%d", &s.chunks, &s.files); err != nil {
				t.Fatal(err)
			}
			sizes = append(sizes, s)
		}
	}
	var gets []int64
	for _, s := range sizes {
		mem, a := newRemote(t, s.files)
		a.write("read me", 0, []byte("at once"))
		a.sync()
		a.unmount()
		addChunks(t, mem, s.chunks)
		m := newMachine(t, mem, 0)
		m.unmount()
		os.RemoveAll(m.dir)
		report := func(what string) {
			t.Helper()
			before := heap()
			m.far.calls.Store(0)
			m.far.hooksAt.Store(0)
			got, cpu, began := m.far.got.Load(), cpuTime(), time.Now()
			m.mount()
			calls := m.far.mountCalls()
			m.read("read me")
			m.write("write me "+what, 0, []byte("at once"))
			wall, took, fetched := time.Since(began), cpuTime()-cpu, m.far.got.Load()-got
			atMount := heap() - before
			if err := m.ca.LearnHooks(ctx, m.v.follower.heads); err != nil { // waits until those of the background are done
				t.Fatal(err)
			}
			t.Logf("%d chunks, %d files, %s: %v, %v of processor, %d gets, %d KiB, heap %d KiB; with all hooks %d KiB, heap %d KiB", s.chunks, s.files, what,
				wall.Round(time.Millisecond), took.Round(time.Millisecond), calls, fetched>>10, atMount>>10, (m.far.got.Load()-got)>>10, (heap()-before)>>10)
			if what == "new" {
				gets = append(gets, calls)
			}
			m.unmount()
		}
		report("new")
		report("known")
	}
	if slices.Max(gets) > slices.Min(gets)+4 {
		t.Errorf("%v gets to mount, want about as many for every size", gets)
	}
}

// heap returns the bytes of all that is alive, without the garbage that is made while that is found out.
func heap() int64 {
	runtime.GC()
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	return int64(live[0].Value.Uint64())
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
