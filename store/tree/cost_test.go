package tree

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/dedupfs/dedupfs/store"
)

// inodeKey is the key of a volume's i-th inode record.
func inodeKey(i int) []byte {
	return append(binary.BigEndian.AppendUint64(nil, 1<<32+uint64(i)), 1)
}

// inodeRecord is like a volume's: about 120 bytes with one reference. version makes it another record of the same key.
func inodeRecord(i, version int) store.Entry {
	rnd := rand.New(rand.NewPCG(uint64(i), uint64(version)))
	e := store.Entry{Key: inodeKey(i), Value: make([]byte, 60+rnd.IntN(30)), Refs: make([]store.Ref, 1)}
	for j := 0; j < 20; j++ { // times, size and what else is not the same everywhere
		e.Value[j] = byte(rnd.Uint32())
	}
	fillID(rnd, &e.Refs[0].ID)
	return e
}

func fillID(rnd *rand.Rand, id *store.ID) {
	for j := 0; j < len(id); j += 8 {
		binary.LittleEndian.PutUint64(id[j:], rnd.Uint64())
	}
}

func inodeRecords(n int) func(yield func(store.Entry) bool) {
	return func(yield func(store.Entry) bool) {
		for i := range n {
			if !yield(inodeRecord(i, 0)) {
				return
			}
		}
	}
}

// levels returns how many levels tr has.
func levels(st *memStore, tr *Tree) int { return int(st.nodes[tr.root.ID].Level) + 1 }

const costRecords = 100_000

func costTree(t testing.TB) (*memStore, *Tree) {
	st := newMemStore()
	o := Options{Key: [16]byte{1}}
	tr := mustBuild(t, New(st, store.Ref{}, o), inodeRecords(costRecords))
	if n := levels(st, tr); n < 3 {
		t.Fatalf("tree has %d levels; the test wants 3", n)
	}
	st.reset()
	return st, tr
}

func one(e store.Entry) []Edit { return []Edit{{e.Key, &e}} }

// TestApplyCost counts what single edits load and save.
func TestApplyCost(t *testing.T) {
	st, tr := costTree(t)
	rnd := newRand(t)
	depth := levels(st, tr)
	measure := func(name string, rounds int, mean float64, most int, edit func() []Edit) {
		t.Run(name, func(t *testing.T) {
			loads, saves, worst := 0, 0, 0
			for range rounds {
				st.reset()
				mustApply(t, tr, edit())
				loads, saves, worst = loads+st.loads, saves+st.saves, max(worst, st.loads)
			}
			perLoads, perSaves := float64(loads)/float64(rounds), float64(saves)/float64(rounds)
			t.Logf("%d levels; %.2f loads (at most %d), %.2f saves", depth, perLoads, worst, perSaves)
			if perLoads > mean*float64(depth) || perSaves > mean*float64(depth) || worst > most*depth {
				t.Errorf("an edit in %d levels costs %.2f loads, at most %d, and %.2f saves", depth, perLoads, worst, perSaves)
			}
		})
	}
	key := func() int { return rnd.IntN(costRecords) }
	measure("change", 500, 1.1, 10, func() []Edit { return one(inodeRecord(key(), 1)) })
	measure("change_of_equal_size", 500, 1, 1, func() []Edit {
		e := inodeRecord(key(), 0)
		e.Value[0]++
		return one(e)
	})
	measure("insert", 500, 1.3, 10, func() []Edit {
		e := inodeRecord(key(), 0)
		e.Key = append(slices.Clone(e.Key), 5)
		return one(e)
	})
	measure("delete", 500, 1.3, 10, func() []Edit { return []Edit{{inodeKey(key()), nil}} })
	measure("append", 500, 1, 1, func() []Edit { return one(inodeRecord(costRecords+key(), 0)) })
	measure("prepend", 100, 1.3, 10, func() []Edit {
		e := inodeRecord(key(), 0)
		e.Key = append([]byte{0}, e.Key...)
		return one(e)
	})
	measure("append_many", 1, 1, 1, func() []Edit {
		var edits []Edit
		for i := range 20 {
			edits = append(edits, one(inodeRecord(costRecords+i, 0))...)
		}
		return edits
	})
}

// TestNoOp makes edits that change nothing, and one that changes a hint only.
func TestNoOp(t *testing.T) {
	st, tr := costTree(t)
	edits := []Edit{{Key: append(inodeKey(7), 1)}} // no such record
	for _, i := range []int{10, 11, 5000, costRecords - 1} {
		e := inodeRecord(i, 0)
		e.Refs[0].Hint.Off = 77
		edits = append(edits, one(e)...)
	}
	got := mustApply(t, tr, edits)
	if got.root != tr.root || st.saves > 0 {
		t.Errorf("root %v, was %v; %d saves", got.root, tr.root, st.saves)
	}
	changed := inodeRecord(5001, 1)
	got = mustApply(t, tr, append(one(inodeRecord(4999, 0)), append(edits[3:4:4], Edit{changed.Key, &changed})...))
	e, _, _ := got.Get(t.Context(), inodeKey(5000))
	if e.Refs[0].Hint != (store.Hint{}) || got.root == tr.root {
		t.Errorf("beside a change, the hint of a record that stays is %v, was zero", e.Refs[0].Hint)
	}
}

// TestHintsStay finds the hints of nodes that an Apply has not changed as they were.
func TestHintsStay(t *testing.T) {
	rnd := newRand(t)
	records := model{}
	for range 1000 {
		k := randomKey(rnd, 5000)
		records[string(k)] = *randomEntry(rnd, k)
	}
	for range 100 {
		st := newMemStore()
		st.hints = 1 // another one for each node saved
		tr := mustBuild(t, New(st, store.Ref{}, tinyOptions(rnd)), records.sorted())
		before := nodeRefs(t, tr)
		edits := randomEdits(rnd, records, 1+rnd.IntN(20), 5000)
		records.apply(edits)
		kept := 0
		for id, ref := range nodeRefs(t, mustApply(t, tr, edits)) {
			if old, ok := before[id]; ok {
				kept++
				if old != ref {
					t.Fatalf("node %s has hint %v, had %v", id, ref.Hint, old.Hint)
				}
			}
		}
		if kept == 0 {
			t.Fatal("no node was kept")
		}
	}
}

// nodeRefs returns the references to all nodes of tr by id.
func nodeRefs(t testing.TB, tr *Tree) map[store.ID]store.Ref {
	t.Helper()
	refs := map[store.ID]store.Ref{tr.root.ID: tr.root}
	c := cursor{t: tr}
	for !c.begun || len(c.stack) > 0 {
		if e, level := c.head(); e != nil && level == 0 {
			c.skip()
			continue
		} else if e != nil {
			refs[e.Refs[0].ID] = e.Refs[0]
		}
		if err := c.down(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return refs
}

// TestPrefetch reads all of a tree: what is loaded in the end was announced before, once, except the first leaves; a look at
// a single leaf announces nothing, and at a few leaves a few.
func TestPrefetch(t *testing.T) {
	st, tr := costTree(t)
	announced := map[store.ID]int{}
	late := 0
	tr.opt.Prefetch = func(refs []store.Ref) {
		for _, r := range refs {
			announced[r.ID]++
			if st.loaded[r.ID] > 0 {
				late++
			}
		}
	}
	it := tr.Seek(t.Context(), inodeKey(500))
	for range 3 {
		it.Next(t.Context())
	}
	if len(announced) > 0 {
		t.Errorf("three records announce %d nodes", len(announced))
	}
	for range 100 { // two or three leaves
		it.Next(t.Context())
	}
	if len(announced) == 0 || len(announced) > 20 {
		t.Errorf("100 records announce %d nodes", len(announced))
	}
	clear(announced)
	st.reset()
	late = 0
	records(t, tr)
	missed := 0
	for id, n := range st.loaded {
		if st.nodes[id].Level > 0 {
			continue
		}
		if announced[id] == 0 {
			missed++
		}
		if announced[id] > 1 || n > 1 {
			t.Fatalf("leaf announced %d times, loaded %d times", announced[id], n)
		}
	}
	if inner := len(st.loaded) - len(announced); missed > 2+inner || late > 0 {
		t.Errorf("%d of %d leaves were not announced, %d too late", missed, len(st.loaded), late)
	}
}

// TestLongRun takes keys in sequence and edits at the front: boundaries behind must come back at once, even in a tree of
// maximal records.
func TestLongRun(t *testing.T) {
	for name, size := range map[string]int{"small": 1, "maximal": store.MaxValue} {
		t.Run(name, func(t *testing.T) {
			st := newMemStore()
			tr := New(st, store.Ref{}, Options{Key: [16]byte{9}})
			all := func(yield func(store.Entry) bool) {
				for i := range 20_000 {
					if !yield(store.Entry{Key: binary.BigEndian.AppendUint64(nil, uint64(i+1)), Value: bytes.Repeat([]byte{1}, size)}) {
						return
					}
				}
			}
			tr = mustBuild(t, tr, all)
			st.reset()
			mustApply(t, tr, []Edit{{binary.BigEndian.AppendUint64(nil, 0), &store.Entry{Value: make([]byte, size)}}})
			if most := 15 * levels(st, tr); st.saves > most {
				t.Errorf("a record at the front saves %d nodes, want at most %d", st.saves, most)
			}
		})
	}
}

// TestNodeSizes pins what the rule promises about sizes: close to the target, few of them small, none that needs a forced
// cut.
func TestNodeSizes(t *testing.T) {
	st, tr := costTree(t)
	var sum, squares float64
	n, largest := 0, 0
	for _, node := range st.nodes {
		if node.Level > 0 {
			continue
		}
		size := sizeOf(node)
		n++
		sum += float64(size)
		squares += float64(size) * float64(size)
		largest = max(largest, size)
	}
	mean, weighted := sum/float64(n), squares/sum
	t.Logf("%d leaves, mean %.0f, the one that a record lies in %.0f, largest %d", n, mean, weighted, largest)
	target := float64(tr.opt.Target)
	if mean < 0.9*target || mean > 1.1*target || weighted > 1.15*mean || largest > 3*tr.opt.Target {
		t.Errorf("leaves of %.0f bytes, weighted %.0f, largest %d; target %.0f", mean, weighted, largest, target)
	}
}

// forgetfulStore keeps nothing.
type forgetfulStore struct{ saves uint64 }

func (s *forgetfulStore) Load(context.Context, store.Ref) (*store.Node, error) {
	return nil, errors.New("nothing is kept")
}

func (s *forgetfulStore) Save(context.Context, *store.Node) (store.Ref, error) {
	s.saves++
	ref := store.Ref{Kind: store.RefNode}
	binary.LittleEndian.PutUint64(ref.ID[:], s.saves)
	return ref, nil
}

// TestMemory makes a tree of many edits and looks at the heap before the first and after the last.
func TestMemory(t *testing.T) {
	n := rounds(500_000, 10_000_000)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, after := heap(), uint64(0)
	edits := func(yield func(Edit) bool) {
		for i := range n {
			e := store.Entry{Key: inodeKey(i), Value: make([]byte, 100)}
			if !yield(Edit{e.Key, &e}) {
				return
			}
		}
		after = heap()
	}
	st := &forgetfulStore{}
	if _, err := New(st, store.Ref{}, Options{}).Apply(t.Context(), edits); err != nil || st.saves < 1000 {
		t.Fatalf("Apply = %v after %d nodes", err, st.saves)
	}
	if after == 0 || after > before+1<<20 {
		t.Errorf("heap is %d KiB after %d edits, was %d KiB", after>>10, n, before>>10)
	}
}
