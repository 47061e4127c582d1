package fs

import (
	"context"
	"sync"

	"github.com/dedupfs/dedupfs/store"
)

// How far ahead of a reader who goes through a file in order its chunks are brought to this machine, and opened, in bytes:
// a few multichunks, and a few groups. The kernel reads ahead too, and asks for several parts at a time, so that a reader in order
// jumps a little; one who reads here and there jumps so by chance, but not for long.
const (
	bringAhead = 24 << 20
	openAhead  = 6 << 20
	smallJump  = 4 << 20
	leastRun   = 256 << 10
)

// readAhead is what one open file knows about who reads it in order.
type readAhead struct {
	mu      sync.Mutex // guards all below; whoever does not get it has somebody else read ahead
	last    int64      // where the last read ended
	run     int64      // bytes read without a larger jump
	brought int64      // up to where chunks have been asked for
	coming  []chunkAt  // of those, what is still to be opened: one chunk of each group
}

// read is told that n bytes at off of c have been read.
func (r *readAhead) read(ctx context.Context, c *contentReader, off, n int64) {
	if c.t == nil || !r.mu.TryLock() {
		return
	}
	defer r.mu.Unlock()
	end := off + n
	if !r.inOrder(off, n) {
		r.brought, r.coming = end, nil
		return
	}
	if from := max(r.brought, end); from-end <= bringAhead/2 {
		r.bring(ctx, c, from, end+bringAhead)
	}
	r.open(c, end)
}

// inOrder notes a read, and reports whether whoever reads goes through the file in order.
func (r *readAhead) inOrder(off, n int64) bool {
	last := r.last
	r.last = off + n
	if last == 0 || off > last+smallJump || off+smallJump < last {
		r.run = 0
		return false
	}
	r.run += n
	return r.run >= leastRun
}

// bring asks for the chunks in [from, to). Whatever is wrong with them, the read that needs them will tell.
func (r *readAhead) bring(ctx context.Context, c *contentReader, from, to int64) {
	r.brought = to
	var refs []store.Ref
	err := c.chunks(ctx, from, func(at chunkAt) bool {
		if at.nested() {
			return at.end() < to
		}
		if n := len(refs); n == 0 || at.ref.Hint.IsZero() || refs[n-1].Hint != at.ref.Hint { // neighbours mostly lie in one group
			refs = append(refs, at.ref)
			r.coming = append(r.coming, at)
		}
		return at.end() < to
	})
	if err == nil {
		c.ca.Prefetch(refs)
	}
}

// open has the groups opened that come after end.
func (r *readAhead) open(c *contentReader, end int64) {
	var refs []store.Ref
	n := 0
	for n < len(r.coming) && r.coming[n].off < end+min(openAhead, c.ca.OpenBudget()/2) {
		if r.coming[n].end() > end {
			refs = append(refs, r.coming[n].ref)
		}
		n++
	}
	r.coming = r.coming[n:]
	c.ca.Preopen(refs)
}
