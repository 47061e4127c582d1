package store

import (
	"errors"
	"testing"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/remote/remotetest"
)

// TestBallast follows the ballast from the making of a repository on.
func TestBallast(t *testing.T) {
	s := newSample(t, newRand(t))
	names := func() []string { return s.st.InDir(ballastDir) }
	if len(names()) != 1 {
		t.Fatalf("a new repository has %d ballast objects", len(names()))
	}
	first := names()[0]
	s.must(t, s.r.PutBallast(t.Context()))
	if n := names(); len(n) != 1 || n[0] != first {
		t.Errorf("put again it is %q, was %q", n, first)
	}
	s.st.Damage(first, func(b []byte) []byte { return b[:len(b)/2] }) // a put that broke off
	if has, err := s.r.HasBallast(t.Context()); has || err != nil {
		t.Errorf("HasBallast of half of one = %v, %v", has, err)
	}
	s.must(t, s.r.PutBallast(t.Context()))
	if n := names(); len(n) != 1 || n[0] == first {
		t.Errorf("after half of one it is %q", n)
	}
	if has, err := s.r.HasBallast(t.Context()); !has || err != nil {
		t.Errorf("HasBallast = %v, %v", has, err)
	}
	if dropped, err := s.r.DropBallast(t.Context()); !dropped || err != nil || len(names()) > 0 {
		t.Errorf("DropBallast = %v, %v, and %q are left", dropped, err, names())
	}
	if dropped, err := s.r.DropBallast(t.Context()); dropped || err != nil {
		t.Errorf("DropBallast of none = %v, %v", dropped, err)
	}
	full := remotetest.NewFull(s.st)
	full.SetLimit(s.st.Bytes() + ballastSize - 1)
	s.r.st = full
	if err := s.r.PutBallast(t.Context()); !errors.Is(err, remote.ErrNoSpace) || len(names()) > 0 {
		t.Errorf("PutBallast without room = %v, and %q are left", err, names())
	}
}

// TestBallastRepaired damages the ballast: that is found, and another one put.
func TestBallastRepaired(t *testing.T) {
	rng := newRand(t)
	s := newSample(t, rng)
	name := s.st.InDir(ballastDir)[0]
	s.st.Damage(name, func(b []byte) []byte {
		b[rng.IntN(len(b))] ^= 1
		return b
	})
	report := s.check(t, nil)
	if len(report.Damages) != 1 || report.Damages[0].Object != name || !report.Damages[0].Repairable {
		t.Fatalf("check finds %+v", report.Damages)
	}
	fixed, err := s.r.Repair(t.Context(), nil)
	if err != nil || len(fixed.Fixes) != 1 || len(fixed.Left) > 0 {
		t.Fatalf("Repair = %+v, %v", fixed, err)
	}
	if report := s.check(t, nil); len(report.Damages) > 0 || len(s.st.InDir(ballastDir)) != 1 {
		t.Errorf("after it check finds %+v", report.Damages)
	}
}
