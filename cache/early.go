package cache

import (
	"context"
	"fmt"
	"slices"

	"github.com/dedupfs/dedupfs/store"
)

// PendingBelow returns how many bytes of chunks below ref are not yet on the remote. It stops counting at limit.
func (c *Cache) PendingBelow(ctx context.Context, ref store.Ref, limit int64) (n int64, err error) {
	w := &waves{c: c, heights: make(map[store.ID]int)}
	w.chunk = func(ref store.Ref) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if p := c.pending[ref.ID]; p != nil && p.state != chunkKnown {
			n += int64(p.len)
		}
		return n < limit
	}
	if ref.Kind == store.RefChunk {
		w.chunk(ref)
		return n, nil
	}
	_, err = w.plan(ctx, ref)
	return n, err
}

// UploadPending returns when all chunks that are pending now are on the remote. Progress is as for PackForPublication.
func (c *Cache) UploadPending(ctx context.Context, progress func(done, total int64)) error {
	if err := c.learnDamaged(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	total := c.pendingBytes
	c.mu.Unlock()
	return c.unlessFull(ctx, func(ctx context.Context) error { return c.uploadChunks(ctx, reporter{c, progress, total}) })
}

// PackEarly brings a state to the remote that is not that of a local commit, but has less in it than commit n. Its nodes
// are those of local commits and of nodes; what it needs goes before all other uploads.
func (c *Cache) PackEarly(ctx context.Context, n uint64, root, snapshots store.Ref, nodes *LocalCommit) (*Publication, error) {
	c.publishMu.Lock()
	defer c.publishMu.Unlock()
	w := newWaves(c)
	w.own = nodes
	var ids []store.ID
	w.chunk = func(ref store.Ref) bool {
		ids = append(ids, ref.ID)
		return true
	}
	if err := w.planAll(ctx, root, snapshots); err != nil {
		return nil, err
	}
	err := c.unlessFull(ctx, func(ctx context.Context) error {
		if err := c.uploadFirst(ctx, ids); err != nil {
			return err
		}
		return w.pack(ctx)
	})
	if err != nil {
		return nil, err
	}
	if err := c.syncRemote(ctx); err != nil {
		return nil, err
	}
	p := &Publication{N: n, Root: root, Snapshots: snapshots, Early: true, hints: w.hints, nodes: w.nodes}
	p.Root.Hint, p.Snapshots.Hint = w.hint(root), w.hint(snapshots)
	p.Multichunks = c.announced(w, func(n store.Name) bool { return w.used[n] })
	return p, nil
}

// uploadFirst returns when chunks are on the remote. They do not wait for others.
func (c *Cache) uploadFirst(ctx context.Context, ids []store.ID) error {
	for {
		c.uploads.mu.Lock()
		changed := c.uploads.changed
		c.uploads.mu.Unlock()
		names, unsealed := make(map[store.Name]bool), false
		c.mu.Lock()
		ids = slices.DeleteFunc(ids, func(id store.ID) bool { return c.pending[id] == nil || c.pending[id].state == chunkKnown })
		for _, id := range ids {
			if h := c.pending[id].hint; h.IsZero() {
				unsealed = true
			} else {
				names[h.Multichunk] = true
			}
		}
		c.mu.Unlock()
		if len(ids) == 0 {
			return nil
		}
		if unsealed {
			if err := c.seal(ctx); err != nil {
				return err
			}
		}
		ups := c.uploads.prefer(names)
		if len(ups) == 0 && !unsealed { // on their way to the queue
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			case <-c.ctx.Done():
				return c.ctx.Err()
			}
		}
		for _, up := range ups {
			if err := c.waitUpload(ctx, up); err != nil {
				return err
			}
		}
	}
}

// seal has everything that is to be packed in a multichunk.
func (c *Cache) seal(ctx context.Context) error {
	if err := c.decide(ctx); err != nil {
		return err
	}
	if err := c.packWaiting(ctx); err != nil {
		return err
	}
	return c.flushPacker(ctx)
}

// SealChunks closes the multichunk that is being filled: what is added from now on does not hold up what was added before.
func (c *Cache) SealChunks(ctx context.Context) error {
	if err := c.flushPacker(ctx); err != nil {
		return fmt.Errorf("close a multichunk: %w", err)
	}
	return nil
}

// PublishedEarly is called after the commit of p, of PackEarly, is on the remote. All local commits stay: p is less than the
// newest. Its nodes are not packed again.
func (c *Cache) PublishedEarly(p *Publication) error {
	c.publishMu.Lock()
	defer c.publishMu.Unlock()
	c.finishMu.Lock()
	defer c.finishMu.Unlock()
	c.putHints(p.hints)
	c.mu.Lock()
	base := c.base
	base.Root, base.Snapshots = p.Root, p.Snapshots
	needed := c.neededLocked()
	for id, h := range p.hints {
		c.hints[id], c.early[id] = heldHint{h, needed}, true
	}
	hints := bareHints(c.hints)
	c.base = base
	c.mu.Unlock()
	if err := c.writeBase(base, hints); err != nil {
		return fmt.Errorf("note publication before local commit %d: %w", p.N, err)
	}
	return nil
}
