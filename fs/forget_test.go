package fs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/store"
)

func (e *env) snapshotTagged(name string, tags ...string) Snapshot {
	e.t.Helper()
	s, err := e.v.CreateSnapshot(ctx, Snapshot{Name: name, Tags: tags})
	if err != nil {
		e.t.Fatal(err)
	}
	return s
}

// dataObjects returns the names of all multichunks.
func (e *env) dataObjects() []string {
	return slices.DeleteFunc(e.st.Names(), func(name string) bool { return !strings.HasPrefix(name, "data/") })
}

func (e *env) snapshotNames() (names []string) {
	e.t.Helper()
	snaps, err := e.v.Snapshots(ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	for _, s := range snaps {
		names = append(names, s.Name)
	}
	return names
}

func (e *env) wantSnapshots(want ...string) {
	e.t.Helper()
	if got := e.snapshotNames(); !slices.Equal(got, want) {
		e.t.Errorf("snapshots are %q, want %q", got, want)
	}
}

func TestRetain(t *testing.T) {
	e := newEnv(t)
	for i := range 4 {
		e.write("f", 0, fmt.Append(nil, "content ", i))
		e.snapshotTagged(fmt.Sprint(i))
	}
	p := &Policy{Last: 2}
	if _, err := e.v.Retain(ctx, p, true); err != nil {
		t.Fatal(err)
	}
	e.wantSnapshots("0", "1", "2", "3")
	if err := e.v.HoldSnapshot(ctx, "0", true); err != nil {
		t.Fatal(err)
	}
	groups, err := e.v.Retain(ctx, p, false)
	if err != nil {
		t.Fatal(err)
	}
	if len(groups) != 1 || len(groups[0].Keep) != 3 || len(groups[0].Forget) != 1 {
		t.Errorf("decided %+v, want three to stay and one to go", groups)
	}
	e.wantSnapshots("0", "2", "3")
	if _, err := e.v.Retain(ctx, &Policy{}, false); !errors.Is(err, ErrNothingKept) {
		t.Errorf("no rule: %v, want ErrNothingKept", err)
	}
	if err := e.v.ForgetSnapshot(ctx, "0"); !errors.Is(err, ErrHeld) {
		t.Errorf("forget one that is held: %v, want ErrHeld", err)
	}
	e.wipe()
	e.wantSnapshots("0", "2", "3")
}

// The order in which snapshots were made decides, not the clock.
func TestRetainWithFrozenClock(t *testing.T) {
	e := newEnv(t)
	e.close()
	e.opt.Now = func() time.Time { return time.Unix(1e9, 0) }
	e.open()
	for _, name := range []string{"c", "a", "b"} {
		e.snapshotTagged(name)
	}
	if _, err := e.v.Retain(ctx, &Policy{Last: 1}, false); err != nil {
		t.Fatal(err)
	}
	e.wantSnapshots("b")
}

func TestRestoreForgotten(t *testing.T) {
	e := newEnv(t)
	e.write("f", 0, randomBytes(t, 300_000))
	want := e.read("f")
	e.snapshotTagged("old")
	e.write("f", 0, []byte("new"))
	e.sync()
	if err := e.v.ForgetSnapshot(ctx, "old"); err != nil {
		t.Fatal(err)
	}
	if _, err := e.v.Snapshot(ctx, "old"); !errors.Is(err, ErrNoSnapshot) {
		t.Errorf("a forgotten snapshot: %v, want ErrNoSnapshot", err)
	}
	e.wipe()
	e.wantSnapshots()
	if err := e.v.RestoreForgotten(ctx, "old"); err != nil {
		t.Fatal(err)
	}
	e.wipe()
	e.wantSnapshots("old")
	if got := e.read(".snapshots", "old", "f"); string(got) != string(want) {
		t.Error("the content of the snapshot that was brought back differs")
	}
	if err := e.v.RestoreForgotten(ctx, "old"); err == nil {
		t.Error("brought back twice")
	}
}

// What garbage collection has condemned, or has taken away, is not referred to again.
func TestRestoreForgottenRefuses(t *testing.T) {
	e := newEnv(t)
	e.write("stays", 0, randomBytes(t, 100_000))
	e.sync()
	before := e.dataObjects()
	e.write("goes", 0, randomBytes(t, 400_000))
	e.snapshotTagged("old")
	e.sync()
	e.v.Forget(e.walk("goes"), 2) // nobody has it open
	if err := e.v.Unlink(ctx, Root, []byte("goes")); err != nil {
		t.Fatal(err)
	}
	if err := e.v.ForgetSnapshot(ctx, "old"); err != nil {
		t.Fatal(err)
	}
	e.sync()
	if err := e.v.RestoreForgotten(ctx, "old"); err != nil { // nothing has been collected yet
		t.Fatal(err)
	}
	if err := e.v.ForgetSnapshot(ctx, "old"); err != nil {
		t.Fatal(err)
	}
	e.sync()

	// Somebody who is no client sees what only the snapshot has, once its states are no merge bases any more.
	c, err := e.repo.NewCollector(&store.CollectOptions{AllowMost: true}).Condemn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Garbage) == 0 {
		t.Fatal("nothing was condemned")
	}
	if err := e.v.RestoreForgotten(ctx, "old"); !errors.Is(err, ErrCollected) {
		t.Errorf("brought back from condemned multichunks: %v, want ErrCollected", err)
	}
	for _, name := range e.dataObjects() {
		if !slices.Contains(before, name) {
			e.st.Delete(ctx, name)
		}
	}
	if err := e.v.RestoreForgotten(ctx, "old"); !errors.Is(err, ErrCollected) {
		t.Errorf("brought back from deleted multichunks: %v, want ErrCollected", err)
	}
}

// Keeping a snapshot beats forgetting it.
func TestForgetMerges(t *testing.T) {
	a := newEnv(t)
	a.write("f", 0, []byte("x"))
	for _, name := range []string{"both", "one", "held"} {
		a.snapshotTagged(name)
	}
	a.sync()
	b := a.other()
	b.sync()
	for _, err := range []error{a.v.ForgetSnapshot(ctx, "both", "held"), b.v.ForgetSnapshot(ctx, "both", "one"), b.v.HoldSnapshot(ctx, "held", true)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		a.sync()
		b.sync()
	}
	a.wantSnapshots("held")
	b.wantSnapshots("held")
}

func TestSnapshotRecord(t *testing.T) {
	s := Snapshot{Name: "n", Time: time.Unix(5, 6).UTC(), Host: "h", Client: "c", Message: "m", Tags: []string{"x", "y"}, Order: 7,
		Root: store.Ref{ID: store.ID{1}, Kind: store.RefNode, Hint: store.Hint{Multichunk: store.Name{2}, Off: 3, Len: 4}}}
	for _, forgotten := range []bool{false, true} {
		s.Forgotten = forgotten
		e := s.entry()
		if got := len(e.Refs); got != 1 && !forgotten || got != 0 && forgotten {
			t.Errorf("forgotten %v: %d references", forgotten, got)
		}
		got, err := parseSnapshot(e)
		if err != nil || fmt.Sprint(*got) != fmt.Sprint(s) {
			t.Errorf("parseSnapshot = %+v, %v, want %+v", got, err, s)
		}
		for n := range len(e.Value) {
			cut := &store.Entry{Key: e.Key, Value: e.Value[:n], Refs: e.Refs}
			if _, err := parseSnapshot(cut); err == nil && !(forgotten && n == len(e.Value)-rootSize) {
				t.Errorf("forgotten %v: %d of %d bytes parse", forgotten, n, len(e.Value))
			}
		}
	}
}
