package fs

import (
	"errors"
	"syscall"
	"testing"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/store"
)

// accept accepts all that is there to accept, and returns how much that was.
func (e *env) accept() int {
	e.t.Helper()
	found, err := e.v.AcceptHistory(ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	return len(found)
}

func (e *env) wantFiles(want map[string]string) {
	e.t.Helper()
	for name, content := range want {
		if got := string(e.read(name)); got != content {
			e.t.Errorf("%s is %q, want %q", name, got, content)
		}
	}
}

// After a roll-back of everything two clients agree on what is left, go on from there, and keep what was not published.
func TestAcceptRollback(t *testing.T) {
	a := newEnv(t)
	a.write("a", 0, []byte("1"))
	a.sync()
	b := a.other()
	b.sync()
	back := a.st.Snapshot()
	a.write("a2", 0, []byte("2"))
	a.sync()
	b.sync()
	b.write("b", 0, []byte("3"))
	b.sync()
	a.sync()
	a.st.Restore(back)

	if err := a.v.Sync(ctx, nil); !errors.Is(err, store.ErrRollback) {
		t.Fatalf("Sync after a roll-back: %v, want ErrRollback", err)
	}
	if n := a.accept(); n == 0 {
		t.Fatal("nothing was accepted")
	}
	if n := a.accept(); n != 0 {
		t.Errorf("%d more were accepted", n)
	}
	a.write("a3", 0, []byte("4"))
	a.sync()
	b.write("b2", 0, []byte("5"))
	b.accept() // its own history was rolled back too
	b.sync()
	a.sync()
	b.sync()
	for _, e := range []*env{a, b, a.other()} {
		e.wantFiles(map[string]string{"a": "1", "a3": "4", "b2": "5"})
		if _, err := e.v.Lookup(ctx, Root, []byte("a2")); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("a file that is gone from the remote: %v, want ENOENT", err)
		}
	}
	if _, err := a.repo.Members(ctx); err != nil {
		t.Errorf("a look at everything: %v", err)
	}
}

// Two copies of one cache directory that have published both: whoever accepts that has both changes.
func TestAcceptFork(t *testing.T) {
	a := newEnv(t)
	a.write("f", 0, []byte("common"))
	a.sync()
	other := a.other()
	other.sync()
	copied := a.disk.Clone()
	a.write("a", 0, []byte("a"))
	a.sync()
	a.write("a2", 0, []byte("a2"))
	a.sync()
	// The copy does not see what the first has published until it has done so itself.
	ca, err := cache.Open(ctx, "", a.repo, &cache.Options{Files: copied, Segment: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	opt := a.opt
	opt.AnyHistory = true
	b := &env{t: t, st: a.st, repo: a.repo, ca: ca, disk: copied, opt: opt}
	b.v = forkedVolume(t, b)
	t.Cleanup(b.close)
	b.write("b", 0, []byte("b"))
	if err := b.v.syncOwn(ctx, nil); err != nil {
		t.Fatal(err)
	}

	if err := a.v.Sync(ctx, nil); !errors.Is(err, store.ErrRollback) {
		t.Fatalf("Sync after a fork: %v, want ErrRollback", err)
	}
	if n := a.accept(); n == 0 {
		t.Fatal("nothing was accepted")
	}
	a.sync()
	b.v.commits.copied.Store(false)
	b.accept()
	b.sync()
	a.sync()
	other.sync()
	a.sync()
	b.sync()
	for _, e := range []*env{a, b, other} {
		e.wantFiles(map[string]string{"f": "common", "a": "a", "a2": "a2", "b": "b"})
	}
}

// forkedVolume opens the volume of a copy as if the remote had shown it nothing new.
func forkedVolume(t *testing.T, e *env) *Volume {
	t.Helper()
	v := newVolume(e.ca, e.repo, &e.opt)
	if err := v.identify(ctx); err != nil {
		t.Fatal(err)
	}
	root, snaps, _, _, _, _, _ := e.ca.LastCommit()
	v.base, v.snapMap = v.localTree(root), snaps
	return v
}
