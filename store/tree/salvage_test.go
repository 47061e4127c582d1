package tree

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/dedupfs/dedupfs/store"
)

// below returns all records below ref.
func below(t *testing.T, tr *Tree, ref store.Ref) map[string]bool {
	t.Helper()
	keys := map[string]bool{}
	for _, e := range records(t, tr.At(ref)) {
		keys[string(e.Key)] = true
	}
	return keys
}

// TestSalvage loses nodes at random, at all levels: what is left is the tree that is built of the other records, the gaps are
// where records are missing, and a walk that takes lost nodes for empty ones sees the same.
func TestSalvage(t *testing.T) {
	rnd := newRand(t)
	lostInner := 0
	for range rounds(200, 5000) {
		st := newMemStore()
		full := model{}
		for range 1 + rnd.IntN(600) {
			k := randomKey(rnd, 5000)
			full[string(k)] = *randomEntry(rnd, k)
		}
		tr := mustBuild(t, New(st, store.Ref{}, tinyOptions(rnd)), full.sorted())
		var inTree []store.ID
		for id := range st.nodes {
			inTree = append(inTree, id)
		}
		slices.SortFunc(inTree, func(a, b store.ID) int { return bytes.Compare(a[:], b[:]) })
		lost := map[store.ID]*store.Node{}
		gone := map[string]bool{}
		for range 1 + rnd.IntN(3) {
			id := inTree[rnd.IntN(len(inTree))]
			if id == tr.root.ID && rnd.IntN(4) > 0 {
				continue
			}
			for k := range below(t, tr, store.Ref{ID: id, Kind: store.RefNode}) {
				gone[k] = true
			}
			lost[id] = st.nodes[id]
			if st.nodes[id].Level > 0 {
				lostInner++
			}
		}
		for id := range lost {
			delete(st.nodes, id)
		}
		suspect := func(id store.ID) bool { return lost[id] != nil }
		root, gaps, err := tr.Salvage(t.Context(), suspect, func(error) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		want := model{}
		for k, e := range full {
			if !gone[k] {
				want[k] = e
			}
			inGap := slices.ContainsFunc(gaps, func(g Gap) bool { return k >= string(g.From) && (g.To == nil || k < string(g.To)) })
			if inGap != gone[k] {
				t.Fatalf("record %x is lost: %v; it is in a gap: %v", k, gone[k], inGap)
			}
		}
		if built := mustBuild(t, tr, want.sorted()); !sameRef(built.root, root) {
			t.Fatalf("%d of %d records are left, and the root is not that of a new tree of them", len(want), len(full))
		}
		check(t, tr.At(root))

		o := tr.opt
		o.Gone = func(err error) bool { return errors.As(err, new(*NodeError)) }
		var seen []store.Entry
		err = Diff(t.Context(), New(st, tr.root, o), tr.At(store.Ref{}), func(_ []byte, e, _ *store.Entry) error {
			seen = append(seen, *e)
			return nil
		})
		left := slices.Collect(want.sorted())
		if err != nil || !sameRecords(seen, left) {
			t.Fatalf("a walk that passes what is gone sees %d records, %v; want %d", len(seen), err, len(left))
		}
		if got := records(t, New(st, tr.root, o)); !sameRecords(got, left) {
			t.Fatalf("an iterator that passes what is gone sees %d records, want %d", len(got), len(left))
		}
		from := randomKey(rnd, 5000)
		i, _ := slices.BinarySearchFunc(left, from, func(e store.Entry, k []byte) int { return bytes.Compare(e.Key, k) })
		it := New(st, tr.root, o).Seek(t.Context(), from)
		if ok := it.Next(t.Context()); ok != (i < len(left)) || ok && !bytes.Equal(it.Entry().Key, left[i].Key) {
			t.Fatalf("Seek(%x) finds another record than the next that is left", from)
		}
	}
	if lostInner < 10 {
		t.Errorf("only %d inner nodes were lost", lostInner)
	}
}

// TestSalvageError returns what is no loss as an error.
func TestSalvageError(t *testing.T) {
	rnd := newRand(t)
	st := newMemStore()
	full := model{}
	for range 300 {
		k := randomKey(rnd, 5000)
		full[string(k)] = *randomEntry(rnd, k)
	}
	tr := mustBuild(t, New(st, store.Ref{}, tinyOptions(rnd)), full.sorted())
	st.failAfter = 3
	all := func(store.ID) bool { return true }
	if _, _, err := tr.Salvage(t.Context(), all, func(err error) bool { return !errors.Is(err, errInjected) }); !errors.Is(err, errInjected) {
		t.Errorf("Salvage = %v, want the error of the store", err)
	}
}
