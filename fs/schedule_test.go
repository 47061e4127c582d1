package fs

import (
	"strings"
	"testing"
	"time"
)

// TestSchedule lets three machines follow one schedule, two of them without seeing each other.
func TestSchedule(t *testing.T) {
	a := newEnv(t)
	now := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	a.opt.Now = func() time.Time { return now }
	a.opt.SnapshotEvery = time.Hour
	tick := func(e *env) { // what the background does, which has not begun here
		t.Helper()
		if err := e.v.scheduler.tick(ctx); err != nil {
			t.Fatal(err)
		}
	}
	idle := func(e *env) *env {
		e.v.scheduler.close()
		return e
	}
	names := func(e *env) string {
		t.Helper()
		snaps, err := e.v.Snapshots(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range snaps {
			if !s.scheduled() {
				t.Errorf("%s has the tags %q", s.Name, s.Tags)
			}
			names = append(names, strings.TrimPrefix(s.Name, "auto-2001-02-"))
		}
		return strings.Join(names, " ")
	}
	a.reopen()
	idle(a)
	tick(a)
	if got := names(a); got != "" {
		t.Errorf("of an empty volume: %s", got)
	}
	b, c := idle(a.other()), idle(a.other())

	now = now.Add(time.Hour)
	a.overwrite("f", "1")
	a.sync()
	b.sync()
	tick(a)
	tick(b) // neither has seen the other's
	agree(t, a, b)
	if got := names(b); got != "03T05-00-00Z" {
		t.Errorf("after a change, made by two at once: %s", got)
	}
	for _, e := range []*env{a, b, c} {
		now = now.Add(time.Hour)
		tick(e)
	}
	commits := a.commits()
	agree(t, a, b, c)
	if got := names(c); got != "03T05-00-00Z" || a.commits() != commits {
		t.Errorf("with no change: %s, and %d commits more", got, a.commits()-commits)
	}
	now = now.Add(time.Hour)
	c.overwrite("f", "2")
	for range 3 {
		for _, e := range []*env{c, a, b} {
			tick(e)
			e.sync()
		}
	}
	if got := names(a); got != "03T05-00-00Z 03T09-00-00Z" {
		t.Errorf("after another change: %s", got)
	}
	if err := a.v.ForgetSnapshot(ctx, "auto-2001-02-03T09-00-00Z"); err != nil {
		t.Fatal(err)
	}
	a.overwrite("f", "3")
	a.v.scheduler.last = ""
	tick(a)
	if got := names(a); got != "03T05-00-00Z" {
		t.Errorf("one that was forgotten is made again: %s", got)
	}
	a.overwrite("f", "4")
	a.reopen() // the background looks at once, and an hour later
	now = now.Add(time.Hour)
	a.v.scheduler.last = ""
	if w := a.v.scheduler.wait(now); w < 54*time.Minute || w > 56*time.Minute {
		t.Errorf("the next one is waited for %s", w)
	}
}

// TestScheduleRuns has the background make snapshots.
func TestScheduleRuns(t *testing.T) {
	e := newEnv(t)
	e.opt.SnapshotEvery = 20 * time.Millisecond
	e.reopen()
	e.overwrite("f", "1")
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		snaps, err := e.v.Snapshots(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(snaps) > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no snapshot is made")
		}
	}
}
