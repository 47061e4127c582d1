package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
)

// sharing decides against which multichunks chunks are deduplicated, and when anything may be put; docs/gc.md has the rules.
type sharing struct {
	ledger *store.Ledger

	mu       sync.Mutex    // guards what follows
	mayProbe bool          // notices have been read since the cache was opened
	probeAt  time.Time     // not before, because the remote has not answered
	held     chan struct{} // closed when uploads may go on; nil if they may
}

const (
	probeTime  = 10 * time.Second // how long a multichunk is asked for
	probePause = 30 * time.Second // until the next is, if there was no answer
)

// BeginIncarnation says under which incarnation this machine writes from now on. Of another one's knowledge nothing is relied on
// until it has been seen to be there.
func (c *Cache) BeginIncarnation(i store.Incarnation) error {
	if err := c.dbRoom(); err != nil {
		return err
	}
	return c.share.ledger.Begin(i)
}

// Condemn takes multichunks out of deduplication, for good: when it returns nil, that lasts. Where their chunks lie stays known,
// because references that were made before may lack it.
func (c *Cache) Condemn(names []store.Name) error {
	if err := c.dbRoom(); err != nil {
		return err
	}
	return c.share.ledger.Condemn(names)
}

// AllowProbes says that this client is registered and has read all notices since: what is found on the remote from now on stays
// there until it has been asked.
func (c *Cache) AllowProbes() {
	c.share.mu.Lock()
	defer c.share.mu.Unlock()
	c.share.mayProbe = true
}

// HoldUploads lets nothing be put until AllowUploads: what a client puts before it is registered may be deleted.
func (c *Cache) HoldUploads() {
	c.share.mu.Lock()
	defer c.share.mu.Unlock()
	if c.share.held == nil {
		c.share.held = make(chan struct{})
	}
	c.share.mayProbe = false
}

// AllowUploads ends HoldUploads.
func (c *Cache) AllowUploads() {
	c.share.mu.Lock()
	defer c.share.mu.Unlock()
	if c.share.held != nil {
		close(c.share.held)
		c.share.held = nil
	}
}

// waitAllowed waits until uploads are not held.
func (c *Cache) waitAllowed(ctx context.Context) error {
	c.share.mu.Lock()
	held := c.share.held
	c.share.mu.Unlock()
	if held == nil {
		return nil
	}
	select {
	case <-held:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sharable reports whether a chunk that is known to be stored may be relied on. If that is not known it is stored again, which
// costs space and nothing else.
func (c *Cache) sharable(ctx context.Context, id store.ID) (bool, error) {
	c.mu.Lock()
	p := c.pending[id]
	ours := p != nil && p.state != chunkKnown
	if ours {
		c.listLocked(id, p)
	}
	c.mu.Unlock()
	if ours {
		return true, nil
	}
	_, ok, err := c.relied(ctx, id)
	return ok, err
}

// standing reports whether a multichunk may be deduplicated against.
func (c *Cache) standing(ctx context.Context, n store.Name) (bool, error) {
	standing, err := c.share.ledger.Standing(n)
	if err != nil || standing != store.Unproven {
		return standing == store.Vouched, err
	}
	return c.probe(ctx, n)
}

// probe sees whether a multichunk is there, and vouches for it.
func (c *Cache) probe(ctx context.Context, n store.Name) (bool, error) {
	c.share.mu.Lock()
	may := c.share.mayProbe && !c.o.Now().Before(c.share.probeAt)
	c.share.mu.Unlock()
	if !may {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	_, err := c.repo.Storage().Get(ctx, store.ObjectName(n), 0, 1)
	switch {
	case err == nil:
		return true, c.share.ledger.Vouch(n)
	case errors.Is(err, remote.ErrNotExist):
		return false, c.index.Forget(n)
	}
	c.share.mu.Lock()
	c.share.probeAt = c.o.Now().Add(probePause)
	c.share.mu.Unlock()
	return false, nil
}

// vouch notes that a multichunk was found or put just now. One that was found counts once this client is asked before it goes.
func (c *Cache) vouch(n store.Name, own bool) error {
	c.share.mu.Lock()
	may := c.share.mayProbe
	c.share.mu.Unlock()
	if !own && !may {
		return nil
	}
	if err := c.share.ledger.Vouch(n); err != nil {
		return fmt.Errorf("vouch for multichunk %v: %w", n, err)
	}
	return nil
}

// isForbidden reports whether a multichunk is condemned.
func (c *Cache) isForbidden(n store.Name) bool {
	s, err := c.share.ledger.Standing(n)
	return err == nil && s == store.Forbidden
}
