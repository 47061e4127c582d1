package fs

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/chunking"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store/storetest"
)

// counter counts how often it is asked.
type counter struct {
	background, foreground, workers atomic.Int64
	limited                         bool
}

func (c *counter) Background(context.Context) error         { c.background.Add(1); return nil }
func (c *counter) Foreground(context.Context) error         { c.foreground.Add(1); return nil }
func (c *counter) Long(ctx context.Context) (func(), error) { return func() {}, c.Background(ctx) }
func (c *counter) Limited() bool                            { return c.limited }
func (c *counter) Worker()                                  { c.workers.Add(1) }

// TestPacer checks that work behind the writer's back asks before each chunk and each upload, and that reads and writes say
// that somebody waits for them.
func TestPacer(t *testing.T) {
	repo := storetest.New(t, remotetest.NewMem())
	var pace counter
	repo.SetPacer(&pace)
	ca, err := cache.Open(t.Context(), t.TempDir(), repo, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := &env{t: t, repo: repo, ca: ca, opt: Options{Poll: -1}}
	t.Cleanup(e.close)
	if e.v, err = Open(t.Context(), ca, repo, &e.opt); err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 2<<20)
	rand.NewChaCha8([32]byte{1}).Read(data)
	e.write("file", 0, data)
	written := pace.foreground.Load()
	if written == 0 {
		t.Error("a write does not say that somebody waits for it")
	}
	if err := e.v.Sync(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	_, largest := repo.Chunkers()[chunking.KindMedia].Bounds() // random bytes
	if got, want := pace.background.Load(), int64(len(data)/largest); got < want {
		t.Errorf("the pacer was asked %d times for %d bytes, want at least %d", got, len(data), want)
	}
	if pace.workers.Load() < 3 { // committer, publisher, uploader
		t.Errorf("%d goroutines say that they work in the background", pace.workers.Load())
	}
	e.read("file")
	if pace.foreground.Load() == written {
		t.Error("a read does not say that somebody waits for it")
	}
}

// TestBeginsSoon checks that under a processor limit less has to be written before a commit is made.
func TestBeginsSoon(t *testing.T) {
	for _, limited := range []bool{false, true} {
		repo := storetest.New(t, remotetest.NewMem())
		repo.SetPacer(&counter{limited: limited})
		ca, err := cache.Open(t.Context(), t.TempDir(), repo, nil)
		if err != nil {
			t.Fatal(err)
		}
		e := &env{t: t, repo: repo, ca: ca, opt: Options{Poll: -1, CommitAfter: time.Hour, CommitEvery: time.Hour}}
		t.Cleanup(e.close)
		if e.v, err = Open(t.Context(), ca, repo, &e.opt); err != nil {
			t.Fatal(err)
		}
		e.write("file", 0, make([]byte, 1<<20))
		e.v.staged.Add(soonBytes) // as if so much had been written before
		e.write("file", 1<<20, make([]byte, 1<<20))
		if got := e.v.commits.urgent.Load() || e.v.commits.first.Load() == 0; got != limited {
			t.Errorf("limited: %v, a commit is made after %d MiB: %v", limited, soonBytes>>20, got)
		}
	}
}

// stopped lets no background work begin.
type stopped struct{ counter }

func (c *stopped) Background(ctx context.Context) error {
	c.background.Add(1)
	<-ctx.Done()
	return ctx.Err()
}

// TestSyncGivesUp checks that who waits for all to be stored can give up while a commit is held back.
func TestSyncGivesUp(t *testing.T) {
	repo := storetest.New(t, remotetest.NewMem())
	var pace stopped
	repo.SetPacer(&pace)
	ca, err := cache.Open(t.Context(), t.TempDir(), repo, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := &env{t: t, repo: repo, ca: ca, opt: Options{Poll: -1, CommitAfter: time.Millisecond}}
	t.Cleanup(e.close)
	if e.v, err = Open(t.Context(), ca, repo, &e.opt); err != nil {
		t.Fatal(err)
	}
	e.write("file", 0, make([]byte, 1<<20))
	for pace.background.Load() == 0 { // until the commit in the background has begun
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- e.v.Sync(ctx, nil) }()
	select {
	case err := <-done:
		if err == nil {
			t.Error("Sync has stored what was held back")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Sync does not give up")
	}
}
