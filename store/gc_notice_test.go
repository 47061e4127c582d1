package store

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/dedupfs/dedupfs/remote/remotetest"
)

func TestNotice(t *testing.T) {
	r, _, err := Init(t.Context(), remotetest.NewMem(), []byte("password"), &InitOptions{KDF: KDF{Memory: 8, Passes: 1, Threads: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := r.Notices(t.Context(), nil); err != nil || len(got) > 0 {
		t.Fatalf("Notices of a new repository = %v, %v, want none", got, err)
	}
	n := &Notice{Condemned: []Name{{1}, {2}, {3}}, Evicted: []Head{{Client: ClientID{4}, Incarnation: Incarnation{5}, Seq: 6, Hash: CommitHash{7}}},
		Passing: []Passing{{Incarnation: Incarnation{8}, Seq: 9, Ended: true}, {Incarnation: Incarnation{10}, Seq: 11}}}
	if err := r.putNotice(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	got, err := r.Notices(t.Context(), []NoticeID{n.ID, {9}})
	if err != nil || len(got) != 1 || !reflect.DeepEqual(got[0], n) {
		t.Fatalf("Notices = %+v, %v, want %+v", got, err, n)
	}
	var c Condemned
	if fresh := c.Add(got); len(fresh) != 3 || !c.Has(Name{2}) || c.Has(Name{4}) {
		t.Errorf("Add = %v, and Has is wrong", fresh)
	}
	if fresh := c.Add(got); len(fresh) != 0 {
		t.Errorf("Add once more = %v, want none", fresh)
	}
	if !c.Evicted(ClientID{4}, Incarnation{5}) || c.Evicted(ClientID{4}, Incarnation{6}) {
		t.Error("Evicted is wrong")
	}
	later := Head{Client: ClientID{4}, Incarnation: Incarnation{5}, Seq: 8, Hash: CommitHash{9}}
	if heads := c.Heads([]Head{later}); len(heads) != 1 || heads[0] != n.Evicted[0] {
		t.Errorf("Heads = %v, want %v", heads, n.Evicted)
	}
}

// TestNoticeDamaged sees that a notice which cannot be read is an error: a client must not acknowledge what it has not read.
func TestNoticeDamaged(t *testing.T) {
	mem := remotetest.NewMem()
	r, _, err := Init(t.Context(), mem, []byte("password"), &InitOptions{KDF: KDF{Memory: 8, Passes: 1, Threads: 1}})
	if err != nil {
		t.Fatal(err)
	}
	n := &Notice{Condemned: []Name{{1}}}
	if err := r.putNotice(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	mem.Damage(noticeName(n.ID), func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	if _, err := r.Notices(t.Context(), nil); !errors.Is(err, ErrCorrupt) {
		t.Errorf("Notices = %v, want ErrCorrupt", err)
	}
	if _, err := r.NewCollector(nil).Look(t.Context()); !errors.Is(err, ErrCorrupt) {
		t.Errorf("Look = %v, want ErrCorrupt", err)
	}
}

func FuzzParseNotice(f *testing.F) {
	f.Add(appendNotice(nil, &Notice{}))
	f.Add(appendNotice(nil, &Notice{Condemned: []Name{{1}, {2}}, Evicted: []Head{{Seq: 1}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := parseNotice(b)
		if err != nil {
			return
		}
		if again := appendNotice(nil, n); !bytes.HasPrefix(b, again) {
			t.Errorf("parsed %x, encoded %x", b, again)
		}
	})
}

// TestCommitCollection sees that what garbage collection needs to know travels in commits, and takes no byte where there is nothing.
func TestCommitCollection(t *testing.T) {
	c := &Commit{Seq: 1, public: make([]byte, 32)}
	short := appendCommit(nil, c, [16]byte{})
	got, err := parseCommit(short)
	if err != nil || got.Acks != nil || got.Held != nil || got.Retired {
		t.Fatalf("parseCommit = %+v, %v, want nothing about collection", got, err)
	}
	c.Acks = []NoticeID{{1}, {2}}
	c.Held = []Ref{{ID: ID{3}, Hint: Hint{Multichunk: Name{4}, Off: 5, Len: 6}}, {ID: ID{7}, Kind: RefNode}}
	c.Retired = true
	long := appendCommit(nil, c, [16]byte{})
	got, err = parseCommit(append(long, "what a later program has added"...))
	if err != nil || !reflect.DeepEqual(got.Acks, c.Acks) || !reflect.DeepEqual(got.Held, c.Held) || !got.Retired {
		t.Fatalf("parseCommit = %+v, %v, want %+v", got, err, c)
	}
	for n := len(short) + 1; n < len(long); n++ {
		if _, err := parseCommit(long[:n]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("parseCommit of %d of %d bytes = %v, want ErrCorrupt", n, len(long), err)
		}
	}
}

// TestNoticeHalf breaks off the put of a notice on a storage that keeps the half of it: collecting goes on, at the latest after a repair.
func TestNoticeHalf(t *testing.T) {
	for _, condemned := range []int{100, 300} { // of 4 KiB, whose half is too short for any object, and of 8 KiB
		s := newSample(t, newRand(t))
		st := s.r.st
		n := &Notice{}
		for range condemned {
			n.Condemned = append(n.Condemned, newName())
		}
		slices.SortFunc(n.Condemned, compareNames)
		s.r.st = cutOff{st, new(atomic.Int64)}
		if err := s.r.putNotice(t.Context(), n); !errors.Is(err, errStorage) {
			t.Fatalf("putNotice = %v, want an error of the storage", err)
		}
		s.r.st = st
		if len(s.st.InDir(noticesDir)) != 1 {
			t.Fatal("nothing was left, so this shows nothing")
		}
		if _, err := s.r.Notices(t.Context(), nil); condemned == 100 && err != nil {
			t.Errorf("with half a notice: %v", err)
		}
		_, err := s.r.Repair(t.Context(), nil)
		s.must(t, err)
		if _, err := s.r.Notices(t.Context(), nil); err != nil || len(s.st.InDir(noticesDir)) > 0 {
			t.Errorf("after a repair: %v, %d notices", err, len(s.st.InDir(noticesDir)))
		}
	}
}
