package fusefs

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dedupfs/dedupfs/fs"
)

// call is one request while it is served, and its context: it ends when the program that asked gives up.
type call struct {
	op    string
	ino   fs.Ino
	begun time.Time
	interruption

	shard      *shard
	prev, next *call         // guarded by shard.mu
	reported   time.Duration // age when last named in the log; guarded by shard.mu
}

var _ context.Context = (*call)(nil)

func (c *call) Deadline() (time.Time, bool) { return time.Time{}, false }
func (c *call) Value(any) any               { return nil }

// end takes c off the list of pending requests.
func (c *call) end() {
	c.shard.mu.Lock()
	c.prev.next, c.next.prev = c.next, c.prev
	c.shard.mu.Unlock()
	c.ended()
}

// calls knows the requests that are being served. There are several lists so that requests seldom meet at a lock.
type calls struct {
	shards [16]shard
}

// shard is a ring of calls through a call of its own, so that an empty one needs no special case.
type shard struct {
	mu   sync.Mutex
	root call
}

func newCalls() *calls {
	cs := &calls{}
	for i := range cs.shards {
		root := &cs.shards[i].root
		root.prev, root.next = root, root
	}
	return cs
}

// begin notes a request that h introduces. The caller ends it.
func (cs *calls) begin(op string, h *fuse.InHeader, cancel <-chan struct{}) *call {
	// The kernel counts in twos: the lowest bit of a number marks interrupts.
	s := &cs.shards[h.Unique>>1%uint64(len(cs.shards))]
	c := &call{op: op, ino: fs.Ino(h.NodeId), begun: time.Now(), interruption: interruption{cancel: cancel, thread: h.Pid}, shard: s}
	s.mu.Lock()
	c.prev, c.next = s.root.prev, &s.root
	c.prev.next, c.next.prev = c, c
	s.mu.Unlock()
	return c
}

// pending is what the log says about a request that takes long.
type pending struct {
	op  string
	ino fs.Ino
	age time.Duration
}

// overdue returns the calls that are older than limit at now, each again only when its age has doubled.
func (cs *calls) overdue(now time.Time, limit time.Duration) []pending {
	var late []pending
	for i := range cs.shards {
		late = cs.shards[i].overdue(late, now, limit)
	}
	return late
}

func (s *shard) overdue(late []pending, now time.Time, limit time.Duration) []pending {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := s.root.next; c != &s.root; c = c.next {
		if age := now.Sub(c.begun); age >= limit && age >= 2*c.reported {
			c.reported = age
			late = append(late, pending{c.op, c.ino, age})
		}
	}
	return late
}

// watch names requests in the log that are pending for limit or longer, until done is closed.
func (cs *calls) watch(log *slog.Logger, limit time.Duration, done <-chan struct{}) {
	tick := time.NewTicker(limit / 4)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case now := <-tick.C:
			for _, p := range cs.overdue(now, limit) {
				log.Warn("request pending", "op", p.op, "inode", p.ino, "age", p.age.Round(time.Millisecond))
			}
		}
	}
}
