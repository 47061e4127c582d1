package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/cache/cachetest"
	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store/storetest"
)

// fullEnv is a client of a repository on a storage that can be full.
type fullEnv struct {
	*env
	full *remotetest.Full
	hook *remotetest.Fault
}

// newFull returns a client of a new repository on full.
func newFull(t *testing.T) *fullEnv {
	t.Helper()
	st := remotetest.NewMem()
	storetest.New(t, st)
	return openFull(t, remotetest.NewFull(st))
}

func openFull(t *testing.T, full *remotetest.Full) *fullEnv {
	t.Helper()
	e := &fullEnv{env: &env{t: t, st: full.Mem, disk: cachetest.NewDisk(0), opt: newOptions()}, full: full}
	e.open()
	t.Cleanup(func() {
		full.SetLimit(-1)
		e.close()
	})
	return e
}

func (e *fullEnv) open() {
	e.t.Helper()
	e.hook = remotetest.NewFault(e.full, nil)
	e.repo = storetest.Open(e.t, e.hook)
	var err error
	e.ca, err = cache.Open(ctx, "", e.repo, &cache.Options{Files: e.disk, Segment: 4 << 20, RetryMin: time.Millisecond, RetryMax: 20 * time.Millisecond})
	if err != nil {
		e.t.Fatal(err)
	}
	if e.v, err = Open(ctx, e.ca, e.repo, &e.opt); err != nil {
		e.t.Fatal(err)
	}
}

// fill leaves no room on the remote.
func (e *fullEnv) fill() { e.full.SetLimit(e.st.Bytes()) }

// refused fails unless a sync says that the remote is full.
func (e *fullEnv) refused() {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := e.v.Sync(ctx, nil); !errors.Is(err, remote.ErrNoSpace) {
		e.t.Fatalf("Sync to a full remote = %v", err)
	}
}

// eventually syncs until that works.
func (e *fullEnv) eventually() {
	e.t.Helper()
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if err = e.v.Sync(ctx, nil); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	e.t.Fatalf("Sync = %v", err)
}

func (e *fullEnv) ballast() int { return len(e.st.InDir("ballast")) }

// TestCollectFull collects a repository without a byte of room, whose files were deleted while another client has data that waits.
func TestCollectFull(t *testing.T) {
	a := newFull(t)
	b := openFull(t, a.full)
	gone, kept := randomBytes(t, 3_000_000), randomBytes(t, 100_000)
	a.write("gone", 0, gone)
	a.write("kept", 0, kept)
	a.sync()
	b.sync()
	a.fill()
	waits := randomBytes(t, 200_000)
	b.write("waits", 0, waits) // b must answer though this is not there
	b.refused()
	a.write("never mind", 0, randomBytes(t, 300_000))
	a.refused()
	a.remove("gone")
	a.remove("never mind")

	answers := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(answers)
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
				_ = b.v.follower.tick(ctx)
				_ = b.v.commits.publishAll(ctx, nil)
			}
		}
	}()
	c, err := a.v.Collect(ctx, CollectOptions{MaxUnused: 0.05, AllowMost: true, Wait: true}, nil)
	close(done)
	<-answers
	if err != nil || !c.Full || c.DeletedSize < 3_000_000 {
		t.Fatalf("Collect of a full repository = %+v, %v", c, err)
	}
	if a.ballast() != 1 {
		t.Errorf("%d ballast objects after it", a.ballast())
	}
	a.eventually()
	b.eventually()
	a.eventually()
	a.write("more", 0, randomBytes(t, 500_000))
	a.sync()
	for name, want := range map[string][]byte{"kept": kept, "waits": waits} {
		if got := a.read(name); !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes that differ", name, len(got))
		}
	}
	checked(t, a.env)
}

// TestAnswerInFull lets a client answer whose changes do not fit, and refer to what is condemned: that stays.
func TestAnswerInFull(t *testing.T) {
	a := newFull(t)
	b := openFull(t, a.full)
	data := randomBytes(t, 1_000_000)
	a.write("gone", 0, data)
	a.sync()
	b.sync()
	b.read("gone") // b knows where its chunks lie
	a.remove("gone")
	a.sync()
	b.sync()
	b.write("again", 0, data)
	a.sync()
	a.fill()
	b.write("waits", 0, randomBytes(t, 200_000))
	b.refused()
	if c, err := a.v.Collect(ctx, CollectOptions{MaxUnused: -1, AllowMost: true}, nil); err != nil || c.Garbage == 0 {
		t.Fatalf("Collect = %+v, %v", c, err)
	}
	if err := b.v.follower.tick(ctx); err != nil {
		t.Fatal(err)
	}
	if err := b.v.commits.publishAll(ctx, nil); !errors.Is(err, remote.ErrNoSpace) {
		t.Fatalf("publishing data to a full remote = %v", err)
	}
	last, err := b.v.member.last(ctx)
	if err != nil || last == nil || len(last.Acks) == 0 || len(last.Held) == 0 {
		t.Fatalf("the answer is %+v, %v", last, err)
	}
	for range 2 {
		if _, err := a.v.Collect(ctx, CollectOptions{MaxUnused: -1, AllowMost: true}, nil); err != nil && !errors.Is(err, remote.ErrNoSpace) {
			t.Fatal(err)
		}
	}
	a.full.SetLimit(-1)
	b.eventually()
	fresh := a.other()
	if got := fresh.read("again"); !bytes.Equal(got, data) {
		t.Errorf("what was referred to while it was condemned differs")
	}
	checked(t, a.env)
}

// TestCollectFullKilled stops a collection of a full repository at every single call of its remote.
func TestCollectFullKilled(t *testing.T) {
	a := newFull(t)
	a.opt.Poll = -1
	kept := randomBytes(t, 60_000)
	a.write("kept", 0, kept)
	a.sync()
	next := func(i int) int {
		if longRun {
			return i + 1
		}
		return i + 1 + i/3
	}
	for i, ran := 1, false; !ran; i = next(i) {
		a.full.SetLimit(-1)
		a.eventually()
		a.write("gone", 0, randomBytes(t, 200_000))
		a.sync()
		if err := a.repo.PutBallast(ctx); err != nil {
			t.Fatal(err)
		}
		a.fill()
		a.remove("gone")
		a.write("waits", 0, randomBytes(t, 100_000))
		a.refused()
		a.remove("waits")

		var calls atomic.Int64
		run, kill := context.WithCancel(ctx)
		a.hook.SetHook(func(op, name string) error {
			if calls.Add(1) >= int64(i) {
				kill()
				return errKilled
			}
			return nil
		})
		_, err := a.v.Collect(run, CollectOptions{MaxUnused: 0.05, AllowMost: true}, nil)
		ran = err == nil && calls.Load() < int64(i)
		kill()
		a.hook.Heal()
		a.powerless()
		checked(t, a.env)
		c, err := a.v.Collect(ctx, CollectOptions{MaxUnused: 0.05, AllowMost: true, Wait: true}, nil)
		if err != nil {
			t.Fatalf("after a collection was stopped at call %d: Collect = %+v, %v", i, c, err)
		}
		a.write("more", 0, randomBytes(t, 50_000))
		a.eventually()
		a.remove("more")
		if got := a.read("kept"); !bytes.Equal(got, kept) {
			t.Fatalf("after call %d: what was kept differs", i)
		}
		if a.ballast() != 1 {
			t.Fatalf("after call %d: %d ballast objects", i, a.ballast())
		}
	}
	checked(t, a.env)
}

// powerless ends the process without a good end, and begins anew with what the disk has.
func (e *fullEnv) powerless() {
	e.t.Helper()
	e.hook.SetHook(func(op, name string) error { return fmt.Errorf("%s: %w", op, remote.ErrUnreachable) })
	if err := e.v.Close(ctx); err != nil {
		e.t.Fatal(err)
	}
	e.ca.Close()
	e.open()
}

// TestFullGivesUp publishes a state that needs nothing of what did not fit, though that has been waiting in every place where it can.
func TestFullGivesUp(t *testing.T) {
	a := newFull(t)
	a.write("kept", 0, randomBytes(t, 100_000))
	a.sync()
	a.full.SetLimit(a.st.Bytes() + 100_000) // nodes fit, and no multichunk of data
	for i := range 12 {
		a.write(fmt.Sprint("big ", i), 0, randomBytes(t, 2_000_000))
		a.commit()
	}
	a.refused()
	for i := range 12 {
		a.remove(fmt.Sprint("big ", i))
	}
	if err := a.v.commits.commit(ctx, nil); err != nil {
		t.Fatal(err)
	}
	a.eventually()
	if p := a.ca.Pending(); p.Bytes != 0 {
		t.Errorf("%d bytes still wait", p.Bytes)
	}
	a.full.SetLimit(-1)
	data := randomBytes(t, 500_000)
	a.write("after", 0, data)
	a.sync()
	fresh := a.other()
	if got := fresh.read("after"); !bytes.Equal(got, data) {
		t.Error("what was written after it differs")
	}
	checked(t, a.env)
}
