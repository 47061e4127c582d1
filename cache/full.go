package cache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
)

// While the remote is full, data waits in the log, and nobody waits for it: what makes room there are states that need less, and
// garbage collection, which needs answers. Whatever is there of the room of the ballast is theirs; data goes on when the ballast is back.

// errUseless says of a multichunk that nothing here refers to its chunks any more.
var errUseless = errors.New("nobody needs it any more")

// ballastPatience is how long data waits for a ballast that is not there, before this client puts it there itself: it may have been
// left so by a collection that was killed, or never have been.
const ballastPatience = 2 * time.Minute

// RemoteFull returns nil, or the error with which the remote has refused what waits to be uploaded because it has no room.
func (c *Cache) RemoteFull() error {
	u := c.uploads
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.all) == 0 && errors.Is(u.err, remote.ErrNoSpace) {
		u.err = nil // nothing tries any more, so nothing would find out
	}
	return u.fullLocked()
}

// fullLocked returns the error that says that the remote is full, nil if it is not. The caller holds mu.
func (u *uploads) fullLocked() error {
	if errors.Is(u.err, remote.ErrNoSpace) {
		return u.err
	}
	return nil
}

func (u *uploads) fullErr() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.fullLocked()
}

// untilFull returns a context that ends when the remote turns out to be full; the error is its cause. The caller calls stop.
func (c *Cache) untilFull(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		for {
			c.uploads.mu.Lock()
			changed, full := c.uploads.changed, c.uploads.fullLocked()
			c.uploads.mu.Unlock()
			if full != nil {
				cancel(full)
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

// unlessFull calls fn with a context that ends when the remote turns out to be full, which is the error then.
func (c *Cache) unlessFull(ctx context.Context, fn func(context.Context) error) error {
	upTo, stop := c.untilFull(ctx)
	defer stop()
	err := fn(upTo)
	if full := context.Cause(upTo); err != nil && full != nil && ctx.Err() == nil {
		return full
	}
	return err
}

// mayPutData returns nil if a multichunk may be put: always, unless the remote was full when one was put last. Then the ballast has to
// be there.
func (c *Cache) mayPutData(ctx context.Context) error {
	u := c.uploads
	u.mu.Lock()
	met := u.metFull
	u.mu.Unlock()
	if met == nil {
		return nil
	}
	has, err := c.repo.HasBallast(ctx)
	if err != nil {
		return err
	}
	u.mu.Lock()
	if u.noBallast.IsZero() {
		u.noBallast = c.o.Now()
	}
	waited := u.hurry || c.o.Now().Sub(u.noBallast) >= ballastPatience
	u.hurry = false
	if has {
		u.noBallast = time.Time{}
	}
	u.mu.Unlock()
	switch {
	case has:
		return nil
	case waited:
		return c.repo.PutBallast(ctx)
	}
	return met
}

// isUseless reports whether nothing that is needed waits for up.
func (c *Cache) isUseless(up *upload) bool {
	c.uploads.mu.Lock()
	met := c.uploads.metFull
	c.uploads.mu.Unlock()
	if met == nil {
		return false
	}
	if up.kind != store.KindData {
		return up.given.Load()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range up.table {
		if p := c.pending[up.table[i].ID]; p != nil && p.hint == up.table[i].Hint {
			return false
		}
	}
	return true
}

// PackNodes is PackForPublication while the remote is full: it puts only nodes, and returns the error with which data was refused if
// the newest local commit needs any. Until the publication has been told as published no local commit must be made: what the
// newest does not need is given up then.
func (c *Cache) PackNodes(ctx context.Context, full error) (*Publication, error) {
	c.publishMu.Lock()
	defer c.publishMu.Unlock()
	c.mu.Lock()
	unpublished := len(c.commits) > 0
	base := c.newestLocked()
	c.mu.Unlock()
	if !unpublished {
		return nil, nil
	}
	if p := c.packed; p != nil && p.N == base.N {
		return p, nil
	}
	p, err := c.nodesAlone(ctx, base, full)
	if err != nil {
		return nil, fmt.Errorf("publish local commit %d: %w", base.N, err)
	}
	c.packed = p
	return p, nil
}

func (c *Cache) nodesAlone(ctx context.Context, base Base, full error) (*Publication, error) {
	if err := c.learnDamaged(ctx); err != nil {
		return nil, err
	}
	needs := false
	err := c.eachLocalRef(ctx, base, func(ref store.Ref) {
		needs = needs || ref.Kind == store.RefChunk && ref.Hint.IsZero() && c.isPending(ref)
	})
	if err != nil {
		return nil, err
	}
	if needs {
		return nil, full
	}
	w := newWaves(c)
	w.put = func(ctx context.Context, s *store.Sealed) error {
		defer s.Release()
		return c.repo.PutMultichunk(ctx, s.Name, s.Wire)
	}
	p, err := c.publicationOf(ctx, base, w)
	if err == nil {
		p.alone = true
	}
	return p, err
}

// eachLocalRef calls fn with every reference in nodes of local commits that the state of base has. A reference whose place has become
// known has its hint.
func (c *Cache) eachLocalRef(ctx context.Context, base Base, fn func(store.Ref)) error {
	w := newWaves(c)
	for _, root := range []store.Ref{base.Root, base.Snapshots} {
		if _, err := w.plan(ctx, root); err != nil {
			return err
		}
	}
	for _, level := range w.levels {
		for _, id := range level {
			n, ok, err := w.load(ctx, id)
			if err != nil {
				return err
			}
			if !ok {
				return corruptf("node %v of a local commit is gone", id)
			}
			for i := range n.Entries {
				for _, ref := range n.Entries[i].Refs {
					fn(ref)
				}
			}
		}
	}
	return nil
}

// Relied returns what the newest local commit refers to and others must not delete: chunks that lie in multichunks that are condemned,
// and with nodes also the nodes that it has from states that are on the remote. It returns ErrTooMany if they are more than limit.
func (c *Cache) Relied(ctx context.Context, nodes bool, limit int) ([]store.Ref, error) {
	c.publishMu.Lock()
	defer c.publishMu.Unlock()
	c.mu.Lock()
	base := c.newestLocked()
	c.mu.Unlock()
	refs := map[store.Ref]bool{}
	err := c.eachLocalRef(ctx, base, func(ref store.Ref) {
		if len(refs) > limit || c.isPending(ref) && ref.Hint.IsZero() {
			return
		}
		if ref.Hint.IsZero() {
			ref.Hint = c.knownHint(ref)
		}
		if ref.Kind == store.RefNode && nodes || ref.Kind == store.RefChunk && c.isForbidden(ref.Hint.Multichunk) {
			refs[ref] = true
		}
	})
	if err != nil {
		return nil, err
	}
	if len(refs) > limit {
		return nil, ErrTooMany
	}
	return slices.Collect(maps.Keys(refs)), nil
}

// ErrTooMany says that a client relies on more than can be said at once.
var ErrTooMany = errors.New("too much of what is to be deleted is needed here")

// giveUpUnneeded forgets the chunks that wait for upload and that local commits list: all of these are published, without them. No
// local commit is being made.
func (c *Cache) giveUpUnneeded() {
	c.mu.Lock()
	for id, p := range c.pending {
		if p.state == chunkKnown || p.fresh {
			continue
		}
		c.releaseLocked(p)
		delete(c.pending, id)
		c.pendingBytes -= int64(p.len)
	}
	c.mu.Unlock()
	c.replacePacker(c.packer())
	c.again.wake() // multichunks that nobody needs any more go
}
