package fs

import (
	"context"
	"flag"
	"log/slog"
	"math/rand"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/storetest"
)

var seedFlag = flag.Int64("seed", 0, "seed of random tests; 0 takes one from the clock")

// newRand returns a random source whose seed is printed if the test fails.
func newRand(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = time.Now().UnixNano()
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("run again with -seed %d", seed)
		}
	})
	return rand.New(rand.NewSource(seed))
}

// env is a repository in memory and one client of it on the local disk.
type env struct {
	t    testing.TB
	st   remote.Storage
	repo *store.Repository
	dir  string
	opt  Options
	copt cache.Options
	ca   *cache.Cache
	v    *Volume
}

func newEnv(t testing.TB) *env {
	t.Helper()
	st := remotetest.NewMem()
	e := &env{t: t, st: st, repo: storetest.New(t, st), dir: t.TempDir(),
		opt: Options{CommitAfter: time.Hour, CommitEvery: time.Hour, Poll: -1, Host: "test", Logger: slog.New(slog.DiscardHandler)}}
	e.open()
	t.Cleanup(e.close)
	return e
}

// other returns a second client of the same repository.
func (e *env) other() *env {
	e.t.Helper()
	o := &env{t: e.t, st: e.st, repo: e.repo, dir: e.t.TempDir(), opt: e.opt, copt: e.copt}
	o.open()
	e.t.Cleanup(o.close)
	return o
}

func (e *env) open() {
	e.t.Helper()
	var err error
	copt := e.copt
	if e.ca, err = cache.Open(context.Background(), e.dir, e.repo, &copt); err != nil {
		e.t.Fatal(err)
	}
	if e.v, err = Open(context.Background(), e.ca, e.repo, &e.opt); err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) close() {
	e.t.Helper()
	if e.v == nil {
		return
	}
	if err := e.v.Close(context.Background()); err != nil {
		e.t.Error(err)
	}
	if err := e.ca.Close(); err != nil {
		e.t.Error(err)
	}
	e.v = nil
}

func (e *env) reopen() {
	e.t.Helper()
	e.close()
	e.open()
}

// wipe makes everything durable on the remote and starts anew on another machine.
func (e *env) wipe() {
	e.t.Helper()
	e.sync()
	e.close()
	e.dir = e.t.TempDir()
	e.open()
}

func (e *env) sync() {
	e.t.Helper()
	if err := e.v.Sync(context.Background(), nil); err != nil {
		e.t.Fatal(err)
	}
}

// commit makes a local commit and leaves it unpublished.
func (e *env) commit() {
	e.t.Helper()
	if err := e.v.commits.commit(context.Background(), nil); err != nil {
		e.t.Fatal(err)
	}
}

var ctx = context.Background()

// walk finds a path.
func (e *env) walk(path ...string) Ino {
	e.t.Helper()
	ino := Root
	for _, name := range path {
		a, err := e.v.Lookup(ctx, ino, []byte(name))
		if err != nil {
			e.t.Fatalf("look up %q: %v", path, err)
		}
		ino = a.Ino
	}
	return ino
}

// write puts data at off of a file, made if it is not there.
func (e *env) write(name string, off int64, data []byte) {
	e.t.Helper()
	_, h, err := e.v.Create(ctx, Root, []byte(name), 2, 0o644, Cred{})
	if err != nil {
		e.t.Fatal(err)
	}
	defer h.Release()
	if n, err := h.Write(ctx, data, off); n != len(data) || err != nil {
		e.t.Fatalf("Write(%s, %d) = %d, %v", name, off, n, err)
	}
}

// read returns the whole content of a file.
func (e *env) read(path ...string) []byte {
	e.t.Helper()
	return readIno(e.t, e.v, e.walk(path...))
}

func readIno(t testing.TB, v *Volume, ino Ino) []byte {
	t.Helper()
	h, err := v.Open(ctx, ino, 0, Cred{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Release()
	a, err := v.Getattr(ctx, ino, h)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, a.Size)
	if n, err := h.Read(ctx, b, 0); n != len(b) || err != nil {
		t.Fatalf("Read(%d bytes) = %d, %v", len(b), n, err)
	}
	return b
}
