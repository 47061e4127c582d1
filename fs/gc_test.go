package fs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/cache/cachetest"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/storetest"
)

// checked fails unless every byte on the remote is right.
func checked(t *testing.T, e *env) {
	t.Helper()
	report, err := storetest.Open(t, e.st).Check(ctx, &store.CheckOptions{ReadData: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range report.Damages {
		t.Errorf("%s: %v", d.Object, d.Err)
	}
}

var errKilled = errors.New("killed")

// TestCollectKilled stops a collector at every single call of its remote, while another client is mounted and writes. All is there each
// time, and the next collector finishes.
func TestCollectKilled(t *testing.T) {
	a := newEnv(t)
	a.opt.Logger = slog.New(slog.DiscardHandler)
	want := map[string][]byte{}
	fill := func(round int) {
		t.Helper()
		for i := range 6 {
			name := fmt.Sprintf("file %d", i)
			if i == round%6 || want[name] == nil {
				if want[name] != nil {
					a.remove(name)
				}
				want[name] = randomBytes(t, 60_000)
				a.write(name, 0, want[name])
				a.sync()
			}
		}
	}
	next := func(i int) int {
		if longRun {
			return i + 1
		}
		return i + 1 + i/4
	}
	for i, ran := 1, false; !ran; i = next(i) {
		fill(i)
		var calls atomic.Int64
		f := remotetest.NewFault(a.st, nil)
		o := &env{t: t, st: a.st, disk: cachetest.NewDisk(0), opt: a.opt}
		repo := storetest.Open(t, f)
		ca, err := cache.Open(ctx, "", repo, &cache.Options{Files: o.disk, Segment: 4 << 20})
		if err != nil {
			t.Fatal(err)
		}
		v, err := Open(ctx, ca, repo, &o.opt)
		if err != nil {
			t.Fatal(err)
		}
		run, kill := context.WithCancel(ctx)
		f.SetHook(func(op, name string) error {
			if calls.Add(1) >= int64(i) {
				kill()
				return errKilled
			}
			return nil
		})
		_, err = v.Collect(run, CollectOptions{MaxUnused: 0.05, AllowMost: true}, nil)
		ran = err == nil
		kill()
		v.learner.close() // without a good end
		v.follower.close()
		v.commits.close()
		ca.Close()
		for _, m := range mustMembers(t, a) {
			if m.State == store.MemberActive && m.Incarnation == ca.State().Incarnation {
				if _, err := a.repo.Evict(ctx, m.Incarnation); err != nil {
					t.Fatal(err)
				}
			}
		}
		checked(t, a)
		for name, data := range want {
			if !bytes.Equal(a.read(name), data) {
				t.Fatalf("%s differs after a collector was stopped at call %d", name, i)
			}
		}
		if t.Failed() {
			t.Fatalf("after a collector was stopped at call %d", i)
		}
	}
	for range 3 {
		if c, err := a.v.Collect(ctx, CollectOptions{MaxUnused: 0.05, AllowMost: true}, nil); err != nil || len(c.Waiting) > 0 {
			t.Fatalf("Collect = %+v, %v", c, err)
		}
	}
	checked(t, a)
	live := int64(6 * 60_000)
	data := int64(0)
	for _, name := range a.st.InDir("data") {
		b, _ := a.st.Object(name)
		data += int64(len(b))
	}
	if data > live*12/10+64<<10 {
		t.Errorf("%d bytes in multichunks, %d of them in files", data, live)
	}
	fresh := a.other()
	for name, data := range want {
		if !bytes.Equal(fresh.read(name), data) {
			t.Errorf("%s differs on a new machine", name)
		}
	}
}

func mustMembers(t *testing.T, e *env) []store.Member {
	t.Helper()
	members, err := storetest.Open(t, e.st).Members(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return members
}

// TestCollectWaits lets a client answer late that keeps an old state only since it has not seen the newer one.
func TestCollectWaits(t *testing.T) {
	a := newEnv(t)
	a.write("kept", 0, randomBytes(t, 60_000))
	a.sync()
	a.write("gone", 0, randomBytes(t, 60_000))
	a.sync()
	b := a.other()
	b.write("b", 0, []byte("b"))
	b.sync()
	a.sync()
	a.remove("gone")
	a.sync()
	dry, err := a.v.Collect(ctx, CollectOptions{DryRun: true, MaxUnused: -1}, nil)
	if err != nil || !dry.Behind || len(dry.Waiting) != 1 {
		t.Errorf("Collect would = %+v, %v, want word of one client that is behind", dry, err)
	}
	told := make(chan bool)
	report := func(what string, done, total int64) {
		if what == "waiting for 1 clients" {
			told <- true
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range told {
			if err := b.v.Sync(ctx, nil); err != nil {
				t.Error(err)
			}
		}
	}()
	c, err := a.v.Collect(ctx, CollectOptions{Wait: true, MaxUnused: -1, AllowMost: true}, report)
	close(told)
	<-ended
	if err != nil || c.DeletedSize < 60_000 || len(c.Waiting) > 0 {
		t.Errorf("Collect = %+v, %v, want what is gone deleted", c, err)
	}
	checked(t, b)
}

// countCalls opens a volume on a new machine, or collects as one, and returns how many calls of the remote that took.
func countCalls(t *testing.T, e *env, do func(v *Volume)) int64 {
	t.Helper()
	var calls atomic.Int64
	f := remotetest.NewFault(e.st, nil)
	f.SetHook(func(string, string) error {
		calls.Add(1)
		return nil
	})
	repo := storetest.Open(t, f)
	ca, err := cache.Open(ctx, "", repo, &cache.Options{Files: cachetest.NewDisk(0), Segment: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	v, err := Open(ctx, ca, repo, &e.opt)
	if err != nil {
		t.Fatal(err)
	}
	if do != nil {
		do(v)
	}
	if err := v.Close(ctx); err != nil {
		t.Fatal(err)
	}
	ca.Close()
	return calls.Load()
}

// TestMountsLeaveNothing mounts, writes and unmounts again and again. After a collection a new machine, and the next collection, need as
// many calls of the remote as after a few mounts, and of the mounts nothing is left.
func TestMountsLeaveNothing(t *testing.T) {
	mounts := 40
	if longRun {
		mounts = 1000
	}
	e := newEnv(t)
	e.opt.Logger = slog.New(slog.DiscardHandler)
	e.write("kept", 0, []byte("kept"))
	e.sync()
	collect := func(v *Volume) {
		for range 2 {
			c, err := v.Collect(ctx, CollectOptions{MaxUnused: 0.05, AllowMost: true}, nil)
			if err != nil || len(c.Waiting) > 0 {
				t.Fatalf("Collect = %+v, %v", c, err)
			}
		}
	}
	round := func(n int) (mount, gc int64, objects int) {
		for i := range n {
			e.write("file", 0, fmt.Appendf(nil, "round %d", i))
			e.sync()
			e.reopen()
		}
		e.close()
		defer e.open()
		before := len(e.st.Names())
		countCalls(t, e, collect)
		mount = countCalls(t, e, nil)
		gc = countCalls(t, e, collect)
		t.Logf("%d mounts: %d objects, %d after gc; %d calls to mount, %d to collect", n, before, len(e.st.Names()), mount, gc)
		return mount, gc, len(e.st.Names())
	}
	mount1, gc1, objects1 := round(4)
	mount2, gc2, objects2 := round(mounts)
	if mount2 > mount1+20 || gc2 > gc1+40 || objects2 > objects1+20 {
		t.Errorf("a mount takes %d calls after few mounts and %d after many, a collection %d and %d; %d objects and %d",
			mount1, mount2, gc1, gc2, objects1, objects2)
	}
	checked(t, e)
	if got := string(e.read("kept")); got != "kept" {
		t.Errorf("kept = %q", got)
	}
	// oldKeys returns how many multichunks are not sealed under the newest key.
}

func (e *env) oldKeys() (n int) {
	e.t.Helper()
	var newest uint64
	epochs := map[uint64]int{}
	for _, name := range e.st.Names() {
		if strings.HasPrefix(name, "data/") {
			b, _ := e.st.Object(name)
			epoch := binary.BigEndian.Uint64(b[24:])
			epochs[epoch]++
			newest = max(newest, epoch)
		}
	}
	for epoch, count := range epochs {
		if epoch != newest {
			n += count
		}
	}
	return n
}

// TestCollectReseal stores everything anew under a new key, a part at a time.
func TestCollectReseal(t *testing.T) {
	e := newEnv(t)
	want := map[string][]byte{}
	for i := range 4 {
		name := fmt.Sprint(i)
		want[name] = randomBytes(t, 100_000)
		e.write(name, 0, want[name])
		e.sync()
	}
	if err := e.repo.RotateKey(ctx); err != nil {
		t.Fatal(err)
	}
	e.write("new", 0, randomBytes(t, 1000))
	e.sync()
	before, runs := e.oldKeys(), 0
	if before < 8 {
		t.Fatalf("%d multichunks are sealed under the old key", before)
	}
	for ; e.oldKeys() > 0; runs++ {
		if runs > 20 {
			t.Fatalf("after %d runs %d multichunks are still sealed under the old key", runs, e.oldKeys())
		}
		found, err := e.v.Collect(ctx, CollectOptions{Reseal: true, MaxBytes: 150_000, MaxUnused: -1, AllowMost: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if runs == 0 && found.Regrouped.Old < 4 {
			t.Errorf("found %d under the old key", found.Regrouped.Old)
		}
		e.sync()
	}
	if runs < 2 {
		t.Errorf("done in %d runs: nothing was left for another", runs)
	}
	e.wipe()
	for name, data := range want {
		if !bytes.Equal(e.read(name), data) {
			t.Errorf("%s has another content", name)
		}
	}
	checked(t, e)
}
