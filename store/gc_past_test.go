package store

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/dedupfs/dedupfs/remote/remotetest"
)

// TestPast reads what one client says to be past as another.
func TestPast(t *testing.T) {
	r, mem, _ := initMem(t)
	first := map[Incarnation]passage{{1}: {seq: 5}, {2}: {seq: 7, ended: true, inodes: 77}}
	if err := r.putPast(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if err := r.putPast(t.Context(), map[Incarnation]passage{{1}: {seq: 9}, {3}: {ended: true}}); err != nil {
		t.Fatal(err)
	}
	other := openOn(t, mem)
	if other.HasPassed(Head{Incarnation: Incarnation{2}}) {
		t.Error("something has passed before it was read")
	}
	for i, want := range []bool{true, false} {
		if news, err := other.ReadPast(t.Context()); err != nil || news != want {
			t.Fatalf("ReadPast number %d = %v, %v, want %v", i, news, err, want)
		}
	}
	for i, want := range map[Incarnation]bool{{1}: false, {2}: true, {3}: true, {4}: false} {
		if got := other.HasPassed(Head{Incarnation: i}); got != want {
			t.Errorf("HasPassed(%v) = %v, want %v", i, got, want)
		}
	}
	if p := other.past.get(Incarnation{1}); p.seq != 9 || !other.past.hasRange(77) || other.past.hasRange(78) {
		t.Errorf("passage %+v, want before 9; or the ranges are wrong", p)
	}
	seen, err := other.lookAtPast(t.Context())
	if err != nil || len(seen.idle) != 1 {
		t.Errorf("lookAtPast = %+v, %v, want one list that another contains", seen, err)
	}
	drawn := 0
	other.random = func() uint32 { drawn++; return uint32(76 + drawn) }
	if n := other.drawRange(nil); n != 78 {
		t.Errorf("drawRange = %d, want one that nobody has had", n)
	}
}

// TestPollPast sees that what is past is no roll-back, and everything else still is one.
func TestPollPast(t *testing.T) {
	mem := remotetest.NewMem()
	r, _ := initOn(t, mem)
	r.askAgain = 0
	reg, key, err := r.Register(t.Context(), NewClientID(), "host")
	if err != nil {
		t.Fatal(err)
	}
	var last *Commit
	var trusts []Trust
	put := func() {
		t.Helper()
		c := reg.Next(last)
		if _, err := r.PutCommit(t.Context(), c, key); err != nil {
			t.Fatal(err)
		}
		last = c
		var trust Trust
		if _, err := r.Poll(t.Context(), &trust); err != nil {
			t.Fatal(err)
		}
		trusts = append(trusts, trust)
	}
	for range 12 {
		put()
	}
	remove := func(upTo Seq) {
		for h := last; h != nil; {
			var before *Commit
			if h.Seq > 1 {
				before, _ = r.before(t.Context(), h)
			}
			if h.Seq <= upTo {
				mem.Delete(t.Context(), r.commitName(h.Head()))
			}
			h = before
		}
	}
	remove(9)
	back := openOn(t, mem)
	back.askAgain = 0
	trust := trusts[2] // of somebody who was away since commit 3
	if heads, err := back.Poll(t.Context(), &trust); err == nil && len(heads) == 1 && heads[0] == last.Head() {
		t.Error("commits are gone that nobody said to be past, and a newer one is accepted")
	}
	if err := r.putPast(t.Context(), map[Incarnation]passage{reg.Incarnation: {seq: 10}}); err != nil {
		t.Fatal(err)
	}
	trust = trusts[2]
	if heads, err := back.Poll(t.Context(), &trust); err != nil || len(heads) != 1 || heads[0] != last.Head() {
		t.Errorf("Poll = %v, %v, want the newest commit", heads, err)
	}
	remove(12)
	trust = trusts[11]
	if _, err := openOn(t, mem).PollKnown(t.Context(), &trust); !errors.Is(err, ErrRollback) {
		t.Errorf("Poll of a history that is gone = %v, want ErrRollback", err)
	}
	if err := r.putPast(t.Context(), map[Incarnation]passage{reg.Incarnation: {ended: true}}); err != nil {
		t.Fatal(err)
	}
	trust = trusts[11]
	if heads, err := openOn(t, mem).PollKnown(t.Context(), &trust); err != nil || len(heads) > 0 || len(trust.Heads()) > 0 {
		t.Errorf("Poll of a history that is past = %v, %v, want nothing", heads, err)
	}
}

// FuzzParsePast checks that what is parsed is encoded as it was.
func FuzzParsePast(f *testing.F) {
	f.Add([]byte{0, 0})
	f.Add(appendPast(nil, &pastList{contains: []pastID{{1}}, of: map[Incarnation]passage{{2}: {seq: 3, ended: true, inodes: 4}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := parsePast(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("parsePast: %v, want ErrCorrupt", err)
			}
			return
		}
		again, err := parsePast(appendPast(nil, l))
		if err != nil || !reflect.DeepEqual(again, l) {
			t.Errorf("parsed again: %+v, %v, want %+v", again, err, l)
		}
		if !bytes.Equal(appendPast(nil, again), appendPast(nil, l)) {
			t.Error("two encodings of one list")
		}
	})
}
