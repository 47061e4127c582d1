package tree

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dedupfs/dedupfs/store"
)

// rounds returns short, or long if the long tests are wanted.
func rounds(short, long int) int {
	if os.Getenv("DEDUPFS_LONG") != "" {
		return long
	}
	return short
}

// TestHistory is the promise of the package: after any edits the tree is the one built from the same records.
func TestHistory(t *testing.T) {
	rnd := newRand(t)
	deepest := 0
	for range rounds(150, 20_000) {
		st := newMemStore()
		tr := New(st, store.Ref{}, tinyOptions(rnd))
		want := model{}
		space := 1 + rnd.IntN(3000)
		for range 1 + rnd.IntN(15) {
			edits := randomEdits(rnd, want, 1+rnd.IntN(1+rnd.IntN(400)), space)
			tr = mustApply(t, tr, edits)
			want.apply(edits)
			if built := mustBuild(t, tr, want.sorted()); !sameRef(built.root, tr.root) {
				t.Fatalf("after %d edits of %d records the root is not that of a new tree", len(edits), len(want))
			}
		}
		if len(want) == 0 != tr.root.IsZero() {
			t.Fatalf("root of %d records is %v", len(want), tr.root)
		}
		check(t, tr)
		if got := records(t, tr); !sameRecords(got, slices.Collect(want.sorted())) {
			t.Fatalf("tree has %d records and they are not the %d expected", len(got), len(want))
		}
		if !tr.root.IsZero() {
			deepest = max(deepest, int(st.nodes[tr.root.ID].Level))
		}
	}
	if deepest < 3 {
		t.Errorf("deepest root had level %d; the test wants deep trees", deepest)
	}
}

// TestHistoryOneByOne builds a tree by single edits in random order, and takes it down again in another.
func TestHistoryOneByOne(t *testing.T) {
	rnd := newRand(t)
	tr := New(newMemStore(), store.Ref{}, tinyOptions(rnd))
	want := model{}
	step := func(e Edit) {
		tr = mustApply(t, tr, []Edit{e})
		want.apply([]Edit{e})
		if built := mustBuild(t, tr, want.sorted()); !sameRef(built.root, tr.root) {
			t.Fatalf("at %d records the root is not that of a new tree", len(want))
		}
	}
	for _, i := range rnd.Perm(300) {
		k := binary.BigEndian.AppendUint64(nil, uint64(i))
		step(Edit{k, randomEntry(rnd, k)})
	}
	for _, i := range rnd.Perm(300) {
		step(Edit{binary.BigEndian.AppendUint64(nil, uint64(i)), nil})
	}
	if !tr.root.IsZero() {
		t.Errorf("root of the empty tree is %v", tr.root)
	}
}

// TestEdges deletes from the front, from the end, and all but one record, where levels vanish.
func TestEdges(t *testing.T) {
	rnd := newRand(t)
	for range rounds(40, 2000) {
		st := newMemStore()
		full := model{}
		for range 400 {
			k := randomKey(rnd, 5000)
			full[string(k)] = *randomEntry(rnd, k)
		}
		all := slices.Collect(full.sorted())
		tr := mustBuild(t, New(st, store.Ref{}, tinyOptions(rnd)), full.sorted())
		from, to := rnd.IntN(len(all)), 0
		to = from + rnd.IntN(len(all)-from+1)
		for _, keep := range [][]store.Entry{all[from:to], all[:from], all[to:], all[:1], all[len(all)-1:]} {
			var edits []Edit
			for _, e := range all {
				if len(keep) == 0 || bytes.Compare(e.Key, keep[0].Key) < 0 || bytes.Compare(e.Key, keep[len(keep)-1].Key) > 0 {
					edits = append(edits, Edit{Key: e.Key})
				}
			}
			got, want := mustApply(t, tr, edits), mustBuild(t, tr, slices.Values(keep))
			if !sameRef(got.root, want.root) {
				t.Fatalf("%d of %d records kept: root is not that of a new tree", len(keep), len(all))
			}
			check(t, got)
		}
	}
}

// TestLastBranch deletes all that comes before a node which, as the last of its level, has a single child: the root is
// then below it.
func TestLastBranch(t *testing.T) {
	rnd := newRand(t)
	for found := 0; found < 20; {
		st := newMemStore()
		full := model{}
		full.apply(randomEdits(rnd, full, 400, 5000))
		tr := mustBuild(t, New(st, store.Ref{}, tinyOptions(rnd)), full.sorted())
		n := st.nodes[tr.root.ID]
		for n.Level > 1 && len(n.Entries) > 1 {
			n = st.nodes[n.Entries[len(n.Entries)-1].Refs[0].ID]
		}
		if len(n.Entries) > 1 {
			continue
		}
		found++
		var edits []Edit
		for e := range full.sorted() {
			if bytes.Compare(e.Key, n.Entries[0].Key) < 0 {
				edits = append(edits, Edit{Key: e.Key})
			}
		}
		full.apply(edits)
		got, want := mustApply(t, tr, edits), mustBuild(t, tr, full.sorted())
		if !sameRef(got.root, want.root) {
			t.Fatalf("%d records kept below a branch of level %d: root is not that of a new tree", len(full), n.Level)
		}
	}
}

// TestBoundaries pins where nodes begin. It is part of the format: another rule makes trees that share nothing with the
// old ones.
func TestBoundaries(t *testing.T) {
	for name, c := range map[string]struct {
		opt  Options
		want string
	}{
		"default": {Options{Key: [16]byte{1, 2, 3}}, "fb01182c6d7efefe53aa7b8c75d9650a"},
		"small":   {Options{Key: [16]byte{1, 2, 3}, Min: 100, Target: 300, Max: 400}, "da6ac8ff83766c13c6b2d8600dcc71db"},
	} {
		t.Run(name, func(t *testing.T) {
			st := newMemStore()
			tr := mustBuild(t, New(st, store.Ref{}, c.opt), inodeRecords(20_000))
			h := sha256.New()
			cur := cursor{t: tr}
			for !cur.begun || len(cur.stack) > 0 {
				e, level := cur.head()
				if e != nil && level > 0 {
					fmt.Fprintf(h, "%d %x\n", level-1, e.Key)
				}
				if e != nil && level == 0 {
					cur.skip()
				} else if err := cur.down(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got := hex.EncodeToString(h.Sum(nil)[:16]); got != c.want {
				t.Errorf("boundaries hash to %s, want %s", got, c.want)
			}
		})
	}
}

func TestGet(t *testing.T) {
	rnd := newRand(t)
	want := model{}
	for range 2000 {
		k := randomKey(rnd, 8000)
		want[string(k)] = *randomEntry(rnd, k)
	}
	tr := mustBuild(t, New(newMemStore(), store.Ref{}, tinyOptions(rnd)), want.sorted())
	sorted := slices.Collect(want.sorted())
	for range 5000 {
		k := randomKey(rnd, 8500)
		w, ok := want[string(k)]
		e, found, err := tr.Get(t.Context(), k)
		if err != nil || found != ok || found && !sameEntry(&e, &w) {
			t.Fatalf("Get(%x) = %v, %t, %v; want %v, %t", k, e, found, err, w, ok)
		}

		i, _ := slices.BinarySearchFunc(sorted, k, func(e store.Entry, k []byte) int { return bytes.Compare(e.Key, k) })
		e, found, err = tr.Last(t.Context(), k)
		if err != nil || found != (i > 0) || found && !sameEntry(&e, &sorted[i-1]) {
			t.Fatalf("Last(%x) = %v, %t, %v", k, e, found, err)
		}

		it := tr.Seek(t.Context(), k)
		for j := i; j < min(i+10, len(sorted)); j++ {
			if !it.Next(t.Context()) {
				t.Fatalf("Seek(%x) ends after %d records: %v", k, j-i, it.Err())
			}
			if e := it.Entry(); !sameEntry(&e, &sorted[j]) {
				t.Fatalf("Seek(%x): record %d is %x, want %x", k, j-i, e.Key, sorted[j].Key)
			}
		}
		if i+10 > len(sorted) && (it.Next(t.Context()) || it.Err() != nil || it.Next(t.Context())) {
			t.Fatalf("Seek(%x) goes on after the end, or with error %v", k, it.Err())
		}
	}
	if e, ok, err := tr.Last(t.Context(), nil); err != nil || !ok || !sameEntry(&e, &sorted[len(sorted)-1]) {
		t.Errorf("Last(nil) = %v, %t, %v", e, ok, err)
	}
}

func TestEmpty(t *testing.T) {
	st := newMemStore()
	tr := New(st, store.Ref{}, Options{})
	if _, ok, err := tr.Get(t.Context(), []byte("a")); ok || err != nil {
		t.Errorf("Get = %t, %v", ok, err)
	}
	if _, ok, err := tr.Last(t.Context(), nil); ok || err != nil {
		t.Errorf("Last = %t, %v", ok, err)
	}
	if it := tr.Seek(t.Context(), nil); it.Next(t.Context()) || it.Err() != nil {
		t.Errorf("Next: %v", it.Err())
	}
	if got := mustApply(t, tr, []Edit{{Key: []byte("a")}}); !got.root.IsZero() {
		t.Errorf("deletion in the empty tree gives %v", got.root)
	}
	if st.loads+st.saves > 0 {
		t.Errorf("the empty tree cost %d loads, %d saves", st.loads, st.saves)
	}
}

func TestBadEdits(t *testing.T) {
	at := func(k string) Edit { return Edit{Key: []byte(k), Entry: &store.Entry{}} }
	big := func(e store.Entry) Edit { return Edit{Key: []byte("k"), Entry: &e} }
	for name, c := range map[string]struct {
		edits []Edit
		want  string
	}{
		"descending": {[]Edit{at("b"), at("a")}, "must ascend"},
		"twice":      {[]Edit{at("a"), at("a")}, "must ascend"},
		"no key":     {[]Edit{at("")}, "key of 0 bytes"},
		"long key":   {[]Edit{at(strings.Repeat("k", store.MaxKey+1))}, "key of 513 bytes"},
		"long value": {[]Edit{big(store.Entry{Value: make([]byte, store.MaxValue+1)})}, "value of 1025 bytes"},
		"many refs":  {[]Edit{big(store.Entry{Refs: make([]store.Ref, 2000)})}, "2000 references"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := New(newMemStore(), store.Ref{}, Options{})
			if _, err := tr.Apply(t.Context(), slices.Values(c.edits)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Apply = %v, want %q", err, c.want)
			}
		})
	}
}

// TestLargest fills nodes with records of every size up to the largest: none may grow beyond what the codec takes.
func TestLargest(t *testing.T) {
	rnd := newRand(t)
	st := newMemStore()
	tr := New(st, store.Ref{}, Options{Max: store.MaxNode / 2})
	var all []store.Entry
	for i := range 600 {
		e := store.Entry{Key: binary.BigEndian.AppendUint64(nil, uint64(i)), Value: make([]byte, rnd.IntN(store.MaxValue+1))}
		e.Key = append(e.Key, make([]byte, rnd.IntN(store.MaxKey-7))...)
		room := (tr.rule.maxRecord() - entrySize(&e)) / refSize
		e.Refs = make([]store.Ref, rnd.IntN(room+1))
		all = append(all, e)
	}
	tr = mustBuild(t, tr, slices.Values(all)) // memStore refuses nodes over store.MaxNode
	check(t, tr)
}

// TestFailures lets the i-th call of the store fail, for all i. What is tried again works, and the old tree is as it was.
func TestFailures(t *testing.T) {
	rnd := newRand(t)
	st := newMemStore()
	before := model{}
	for range 500 {
		k := randomKey(rnd, 3000)
		before[string(k)] = *randomEntry(rnd, k)
	}
	old := mustBuild(t, New(st, store.Ref{}, tinyOptions(rnd)), before.sorted())
	edits := randomEdits(rnd, before, 100, 3000)
	want := mustApply(t, old, edits)
	for i := 1; ; i++ {
		st.failAfter = i
		root, err := old.Apply(t.Context(), slices.Values(edits))
		if err == nil {
			if i < 10 || !sameRef(root, want.root) {
				t.Errorf("Apply makes %d calls and gives %v, want %v", i-1, root, want.root)
			}
			break
		}
		var ne *NodeError
		if !errors.As(err, &ne) || !errors.Is(err, errInjected) {
			t.Fatalf("Apply with call %d failing = %v", i, err)
		}
		if ne.Op == "load" && !strings.Contains(err.Error(), ne.Ref.ID.String()) {
			t.Fatalf("error does not name the node: %v", err)
		}
	}
	st.failAfter = 0
	if got := mustApply(t, old, edits); !sameRef(got.root, want.root) {
		t.Errorf("after failures Apply gives another tree")
	}
}

// TestIterRetries lets every third load fail.
func TestIterRetries(t *testing.T) {
	rnd := newRand(t)
	st := newMemStore()
	want := model{}
	for range 500 {
		k := randomKey(rnd, 3000)
		want[string(k)] = *randomEntry(rnd, k)
	}
	tr := mustBuild(t, New(st, store.Ref{}, tinyOptions(rnd)), want.sorted())
	var got []store.Entry
	failures := 0
	st.failAfter = 1
	it := tr.Seek(t.Context(), nil)
	for {
		if it.Next(t.Context()) {
			got = append(got, it.Entry())
			continue
		}
		if it.Err() == nil {
			break
		}
		failures++
		st.failAfter = 3
	}
	if failures < 10 || !sameRecords(got, slices.Collect(want.sorted())) {
		t.Errorf("after %d failures, %d records of %d", failures, len(got), len(want))
	}
}

// TestMalformed gives nodes that are not what their parents say.
func TestMalformed(t *testing.T) {
	leaf := &store.Node{Entries: []store.Entry{{Key: []byte("a")}}}
	parent := func(level uint8, key string, refs ...store.Ref) *store.Node {
		return &store.Node{Level: level, Entries: []store.Entry{{Key: []byte(key), Refs: refs}}}
	}
	for name, make := range map[string]func(leaf store.Ref) *store.Node{
		"wrong level":  func(r store.Ref) *store.Node { return parent(2, "a", r) },
		"wrong key":    func(r store.Ref) *store.Node { return parent(1, "b", r) },
		"no ref":       func(store.Ref) *store.Node { return parent(1, "a") },
		"two refs":     func(r store.Ref) *store.Node { return parent(1, "a", r, r) },
		"chunk as ref": func(r store.Ref) *store.Node { r.Kind = store.RefChunk; return parent(1, "a", r) },
		"no entries":   func(store.Ref) *store.Node { return &store.Node{Level: 1} },
	} {
		t.Run(name, func(t *testing.T) {
			st := newMemStore()
			r, _ := st.Save(t.Context(), leaf)
			root := store.Ref{ID: store.ID{1}, Kind: store.RefNode}
			st.nodes[root.ID] = make(r)
			tr := New(st, root, Options{})
			if _, _, err := tr.Get(t.Context(), []byte("a")); !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("Get = %v, want ErrCorrupt", err)
			}
			if _, err := tr.Apply(t.Context(), slices.Values([]Edit{{Key: []byte("a")}})); !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("Apply = %v, want ErrCorrupt", err)
			}
			it := tr.Seek(t.Context(), nil)
			if it.Next(t.Context()); !errors.Is(it.Err(), store.ErrCorrupt) {
				t.Errorf("Next = %v, want ErrCorrupt", it.Err())
			}
		})
	}
}

func TestApplyStopsWhenCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	edits := func(yield func(Edit) bool) {
		for ; n < 1_000_000; n++ {
			if n == 1000 {
				cancel()
			}
			if !yield(Edit{binary.BigEndian.AppendUint64(nil, uint64(n)), &store.Entry{}}) {
				return
			}
		}
	}
	if _, err := New(newMemStore(), store.Ref{}, Options{}).Apply(ctx, edits); !errors.Is(err, context.Canceled) || n > 3000 {
		t.Errorf("Apply = %v after %d edits", err, n)
	}
}

// TestSipHash has vectors of the reference implementation: key 00..0f, message 00, 01, ...
func TestSipHash(t *testing.T) {
	const k0, k1 = 0x0706050403020100, 0x0f0e0d0c0b0a0908
	for n, want := range map[int]string{
		0: "310e0edd47db6f72", 1: "fd67dc93c539f874", 7: "37d1018bf50002ab",
		8: "6224939a79f5f593", 15: "e545be4961ca29a1", 63: "724506eb4c328a95",
	} {
		var msg []byte
		for i := range n {
			msg = append(msg, byte(i))
		}
		if got := hex.EncodeToString(binary.LittleEndian.AppendUint64(nil, sipHash(k0, k1, msg))); got != want {
			t.Errorf("sipHash(%d bytes) = %s, want %s", n, got, want)
		}
	}
}
