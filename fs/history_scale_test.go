package fs

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// What history and sharing cost in volumes of different sizes. DEDUPFS_LONG=1 has the sizes of docs/performance.md.
var longRun = os.Getenv("DEDUPFS_LONG") != ""

// filesPerDir is how many files the directories of a made volume have.
const filesPerDir = 100

// newVolumeOf returns a client of a volume with n files in directories named d0, d1, ...
func newVolumeOf(t testing.TB, n int) *env {
	t.Helper()
	e := newEnv(t)
	lc := e.ca.NewLocalCommit()
	root, err := tree.New(lc, store.Ref{}, e.v.treeOptions()).Build(ctx, e.madeRecords(n))
	if err != nil {
		t.Fatal(err)
	}
	if err := lc.Finish(root, store.Ref{}, e.v.log.End(), nil); err != nil {
		t.Fatal(err)
	}
	e.reopen()
	e.sync()
	return e
}

// madeRecords yields the records of a volume in the order of their keys.
func (e *env) madeRecords(n int) func(yield func(store.Entry) bool) {
	dirs := (n + filesPerDir - 1) / filesPerDir
	first := e.v.nextIno // of the directories; the files follow
	if err := e.ca.UpdateState(func(s *State) { s.NextInode = uint64(first) + uint64(dirs+n) }); err != nil {
		e.t.Fatal(err)
	}
	stamp := Timespec{Sec: 1e9}
	return func(yield func(store.Entry) bool) {
		ok := true
		put := func(k string, v []byte) {
			ok = ok && yield(store.Entry{Key: []byte(k), Value: v})
		}
		dir := func(ino Ino, nlink uint32, names []string, child func(i int) Ino, mode uint32, parent Ino, name string) {
			put(inodeKey(ino), appendAttrs(nil, &attrs{Mode: syscall.S_IFDIR | 0o755, Nlink: nlink, Mtime: stamp, Ctime: stamp}))
			type entry struct {
				key   string
				child Ino
			}
			var es []entry
			for i, name := range names {
				es = append(es, entry{entryKey(ino, e.v.cookieBase(ino, []byte(name)), []byte(name)), child(i)})
			}
			slices.SortFunc(es, func(a, b entry) int { return strings.Compare(a.key, b.key) })
			for _, x := range es {
				put(x.key, entryValue(x.child, mode))
			}
			if ino != Root {
				put(linkKey(ino, parent, []byte(name)), nil)
			}
		}
		var names []string
		for i := range dirs {
			names = append(names, fmt.Sprint("d", i))
		}
		dir(Root, uint32(2+dirs), names, func(i int) Ino { return first + Ino(i) }, syscall.S_IFDIR|0o755, 0, "")
		files := make([]string, filesPerDir)
		for i := range files {
			files[i] = fmt.Sprint("f", i)
		}
		for d := range dirs {
			some := files[:min(filesPerDir, n-d*filesPerDir)]
			dir(first+Ino(d), 2, some, func(i int) Ino { return first + Ino(dirs+d*filesPerDir+i) }, syscall.S_IFREG|0o644, Root, names[d])
		}
		for f := range n {
			ino := first + Ino(dirs+f)
			put(inodeKey(ino), appendAttrs(nil, &attrs{Mode: syscall.S_IFREG | 0o644, Nlink: 1, Mtime: stamp, Ctime: stamp}))
			put(linkKey(ino, first+Ino(f/filesPerDir), []byte(files[f%filesPerDir])), nil)
		}
	}
}

// edit changes file i of a made volume.
func (e *env) edit(i int, data string) {
	e.t.Helper()
	e.fill(e.walk(fmt.Sprint("d", i/filesPerDir)), fmt.Sprint("f", i%filesPerDir), data)
}

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestScaleCommit changes one small file, in volumes of growing size. Of the processor the median counts: what is compacted behind a
// volume that has just been made, and garbage collection, fall into some of the rounds.
func TestScaleCommit(t *testing.T) {
	sizes, rounds := []int{1000, 10_000}, 10
	if longRun {
		sizes, rounds = []int{10_000, 100_000, 1_000_000}, 100
	}
	for _, n := range sizes {
		e := newVolumeOf(t, n)
		e.edit(0, "warm")
		e.sync()
		before, used, took := e.st.Bytes(), make([]time.Duration, rounds), make([]time.Duration, rounds)
		for i := range rounds {
			e.edit((i+1)*n/(rounds+1), fmt.Sprint("small change ", i))
			begin, at := time.Now(), cpu()
			if err := e.v.syncOwn(ctx, nil); err != nil {
				t.Fatal(err)
			}
			took[i], used[i] = time.Since(begin), cpu()-at
		}
		slices.Sort(used)
		slices.Sort(took)
		each := (e.st.Bytes() - before) / int64(rounds)
		t.Logf("%d files: %d bytes uploaded, %s, %s of CPU (a tenth takes more than %s) for a commit after one small change", n, each,
			took[rounds/2].Round(10*time.Microsecond), used[rounds/2].Round(10*time.Microsecond), used[rounds*9/10].Round(10*time.Microsecond))
		if each > 64<<10 {
			t.Errorf("%d files: %d bytes for a commit after one small change", n, each)
		}
		e.close()
	}
}

// TestScaleSnapshots makes many snapshots of a volume, and looks at the oldest from a machine that has seen nothing yet.
func TestScaleSnapshots(t *testing.T) {
	files, snaps := 5000, 40
	if longRun {
		files, snaps = 100_000, 500
	}
	e := newVolumeOf(t, files)
	e.edit(files/2, "the oldest content")
	for i := range snaps {
		e.snapshot(fmt.Sprintf("s%03d", i))
		e.edit((i*7919)%files, fmt.Sprint("change ", i))
		if i%10 == 0 {
			e.sync()
		}
	}
	e.edit(files/2, "the newest content")
	e.sync()
	before, begin, used := e.st.Bytes(), time.Now(), cpu()
	e.snapshot("one more")
	made, madeCPU := time.Since(begin), cpu()-used
	e.sync()
	grew := e.st.Bytes() - before
	t.Logf("%d files, %d snapshots: one more takes %s, %s of CPU, %d bytes on the remote", files, snaps, made.Round(time.Millisecond), madeCPU.Round(time.Millisecond), grew)
	if grew > 64<<10 {
		t.Errorf("a snapshot of what had not changed takes %d bytes", grew)
	}
	o := e.other()
	begin = time.Now()
	listed := len(o.names(o.walk(".snapshots")))
	t.Logf("listing %d names takes %s", listed, time.Since(begin).Round(time.Millisecond))
	if listed < snaps+2 {
		t.Errorf("%d names are listed of %d snapshots", listed, snaps+1)
	}
	at := o.ca.Fetched()
	begin = time.Now()
	if got := string(o.read(".snapshots", "s000", fmt.Sprint("d", files/2/filesPerDir), fmt.Sprint("f", files/2%filesPerDir))); got != "the oldest content" {
		t.Errorf("the oldest snapshot has %q", got)
	}
	fetched := o.ca.Fetched() - at
	t.Logf("the first file of the oldest takes %s, %d bytes fetched", time.Since(begin).Round(time.Millisecond), fetched)
	if fetched > 1<<20 {
		t.Errorf("reading the first file fetches %d bytes", fetched)
	}
	begin = time.Now()
	dir := o.walk(fmt.Sprint("d", files/2/filesPerDir), ".snapshots")
	t.Logf("listing %d names in a directory takes %s", len(o.names(dir)), time.Since(begin).Round(time.Millisecond))
}

// countedNodes counts what is loaded and saved.
type countedNodes struct {
	tree.Store
	loads, saves atomic.Int64
}

func (c *countedNodes) Load(ctx context.Context, ref store.Ref) (*store.Node, error) {
	c.loads.Add(1)
	return c.Store.Load(ctx, ref)
}

func (c *countedNodes) Save(ctx context.Context, n *store.Node) (store.Ref, error) {
	c.saves.Add(1)
	return c.Store.Save(ctx, n)
}

// TestScaleMerge merges two heads that differ in k files each from their base.
func TestScaleMerge(t *testing.T) {
	sizes, changes := []int{10_000}, []int{1, 10, 100}
	if longRun {
		sizes, changes = []int{10_000, 100_000, 1_000_000}, []int{1, 10, 100, 1000}
	}
	var perFile [2]int64 // loads with the fewest and the most changes
	for _, n := range sizes {
		a := newVolumeOf(t, n)
		b := a.other()
		for _, k := range changes {
			base := a.v.base.Root()
			change := func(e *env, off int) store.Ref {
				for i := range k {
					e.edit((i*(n/k)+off)%n, fmt.Sprint(k, off))
				}
				if err := e.v.syncOwn(ctx, nil); err != nil {
					t.Fatal(err)
				}
				return e.v.base.Root()
			}
			first, second := change(a, 0), change(b, 1)
			lc := &lazyCommit{ca: a.ca}
			nodes := &countedNodes{Store: lc}
			at := func(root store.Ref) *tree.Tree { return tree.New(nodes, root, a.v.treeOptions()) }
			begin, used := time.Now(), cpu()
			if _, err := mergeTrees(ctx, at(base), at(first), at(second), a.v.cookieBase, func(store.ClientID) (string, error) { return "x", nil }); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d files, %d changed on either side: %d nodes loaded, %d saved, %s, %s of CPU", n, k, nodes.loads.Load(), nodes.saves.Load(),
				time.Since(begin).Round(100*time.Microsecond), (cpu() - used).Round(100*time.Microsecond))
			lc.discard()
			if k == changes[0] {
				perFile[0] = nodes.loads.Load() / int64(k)
			}
			perFile[1] = nodes.loads.Load() / int64(k)
			agree2(a, b)
		}
		if perFile[1] > 2*perFile[0] {
			t.Errorf("%d files: %d nodes are loaded for each change of many, %d for one", n, perFile[1], perFile[0])
		}
		b.close()
		a.close()
	}
}

// TestScaleDiff compares two snapshots that differ in k files, on a machine that has seen nothing yet and there once more.
func TestScaleDiff(t *testing.T) {
	sizes, changes := []int{2000, 10_000}, []int{1, 10, 100}
	if longRun {
		sizes, changes = []int{10_000, 100_000, 1_000_000}, []int{1, 10, 100, 1000}
	}
	for _, k := range changes {
		fewest := int64(0) // loads for each change in the smallest volume
		for _, n := range sizes {
			loads := diffOf(t, n, k) / int64(k)
			if fewest == 0 {
				fewest = loads
			}
			if loads > 2*fewest {
				t.Errorf("%d files, %d changed: %d nodes are loaded for each, %d in a smaller volume", n, k, loads, fewest)
			}
		}
	}
}

// diffOf returns how many nodes are loaded to compare two snapshots of n files that differ in k.
func diffOf(t *testing.T, n, k int) int64 {
	e := newVolumeOf(t, n)
	defer e.close()
	e.snapshot("a")
	for i := range k {
		e.edit(i*(n/k), fmt.Sprint("change ", i))
	}
	e.snapshot("b")
	e.sync()
	o := e.other()
	defer o.close()
	var loads int64
	for _, what := range []string{"nothing in memory", "again"} {
		nodes := &countedNodes{Store: remoteNodes{o.ca}}
		at := func(name string) *paths {
			_, root, err := o.v.state(ctx, name)
			if err != nil {
				t.Fatal(err)
			}
			return newPaths(&layered{base: tree.New(nodes, root, o.v.treeOptions())})
		}
		fetched, begin, used := o.ca.Fetched(), time.Now(), cpu()
		got, err := (&stateDiff{old: at("a"), new: at("b")}).run(ctx)
		if err != nil || len(got) != k {
			t.Fatalf("%d changes are found of %d, %v", len(got), k, err)
		}
		loads = nodes.loads.Load()
		t.Logf("%d files, %d changed, %s: %d nodes loaded, %d bytes fetched, %s, %s of CPU", n, k, what, loads, o.ca.Fetched()-fetched,
			time.Since(begin).Round(100*time.Microsecond), (cpu() - used).Round(100*time.Microsecond))
	}
	return loads
}

// agree2 lets two clients follow each other, without a look at all they show.
func agree2(a, b *env) {
	for range 2 {
		a.sync()
		b.sync()
	}
}
