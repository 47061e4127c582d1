package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/remote/remotetest"
)

func TestHooks(t *testing.T) {
	_, table := randomTable(newRand(t), 6400)
	for i := range table {
		table[i].Hint = Hint{}
	}
	if n := len(Hooks(table)); n < 60 || n > 140 {
		t.Errorf("%d hooks of %d chunks, want about 100", n, len(table))
	}
	for n := 1; n < 20; n++ {
		got := Hooks(table[:n])
		if len(got) == 0 {
			t.Errorf("no hook of %d chunks", n)
		}
		reversed := slices.Clone(table[:n])
		slices.Reverse(reversed)
		again := Hooks(reversed)
		slices.Reverse(again)
		if !slices.Equal(got, again) {
			t.Errorf("hooks of %d chunks depend on their order", n)
		}
	}
	for i := range table {
		table[i].Hint.Off = uint32(i / 2)
	}
	if n := len(Hooks(table)); n < len(table)/2 {
		t.Errorf("%d hooks of %d groups, want one of each", n, len(table)/2)
	}
	if n := len(Hooks(nil)); n != 0 {
		t.Errorf("%d hooks of nothing", n)
	}
}

func randomHook(rng *rand.Rand) (h Hook) {
	binary.BigEndian.PutUint64(h[:], rng.Uint64())
	return h
}

// TestHookFilter checks that a full filter finds all that is in it, and takes few hooks for others, also when they are the least
// of groups and so begin alike.
func TestHookFilter(t *testing.T) {
	rng := newRand(t)
	const n = 100_000
	for _, low := range []bool{false, true} {
		draw := func() Hook {
			h := randomHook(rng)
			if low {
				h[0] = byte(rng.IntN(4))
			}
			return h
		}
		f := newHookFilter(n)
		hooks := make([]Hook, n)
		for i := range hooks {
			hooks[i] = draw()
			f.add(hooks[i])
		}
		for _, h := range hooks {
			if !f.has(h) {
				t.Fatalf("hook %x is not found", h)
			}
		}
		wrong := 0
		for range n {
			if f.has(draw()) {
				wrong++
			}
		}
		if wrong > n/50 {
			t.Errorf("low %v: %d of %d hooks are taken for others, want less than 2%%", low, wrong, n)
		}
	}
}

// hookedOf returns what is announced of a table.
func hookedOf(n Name, table []TableEntry) HookedMultichunk {
	return HookedMultichunk{Name: n, Hooks: hooksOf(table)}
}

// champion finds the multichunk that the chunks of a table lead to.
func champion(t *testing.T, x *Index, table []TableEntry) (found Name) {
	t.Helper()
	for _, e := range table {
		n, ok, err := x.Champion(e.ID)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			found = n
		}
	}
	return found
}

// TestIndexHooks takes one multichunk through all that can become of it: hooks, table, hooks again, lost.
func TestIndexHooks(t *testing.T) {
	rng := newRand(t)
	db := openTestDB(t, t.TempDir())
	name, table := randomTable(rng, 500)
	other, otherTable := randomTable(rng, 500)
	x := NewIndex(db, nil)
	reopen := func() {
		t.Helper()
		x = NewIndex(db, nil)
		if !x.Sparse() {
			t.Error("the index says that there are no hooks before it has looked")
		}
		if champion(t, x, otherTable) != other {
			t.Error("no champion before the filter is there")
		}
		if err := x.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when string, sparse, has bool, lead Name) {
		t.Helper()
		for range 2 {
			if got, err := x.Has(table[7].ID); got != has || err != nil {
				t.Errorf("%s: Has = %v, %v, want %v", when, got, err, has)
			}
			if got := champion(t, x, table); got != lead {
				t.Errorf("%s: champion %v, want %v", when, got, lead)
			}
			if sparse != x.Sparse() {
				t.Errorf("%s: sparse %v, want %v", when, !sparse, sparse)
			}
			reopen()
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(x.AddHooks(t.Context(), []HookedMultichunk{hookedOf(name, table), hookedOf(other, otherTable), hookedOf(name, table)}))
	want("hooks", true, false, name)
	must(x.AddTable(name, table))
	want("table", true, true, Name{})
	must(x.AddHooks(t.Context(), []HookedMultichunk{hookedOf(name, table)}))
	want("hooks of a known table", true, true, Name{})
	if n, err := x.Chunks(); n != 500 || err != nil {
		t.Errorf("%d chunks, %v, want 500", n, err)
	}
	must(x.Trim(t.Context(), 0, func(n Name) bool { return n == name }))
	want("trimmed, but to be kept", true, true, Name{})
	must(x.Trim(t.Context(), 0, func(Name) bool { return false }))
	want("trimmed", true, false, name)
	if n, err := x.Chunks(); n != 0 || err != nil {
		t.Errorf("%d chunks, %v, want none", n, err)
	}
	must(x.AddTable(name, table))
	want("table again", true, true, Name{})
	must(x.Lose(name))
	want("lost", true, false, Name{})
	must(x.AddTable(name, table))
	must(x.AddHooks(t.Context(), []HookedMultichunk{hookedOf(name, table)}))
	want("added after it was lost", true, false, Name{})
	must(x.AddTable(other, otherTable))
	if x.Sparse() {
		t.Error("sparse although all tables are known")
	}
}

// TestIndexForgetsHooks takes out what is known by hooks alone.
func TestIndexForgetsHooks(t *testing.T) {
	x := NewIndex(openTestDB(t, t.TempDir()), nil)
	name, table := randomTable(newRand(t), 300)
	if err := x.AddHooks(t.Context(), []HookedMultichunk{hookedOf(name, table)}); err != nil {
		t.Fatal(err)
	}
	if err := x.Forget(name); err != nil {
		t.Fatal(err)
	}
	if got := champion(t, x, table); !got.IsZero() || x.Sparse() {
		t.Errorf("champion %v, sparse %v after all was forgotten", got, x.Sparse())
	}
}

// simulated returns n multichunks of 1,000 chunks each by their hooks, whose first is number first.
func simulated(first, n int) []HookedMultichunk {
	list := make([]HookedMultichunk, n)
	for i := range list {
		rng := rand.New(rand.NewPCG(uint64(first+i), 1))
		binary.BigEndian.PutUint64(list[i].Name[:], uint64(first+i+1))
		list[i].Hooks = make([]Hook, 20)
		for j := range list[i].Hooks {
			list[i].Hooks[j] = randomHook(rng)
		}
	}
	return list
}

// TestIndexThins adds more hooks than the filter has room for: fewer are kept, evenly, and the filter stays within its bound.
func TestIndexThins(t *testing.T) {
	const memory = minFilter * filterBits / 8
	db := openTestDB(t, t.TempDir())
	x := NewIndex(db, &IndexOptions{Memory: memory})
	for i := range 4 {
		if err := x.AddHooks(t.Context(), simulated(1000*i, 1000)); err != nil {
			t.Fatal(err)
		}
		if size := 8 * len(x.filter.Load().words); size > memory+64 {
			t.Errorf("the filter has %d bytes, want at most %d", size, memory)
		}
	}
	check := func() {
		t.Helper()
		if share := x.share.Load(); share != 8 {
			t.Fatalf("one hook of %d is kept, want one of 8", share)
		}
		found := 0
		for _, m := range simulated(0, 4000) {
			for _, h := range m.Hooks {
				var id ID
				copy(id[:], h[:])
				n, ok, err := x.Champion(id)
				if err != nil || ok && n != m.Name {
					t.Fatalf("Champion = %v, %v, want %v", n, err, m.Name)
				}
				if ok {
					found++
				}
			}
		}
		if found < 80_000/10 || found > 80_000/7 {
			t.Errorf("%d of 80,000 hooks are kept, want one of eight", found)
		}
		if x.hooks < uint64(found)*9/10 || x.hooks > uint64(found)*11/10 {
			t.Errorf("%d hooks counted, %d found", x.hooks, found)
		}
	}
	check()
	x = NewIndex(db, &IndexOptions{Memory: memory})
	if err := x.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	check()
}

// TestIndexExpects tells the index how many hooks will come: those that would be dropped are never written.
func TestIndexExpects(t *testing.T) {
	const memory = minFilter * filterBits / 8
	db := openTestDB(t, t.TempDir())
	x := NewIndex(db, &IndexOptions{Memory: memory})
	if err := x.AddHooks(t.Context(), simulated(0, 100)); err != nil {
		t.Fatal(err)
	}
	if err := x.Expect(t.Context(), minFilter/2); err != nil || x.share.Load() != 1 {
		t.Fatalf("one hook of %d is kept, %v, want all: there is room", x.share.Load(), err)
	}
	if err := x.Expect(t.Context(), 78_000); err != nil || x.share.Load() != 8 {
		t.Fatalf("one hook of %d is kept, %v, want one of 8", x.share.Load(), err)
	}
	if err := x.AddHooks(t.Context(), simulated(100, 3900)); err != nil {
		t.Fatal(err)
	}
	written := 0
	if err := x.each(t.Context(), indexHookPrefix, false, func(key, _ []byte) error { written++; return nil }); err != nil {
		t.Fatal(err)
	}
	if x.share.Load() != 8 || written < 80_000/10 || written > 80_000/7 {
		t.Errorf("%d of 80,000 hooks are in the database, and one of %d is kept, want one of 8", written, x.share.Load())
	}
	if size := 8 * len(x.filter.Load().words); size > memory+64 {
		t.Errorf("the filter has %d bytes, want at most %d", size, memory)
	}
}

func TestSeqSpans(t *testing.T) {
	rng := newRand(t)
	for range 200 {
		var s seqSpans
		in := map[Seq]bool{}
		for range rng.IntN(8) {
			from := Seq(1 + rng.IntN(30))
			span := seqSpan{from, from + Seq(rng.IntN(5))}
			s = s.union(seqSpans{span})
			for i := span.from; i <= span.to; i++ {
				in[i] = true
			}
		}
		head := Seq(rng.IntN(40))
		gaps := s.missing(head)
		n := Seq(0)
		for i := Seq(1); i <= 40; i++ {
			if s.has(i) != in[i] || gaps.has(i) != (!in[i] && i <= head) {
				t.Fatalf("%v up to %d: commit %d is in %v and missing %v, want %v", s, head, i, s.has(i), gaps.has(i), in[i])
			}
			if in[i] {
				n++
			}
		}
		if s.len() != n {
			t.Errorf("%v has %d commits, want %d", s, s.len(), n)
		}
		d := decoder{b: appendSpans(nil, s)}
		if got := d.spans(); d.bad || !reflect.DeepEqual(got, s) {
			t.Errorf("%v is read as %v", s, got)
		}
	}
}

// FuzzHookList checks that a list which is read is written again as it was.
func FuzzHookList(f *testing.F) {
	l := &hookList{covers: map[chain]seqSpans{{}: {{1, 2}, {5, 5}}}, contains: []hookListID{{1}}, multichunks: simulated(0, 2)}
	f.Add(appendHookList(nil, l))
	f.Add(appendHookList(nil, &hookList{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := parseHookList(b)
		if err != nil {
			return
		}
		again, err := parseHookList(appendHookList(nil, l))
		if err != nil || !reflect.DeepEqual(again, l) {
			t.Fatalf("%+v is read again as %+v, %v", l, again, err)
		}
	})
}

// announce publishes n commits, each with a multichunk, and returns the multichunks with their tables.
func (w *writer) announce(t testing.TB, rng *rand.Rand, n int) (tables map[Name][]TableEntry) {
	t.Helper()
	tables = map[Name][]TableEntry{}
	for range n {
		name, table := randomTable(rng, 150)
		tables[name] = table
		c := w.g.Next(w.last)
		c.Multichunks = []MultichunkInfo{{Name: name, Kind: KindData, Hooks: Hooks(table)}, {Name: Name(randomBytes(rng, 16)), Kind: KindNodes}}
		if _, err := w.r.PutCommit(t.Context(), c, w.key); err != nil {
			t.Fatal(err)
		}
		w.last = c
	}
	return tables
}

// loaderOf returns a loader of a new client.
func loaderOf(t testing.TB, r *Repository, o HookLoaderOptions) *HookLoader {
	return r.NewHookLoader(NewIndex(openTestDB(t, t.TempDir()), nil), o)
}

// expectAll expects that all tables are found by their hooks.
func expectAll(t *testing.T, what string, x *Index, tables map[Name][]TableEntry) {
	t.Helper()
	lost := 0
	for n, table := range tables {
		if champion(t, x, table) != n {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%s: %d of %d multichunks are not found", what, lost, len(tables))
	}
}

// TestHookLoader has a writer and others load and list hooks, while old commits go.
func TestHookLoader(t *testing.T) {
	rng := newRand(t)
	r, mem, _ := initMem(t)
	w := newWriter(t, r)
	own := loaderOf(t, r, HookLoaderOptions{Client: w.g.Client})
	all := map[Name][]TableEntry{}
	more := func(n int) {
		t.Helper()
		for name, table := range w.announce(t, rng, n) {
			all[name] = table
		}
	}
	heads := func() []Head { return []Head{w.last.Head()} }
	load := func(l *HookLoader) {
		t.Helper()
		if err := l.Load(t.Context(), heads()); err != nil {
			t.Fatal(err)
		}
	}
	more(20)
	load(own)
	expectAll(t, "commits", own.x, all)
	if n := len(mem.InDir(hooksDir)); n != 0 {
		t.Errorf("%d lists of 20 commits, want none", n)
	}
	for range 10 {
		more(listOwn)
		load(own)
	}
	expectAll(t, "own", own.x, all)
	if n := len(mem.InDir(hooksDir)); n != 11 { // one for each time, and a merged one
		t.Errorf("%d lists, want 11", n)
	}
	reader := loaderOf(t, openOn(t, mem), HookLoaderOptions{ReadOnly: true})
	load(reader)
	expectAll(t, "lists and commits", reader.x, all)
	if n := len(reader.lists); n != 3 {
		t.Errorf("%d lists are read that no other contains, want 3", n)
	}
	// What is listed need not be there any more, and contained lists need not either.
	for _, name := range mem.Names() {
		var client, incarnation string
		var group, seq uint64
		if n, _ := fmt.Sscanf(name, "commits/%32s/%32s/%x/%x-", &client, &incarnation, &group, &seq); n == 4 && seq < 300 && seq%3 > 0 {
			mem.Delete(t.Context(), name)
		}
	}
	if n, err := r.DeleteContainedHooks(t.Context()); n != 8 || err != nil {
		t.Errorf("DeleteContainedHooks = %d, %v, want 8", n, err)
	}
	late := loaderOf(t, openOn(t, mem), HookLoaderOptions{ReadOnly: true})
	load(late)
	expectAll(t, "lists after a clean-up", late.x, all)
	if report, err := r.Check(t.Context(), nil); err != nil || len(report.Foreign) > 0 {
		t.Errorf("Check = %v, %v", report, err)
	}
}

// TestHookLoaderReadsOnce counts gets: what has been loaded is not asked for again, by the next process either.
func TestHookLoaderReadsOnce(t *testing.T) {
	rng := newRand(t)
	_, mem, _ := initMem(t)
	fault := remotetest.NewFault(mem, nil)
	w := newWriter(t, openOn(t, mem))
	w.announce(t, rng, 100)
	db := openTestDB(t, t.TempDir())
	gets := func() int {
		t.Helper()
		l := openOn(t, fault).NewHookLoader(NewIndex(db, nil), HookLoaderOptions{ReadOnly: true})
		before := fault.Calls("get")
		if err := l.Load(t.Context(), []Head{w.last.Head()}); err != nil {
			t.Fatal(err)
		}
		return fault.Calls("get") - before
	}
	if n := gets(); n != 100 {
		t.Errorf("%d gets for 100 commits", n)
	}
	if n := gets(); n != 0 {
		t.Errorf("%d gets for what is there", n)
	}
	w.announce(t, rng, 3)
	if n := gets(); n != 3 {
		t.Errorf("%d gets for 3 new commits", n)
	}
}

// TestHookLoaderOthers lists the commits of a client that does not do it itself.
func TestHookLoaderOthers(t *testing.T) {
	rng := newRand(t)
	r, mem, _ := initMem(t)
	w := newWriter(t, r)
	all := w.announce(t, rng, listAll)
	l := loaderOf(t, r, HookLoaderOptions{})
	if err := l.Load(t.Context(), []Head{w.last.Head()}); err != nil {
		t.Fatal(err)
	}
	if n := len(mem.InDir(hooksDir)); n != 1 {
		t.Errorf("%d lists, want 1", n)
	}
	gone, _ := mem.Object(mem.InDir(hooksDir)[0])
	mem.Damage(mem.InDir(hooksDir)[0], func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	reader := loaderOf(t, openOn(t, mem), HookLoaderOptions{ReadOnly: true})
	err := reader.Load(t.Context(), []Head{w.last.Head()})
	var damaged *ObjectError
	if !errors.As(err, &damaged) || len(gone) == 0 {
		t.Errorf("Load = %v, want the damaged list", err)
	}
	expectAll(t, "commits", reader.x, all)
}

// TestHookLoaderAway gives up when the remote does, and goes on from there.
// TestMergeable checks that what is merged is enough to be worth it, and no more than may be in memory.
func TestMergeable(t *testing.T) {
	for _, c := range []struct {
		name  string
		sizes []int64
		want  int
	}{
		{"few", []int64{5000, 5000, 5000}, 0},
		{"of different lengths", []int64{5000, 10 << 10, 50 << 10, 200 << 10, 1 << 20, 3 << 20, 5000, 10 << 10}, 0},
		{"short", slices.Repeat([]int64{5000}, 9), 9},
		{"long", slices.Repeat([]int64{3 << 20}, 8), 2},
		{"nearly full", slices.Repeat([]int64{4<<20 - 1}, 8), 2},
		{"full", slices.Repeat([]int64{4 << 20}, 20), 0},
	} {
		l := &HookLoader{lists: map[hookListID]*hookList{}}
		for i, size := range c.sizes {
			l.lists[hookListID{byte(i)}] = &hookList{size: size}
		}
		sum := int64(0)
		ids := l.mergeable()
		for _, id := range ids {
			sum += l.lists[id].size
		}
		if len(ids) != c.want || sum > listsHeld {
			t.Errorf("%s: %d lists of %d bytes are merged, want %d", c.name, len(ids), sum, c.want)
		}
	}
}

func TestHookLoaderAway(t *testing.T) {
	rng := newRand(t)
	r, mem, _ := initMem(t)
	w := newWriter(t, r)
	all := w.announce(t, rng, 20)
	l := loaderOf(t, openOn(t, mem), HookLoaderOptions{ReadOnly: true})
	mem.SetGone(true)
	if err := l.Load(t.Context(), []Head{w.last.Head()}); !errors.Is(err, remote.ErrNotExist) {
		t.Errorf("Load = %v, want that the root is not there", err)
	}
	mem.SetGone(false)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Load(ctx, []Head{w.last.Head()}); !errors.Is(err, context.Canceled) {
		t.Errorf("Load = %v, want Canceled", err)
	}
	if err := l.Load(t.Context(), []Head{w.last.Head()}); err != nil {
		t.Fatal(err)
	}
	expectAll(t, "after all", l.x, all)
}
