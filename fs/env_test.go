package fs

import (
	"context"
	"flag"
	"log/slog"
	"math/rand"
	randv2 "math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/cache/cachetest"
	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/storetest"
)

var seedFlag = flag.Int64("seed", 0, "seed of random tests; 0 takes one from the clock")

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // copies that a power cut has torn are found, told and fetched again
	os.Exit(m.Run())
}

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

// env is a repository in memory and one client of it, whose local disk is in memory too. The database is lost with every
// close: it holds nothing that must last.
type env struct {
	t    testing.TB
	st   *remotetest.Mem
	repo *store.Repository
	wire *plug // of the repository that is open now
	disk *cachetest.Disk
	opt  Options
	copt cache.Options
	ca   *cache.Cache
	v    *Volume
}

func newEnv(t testing.TB) *env {
	t.Helper()
	st := remotetest.NewMem()
	storetest.New(t, st)
	e := &env{t: t, st: st, disk: cachetest.NewDisk(0), opt: newOptions()}
	e.open()
	t.Cleanup(e.close)
	return e
}

// newOptions are those of a client that does nothing by itself.
func newOptions() Options {
	return Options{CommitAfter: time.Hour, CommitEvery: time.Hour, Poll: -1, Host: "test", Logger: slog.New(slog.DiscardHandler)}
}

// other returns a second client of the same repository.
func (e *env) other() *env {
	e.t.Helper()
	o := &env{t: e.t, st: e.st, disk: cachetest.NewDisk(0), opt: e.opt, copt: e.copt}
	o.open()
	e.t.Cleanup(o.close)
	return o
}

// plug is a remote that can be cut off.
type plug struct {
	*remotetest.Mem
	pulled atomic.Bool
	away   atomic.Bool // nothing can be read either
}

// Get reads an object unless the remote is away.
func (p *plug) Get(ctx context.Context, name string, off, n int64) ([]byte, error) {
	if p.away.Load() {
		return nil, remote.ErrUnreachable
	}
	return p.Mem.Get(ctx, name, off, n)
}

// Put stores an object unless the plug is pulled.
func (p *plug) Put(ctx context.Context, name string, data []byte) error {
	if p.pulled.Load() {
		return remote.ErrUnreachable
	}
	return p.Mem.Put(ctx, name, data)
}

func (e *env) open() {
	e.t.Helper()
	var err error
	e.wire = &plug{Mem: e.st}
	e.repo = storetest.Open(e.t, e.wire)
	copt := e.copt
	copt.Files = e.disk
	if copt.Segment == 0 {
		copt.Segment = 4 << 20
	}
	if e.ca, err = cache.Open(context.Background(), "", e.repo, &copt); err != nil {
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
	e.disk = cachetest.NewDisk(0)
	e.open()
}

// powerCut goes on with what the disk may have kept, without a clean end.
func (e *env) powerCut(r *rand.Rand) {
	e.t.Helper()
	e.wire.pulled.Store(true)
	after := e.disk.PowerCut(randv2.New(randv2.NewPCG(r.Uint64(), 0)))
	e.close() // of the machine that is no more: what it still writes goes to the old disk
	e.disk = after
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
