package fs

import (
	"bytes"
	"context"
	"errors"
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

// collect condemns what nobody needs, lets clients hear of it, and deletes what can be deleted. It returns who was waited for in vain.
func collect(t *testing.T, st remote.Storage, clients ...*env) []store.Waiting {
	t.Helper()
	now := time.Duration(0)
	c := storetest.Open(t, st).NewCollector(&store.CollectOptions{AllowMost: true, Running: func() time.Duration { return now }})
	if _, err := c.Condemn(ctx); err != nil {
		t.Fatal(err)
	}
	for _, e := range clients {
		e.sync()
	}
	waiting, err := c.Look(ctx)
	if err != nil {
		t.Fatal(err)
	}
	now += 1000 * time.Hour
	if _, err := c.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	return waiting
}

func multichunks(st *remotetest.Mem) int { return len(st.InDir("data")) }

func members(t *testing.T, e *env) (states []string) {
	t.Helper()
	list, err := storetest.Open(t, e.st).Members(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		states = append(states, m.State.String())
	}
	return states
}

// TestCollect collects what one client has removed while two are mounted.
func TestCollect(t *testing.T) {
	a := newEnv(t)
	gone := randomBytes(t, 300_000)
	a.write("gone", 0, gone)
	a.sync()
	a.write("kept", 0, randomBytes(t, 300_000))
	a.sync()
	b := a.other()
	b.sync()
	a.remove("gone")
	for range 3 {
		agree(t, a, b)
		if waiting := collect(t, a.st, a, b); len(waiting) > 0 {
			t.Fatalf("waits for %v", waiting)
		}
	}
	n := a.st.Bytes()
	for _, name := range a.st.InDir("ballast") {
		b, _ := a.st.Object(name)
		n -= int64(len(b))
	}
	if n > 450_000 {
		t.Errorf("%d bytes left, want those of one file and of the tree", n)
	}
	want := b.read("kept")
	for _, e := range []*env{a, b} { // both knew the chunks
		e.write("again", 0, gone)
		e.sync()
		c := e.other()
		if !bytes.Equal(c.read("again"), gone) || !bytes.Equal(c.read("kept"), want) {
			t.Error("another client reads something else")
		}
		e.remove("again")
		agree(t, a, b, c)
		c.close()
		for range 3 {
			collect(t, a.st, a, b)
		}
	}
}

// TestSilent deletes nothing while a client has not answered, and everything once it has ended in good order.
func TestSilent(t *testing.T) {
	a := newEnv(t)
	b := a.other()
	a.write("gone", 0, randomBytes(t, 300_000))
	agree(t, a, b)
	a.remove("gone")
	a.sync()
	before := multichunks(a.st)
	waiting := collect(t, a.st, a)
	if len(waiting) != 1 || waiting[0].Client != b.v.me {
		t.Fatalf("waits for %v", waiting)
	}
	if n := multichunks(a.st); n < before {
		t.Fatalf("%d of %d multichunks are left", n, before)
	}
	b.close()
	for range 3 {
		if waiting := collect(t, a.st, a); len(waiting) > 0 {
			t.Errorf("waits for %v", waiting)
		}
	}
	if n := multichunks(a.st); n >= before {
		t.Errorf("%d multichunks are left of %d", n, before)
	}
}

// TestRetired lets a client go on whose chunks were collected while nobody had to ask it.
func TestRetired(t *testing.T) {
	a := newEnv(t)
	b := a.other()
	data := randomBytes(t, 300_000)
	a.write("file", 0, data)
	agree(t, a, b)
	first := a.ca.State().Incarnation
	a.close()
	if s := a.ca.State(); s.Incarnation != (store.Incarnation{}) || !s.Intent.Head.IsZero() {
		t.Fatalf("state after the end: %+v", s)
	}
	b.remove("file")
	b.sync()
	for range 3 {
		collect(t, a.st, b)
	}
	a.open()
	if s := a.ca.State(); s.Incarnation == first || s.Pending() {
		t.Fatalf("state of the new life: %+v", s)
	}
	a.write("again", 0, data)
	agree(t, a, b)
	c := a.other()
	if !bytes.Equal(c.read("again"), data) {
		t.Error("a new client reads something else")
	}
}

// TestRetireUntouched leaves no trace of a mount in which nothing was written.
func TestRetireUntouched(t *testing.T) {
	a := newEnv(t)
	a.write("file", 0, []byte("x"))
	a.sync()
	a.close()
	commits := a.commits()
	for range 3 {
		a.open()
		a.read("file")
		a.sync()
		a.close()
	}
	if got := members(t, a); len(got) != 1 || got[0] != "retired" || a.commits() != commits {
		t.Errorf("members %v, %d commits, want one that has retired and %d", got, a.commits(), commits)
	}
}

// TestNotClean keeps a client that ends with something left to upload.
func TestNotClean(t *testing.T) {
	a := newEnv(t)
	a.write("file", 0, []byte("x"))
	a.sync()
	a.write("more", 0, []byte("y"))
	life := a.ca.State().Incarnation
	a.reopen()
	if a.ca.State().Incarnation != life {
		t.Error("a new incarnation, with something to publish under the old one")
	}
	a.sync()
	a.reopen()
	if a.ca.State().Incarnation == life || string(a.read("more")) != "y" {
		t.Error("the old incarnation goes on after its end")
	}
}

// TestRegisterLost loses the answer to a registration: the next mount goes on with it.
func TestRegisterLost(t *testing.T) {
	a := newEnv(t)
	a.write("file", 0, []byte("x"))
	a.sync()
	a.close()
	a.open()
	life := a.ca.State().Incarnation
	if err := a.ca.UpdateState(func(s *State) { s.Registered = false }); err != nil {
		t.Fatal(err)
	}
	a.write("more", 0, []byte("y")) // or it would end its life
	a.reopen()
	if s := a.ca.State(); s.Incarnation != life || s.Pending() {
		t.Errorf("state %+v, want incarnation %v", s, life)
	}
	if got := members(t, a); len(got) != 2 {
		t.Errorf("members %v, want two", got)
	}
}

// TestMountOffline mounts without network a client that had retired, and writes.
func TestMountOffline(t *testing.T) {
	st := remotetest.NewMem()
	storetest.New(t, st)
	data, dir := randomBytes(t, 100_000), t.TempDir()
	a := &env{t: t, st: st, opt: newOptions()}
	a.openAway(&away{Mem: st}, dir)
	a.write("file", 0, data)
	a.sync()
	a.close()
	w := &away{Mem: st}
	a.openAway(w, dir, true)
	a.write("more", 0, data)
	if err := a.v.Sync(ctx, nil); !errors.Is(err, remote.ErrUnreachable) {
		t.Fatalf("sync without network: %v", err)
	}
	if got := members(t, a); len(got) != 1 {
		t.Fatalf("members %v", got)
	}
	w.down.Store(false)
	a.sync()
	a.disk = cachetest.NewDisk(0)
	c := a.other()
	if !bytes.Equal(c.read("more"), data) {
		t.Error("another client reads something else")
	}
	a.close()
}

// TestEvicted lets a client come back that was given up while it slept, with nothing that others do not know.
func TestEvicted(t *testing.T) {
	a := newEnv(t)
	b := a.other()
	data := randomBytes(t, 300_000)
	a.write("file", 0, data)
	agree(t, a, b)
	if _, err := b.repo.Evict(ctx, a.ca.State().Incarnation); err != nil {
		t.Fatal(err)
	}
	b.remove("file")
	b.sync()
	for range 3 {
		if waiting := collect(t, a.st, b); len(waiting) > 0 {
			t.Fatalf("waits for %v", waiting)
		}
	}
	old := a.ca.State().Incarnation
	agree(t, a, b)
	if a.ca.State().Incarnation == old {
		t.Error("the evicted incarnation goes on")
	}
	a.write("again", 0, data)
	agree(t, a, b)
	if c := a.other(); !bytes.Equal(c.read("again"), data) {
		t.Error("a new client reads something else")
	}
}

// TestHeld reads on in files whose states have been collected.
func TestHeld(t *testing.T) {
	a := newEnv(t)
	b := a.other()
	data := randomBytes(t, 3_000_000)
	a.write("file", 0, data)
	if _, err := a.v.CreateSnapshot(ctx, Snapshot{Name: "s"}); err != nil {
		t.Fatal(err)
	}
	agree(t, a, b)
	c := a.other() // has nothing in its cache
	live, err := c.v.Open(ctx, c.walk("file"), 0, Cred{})
	if err != nil {
		t.Fatal(err)
	}
	old, err := c.v.Open(ctx, c.walk(".snapshots", "s", "file"), 0, Cred{})
	if err != nil {
		t.Fatal(err)
	}
	a.remove("file")
	if err := a.v.ForgetSnapshot(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	agree(t, a, b)
	for range 3 {
		if waiting := collect(t, a.st, a, b, c); len(waiting) > 0 {
			t.Fatalf("waits for %v", waiting)
		}
	}
	for _, h := range []*Handle{live, old} {
		got := make([]byte, len(data))
		if n, err := h.Read(ctx, got, 0); n != len(got) || err != nil || !bytes.Equal(got, data) {
			t.Errorf("read of %d bytes: %d, %v", len(got), n, err)
		}
		h.Release()
	}
	before := multichunks(a.st)
	for range 4 {
		collect(t, a.st, a, b, c)
	}
	if n := multichunks(a.st); n >= before {
		t.Errorf("%d multichunks, %d before the files were closed", n, before)
	}
}

// away is a remote that may not answer.
type away struct {
	*remotetest.Mem
	down atomic.Bool
}

func (w *away) err() error {
	if w.down.Load() {
		return remote.ErrUnreachable
	}
	return nil
}

func (w *away) Put(ctx context.Context, name string, data []byte) error {
	if err := w.err(); err != nil {
		return err
	}
	return w.Mem.Put(ctx, name, data)
}

func (w *away) Get(ctx context.Context, name string, off, n int64) ([]byte, error) {
	if err := w.err(); err != nil {
		return nil, err
	}
	return w.Mem.Get(ctx, name, off, n)
}

func (w *away) List(ctx context.Context, dir string, fn func(remote.Entry) error) error {
	if err := w.err(); err != nil {
		return err
	}
	return w.Mem.List(ctx, dir, fn)
}

func (w *away) Delete(ctx context.Context, name string) error {
	if err := w.err(); err != nil {
		return err
	}
	return w.Mem.Delete(ctx, name)
}

// openAway opens e's client with its cache in dir, and its remote away if down.
func (e *env) openAway(w *away, dir string, down ...bool) {
	e.t.Helper()
	e.wire, e.repo = nil, storetest.Open(e.t, w)
	w.down.Store(len(down) > 0)
	var err error
	if e.ca, err = cache.Open(ctx, dir, e.repo, &cache.Options{Segment: 4 << 20, Offline: time.Second}); err != nil {
		e.t.Fatal(err)
	}
	if e.v, err = Open(ctx, e.ca, e.repo, &e.opt); err != nil {
		e.t.Fatal(err)
	}
}

// remove removes a file, of which the kernel forgets all then.
func (e *env) remove(name string) {
	e.t.Helper()
	ino := e.walk(name)
	if err := e.v.Unlink(ctx, Root, []byte(name)); err != nil {
		e.t.Fatal(err)
	}
	e.v.Forget(ino, 1000)
}
