package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// poll expects to be told exactly want, and no error.
func expectHeads(t *testing.T, r *Repository, trust *Trust, want ...Head) {
	t.Helper()
	got, err := r.Poll(t.Context(), trust)
	if err != nil {
		t.Errorf("Poll: %v", err)
	}
	sameHeads(t, got, want)
	sameHeads(t, trust.Heads(), want)
}

func sameHeads(t *testing.T, got, want []Head) {
	t.Helper()
	want = slices.SortedFunc(slices.Values(want), compareHeads)
	if len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
		t.Errorf("heads %v, want %v", got, want)
	}
}

// expectRollback expects the report that a chain was rolled back from accepted to offered.
func expectRollback(t *testing.T, r *Repository, trust *Trust, accepted, offered Head) *RollbackError {
	t.Helper()
	before := trust.Heads()
	heads, err := r.Poll(t.Context(), trust)
	var rollback *RollbackError
	if !errors.As(err, &rollback) || !errors.Is(err, ErrRollback) {
		t.Fatalf("rolled back from %d to %d: Poll = %v, want a RollbackError", accepted.Seq, offered.Seq, err)
	}
	if rollback.Accepted != accepted || rollback.Offered != offered {
		t.Errorf("reported %+v, want from %v to %v", rollback, accepted, offered)
	}
	if shown := slices.Contains(heads, offered); shown == offered.IsZero() {
		t.Errorf("heads %v, offered %v", heads, offered)
	}
	sameHeads(t, trust.Heads(), before)
	return rollback
}

func expectFork(t *testing.T, r *Repository, trust *Trust, seq Seq) *ForkError {
	t.Helper()
	before := trust.Heads()
	_, err := r.Poll(t.Context(), trust)
	var fork *ForkError
	if !errors.As(err, &fork) || !errors.Is(err, ErrRollback) {
		t.Fatalf("Poll = %v, want a ForkError", err)
	}
	if fork.Seq != seq || fork.A.chain() != fork.B.chain() || fork.A.Hash == fork.B.Hash {
		t.Errorf("reported %+v, want a fork at %d", fork, seq)
	}
	sameHeads(t, trust.Heads(), before)
	return fork
}

func TestPollFollows(t *testing.T) {
	r, st, _ := initMem(t)
	reader, trust := openOn(t, st), new(Trust)
	expectHeads(t, reader, trust)
	a, b := newWriter(t, r), newWriter(t, r)
	expectHeads(t, reader, trust)
	a1 := a.commit(t)
	expectHeads(t, reader, trust, a1)
	b1 := b.commit(t, a1)
	expectHeads(t, reader, trust, a1, b1)
	late := a.commits(t, 600) // over two borders of groups
	expectHeads(t, reader, trust, late[599], b1)
	expectHeads(t, openOn(t, st), new(Trust), late[599], b1)
	a256 := a.commit(t, b1)
	expectHeads(t, reader, trust, a256, b1)
}

// TestPollRollback serves every older prefix of a chain to a client that has seen more, and to one that has not.
func TestPollRollback(t *testing.T) {
	r, st, _ := initMem(t)
	w, other := newWriter(t, r), newWriter(t, r)
	otherHead := other.commit(t)
	heads, states := []Head{{}}, []remotetest.Snapshot{st.Snapshot()}
	for range 260 {
		heads = append(heads, w.commit(t))
		states = append(states, st.Snapshot())
	}
	reader := openOn(t, st)
	served := 0
	for _, seen := range []int{1, 2, 255, 256, 257, 260} {
		for shown := range states {
			if !long && shown > 5 && shown < 250 && shown%20 != 0 {
				continue
			}
			st.Restore(states[seen])
			trust := new(Trust)
			expectHeads(t, reader, trust, heads[seen], otherHead)
			st.Restore(states[shown])
			if shown >= seen {
				expectHeads(t, reader, trust, heads[shown], otherHead)
				continue
			}
			expectRollback(t, reader, trust, heads[seen], heads[shown])
			served++
			if shown == 0 {
				expectHeads(t, reader, new(Trust), otherHead)
			} else {
				expectHeads(t, reader, new(Trust), heads[shown], otherHead)
			}
		}
	}
	if served < 60 {
		t.Errorf("only %d older states served", served)
	}
}

// TestPollRollbackStays shows that a rollback is reported until it is accepted or undone.
func TestPollRollbackStays(t *testing.T) {
	r, st, _ := initMem(t)
	w := newWriter(t, r)
	early := w.commits(t, 3)[2]
	old := st.Snapshot()
	late := w.commits(t, 3)[2]
	now := st.Snapshot()
	reader, trust := openOn(t, st), new(Trust)
	expectHeads(t, reader, trust, late)
	st.Restore(old)
	expectRollback(t, reader, trust, late, early)
	trust = reload(t, trust)
	rollback := expectRollback(t, reader, trust, late, early)
	st.Restore(now)
	expectHeads(t, reader, trust, late)
	st.Restore(old)
	trust.AcceptRollback(rollback)
	trust = reload(t, trust)
	expectHeads(t, reader, trust, early)
	if e := trust.Exceptions(); len(e) != 1 || e[0].Lost != late || e[0].Kept != early {
		t.Errorf("exceptions %+v", e)
	}
	// The writer itself notices, too.
	own := new(Trust)
	own.Accept(late)
	expectRollback(t, w.r, own, late, early)
}

// reload returns trust as it comes back from local disk.
func reload(t *testing.T, trust *Trust) *Trust {
	t.Helper()
	b, err := trust.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	got := new(Trust)
	if err := got.UnmarshalBinary(b); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestPollFork lets two copies of one cache directory publish.
func TestPollFork(t *testing.T) {
	r, st, _ := initMem(t)
	w := newWriter(t, r)
	common := w.commits(t, 4)[3]
	copied := w.clone()
	before := openOn(t, st)
	trust := new(Trust)
	expectHeads(t, before, trust, common)

	a := w.commits(t, 3)
	seenA := new(Trust)
	expectHeads(t, before, seenA, a[2])
	b := copied.commits(t, 5)

	expectFork(t, before, new(Trust), 5)
	expectFork(t, before, trust, 5)
	fork := expectFork(t, before, seenA, 5)
	if fork.A != b[4] || fork.B != a[2] {
		t.Errorf("branches %v and %v, want %v and %v", fork.A, fork.B, b[4], a[2])
	}
	expectFork(t, before, reload(t, seenA), 5)

	seenA.AcceptFork(fork)
	seenA = reload(t, seenA)
	expectHeads(t, before, seenA, b[4])
	b6 := copied.commit(t)
	expectHeads(t, before, seenA, b6)
	w.commits(t, 3) // the branch that was given up goes on beyond where it was
	expectFork(t, before, seenA, 10)
}

// TestPollSplitView shows each reader one branch of a fork, and then lets them meet.
func TestPollSplitView(t *testing.T) {
	r, st, _ := initMem(t)
	w := newWriter(t, r)
	common := w.commits(t, 4)[3]
	start := st.Snapshot()
	copied := w.clone()
	for _, lengths := range [][2]int{{1, 1}, {1, 3}, {3, 1}, {2, 2}} {
		st.Restore(start)
		wa, wb := w.clone(), copied.clone()
		a := wa.commits(t, lengths[0])
		viewA := st.Snapshot()
		st.Restore(start)
		b := wb.commits(t, lengths[1])
		viewB := st.Snapshot()

		reader, trust := openOn(t, st), new(Trust)
		st.Restore(viewA)
		expectHeads(t, reader, trust, a[len(a)-1])
		st.Restore(viewB)
		_, err := reader.Poll(t.Context(), trust)
		if !errors.Is(err, ErrRollback) {
			t.Errorf("branch of %d, then the other of %d: Poll = %v, want a report", lengths[0], lengths[1], err)
		}
		sameHeads(t, trust.Heads(), []Head{a[len(a)-1]})

		// Who has seen neither is shown one and accepts it; when the views are joined he is told.
		fresh := new(Trust)
		expectHeads(t, reader, fresh, b[len(b)-1])
		st.Restore(viewA)
		branch := make(map[string][]byte)
		for _, h := range a {
			name := reader.commitName(h)
			branch[name], _ = st.Object(name)
		}
		st.Restore(viewB)
		for name, wire := range branch {
			st.SetObject(name, wire)
		}
		expectFork(t, reader, fresh, common.Seq+1)
	}
}

// TestPollForkAtHead replaces the accepted head by another commit of the same number.
func TestPollForkAtHead(t *testing.T) {
	r, st, _ := initMem(t)
	w := newWriter(t, r)
	w.commits(t, 2)
	copied := w.clone()
	start := st.Snapshot()
	a := w.commit(t)
	reader, trust := openOn(t, st), new(Trust)
	expectHeads(t, reader, trust, a)
	st.Restore(start)
	b := copied.commit(t)
	fork := expectFork(t, reader, trust, 3)
	if fork.A != a || fork.B != b {
		t.Errorf("fork %+v", fork)
	}
}

// TestPollDamage damages the newest commit of one client in many ways. That is reported, the commit before stays, and
// others are not held up.
func TestPollDamage(t *testing.T) {
	r, st, _ := initMem(t)
	a, b := newWriter(t, r), newWriter(t, r)
	a1, b1 := a.commit(t), b.commit(t)
	reader, seen := openOn(t, st), new(Trust)
	expectHeads(t, reader, seen, a1, b1)
	a2, b2 := a.commit(t), b.commit(t)
	name := r.commitName(a2)
	for what, damage := range map[string]func([]byte) []byte{
		"bit":          func(b []byte) []byte { b[777] ^= 1; return b },
		"half-written": func(b []byte) []byte { return b[:len(b)/2] },
		"empty":        func([]byte) []byte { return nil },
		"longer":       func(b []byte) []byte { return append(b, 0) },
	} {
		intact := st.Snapshot()
		st.Damage(name, damage)
		for _, trust := range []*Trust{reload(t, seen), new(Trust)} {
			heads, err := reader.Poll(t.Context(), trust)
			var about *ObjectError
			if !errors.As(err, &about) || about.Object != name || !errors.Is(err, ErrCorrupt) || errors.Is(err, ErrRollback) {
				t.Errorf("%s: Poll = %v, want damage of %s", what, err, name)
			}
			sameHeads(t, heads, []Head{a1, b2})
			sameHeads(t, trust.Heads(), []Head{a1, b2})
		}
		st.Restore(intact)
	}
	expectHeads(t, reader, seen, a2, b2)
}

// TestPollDamagedAccepted damages the head that was accepted, and hides it from listings: that is damage and no
// rollback.
func TestPollDamagedAccepted(t *testing.T) {
	mem := remotetest.NewMem()
	r, _ := initOn(t, mem)
	w := newWriter(t, r)
	h := w.commits(t, 2)[1]
	f := remotetest.NewFault(mem, nil)
	reader, trust := openOn(t, f), new(Trust)
	expectHeads(t, reader, trust, h)
	mem.Damage(r.commitName(h), func(b []byte) []byte { b[777] ^= 1; return b })
	hidden := hides{f, r.commitName(h)}
	reader.st = hidden
	_, err := reader.Poll(t.Context(), trust)
	if !errors.Is(err, ErrCorrupt) || errors.Is(err, ErrRollback) {
		t.Errorf("Poll = %v, want damage", err)
	}
	sameHeads(t, trust.Heads(), []Head{h})
}

// hides is a Storage whose listings do not show one object.
type hides struct {
	remote.Storage
	name string
}

func (s hides) List(ctx context.Context, dir string, fn func(remote.Entry) error) error {
	return s.Storage.List(ctx, dir, func(e remote.Entry) error {
		if dir+"/"+e.Name == s.name {
			return nil
		}
		return fn(e)
	})
}

// TestPollListings polls through listings that are behind, doubled, full of junk, or fail.
func TestPollListings(t *testing.T) {
	mem := remotetest.NewMem()
	f := remotetest.NewFault(mem, nil)
	r, _ := initOn(t, f)
	w := newWriter(t, r)
	reader, trust := openOn(t, f), new(Trust)
	h := w.commits(t, 3)[2]
	expectHeads(t, reader, trust, h)

	f.Inject(remotetest.StaleList, "list", "", -1)
	expectHeads(t, reader, trust, h)
	f.Heal()
	f.Inject(remotetest.DoubledList, "list", "", -1)
	expectHeads(t, reader, trust, h)
	if f.Total() < 4 {
		t.Errorf("%d faults", f.Total())
	}
	f.Heal()
	dir := chainDir(h.chain())
	group := groupDir(h.chain(), 0)
	for _, junk := range []string{
		"commits/README", "commits/" + strings.Repeat("A", 32) + "/x", dir + "/x", dir + "/0000000000000g/x", group + "/x",
		group + "/0000000000000000-" + strings.Repeat("0", 32), group + "/+000000000000004-" + strings.Repeat("0", 32),
		group + "/0000000000000004-" + strings.Repeat("0", 31), group + "/0000000000000104-" + strings.Repeat("0", 32), group + "/0000000000000004-" + strings.Repeat("0", 32) + ".partial",
	} {
		mem.SetObject(junk, []byte("x"))
	}
	expectHeads(t, reader, trust, h)

	next := w.commit(t)
	for _, op := range []string{"list", "get"} {
		for i := range 3 {
			if op == "get" && i > 0 {
				continue
			}
			kind := remotetest.ErrBefore
			if op == "list" {
				kind = remotetest.BrokenList
			}
			failAt(f, kind, op, i)
			heads, err := reader.Poll(t.Context(), trust)
			if !errors.Is(err, remotetest.ErrInjected) || heads != nil {
				t.Errorf("%s %d fails: Poll = %v, %v", op, i, heads, err)
			}
			sameHeads(t, trust.Heads(), []Head{h})
			f.Heal()
		}
	}
	expectHeads(t, reader, trust, next)
}

// TestPollNotFoundOnce shows that one "not found" is no rollback.
func TestPollNotFoundOnce(t *testing.T) {
	mem := remotetest.NewMem()
	r, _ := initOn(t, mem)
	w := newWriter(t, r)
	h := w.commit(t)
	f := remotetest.NewFault(mem, nil)
	reader, trust := openOn(t, f), new(Trust)
	expectHeads(t, reader, trust, h)
	reader.st = hides{f, r.commitName(h)}
	f.Inject(remotetest.NotFound, "get", r.commitName(h), 1)
	expectHeads(t, reader, trust, h)
	if f.Total() != 1 {
		t.Error("the fault was not hit")
	}
	f.Inject(remotetest.NotFound, "get", r.commitName(h), 2)
	expectRollback(t, reader, trust, h, Head{})
}

// TestPollSeen learns from one client's commit of a newer commit of another, which the listings do not show.
func TestPollSeen(t *testing.T) {
	r, st, _ := initMem(t)
	a, b := newWriter(t, r), newWriter(t, r)
	b1 := b.commit(t)
	old := st.Snapshot()
	b2 := b.commit(t)
	a1 := a.commit(t, b2)
	for _, trust := range []*Trust{{}, {heads: map[chain]Head{b1.chain(): b1}}} {
		reader := openOn(t, st)
		reader.st = hides{st, r.commitName(b2)}
		expectHeads(t, reader, trust, a1, b2)
	}

	// b is rolled back, a is not.
	name := r.commitName(a1)
	wire, _ := st.Object(name)
	st.Restore(old)
	st.SetObject(name, wire)
	for _, trust := range []*Trust{{}, {heads: map[chain]Head{b1.chain(): b1}}} {
		reader := openOn(t, st)
		heads, err := reader.Poll(t.Context(), trust)
		var rollback *RollbackError
		if !errors.As(err, &rollback) || rollback.Accepted != b2 || rollback.Offered != b1 || rollback.SeenBy != a1 {
			t.Fatalf("Poll = %v, want that %v has seen %v", err, a1, b2)
		}
		sameHeads(t, heads, []Head{a1, b1})
		trust = reload(t, trust)
		again := expectRollback(t, reader, trust, b2, b1)
		trust.AcceptRollback(again)
		expectHeads(t, reader, trust, a1, b1)
		expectHeads(t, reader, reload(t, trust), a1, b1)
	}
}

// TestPollKnownLists counts the listings of a poll that finds nothing new, and of one that finds a new group.
func TestPollKnownLists(t *testing.T) {
	mem := remotetest.NewMem()
	f := remotetest.NewFault(mem, nil)
	r, _ := initOn(t, f)
	w := newWriter(t, r)
	heads := w.commits(t, 254)
	trust := new(Trust)
	expectHeads(t, r, trust, heads[253])
	lists, gets := f.Calls("list"), f.Calls("get")
	got, err := r.PollKnown(t.Context(), trust)
	if err != nil {
		t.Fatal(err)
	}
	sameHeads(t, got, heads[253:254])
	if f.Calls("list") != lists+1 || f.Calls("get") != gets {
		t.Errorf("%d listings, %d gets, want 1 and 0", f.Calls("list")-lists, f.Calls("get")-gets)
	}
	for range 600 {
		h := w.commit(t)
		got, err := r.PollKnown(t.Context(), trust)
		if err != nil {
			t.Fatal(err)
		}
		sameHeads(t, got, []Head{h})
	}
	late := w.commits(t, 300)[299]
	got, err = r.PollKnown(t.Context(), trust)
	if err != nil {
		t.Fatal(err)
	}
	sameHeads(t, got, []Head{late})
}

// TestPollLongAbsence counts what it costs to verify a thousand commits.
func TestPollLongAbsence(t *testing.T) {
	mem := remotetest.NewMem()
	f := remotetest.NewFault(mem, nil)
	r, _ := initOn(t, f)
	w := newWriter(t, r)
	first := w.commits(t, 3)[2]
	late := w.commits(t, 1000)[999]
	reader := openOn(t, f)
	trust := &Trust{heads: map[chain]Head{first.chain(): first}}
	before := f.Calls("get")
	expectHeads(t, reader, trust, late)
	if gets := f.Calls("get") - before; gets > 20 {
		t.Errorf("%d commits fetched to verify 1,000", gets)
	}
}

// TestPollThinned deletes commits between the accepted head and the newest: links lead around them where they can.
func TestPollThinned(t *testing.T) {
	r, st, _ := initMem(t)
	w := newWriter(t, r)
	heads := w.commits(t, 40)
	full := st.Snapshot()
	for _, c := range []struct {
		accepted Seq
		gone     []Seq
		good     bool
	}{
		{8, []Seq{16}, true},
		{8, []Seq{32, 16}, true},
		{8, []Seq{32, 24, 36}, true},
		{31, []Seq{31, 30}, true}, // the accepted one is gone itself, but linked to
		{3, []Seq{4, 6}, true},
		{3, []Seq{4, 5}, false}, // nobody else links to 3
	} {
		st.Restore(full)
		for _, seq := range c.gone {
			if err := st.Delete(t.Context(), r.commitName(heads[seq-1])); err != nil {
				t.Fatal(err)
			}
		}
		accepted := heads[c.accepted-1]
		trust := &Trust{heads: map[chain]Head{accepted.chain(): accepted}}
		reader := openOn(t, st)
		if c.good {
			expectHeads(t, reader, trust, heads[39])
			continue
		}
		_, err := reader.Poll(t.Context(), trust)
		if !errors.Is(err, ErrNotFound) || errors.Is(err, ErrRollback) {
			t.Errorf("%+v: Poll = %v, want ErrNotFound", c, err)
		}
	}
}

func TestPollNewer(t *testing.T) {
	r, st, _ := initMem(t)
	a, b := newWriter(t, r), newWriter(t, r)
	a1, b1 := a.commit(t), b.commit(t)
	c := a.g.Next(a.last)
	c.Features = seal.Features{Refuse: 1}
	if _, err := r.PutCommit(t.Context(), c, a.key); err != nil {
		t.Fatal(err)
	}
	heads, err := openOn(t, st).Poll(t.Context(), new(Trust))
	if !errors.Is(err, ErrFormat) || errors.Is(err, ErrCorrupt) || errors.Is(err, ErrRollback) {
		t.Errorf("Poll = %v, want ErrFormat", err)
	}
	sameHeads(t, heads, []Head{a1, b1})
}

// TestPollOwnAhead shows a restored cache directory that its remote head is ahead.
func TestPollOwnAhead(t *testing.T) {
	r, _, _ := initMem(t)
	w := newWriter(t, r)
	own := new(Trust)
	own.Accept(w.commit(t))
	backup := reload(t, own)
	own.Accept(w.commit(t))
	heads, err := r.Poll(t.Context(), backup)
	if err != nil {
		t.Fatal(err)
	}
	sameHeads(t, heads, own.Heads())
	if got := own.Seen(w.g.Client, w.g.Incarnation); len(got) != 0 {
		t.Errorf("Seen lists its own incarnation: %v", got)
	}
}

func TestPollCancelled(t *testing.T) {
	r, st, _ := initMem(t)
	w := newWriter(t, r)
	h := w.commit(t)
	trust := new(Trust)
	expectHeads(t, r, trust, h)
	st.Restore(remotetest.NewMem().Snapshot())
	if _, err := r.Poll(cancelled(t), trust); !errors.Is(err, context.Canceled) {
		t.Errorf("Poll = %v, want context.Canceled", err)
	}
	st.SetGone(true)
	if _, err := r.Poll(t.Context(), trust); !errors.Is(err, remote.ErrNotExist) || errors.Is(err, ErrRollback) {
		t.Errorf("root gone: Poll = %v, want remote.ErrNotExist", err)
	}
}

func TestTrustEncoding(t *testing.T) {
	trust := new(Trust)
	if got := reload(t, trust); len(got.Heads()) != 0 {
		t.Errorf("empty trust: %v", got.Heads())
	}
	a, b := Head{ClientID{1}, Incarnation{2}, 3, CommitHash{4}}, Head{ClientID{1}, Incarnation{2}, 2, CommitHash{5}}
	c := Head{ClientID{2}, Incarnation{1}, 1, CommitHash{6}}
	trust.Accept(a)
	trust.Accept(c)
	trust.AcceptFork(&ForkError{Seq: 2, A: b, B: a})
	trust.AcceptRollback(&RollbackError{Accepted: c})
	got := reload(t, trust)
	if !reflect.DeepEqual(got, trust) || got.Head(a.Client, a.Incarnation) != a || len(got.Exceptions()) != 2 {
		t.Errorf("read %+v, want %+v", got, trust)
	}
	wire, _ := trust.MarshalBinary()
	for n := range len(wire) {
		if err := new(Trust).UnmarshalBinary(wire[:n]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
	if err := new(Trust).UnmarshalBinary(append(bytes.Clone(wire), 0)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("longer: %v", err)
	}
}

func FuzzTrust(f *testing.F) {
	trust := new(Trust)
	trust.Accept(Head{ClientID{1}, Incarnation{2}, 3, CommitHash{4}})
	trust.AcceptRollback(&RollbackError{Accepted: Head{ClientID{1}, Incarnation{2}, 3, CommitHash{4}}})
	wire, _ := trust.MarshalBinary()
	f.Add(wire)
	f.Fuzz(func(t *testing.T, b []byte) {
		trust := new(Trust)
		if err := trust.UnmarshalBinary(b); err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Error(err)
			}
			return
		}
		if got := reload(t, trust); !maps.Equal(got.heads, trust.heads) || !slices.Equal(got.accepted, trust.accepted) {
			t.Errorf("round trip gives %+v, want %+v", got, trust)
		}
	})
}

func TestRollbackMessages(t *testing.T) {
	h := Head{ClientID{0xab}, Incarnation{1}, 7, CommitHash{0xcd}}
	for err, want := range map[error]string{
		&RollbackError{Accepted: h}:                                    "this client has seen commit 7 of client ab000000",
		&RollbackError{Accepted: h, SeenBy: Head{Client: ClientID{1}}}: "this client has seen",
		&ForkError{Seq: 7, A: h, B: Head{}}:                            "two commits have number 7",
	} {
		if got := fmt.Sprint(err); !strings.Contains(got, want) {
			t.Errorf("message %q, want %q in it", got, want)
		}
	}
}
