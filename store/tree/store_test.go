package tree

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/store"
)

var seed = flag.Uint64("seed", 0, "seed of the random tests; 0 draws one")

// newRand returns a source whose seed is printed when the test fails.
func newRand(t testing.TB) *rand.Rand {
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed=%d", s)
	return rand.New(rand.NewPCG(s, 1))
}

// memStore keeps nodes in memory, counts, and fails when it is told to.
type memStore struct {
	nodes map[store.ID]*store.Node
	hints uint32 // if not zero, refs get hints, each another one

	loads, saves int
	loaded       map[store.ID]int
	savedBytes   int
	failAfter    int // calls from now until one fails; 0 is never
}

var errInjected = errors.New("injected")

func newMemStore() *memStore {
	return &memStore{nodes: map[store.ID]*store.Node{}, loaded: map[store.ID]int{}}
}

func (m *memStore) fail() bool {
	m.failAfter--
	return m.failAfter == 0
}

func (m *memStore) Load(_ context.Context, ref store.Ref) (*store.Node, error) {
	m.loads++
	m.loaded[ref.ID]++
	if m.fail() {
		return nil, errInjected
	}
	n := m.nodes[ref.ID]
	if n == nil {
		return nil, fmt.Errorf("no node %s", ref.ID)
	}
	return n, nil
}

func (m *memStore) Save(_ context.Context, n *store.Node) (store.Ref, error) {
	m.saves++
	if m.fail() {
		return store.Ref{}, errInjected
	}
	b := store.AppendCanonical(nil, n)
	m.savedBytes += len(b)
	if most := sizeOf(n) + nodeOverhead; len(b) > most {
		return store.Ref{}, fmt.Errorf("node of %d bytes, bound is %d", len(b), most)
	}
	ref := store.Ref{ID: sha256.Sum256(b), Kind: store.RefNode}
	if m.hints > 0 {
		m.hints++
		ref.Hint = store.Hint{Multichunk: store.Name{1}, Off: m.hints}
	}
	if m.nodes[ref.ID] == nil {
		m.nodes[ref.ID] = n
	}
	return ref, nil
}

// sizeOf returns the size of n as the rule sees it.
func sizeOf(n *store.Node) int {
	size := 0
	for i := range n.Entries {
		size += entrySize(&n.Entries[i])
	}
	return size
}

// reset sets the counters to zero.
func (m *memStore) reset() {
	m.loads, m.saves, m.savedBytes = 0, 0, 0
	clear(m.loaded)
}

// model is what a tree is compared with.
type model map[string]store.Entry

func (m model) sorted() iter.Seq[store.Entry] {
	return func(yield func(store.Entry) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(m[k]) {
				return
			}
		}
	}
}

// apply makes the edits in m.
func (m model) apply(edits []Edit) {
	for _, e := range edits {
		if e.Entry == nil {
			delete(m, string(e.Key))
			continue
		}
		c := *e.Entry
		c.Key = e.Key
		m[string(e.Key)] = c
	}
}

// tinyOptions give nodes of a few records, so that small tests have deep trees.
func tinyOptions(rnd *rand.Rand) Options {
	o := Options{Min: 1, Target: 60 + rnd.IntN(300)}
	o.Min += rnd.IntN(o.Target / 2)
	o.Max = o.Target + 1 + rnd.IntN(4*o.Target)
	binary.LittleEndian.PutUint64(o.Key[:], rnd.Uint64())
	return o
}

// randomEntry returns a record for key; mostly small.
func randomEntry(rnd *rand.Rand, key []byte) *store.Entry {
	e := &store.Entry{Key: key, Value: make([]byte, rnd.IntN(12))}
	if rnd.IntN(50) == 0 {
		e.Value = make([]byte, rnd.IntN(store.MaxValue+1))
	}
	for i := range e.Value {
		e.Value[i] = byte(rnd.IntN(3))
	}
	refs := 0
	switch rnd.IntN(50) {
	case 0:
		refs = rnd.IntN(40)
	case 1, 2, 3, 4, 5, 6, 7:
		refs = 1
	}
	for range refs {
		e.Refs = append(e.Refs, store.Ref{ID: store.ID{1, byte(rnd.IntN(4))}, Hint: store.Hint{Off: rnd.Uint32()}})
	}
	return e
}

// randomKey draws from a space in which collisions are common.
func randomKey(rnd *rand.Rand, space int) []byte {
	k := binary.BigEndian.AppendUint16(nil, uint16(rnd.IntN(space)))
	return append(k, bytes.Repeat([]byte{7}, int(k[1])%11)...)
}

// randomEdits returns n edits or fewer, sorted, in one of several manners.
func randomEdits(rnd *rand.Rand, m model, n, space int) []Edit {
	edits := map[string]Edit{}
	lo, deletes := 0, rnd.IntN(4)
	if rnd.IntN(3) == 0 { // all in one place
		lo = rnd.IntN(space)
		space = min(space-lo, 2*n+1)
	}
	for range n {
		k := randomKey(rnd, space)
		binary.BigEndian.PutUint16(k, binary.BigEndian.Uint16(k)+uint16(lo))
		e := Edit{Key: k, Entry: randomEntry(rnd, k)}
		if rnd.IntN(4) < deletes {
			e.Entry = nil
		}
		if old, ok := m[string(k)]; ok && rnd.IntN(6) == 0 {
			e.Entry = &old
		}
		edits[string(k)] = e
	}
	sorted := make([]Edit, 0, len(edits))
	for _, k := range slices.Sorted(maps.Keys(edits)) {
		sorted = append(sorted, edits[k])
	}
	return sorted
}

func mustApply(t testing.TB, tr *Tree, edits []Edit) *Tree {
	t.Helper()
	root, err := tr.Apply(t.Context(), slices.Values(edits))
	if err != nil {
		t.Fatalf("Apply of %d edits: %v", len(edits), err)
	}
	return tr.At(root)
}

func mustBuild(t testing.TB, tr *Tree, records iter.Seq[store.Entry]) *Tree {
	t.Helper()
	root, err := tr.Build(t.Context(), records)
	if err != nil {
		t.Fatalf("Build: %v", err)
	}
	return tr.At(root)
}

// records returns all that is in tr.
func records(t testing.TB, tr *Tree) []store.Entry {
	t.Helper()
	var all []store.Entry
	it := tr.Seek(t.Context(), nil)
	for it.Next(t.Context()) {
		all = append(all, it.Entry())
	}
	if it.Err() != nil {
		t.Fatalf("Next: %v", it.Err())
	}
	return all
}

func sameRecords(a, b []store.Entry) bool {
	return slices.EqualFunc(a, b, func(x, y store.Entry) bool { return sameEntry(&x, &y) })
}

// check verifies the shape of tr: levels, order, sizes, that boundaries are where the rule wants them, and that the
// root is collapsed.
func check(t testing.TB, tr *Tree) {
	t.Helper()
	if tr.root.IsZero() {
		return
	}
	n, err := tr.load(t.Context(), tr.root)
	if err != nil {
		t.Fatal(err)
	}
	if n.Level > 0 && len(n.Entries) == 1 {
		t.Errorf("root of level %d has one child", n.Level)
	}
	checkNode(t, tr, n, true)
}

func checkNode(t testing.TB, tr *Tree, n *store.Node, last bool) {
	t.Helper()
	total := 0
	for i := range n.Entries {
		e := &n.Entries[i]
		if i > 0 && bytes.Compare(n.Entries[i-1].Key, e.Key) >= 0 {
			t.Fatalf("level %d: key %x after %x", n.Level, e.Key, n.Entries[i-1].Key)
		}
		total += entrySize(e)
		ends := tr.rule.endsAfter(int(n.Level), e.Key, entrySize(e), i+1, total)
		if want := i == len(n.Entries)-1; ends != want && !(want && last) {
			t.Fatalf("level %d: end after entry %d of %d is %t", n.Level, i, len(n.Entries), ends)
		}
		if before := total - entrySize(e); before >= tr.opt.Max && i >= minChildren {
			t.Fatalf("level %d: entry %d of %d comes after %d bytes", n.Level, i, len(n.Entries), before)
		}
		if n.Level > 0 {
			c, err := tr.child(t.Context(), n, i)
			if err != nil {
				t.Fatal(err)
			}
			checkNode(t, tr, c, last && i == len(n.Entries)-1)
		}
	}
	if !last && (total < tr.opt.Min || n.Level > 0 && len(n.Entries) < minChildren) {
		t.Fatalf("level %d: node of %d entries and %d bytes", n.Level, len(n.Entries), total)
	}
}
