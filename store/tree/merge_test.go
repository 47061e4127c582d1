package tree

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/dedupfs/dedupfs/store"
)

// resolveTest keeps both sides' values in one record, or whatever is left, so that swapped sides show.
func resolveTest(key []byte, base, a, b *store.Entry) (*store.Entry, error) {
	if base == nil && a == nil || base == nil && b == nil || sameOrNone(a, b) || sameOrNone(a, base) || sameOrNone(b, base) {
		return nil, errors.New("there was nothing to resolve")
	}
	if a == nil || b == nil {
		if len(key)%2 == 0 {
			return nil, nil
		}
		return &store.Entry{Value: []byte("edit wins")}, nil
	}
	return &store.Entry{Value: slices.Concat(a.Value, []byte("|"), b.Value)[:min(store.MaxValue, len(a.Value)+1+len(b.Value))]}, nil
}

func takeA(_ []byte, _, a, _ *store.Entry) (*store.Entry, error) { return a, nil }

// wantMerge does the same with models.
func wantMerge(t *testing.T, base, a, b model) model {
	merged := model{}
	keys := model{}
	for _, m := range []model{base, a, b} {
		for k := range m {
			keys[k] = store.Entry{Key: []byte(k)}
		}
	}
	at := func(m model, k string) *store.Entry {
		if e, ok := m[k]; ok {
			return &e
		}
		return nil
	}
	for k := range keys {
		e0, ea, eb := at(base, k), at(a, k), at(b, k)
		want := ea
		switch {
		case sameOrNone(ea, e0):
			want = eb
		case sameOrNone(eb, e0), sameOrNone(ea, eb):
		default:
			var err error
			if want, err = resolveTest([]byte(k), e0, ea, eb); err != nil {
				t.Fatal(err)
			}
		}
		if want != nil {
			merged[k] = store.Entry{Key: []byte(k), Value: want.Value, Refs: want.Refs}
		}
	}
	return merged
}

func TestMerge3(t *testing.T) {
	rnd := newRand(t)
	for range rounds(200, 20_000) {
		tr := New(newMemStore(), store.Ref{}, tinyOptions(rnd))
		space := 1 + rnd.IntN(2000)
		var m [3]model // base, a, b
		var trees [3]*Tree
		start := randomEdits(rnd, model{}, 1+rnd.IntN(800), space)
		for i := range m {
			m[i] = model{}
			m[i].apply(start)
			if i > 0 && rnd.IntN(8) > 0 {
				m[i].apply(randomEdits(rnd, m[i], 1+rnd.IntN(1+rnd.IntN(300)), space))
			}
			trees[i] = mustBuild(t, tr, m[i].sorted())
		}
		got, err := Merge3(t.Context(), trees[0], trees[1], trees[2], resolveTest)
		if err != nil {
			t.Fatal(err)
		}
		want := wantMerge(t, m[0], m[1], m[2])
		if built := mustBuild(t, tr, want.sorted()); !sameRef(got, built.root) {
			t.Fatalf("merge of %d, %d, %d records is not the tree of %d", len(m[0]), len(m[1]), len(m[2]), len(want))
		}
	}
}

// TestMerge3Cost merges a few changes with many, in both orders, and checks that the few decide the cost.
func TestMerge3Cost(t *testing.T) {
	st, base := costTree(t)
	few, many := changes(t, base, 5), changes(t, base, 5000)
	for name, sides := range map[string][2]*Tree{"few_many": {few, many}, "many_few": {many, few}} {
		t.Run(name, func(t *testing.T) {
			st.reset()
			_, err := Merge3(t.Context(), base, sides[0], sides[1], takeA)
			t.Logf("%d loads, %d saves", st.loads, st.saves)
			if most := 5 * 10 * levels(st, base); err != nil || st.loads > most || st.saves > most {
				t.Errorf("error %v, %d loads, %d saves; want at most %d", err, st.loads, st.saves, most)
			}
		})
	}
}

// changes returns tr with n records changed, evenly spread.
func changes(t *testing.T, tr *Tree, n int) *Tree {
	var edits []Edit
	for i := range n {
		edits = append(edits, one(inodeRecord(i*(costRecords/n), 1+n))...)
	}
	return mustApply(t, tr, edits)
}

func TestMerge3Errors(t *testing.T) {
	st, base := costTree(t)
	a, b := changes(t, base, 5), changes(t, base, 6)
	stop := errors.New("stop")
	fail := func([]byte, *store.Entry, *store.Entry, *store.Entry) (*store.Entry, error) { return nil, stop }
	if _, err := Merge3(t.Context(), base, a, b, fail); err != stop {
		t.Errorf("Merge3 = %v, want the error of resolve", err)
	}
	want, err := Merge3(t.Context(), base, a, b, takeA)
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; ; i++ {
		st.failAfter = i
		got, err := Merge3(t.Context(), base, a, b, takeA)
		if err == nil {
			if i < 20 || !sameRef(got, want) {
				t.Errorf("Merge3 makes %d calls and gives %v, want %v", i-1, got, want)
			}
			return
		}
		if !errors.Is(err, errInjected) {
			t.Fatalf("Merge3 with call %d failing = %v", i, err)
		}
	}
}

// TestFind moves a cursor through ascending keys, some of which are there.
func TestFind(t *testing.T) {
	rnd := newRand(t)
	for range 50 {
		m := model{}
		m.apply(randomEdits(rnd, m, 1+rnd.IntN(500), 2000))
		tr := mustBuild(t, New(newMemStore(), store.Ref{}, tinyOptions(rnd)), m.sorted())
		var keys [][]byte
		for range 1 + rnd.IntN(400) {
			keys = append(keys, randomKey(rnd, 2100))
		}
		slices.SortFunc(keys, bytes.Compare)
		c := cursor{t: tr}
		for _, k := range keys {
			got, err := c.find(t.Context(), k)
			want, ok := m[string(k)]
			if err != nil || (got != nil) != ok || ok && !sameEntry(got, &want) {
				t.Fatalf("find(%x) = %v, %v; want %v, %t", k, got, err, want, ok)
			}
		}
	}
}
