package fs

import (
	"bytes"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"
)

// newAutomatic returns a client that keeps automatic states, and whose clock is *now.
func newAutomatic(t *testing.T, p Policy, now *time.Time) *env {
	e := newEnv(t)
	e.opt.Automatic = p
	e.opt.Now = func() time.Time { return *now }
	e.reopen()
	return e
}

// automatic returns the names of the automatic states.
func (e *env) automatic() (names []string) {
	e.t.Helper()
	all, err := e.v.AllSnapshots(ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	for _, s := range all {
		if s.Automatic {
			names = append(names, s.Name)
		}
	}
	return names
}

// TestAutomatic brings back what was removed by mistake, on the machine where it was, on another one, and after a restart.
func TestAutomatic(t *testing.T) {
	now := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	a := newAutomatic(t, DefaultAutomatic, &now)
	a.overwrite("f", "precious")
	a.sync()
	b := a.other()
	if got := a.automatic(); len(got) != 0 {
		t.Errorf("before anything has changed there is %q", got)
	}
	a.reopen() // of a base that is older than the mount the commit tells the time
	now = now.Add(time.Hour)
	a.remove("f")
	agree(t, a, b)
	now = now.Add(10 * time.Minute)
	b.overwrite("other", "x")
	for range 3 { // nothing changes: no entries
		agree(t, a, b)
		now = now.Add(time.Hour)
	}
	want := []string{"2001-02-03T04-05-06Z", "2001-02-03T05-05-06Z"}
	for _, e := range []*env{a, b} {
		if got := e.automatic(); !slices.Equal(got, want) {
			t.Errorf("automatic states are %q, want %q", got, want)
		}
		if got := string(e.read(".snapshots", want[0], "f")); got != "precious" {
			t.Errorf("what was removed reads %q", got)
		}
		e.wantSnapshots()
	}
	if _, err := a.v.Snapshot(ctx, latestName); err == nil {
		t.Error("an automatic state is the latest snapshot")
	}
	if s, err := a.v.FindSnapshot(ctx, "2001-02-03T05:00:00Z"); err != nil || s.Name != want[0] {
		t.Errorf("of the time in between there is %q, %v", s.Name, err)
	}
	if err := a.v.HoldSnapshot(ctx, want[0], true); err != nil {
		t.Error(err)
	}
	groups, err := a.v.Retain(ctx, &Policy{Last: 1}, false)
	if err != nil || len(groups) != 1 || !groups[0].Automatic {
		t.Fatalf("forget: %+v, %v", groups, err)
	}
	if got := a.automatic(); !slices.Equal(got, want[:1]) {
		t.Errorf("after all but the present and what is held were forgotten there is %q", got)
	}
	if err := a.v.RestoreForgotten(ctx, want[1]); err != nil {
		t.Error(err)
	}
	agree(t, a, b)
	if got := b.automatic(); !slices.Equal(got, want) {
		t.Errorf("after one was brought back there is %q", got)
	}
}

// TestAutomaticTogether has two machines change the same volume at once: what both replace is entered once, and when they make states of
// the same second a merge keeps one.
func TestAutomaticTogether(t *testing.T) {
	now := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	a := newAutomatic(t, DefaultAutomatic, &now)
	a.overwrite("f", "0")
	a.sync()
	b := a.other()
	for i := range 3 {
		now = now.Add(time.Minute)
		a.overwrite("a", fmt.Sprint(i))
		b.overwrite("b", fmt.Sprint(i))
		agree(t, a, b)
	}
	if got := a.automatic(); len(got) != 3 {
		t.Errorf("two machines have entered %q, want one for each minute", got)
	}
	// A name that a person gives is another one.
	if _, err := a.v.CreateSnapshot(ctx, Snapshot{Name: a.automatic()[0]}); err != nil {
		t.Error(err)
	}
	agree(t, a, b)
	if n := len(b.names(b.walk(".snapshots"))); n != 1+1+1+3 { // the latest, the name, its time, three states
		t.Errorf("listed are %q", b.names(b.walk(".snapshots")))
	}
}

// TestAutomaticThin thins out by the rules, whatever the clock does, and lets go of all that falls out.
func TestAutomaticThin(t *testing.T) {
	r := newRand(t)
	now := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	p := Policy{Last: 3, Hourly: 4, Daily: 5}
	e := newAutomatic(t, p, &now)
	const most = 3 + 4 + 5 + thinEvery
	data := map[string]string{}
	for i := range 300 {
		content := fmt.Sprint("content ", i)
		e.overwrite("f", content)
		e.sync()
		data[now.UTC().Format(snapshotTimeName)] = content
		if n := len(e.automatic()); n > most {
			t.Fatalf("after %d commits there are %d automatic states, want %d at most", i, n, most)
		}
		now = now.Add(time.Duration(1+r.Intn(5000)) * time.Second)
		if r.Intn(40) == 0 {
			now = now.Add(time.Duration(r.Intn(40)-20) * 24 * time.Hour) // the clock jumps
		}
	}
	names := e.automatic()
	if len(names) < 3 { // the last ones; of a clock that has jumped the others may all be of their hours
		t.Errorf("there are only %q", names)
	}
	for _, name := range names {
		if got := string(e.read(".snapshots", name, "f")); got != data[name] {
			t.Errorf("%s has %q, want %q", name, got, data[name])
		}
	}
}

// TestAutomaticCollect forgets automatic states, and has everything collected that only they need; without that it stays.
func TestAutomaticCollect(t *testing.T) {
	now := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	e := newAutomatic(t, DefaultAutomatic, &now)
	gone := make([]byte, 800_000)
	newRand(t).Read(gone)
	e.write("gone", 0, gone)
	e.write("kept", 0, []byte("kept"))
	e.sync()
	now = now.Add(time.Minute)
	e.remove("gone")
	e.sync()
	size := func() int64 { e.t.Helper(); collectAll(t, e); return e.st.Bytes() }
	with := size()
	if got := e.read(".snapshots", e.automatic()[0], "gone"); !bytes.Equal(got, gone) {
		t.Fatalf("%d bytes are left of what was removed", len(got))
	}
	if _, err := e.v.Retain(ctx, &Policy{Automatic: &Policy{Last: AllOf}}, false); err != nil {
		t.Fatal(err)
	}
	if _, err := e.v.Retain(ctx, &Policy{Last: 1}, false); err != nil {
		t.Fatal(err)
	}
	if without := size(); without > with-700_000 {
		t.Errorf("%d bytes before the state was forgotten, %d after", with, without)
	}
	if got := string(e.read("kept")); got != "kept" {
		t.Errorf("what was not removed reads %q", got)
	}
	if _, err := e.v.Lookup(ctx, Root, []byte("gone")); err != syscall.ENOENT {
		t.Errorf("what was removed: %v", err)
	}
}

// collectAll collects garbage until nothing is left to do.
func collectAll(t *testing.T, e *env) {
	t.Helper()
	for range 3 {
		if _, err := e.v.Collect(ctx, CollectOptions{Wait: true, AllowMost: true}, nil); err != nil {
			t.Fatal(err)
		}
		e.sync()
	}
}

// TestAutomaticCost bounds what entering the state before it adds to a commit of one small change.
func TestAutomaticCost(t *testing.T) {
	var each [2]int64
	for i, p := range []Policy{{}, DefaultAutomatic} {
		e := newVolumeOf(t, 10_000)
		now := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
		e.opt.Automatic, e.opt.Now = p, func() time.Time { return now }
		e.reopen()
		const before, rounds = 150, 48
		var at int64
		var used time.Duration
		for j := range before + rounds {
			if j == before {
				at, used = e.st.Bytes(), cpu()
			}
			now = now.Add(time.Duration(20+j) * time.Second)
			e.edit(j*50, fmt.Sprint("change ", j))
			e.sync()
		}
		each[i] = (e.st.Bytes() - at) / rounds
		t.Logf("%d automatic states: %d bytes, %s of CPU for a commit", len(e.automatic()), each[i], ((cpu() - used) / rounds).Round(10*time.Microsecond))
	}
	if each[1] > each[0]+8<<10 {
		t.Errorf("%d bytes for a commit, %d without automatic states", each[1], each[0])
	}
}
