package fs

import (
	"fmt"
	"testing"

	"github.com/dedupfs/dedupfs/store"
)

func (e *env) usage(whatIf ...string) *Usage {
	e.t.Helper()
	u, err := e.v.Usage(ctx, whatIf, func(int64, int64, string) {})
	if err != nil {
		e.t.Fatal(err)
	}
	return u
}

// needed returns the bytes of all multichunks that marking finds needed, once everything has settled.
func (e *env) needed() (sum int64) {
	e.t.Helper()
	for range 2 { // so that the newest commit is the one that all have seen
		if err := e.v.commits.commit(ctx, sameSnapshots); err != nil {
			e.t.Fatal(err)
		}
		e.sync()
	}
	plan, err := e.repo.NewCollector(&store.CollectOptions{AllowMost: true}).Plan(ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	garbage := map[string]bool{}
	for _, n := range plan.Garbage {
		garbage[store.ObjectName(n)] = true
	}
	for _, name := range e.dataObjects() {
		b, _ := e.st.Object(name)
		if !garbage[name] {
			sum += int64(len(b))
		}
	}
	return sum
}

// What is said to come back is what marking finds to be needed no more.
func TestWhatIfForgotten(t *testing.T) {
	e := newEnv(t)
	e.write("stays", 0, randomBytes(t, 200_000))
	e.sync() // in multichunks of its own, which no snapshot gives back
	for i := range 4 {
		e.write(fmt.Sprint("f", i), 0, randomBytes(t, 300_000))
		e.write("shared", 0, randomBytes(t, 100_000*(i/2+1)))
		e.snapshotTagged(fmt.Sprint("s", i))
		e.sync()
		e.v.Forget(e.walk(fmt.Sprint("f", i)), 2)
		if err := e.v.Unlink(ctx, Root, fmt.Append(nil, "f", i)); err != nil {
			t.Fatal(err)
		}
	}
	e.sync()
	for _, names := range [][]string{{"s1"}, {"s2", "s3"}, {"s0"}} {
		before := e.needed()
		said := e.usage(names...).WhatIf
		if err := e.v.ForgetSnapshot(ctx, names...); err != nil {
			t.Fatal(err)
		}
		after := e.needed()
		// The map of snapshots, and commits of nothing, are written anew with each step: a few small multichunks of nodes.
		const small = 64 << 10
		if came := before - after; said.Bytes < 250_000 || came < said.Bytes-small || came > said.Bytes+small {
			t.Errorf("forgetting %q brought %d bytes back, %d were said to come", names, came, said.Bytes)
		}
	}
}

func TestUsage(t *testing.T) {
	e := newEnv(t)
	data := randomBytes(t, 200_000)
	e.write("a", 0, data)
	e.write("b", 0, data)
	e.snapshotTagged("s")
	e.write("c", 0, randomBytes(t, 50_000))
	e.sync()
	u := e.usage()
	if u.Logical != 450_000 || u.Files != 3 || u.Dirs != 1 {
		t.Errorf("the present has %d bytes in %d files and %d directories", u.Logical, u.Files, u.Dirs)
	}
	if u.Unique != 250_000 || u.Stored < 250_000 || u.Stored > 260_000 {
		t.Errorf("unique are %d bytes, %d compressed, want 250000 and little more", u.Unique, u.Stored)
	}
	if len(u.States) != 2 || u.States[0].Unique != 50_000 || u.States[1].Logical != 400_000 || u.States[1].Unique != 0 {
		t.Errorf("states are %+v, want the present with 50000 bytes of its own, and one with none", u.States)
	}
	if len(u.Clients) != 1 || u.Clients[0].Logical != 450_000 {
		t.Errorf("clients are %+v", u.Clients)
	}
	if u.Remote != e.st.Bytes() {
		t.Errorf("on the remote are %d bytes, want %d", u.Remote, e.st.Bytes())
	}
	var dirs []DirUsage
	err := e.v.DiskUsage(ctx, CurrentState, 1, func(u DirUsage) error {
		dirs = append(dirs, u)
		return nil
	})
	if err != nil || len(dirs) != 1 || dirs[0].Logical != 450_000 || dirs[0].Unique != 250_000 || dirs[0].Stored != u.Stored {
		t.Errorf("the root holds %+v, %v", dirs, err)
	}
}
