package store

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/dedupfs/dedupfs/remote"
)

// TestRotateKey seals under a new epoch, which others find when they meet it, and whoever was removed before does not.
func TestRotateKey(t *testing.T) {
	s := newSample(t, newRand(t))
	st := s.r.st
	if _, err := s.r.AddSlot(t.Context(), "friend", []byte("second"), cheapKDF); err != nil {
		t.Fatal(err)
	}
	var kept []byte
	friend, err := Open(t.Context(), st, []byte("second"), &OpenOptions{KeepKeys: func(state []byte) error { kept = state; return nil }})
	s.must(t, err)
	if _, err := s.r.AddSlot(t.Context(), "thief", []byte("stolen"), cheapKDF); err != nil {
		t.Fatal(err)
	}
	thief, err := Open(t.Context(), st, []byte("stolen"), nil)
	s.must(t, err)
	stolen := thief.ExportState()
	s.must(t, s.r.RemoveSlot(t.Context(), "thief"), s.r.RotateKey(t.Context()))
	if n, newest := s.r.Epochs(); n != 2 || newest != 2 {
		t.Errorf("%d epochs, the newest is %d, want 2 and 2", n, newest)
	}
	before := s.last.Head()
	s.commit(t, newRand(t))
	head := s.last.Head()
	if _, err := friend.GetCommit(t.Context(), head); err != nil {
		t.Errorf("GetCommit by another client: %v", err)
	}
	if kept == nil {
		t.Error("the new key was not kept")
	}
	offline, err := Open(t.Context(), st, []byte("second"), &OpenOptions{State: kept})
	s.must(t, err)
	if n, _ := offline.Epochs(); n != 2 {
		t.Errorf("%d epochs in what was kept, want 2", n)
	}
	later, err := Open(t.Context(), st, []byte("stolen"), &OpenOptions{State: stolen})
	s.must(t, err)
	if _, err := later.GetCommit(t.Context(), head); !errors.Is(err, ErrEpoch) {
		t.Errorf("GetCommit with stolen keys = %v, want ErrEpoch", err)
	}
	if _, err := later.GetCommit(t.Context(), before); err != nil {
		t.Errorf("GetCommit of what was sealed before: %v", err)
	}
	fresh, err := Open(t.Context(), st, password, nil)
	s.must(t, err)
	if report, err := fresh.Check(t.Context(), readData); err != nil || len(report.Damages) > 0 {
		t.Errorf("Check = %+v, %v", report, err)
	}
}

// TestKeepKeysFails goes on with the old key when the new one cannot be kept.
func TestKeepKeysFails(t *testing.T) {
	s := newSample(t, newRand(t))
	full := errors.New("disk full")
	other, err := Open(t.Context(), s.r.st, password, &OpenOptions{KeepKeys: func([]byte) error { return full }})
	s.must(t, err)
	s.must(t, s.r.RotateKey(t.Context()))
	if err := other.ReloadKeys(t.Context()); !errors.Is(err, full) {
		t.Errorf("ReloadKeys = %v", err)
	}
	if n, _ := other.Epochs(); n != 1 {
		t.Errorf("%d epochs are in use, want 1", n)
	}
}

// TestRotateTwice rotates on two machines at once: both keys count.
func TestRotateTwice(t *testing.T) {
	s := newSample(t, newRand(t))
	other, err := Open(t.Context(), s.r.st, password, nil)
	s.must(t, err)
	late := lateKeyrings{s.r.st, s.st.InDir(keyringDir)}
	other.st = late
	s.must(t, s.r.RotateKey(t.Context()), other.RotateKey(t.Context()))
	fresh, err := Open(t.Context(), s.r.st, password, nil)
	s.must(t, err)
	if n, newest := fresh.Epochs(); n != 3 || newest != 2 {
		t.Errorf("%d epochs, the newest is %d, want 3 and 2", n, newest)
	}
}

// lateKeyrings is a storage whose listings do not show keyrings that are new.
type lateKeyrings struct {
	remote.Storage
	known []string
}

func (l lateKeyrings) List(ctx context.Context, dir string, fn func(remote.Entry) error) error {
	return l.Storage.List(ctx, dir, func(e remote.Entry) error {
		if dir == keyringDir && !slices.Contains(l.known, dir+"/"+e.Name) {
			return nil
		}
		return fn(e)
	})
}

// TestAppendOnlyKeys does with keys what can be done where nothing can be deleted or replaced.
func TestAppendOnlyKeys(t *testing.T) {
	s := newSample(t, newRand(t))
	st := s.st
	s.r.st = refusing{st, func(name string) bool { _, ok := st.Object(name); return ok }}
	s.must(t, s.r.RotateKey(t.Context()))
	_, err := s.r.AddSlot(t.Context(), "more", []byte("more"), cheapKDF)
	s.must(t, err)
	if _, err := s.r.AddRecovery(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.r.RemoveSlot(t.Context(), "more"); !errors.Is(err, errRefused) {
		t.Errorf("RemoveSlot = %v, want the refusal", err)
	}
	if err := s.r.ChangePassword(t.Context(), []byte("changed")); !errors.Is(err, errRefused) {
		t.Errorf("ChangePassword = %v, want the refusal", err)
	}
	for _, secret := range []string{"changed", string(password)} {
		if !opens(t, st, secret) {
			t.Errorf("%q does not open", secret)
		}
	}
	s.commit(t, newRand(t))
	fresh, err := Open(t.Context(), s.r.st, []byte("changed"), nil)
	s.must(t, err)
	if report, err := fresh.Check(t.Context(), readData); err != nil || len(report.Damages) > 0 {
		t.Errorf("Check = %+v, %v", report, err)
	}
}
