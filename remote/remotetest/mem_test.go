package remotetest

import (
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/remote"
)

func TestMem(t *testing.T) {
	TestStorage(t, func(*testing.T) remote.Storage { return NewMem() })
}

func TestFaultPassesOn(t *testing.T) {
	TestStorage(t, func(*testing.T) remote.Storage { return NewFault(NewMem(), nil) })
}

func TestMemRefusesOtherBytes(t *testing.T) {
	m := NewMem()
	put(t, m, "a", []byte("half"))
	put(t, m, "a", []byte("half and whole"))
	if err := m.Put(t.Context(), "a", []byte("other")); err == nil {
		t.Error("Put of other bytes under a name that is taken = nil error")
	}
	if got := m.Bytes(); got != int64(len("half and whole")) {
		t.Errorf("Bytes() = %d", got)
	}
}

func TestMemRestore(t *testing.T) {
	m := NewMem()
	put(t, m, "a", []byte("1"))
	s := m.Snapshot()
	put(t, m, "b/c", []byte("2"))
	m.Damage("a", func(b []byte) []byte { b[0] ^= 1; return b })
	m.Restore(s)
	if got := m.Names(); len(got) != 1 || got[0] != "a" {
		t.Errorf("Names after Restore = %v, want [a]", got)
	}
	wantGet(t, m, "a", []byte("1"), 0, -1)
	put(t, m, "d", nil)
	m.Restore(s) // the snapshot has not moved on
	if got := m.Names(); len(got) != 1 {
		t.Errorf("Names after second Restore = %v, want [a]", got)
	}
}

func TestMemListingLag(t *testing.T) {
	now := time.Unix(1000, 0)
	m := NewMem()
	m.SetClock(func() time.Time { return now })
	put(t, m, "old", nil)
	m.SetListingLag(time.Minute)
	now = now.Add(time.Hour)
	put(t, m, "new", nil)
	if err := m.Delete(t.Context(), "old"); err != nil {
		t.Fatal(err)
	}
	if got := list(t, m, ""); len(got) != 1 || got[0].Name != "old" {
		t.Errorf("List at once = %v, want what was a minute ago", got)
	}
	wantGet(t, m, "new", nil, 0, -1)
	now = now.Add(time.Minute)
	if got := list(t, m, ""); len(got) != 1 || got[0].Name != "new" {
		t.Errorf("List a minute later = %v, want new alone", got)
	}
}

func TestMemGone(t *testing.T) {
	m := NewMem()
	put(t, m, "a", nil)
	m.SetGone(true)
	if err := m.Put(t.Context(), "b", nil); err == nil {
		t.Error("Put without a root = nil error")
	}
	if err := m.List(t.Context(), "", nil); err == nil {
		t.Error("List without a root = nil error")
	}
	m.SetGone(false)
	wantGet(t, m, "a", nil, 0, -1)
}
