package store

import (
	"errors"
	"testing"
)

func TestEvict(t *testing.T) {
	r, _, _ := initMem(t)
	gone, _, err := r.Register(t.Context(), NewClientID(), "gone")
	if err != nil {
		t.Fatal(err)
	}
	stays, key, err := r.Register(t.Context(), NewClientID(), "stays")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.PutCommit(t.Context(), stays.Next(nil), key); err != nil {
		t.Fatal(err)
	}
	state := func(i Incarnation) Member {
		t.Helper()
		members, err := r.Members(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range members {
			if m.Incarnation == i {
				return m
			}
		}
		t.Fatalf("no member %v", i)
		return Member{}
	}
	if m := state(gone.Incarnation); m.State != MemberActive || m.Host != "gone" || m.Seen().IsZero() {
		t.Errorf("a new client is %+v", m)
	}
	last, err := r.Evict(t.Context(), gone.Incarnation)
	if err != nil || len(last) != 1 || !last[0].IsZero() {
		t.Fatalf("Evict = %v, %v", last, err)
	}
	if m := state(gone.Incarnation); m.State != MemberEvicted {
		t.Errorf("an evicted client is %+v", m)
	}
	if m := state(stays.Incarnation); m.State != MemberActive || m.Unheard != 1 || m.Last.Seq != 1 {
		t.Errorf("the other is %+v", m)
	}
	if _, err := r.Evict(t.Context(), Incarnation{1}); !errors.Is(err, ErrNotFound) {
		t.Errorf("evict nobody: %v", err)
	}
}
