package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// opens reports whether a secret opens the repository on st; any error but ErrPassword fails the test.
func opens(t *testing.T, st remote.Storage, secret string) bool {
	t.Helper()
	_, err := Open(t.Context(), st, []byte(secret), &OpenOptions{Patience: time.Nanosecond})
	if err != nil && !errors.Is(err, ErrPassword) {
		t.Errorf("open with %q: %v", secret, err)
	}
	return err == nil
}

func slotNames(t *testing.T, r *Repository) []string {
	t.Helper()
	slots, err := r.Slots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range slots {
		name := s.Name
		if s.Current {
			name += "*"
		}
		names = append(names, name)
	}
	return names
}

func TestSlots(t *testing.T) {
	r, st, recovery := initMem(t)
	if got := fmt.Sprint(slotNames(t, r)); got != "[password* recovery]" && got != "[recovery password*]" {
		t.Errorf("new repository has slots %s", got)
	}
	s, err := r.AddSlot(t.Context(), "laptop", []byte("second"), cheapKDF)
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "laptop" || s.KDF != cheapKDF || s.Current || s.Recovery || len(s.ID) != 32 {
		t.Errorf("added slot %+v", s)
	}
	if !opens(t, st, "second") || !opens(t, st, string(password)) || !opens(t, st, recovery) {
		t.Error("not every slot opens")
	}
	if n := len(st.InDir(keyringDir)); n != 2 {
		t.Errorf("%d keyrings, want the new one and the one before", n)
	}
	if err := r.RemoveSlot(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	if n := len(st.InDir(keyringDir)); n != 1 {
		t.Errorf("%d keyrings, want none that is sealed to the removed slot", n)
	}
	if opens(t, st, "second") {
		t.Error("a removed password opens")
	}
	if err := r.RemoveSlot(t.Context(), recoveryName); err != nil {
		t.Fatal(err)
	}
	if opens(t, st, recovery) {
		t.Error("a removed recovery key opens")
	}
	if err := r.RemoveSlot(t.Context(), "password"); err == nil || !strings.Contains(err.Error(), "last one") {
		t.Errorf("removing the last slot: %v", err)
	}
	if !opens(t, st, string(password)) {
		t.Error("the last password does not open")
	}
}

func TestSlotErrors(t *testing.T) {
	r, _, _ := initMem(t)
	for name, want := range map[string]string{"Password": "already", "": "1 to 64 bytes", "a\x01": "control"} {
		if _, err := r.AddSlot(t.Context(), name, []byte("x"), cheapKDF); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("AddSlot(%q) = %v, want %q", name, err, want)
		}
	}
	if _, err := r.AddSlot(t.Context(), "new", nil, cheapKDF); err == nil {
		t.Error("a slot with an empty password was added")
	}
	if _, err := r.AddSlot(t.Context(), "new", []byte("x"), KDF{Memory: 1 << 30, Passes: 1, Threads: 1}); err == nil {
		t.Error("a slot was added that nobody could open")
	}
	if err := r.RemoveSlot(t.Context(), "nobody"); err == nil || !strings.Contains(err.Error(), "no key slot") {
		t.Errorf("RemoveSlot of nothing: %v", err)
	}
}

func TestAddRecovery(t *testing.T) {
	r, st, first := initMem(t)
	second, err := r.AddRecovery(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if second == first || !opens(t, st, first) || !opens(t, st, second) {
		t.Error("not both recovery keys open")
	}
	if names := slotNames(t, r); !slices.Contains(names, "recovery 2") {
		t.Errorf("slots %q", names)
	}
	viaRecovery, err := Open(t.Context(), st, []byte(second), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := viaRecovery.ChangePassword(t.Context(), []byte("x")); err == nil {
		t.Error("changed the password of a recovery key")
	}
	if _, err := viaRecovery.AddSlot(t.Context(), "new", []byte("forgot the old one"), cheapKDF); err != nil {
		t.Error(err)
	}
	if !opens(t, st, "forgot the old one") {
		t.Error("a password added with a recovery key does not open")
	}
}

func TestChangePassword(t *testing.T) {
	r, st, recovery := initMem(t)
	for _, next := range []string{"second", "third"} {
		if err := r.ChangePassword(t.Context(), []byte(next)); err != nil {
			t.Fatal(err)
		}
		if !opens(t, st, next) || !opens(t, st, recovery) {
			t.Errorf("after the change to %q not both slots open", next)
		}
	}
	if opens(t, st, string(password)) || opens(t, st, "second") {
		t.Error("an old password opens")
	}
	if got := len(slotNames(t, r)); got != 2 {
		t.Errorf("%d slots, want 2", got)
	}
	if _, err := Open(t.Context(), st, []byte("third"), &OpenOptions{State: r.ExportState()}); err != nil {
		t.Errorf("state after the change: %v", err)
	}
}

// TestKeysDeleteRefused changes keys on a storage that never deletes.
func TestKeysDeleteRefused(t *testing.T) {
	mem := remotetest.NewMem()
	f := remotetest.NewFault(mem, nil)
	r, _ := initOn(t, f)
	f.Inject(remotetest.Refused, "delete", "", -1)
	if _, err := r.AddSlot(t.Context(), "laptop", []byte("second"), cheapKDF); err != nil {
		t.Fatalf("AddSlot needs no delete: %v", err)
	}
	if len(mem.InDir(keyringDir)) != 2 || !opens(t, mem, "second") {
		t.Error("the added password does not open beside an old keyring")
	}
	err := r.RemoveSlot(t.Context(), "laptop")
	if !errors.Is(err, remote.ErrAuth) || !strings.Contains(err.Error(), "the old password still opens") {
		t.Errorf("RemoveSlot = %v", err)
	}
	if !opens(t, mem, "second") {
		t.Error("RemoveSlot said that the password still opens, but it does not")
	}
	err = r.ChangePassword(t.Context(), []byte("third"))
	if !errors.Is(err, remote.ErrAuth) || !opens(t, mem, "third") || !opens(t, mem, string(password)) {
		t.Errorf("ChangePassword = %v; not both passwords open", err)
	}
	// A delete that is acknowledged and does nothing is noticed too.
	f.Heal()
	quiet := keepsAll{mem}
	again := openOn(t, quiet)
	if err := again.RemoveSlot(t.Context(), "laptop"); err == nil || !strings.Contains(err.Error(), "still there") {
		t.Errorf("RemoveSlot where deleting does nothing = %v", err)
	}
}

// keepsAll is a Storage whose deletes do nothing.
type keepsAll struct{ remote.Storage }

func (keepsAll) Delete(context.Context, string) error { return nil }

// TestKeysAtTheSameTime lets two machines add slots without seeing each other's.
func TestKeysAtTheSameTime(t *testing.T) {
	a, mem, _ := initMem(t)
	f := remotetest.NewFault(mem, nil)
	b := openOn(t, f)
	done := false
	f.SetHook(func(op, name string) error {
		if op == "put" && strings.HasPrefix(name, keyringDir) && !done {
			done = true
			if _, err := a.AddSlot(t.Context(), "of a", []byte("of a"), cheapKDF); err != nil {
				t.Error(err)
			}
			if err := a.RemoveSlot(t.Context(), recoveryName); err != nil {
				t.Error(err)
			}
		}
		return nil
	})
	if _, err := b.AddSlot(t.Context(), "of b", []byte("of b"), cheapKDF); err != nil {
		t.Fatal(err)
	}
	if !done || len(mem.InDir(keyringDir)) < 2 {
		t.Fatalf("the changes did not meet: %d keyrings", len(mem.InDir(keyringDir)))
	}
	if !opens(t, mem, "of a") || !opens(t, mem, "of b") || !opens(t, mem, string(password)) {
		t.Error("not every slot opens")
	}
	if names := slotNames(t, openOn(t, mem)); len(names) != 3 || slices.Contains(names, recoveryName) {
		t.Errorf("slots %q", names)
	}
	// The next change unites the keyrings.
	if err := a.RemoveSlot(t.Context(), "of b"); err != nil {
		t.Fatal(err)
	}
	if n := len(mem.InDir(keyringDir)); n != 1 {
		t.Errorf("%d keyrings, want 1", n)
	}
	if !opens(t, mem, "of a") || opens(t, mem, "of b") {
		t.Error("wrong slots are left")
	}
}

// TestKeysStaleListing adds slots with listings that do not show the latest.
func TestKeysStaleListing(t *testing.T) {
	mem := remotetest.NewMem()
	f := remotetest.NewFault(mem, nil)
	r, _ := initOn(t, f)
	if _, err := r.AddSlot(t.Context(), "one", []byte("one"), cheapKDF); err != nil {
		t.Fatal(err)
	}
	f.Inject(remotetest.StaleList, "list", keysDir, 1)
	if _, err := r.AddSlot(t.Context(), "two", []byte("two"), cheapKDF); err != nil {
		t.Fatal(err)
	}
	if f.Total() != 1 {
		t.Fatalf("%d faults", f.Total())
	}
	if !opens(t, mem, "one") || !opens(t, mem, "two") {
		t.Error("a slot that a listing did not show yet was lost")
	}
}

// TestKeyFaults stops every change of keys at every call in every way. Whoever could open the repository before and
// should be able to afterwards can at any moment between, and the change can be made again.
func TestKeyFaults(t *testing.T) {
	changes := map[string]func(*Repository) error{
		"add":    func(r *Repository) error { return second(r.AddSlot(t.Context(), "new", []byte("new"), cheapKDF)) },
		"remove": func(r *Repository) error { return r.RemoveSlot(t.Context(), "laptop") },
		"change": func(r *Repository) error { return r.ChangePassword(t.Context(), []byte("new")) },
	}
	_, start, _ := initMem(t)
	if _, err := openOn(t, start).AddSlot(t.Context(), "laptop", []byte("laptop"), cheapKDF); err != nil {
		t.Fatal(err)
	}
	hits := 0
	for what, change := range changes {
		for op, kinds := range map[string][]remotetest.Kind{
			"put":    {remotetest.ErrBefore, remotetest.ErrAfter, remotetest.HalfPut, remotetest.LostPut},
			"get":    {remotetest.ErrBefore, remotetest.CorruptBody},
			"list":   {remotetest.BrokenList},
			"delete": {remotetest.ErrBefore, remotetest.ErrAfter},
		} {
			for _, kind := range kinds {
				for i := 0; ; i++ {
					mem := remotetest.NewMem()
					mem.Restore(start.Snapshot())
					f := remotetest.NewFault(mem, nil)
					r := openOn(t, f)
					failAt(f, kind, op, i)
					err := change(r)
					if f.Total() == 0 {
						break
					}
					hits++
					f.Heal()
					name := fmt.Sprintf("%s, %s at %s %d", what, kind, op, i)
					checkKeysAfter(t, name, what, mem, err == nil, change)
				}
			}
		}
	}
	if hits < 40 {
		t.Errorf("only %d faults were hit", hits)
	}
}

func second(_ Slot, err error) error { return err }

func checkKeysAfter(t *testing.T, name, what string, mem *remotetest.Mem, done bool, change func(*Repository) error) {
	t.Helper()
	if what != "change" && !opens(t, mem, string(password)) {
		t.Errorf("%s: the password does not open", name)
	}
	if what != "remove" && !opens(t, mem, "laptop") {
		t.Errorf("%s: the other slot does not open", name)
	}
	if what == "change" && !opens(t, mem, string(password)) && !opens(t, mem, "new") {
		t.Errorf("%s: neither password opens", name)
	}
	if done {
		return
	}
	o := &OpenOptions{Patience: time.Nanosecond}
	r, err := Open(t.Context(), mem, []byte("laptop"), o)
	if what == "change" || what == "remove" {
		r, err = Open(t.Context(), mem, password, o)
	}
	if errors.Is(err, ErrPassword) {
		return // all but the last step had been made
	}
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	if err := change(r); err != nil && !strings.Contains(err.Error(), "already") && !strings.Contains(err.Error(), "no key slot") {
		t.Errorf("%s: and again: %v", name, err)
	}
}

// TestSlotsRemovedElsewhere shows what a repository says whose own slot is gone.
func TestSlotsRemovedElsewhere(t *testing.T) {
	r, st, recovery := initMem(t)
	other, err := Open(t.Context(), st, []byte(recovery), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.RemoveSlot(t.Context(), "password"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Slots(t.Context()); !errors.Is(err, ErrPassword) {
		t.Errorf("Slots = %v, want ErrPassword", err)
	}
	if opens(t, st, string(password)) {
		t.Error("a removed password opens")
	}
}

// TestSlotReplayed puts a removed slot back, and the keyring that listed it, as a storage might that is in league
// with somebody who has been locked out.
func TestSlotReplayed(t *testing.T) {
	r, st, _ := initMem(t)
	s, err := r.AddSlot(t.Context(), "laptop", []byte("stolen"), cheapKDF)
	if err != nil {
		t.Fatal(err)
	}
	before := st.Snapshot()
	if err := r.RemoveSlot(t.Context(), "laptop"); err != nil {
		t.Fatal(err)
	}
	old := remotetest.NewMem()
	old.Restore(before)
	slot, _ := old.Object(keysDir + "/" + s.ID)
	st.SetObject(keysDir+"/"+s.ID, slot)
	if opens(t, st, "stolen") {
		t.Error("a removed slot opens the present keyring")
	}
	for _, name := range old.InDir(keyringDir) {
		keyring, _ := old.Object(name)
		st.SetObject(name, keyring)
	}
	slots, err := r.Slots(t.Context())
	if err != nil || len(slots) != 3 || !slots[2].Removed || slots[2].Name != "laptop" {
		t.Errorf("slots %+v, %v", slots, err)
	}
	if _, err := r.AddSlot(t.Context(), "new", []byte("new"), cheapKDF); err != nil {
		t.Fatal(err)
	}
	if opens(t, st, "stolen") {
		t.Error("the next keyring is sealed to the removed slot")
	}
	for _, name := range old.InDir(keyringDir) {
		keyring, _ := old.Object(name)
		st.SetObject(name, keyring)
	}
	if err := r.RemoveSlot(t.Context(), "laptop"); err != nil {
		t.Errorf("removing it again: %v", err)
	}
	if opens(t, st, "stolen") || !opens(t, st, "new") {
		t.Error("wrong slots open")
	}
}

func TestTooManySlots(t *testing.T) {
	r, _, _ := initMem(t)
	for i := 2; i < seal.MaxSlots; i++ {
		if _, err := r.AddSlot(t.Context(), fmt.Sprint(i), []byte("x"), cheapKDF); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.AddRecovery(t.Context()); err == nil || !strings.Contains(err.Error(), "remove one first") {
		t.Errorf("slot number %d: %v", seal.MaxSlots+1, err)
	}
}

// TestKeyringStale opens the repository with listings that do not show the newest keyring yet, after each change: who had a password
// before and after can open it at once, but after a slot was removed, when the old keyring must go. Old ones do not pile up.
func TestKeyringStale(t *testing.T) {
	r, st, _ := initMem(t)
	if _, err := r.AddSlot(t.Context(), "friend", []byte("friend"), cheapKDF); err != nil {
		t.Fatal(err)
	}
	remove := func(name string) func() error { return func() error { return r.RemoveSlot(t.Context(), name) } }
	add := func(name string) func() error {
		return func() error { _, err := r.AddSlot(t.Context(), name, []byte(name), cheapKDF); return err }
	}
	for i, step := range []struct {
		change func() error
		opens  bool // at once
	}{
		{add("other"), true},
		{remove("other"), false},
		{func() error { return r.ChangePassword(t.Context(), []byte("new")) }, false},
		{func() error { return r.RotateKey(t.Context()) }, true},
		{add("more"), true},
		{remove("more"), false},
	} {
		late := lateKeyrings{st, st.InDir(keyringDir)}
		if err := step.change(); err != nil {
			t.Fatal(err)
		}
		if opens(t, late, "friend") != step.opens {
			t.Errorf("change %d, with a listing from before: it opens: %v, want %v", i, !step.opens, step.opens)
		}
		if n := len(st.InDir(keyringDir)); n > 3 {
			t.Errorf("change %d: %d keyrings", i, n)
		}
	}
	if opens(t, st, "other") || opens(t, st, "more") || opens(t, st, string(password)) || !opens(t, st, "new") {
		t.Error("other passwords open than should")
	}
}

// TestKeyringPatience opens with a listing that shows the keyring at a second look.
func TestKeyringPatience(t *testing.T) {
	_, st, _ := initMem(t)
	var looks atomic.Int32
	late := listing{st, func(dir string) bool { return dir != keyringDir || looks.Add(1) > 1 }}
	if _, err := Open(t.Context(), late, password, &OpenOptions{Patience: 10 * time.Millisecond}); err != nil {
		t.Errorf("Open = %v, want it to look again", err)
	}
	never := listing{st, func(dir string) bool { return dir != keyringDir }}
	if _, err := Open(t.Context(), never, password, &OpenOptions{Patience: time.Nanosecond}); !errors.Is(err, errNoKeyring) || !errors.Is(err, ErrPassword) {
		t.Errorf("Open without keyrings = %v, want errNoKeyring", err)
	}
}

// listing is a storage that shows only some directories.
type listing struct {
	remote.Storage
	shown func(dir string) bool
}

func (l listing) List(ctx context.Context, dir string, fn func(remote.Entry) error) error {
	if !l.shown(dir) {
		return nil
	}
	return l.Storage.List(ctx, dir, fn)
}
