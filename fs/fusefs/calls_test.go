package fusefs

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dedupfs/dedupfs/fs"
)

func TestOverdue(t *testing.T) {
	cs := newCalls()
	var all []*call
	for i := range uint64(40) {
		all = append(all, cs.begin("read", &fuse.InHeader{Unique: 2 * i, NodeId: i}, nil))
	}
	for _, c := range all[1:] {
		c.end()
	}
	begun := all[0].begun
	for _, step := range []struct {
		age  time.Duration
		want []pending
	}{
		{59 * time.Second, nil},
		{60 * time.Second, []pending{{"read", fs.Ino(0), 60 * time.Second}}},
		{119 * time.Second, nil},
		{120 * time.Second, []pending{{"read", fs.Ino(0), 120 * time.Second}}},
	} {
		if got := cs.overdue(begun.Add(step.age), time.Minute); !slices.Equal(got, step.want) {
			t.Errorf("overdue at %v = %v, want %v", step.age, got, step.want)
		}
	}
	all[0].end()
	if got := cs.overdue(begun.Add(time.Hour), time.Minute); got != nil {
		t.Errorf("overdue after the last has ended = %v, want none", got)
	}
}

func TestCallIsContext(t *testing.T) {
	cancel := make(chan struct{})
	c := newCalls().begin("read", &fuse.InHeader{}, cancel)
	defer c.end()
	derived, stop := context.WithTimeout(c, time.Hour)
	defer stop()
	if err := derived.Err(); err != nil {
		t.Fatalf("before: Err() = %v", err)
	}
	close(cancel)
	select {
	case <-derived.Done():
	case <-time.After(5 * time.Second):
		t.Fatal("a derived context does not end with the request")
	}
	if err := derived.Err(); !errors.Is(err, context.Canceled) {
		t.Errorf("after: Err() = %v, want Canceled", err)
	}
}

func BenchmarkCall(b *testing.B) {
	cs := newCalls()
	b.RunParallel(func(pb *testing.PB) {
		h := &fuse.InHeader{}
		for pb.Next() {
			h.Unique += 2
			cs.begin("read", h, nil).end()
		}
	})
}

func TestHandles(t *testing.T) {
	var table handles[*int]
	one, two, three := new(int), new(int), new(int)
	a, b := table.add(one), table.add(two)
	if a == 0 || b == 0 || a == b {
		t.Fatalf("numbers %d and %d, want different ones, not 0", a, b)
	}
	if got := table.remove(a); got != one {
		t.Errorf("remove(%d) = %p, want %p", a, got, one)
	}
	if got := table.get(a); got != nil {
		t.Errorf("get of a removed number = %p, want nil", got)
	}
	if c := table.add(three); c != a || table.get(c) != three {
		t.Errorf("add = %d, want %d again", c, a)
	}
	for _, fh := range []uint64{0, 3, 1 << 63} {
		if got := table.get(fh); got != nil {
			t.Errorf("get(%d) = %p, want nil", fh, got)
		}
	}
	table.remove(b)
	if got := table.drain(); !slices.Equal(got, []*int{three}) {
		t.Errorf("drain = %v, want the one that is open", got)
	}
}
