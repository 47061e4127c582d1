package tree

import (
	"errors"
	"slices"
	"testing"

	"github.com/dedupfs/dedupfs/store"
)

type change struct {
	key  string
	a, b *store.Entry
}

func diff(t testing.TB, a, b *Tree) []change {
	t.Helper()
	var all []change
	err := Diff(t.Context(), a, b, func(key []byte, ea, eb *store.Entry) error {
		all = append(all, change{string(key), ea, eb})
		return nil
	})
	if err != nil {
		t.Fatalf("Diff: %v", err)
	}
	return all
}

// want returns the changes between two models.
func wantDiff(a, b model) []change {
	keys := model{}
	for _, m := range []model{a, b} {
		for k, e := range m {
			keys[k] = e
		}
	}
	var all []change
	for e := range keys.sorted() {
		k := string(e.Key)
		ea, inA := a[k]
		eb, inB := b[k]
		switch {
		case inA && inB && !sameEntry(&ea, &eb):
			all = append(all, change{k, &ea, &eb})
		case inA && !inB:
			all = append(all, change{k, &ea, nil})
		case !inA && inB:
			all = append(all, change{k, nil, &eb})
		}
	}
	return all
}

func sameChange(x, y change) bool {
	same := func(a, b *store.Entry) bool { return (a == nil) == (b == nil) && (a == nil || sameEntry(a, b)) }
	return x.key == y.key && same(x.a, y.a) && same(x.b, y.b)
}

func TestDiff(t *testing.T) {
	rnd := newRand(t)
	for range rounds(300, 20_000) {
		st := newMemStore()
		o := tinyOptions(rnd)
		space := 1 + rnd.IntN(3000)
		a := model{}
		a.apply(randomEdits(rnd, a, 1+rnd.IntN(1000), space))
		b := model{}
		if rnd.IntN(4) > 0 {
			b.apply(slices.Collect(edits(a)))
		}
		b.apply(randomEdits(rnd, b, 1+rnd.IntN(1+rnd.IntN(300)), space))
		ta, tb := mustBuild(t, New(st, store.Ref{}, o), a.sorted()), mustBuild(t, New(st, store.Ref{}, o), b.sorted())
		if got, want := diff(t, ta, tb), wantDiff(a, b); !slices.EqualFunc(got, want, sameChange) {
			t.Fatalf("Diff of %d and %d records gives %d changes, want %d", len(a), len(b), len(got), len(want))
		}
	}
}

// edits returns what makes m of an empty model.
func edits(m model) func(yield func(Edit) bool) {
	return func(yield func(Edit) bool) {
		for e := range m.sorted() {
			if !yield(Edit{e.Key, &e}) {
				return
			}
		}
	}
}

// TestDiffCost counts loads: two per difference and level, and some where boundaries have moved.
func TestDiffCost(t *testing.T) {
	st, tr := costTree(t)
	rnd := newRand(t)
	depth := levels(st, tr)
	for _, n := range []int{1, 10, 100} {
		var sets [3][]Edit
		for _, i := range rnd.Perm(costRecords)[:n] {
			changed := inodeRecord(i, 1)
			inserted := inodeRecord(i, 1)
			inserted.Key = append(slices.Clone(inserted.Key), 1)
			sets[0] = append(sets[0], Edit{changed.Key, &changed})
			sets[1] = append(sets[1], Edit{inserted.Key, &inserted})
			sets[2] = append(sets[2], Edit{changed.Key, nil})
		}
		for _, set := range sets {
			slices.SortFunc(set, func(a, b Edit) int { return slices.Compare(a.Key, b.Key) })
			other := mustApply(t, tr, set)
			st.reset()
			got := len(diff(t, tr, other))
			t.Logf("%d differences: %d loads in %d levels", got, st.loads, depth)
			if most := 2*depth*n + 40; got != n || st.loads > most {
				t.Errorf("%d differences, want %d; %d loads, want at most %d", got, n, st.loads, most)
			}
		}
	}
}

// TestDiffHeights compares a tree with a piece of itself, which has fewer levels.
func TestDiffHeights(t *testing.T) {
	st, tr := costTree(t)
	small := mustBuild(t, tr, inodeRecords(costRecords/100))
	if levels(st, small) >= levels(st, tr) {
		t.Fatalf("both have %d levels", levels(st, tr))
	}
	st.reset()
	if got := len(diff(t, small, tr)); got != costRecords-costRecords/100 {
		t.Errorf("%d differences", got)
	}
	for id, n := range st.loaded {
		if n > 2 {
			t.Errorf("node of level %d loaded %d times", st.nodes[id].Level, n)
		}
	}
	shared := nodeRefs(t, small)
	st.reset()
	diff(t, small, tr)
	unseen := 0
	for id := range shared {
		if st.nodes[id].Level == 0 && st.loaded[id] == 0 {
			unseen++
		}
	}
	if unseen < 10 || unseen < len(shared)*8/10 {
		t.Errorf("%d of %d shared nodes were not loaded", unseen, len(shared))
	}
}

func TestDiffStops(t *testing.T) {
	_, tr := costTree(t)
	stop := errors.New("stop")
	calls := 0
	err := Diff(t.Context(), tr, tr.At(store.Ref{}), func([]byte, *store.Entry, *store.Entry) error {
		calls++
		return stop
	})
	if err != stop || calls != 1 {
		t.Errorf("Diff = %v after %d calls", err, calls)
	}
}
