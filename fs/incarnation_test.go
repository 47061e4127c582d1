package fs

import (
	"errors"
	"testing"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/store"
)

// An old copy of a cache directory publishes nothing under the incarnation that has gone on without it.
func TestOvertaken(t *testing.T) {
	e := newEnv(t)
	e.write("a", 0, []byte("first"))
	e.sync()
	old := e.disk.Clone()
	e.write("a", 0, []byte("second"))
	e.sync()

	ca, err := cache.Open(ctx, "", e.repo, &cache.Options{Files: old, Segment: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer ca.Close()
	if _, err := Open(ctx, ca, e.repo, &e.opt); !errors.Is(err, ErrCopied) {
		t.Fatalf("open an old copy: %v, want ErrCopied", err)
	}
	heads, err := e.repo.Poll(ctx, new(store.Trust))
	if err != nil || len(heads) != 1 {
		t.Errorf("heads are %v, %v, want that of the first alone", heads, err)
	}
}

// A copy that goes on as a client of its own neither forks nor loses what it had not published.
func TestReincarnate(t *testing.T) {
	e := newEnv(t)
	e.write("a", 0, []byte("first"))
	e.sync()
	before := e.v.ca.State()
	e.write("b", 0, []byte("not published"))
	e.commit()
	if err := e.v.reincarnate(ctx, nil); err != nil {
		t.Fatal(err)
	}
	after := e.v.ca.State()
	if after.Client != before.Client || after.Incarnation == before.Incarnation || after.InodeRange == before.InodeRange {
		t.Errorf("from %v %v to %v %v: want another incarnation and range of the same client",
			before.Incarnation, before.InodeRange, after.Incarnation, after.InodeRange)
	}
	e.write("c", 0, []byte("later"))
	e.sync()
	if got := Ino(e.walk("c")) >> 32; got != Ino(after.InodeRange) {
		t.Errorf("the new file has a number of range %d, want %d", got, after.InodeRange)
	}
	e.wipe()
	for name, want := range map[string]string{"a": "first", "b": "not published", "c": "later"} {
		if got := string(e.read(name)); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}
