package cache

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/dedupfs/dedupfs/store"
)

// Of what a machine has not met, the index knows hooks alone. A chunk that the
// index does not know is therefore held for a moment, until a segment of data has
// come together: those of its chunks that are hooks bring in the tables of the
// multichunks that their neighbours are likely to lie in, the champions, and what
// is found there is not stored again. The bytes of held chunks stay in the log.
//
// Nobody who writes waits for this; what is flushed does, for a bounded time. When
// tables or hooks cannot be had, data is stored again, which costs space alone.

// sparse are the chunks that are held, and what is known of champions.
type sparse struct {
	turn chan struct{} // holds a token while somebody decides what is held

	loadMu sync.Mutex // held while hooks are loaded; guards loader; acquired before mu
	loader *store.HookLoader

	mu       sync.Mutex    // guards all below
	expected chan struct{} // closed when hooks have been loaded, or could not be; nil if nobody said they will be
	since    time.Time     // when they began to be expected
	held     []store.ID    // in the order in which they came
	bytes    int64         // of them
	fetching map[store.Name]chan struct{}
	failed   map[store.Name]time.Time // tables that could not be had, and until when they are not asked for again
	away     time.Time                // until when none is
	slots    chan struct{}            // a token for each fetch
}

const (
	segmentBytes  = 32 << 20 // plaintext of a segment
	segmentChunks = 8192     // most chunks of one

	hooksPatience = 2 * time.Minute  // longest wait for hooks, from when they were expected
	tablePatience = 10 * time.Second // longest wait for the tables of a segment
	tablePause    = 30 * time.Second // until a table is asked for again
	tableFetches  = 8                // at the same time
	maxFailed     = 4096
)

func newSparse() *sparse {
	return &sparse{
		turn: make(chan struct{}, 1), slots: make(chan struct{}, tableFetches),
		fetching: make(map[store.Name]chan struct{}), failed: make(map[store.Name]time.Time),
	}
}

// ExpectHooks says that LearnHooks is going to be called: until its first call has
// ended, or a short time is over, chunks are not stored that may be there already.
func (c *Cache) ExpectHooks() {
	s := c.sparse
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expected == nil {
		s.expected, s.since = make(chan struct{}), time.Now()
	}
}

// LearnHooks brings what commits up to heads announce into the index. What cannot
// be read for good is passed over, and is an *store.ObjectError.
func (c *Cache) LearnHooks(ctx context.Context, heads []store.Head) error {
	s := c.sparse
	s.loadMu.Lock()
	defer s.loadMu.Unlock()
	if s.loader == nil {
		s.loader = c.repo.NewHookLoader(c.index, store.HookLoaderOptions{
			Client: c.State().Client, Room: c.dbRoom, Condemned: c.isForbidden,
		})
	}
	err := s.loader.Load(ctx, heads)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expected != nil {
		select {
		case <-s.expected:
		default:
			close(s.expected)
		}
	}
	return err
}

// holds reports whether chunks that the index does not know may be found by hooks.
func (c *Cache) holds() bool {
	s := c.sparse
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expected == nil {
		return false
	}
	select {
	case <-s.expected:
		return c.index.Sparse()
	default:
		return true // whatever they will be
	}
}

// hold keeps a pending chunk until its segment is decided, which it does itself
// when it is the last of one.
func (c *Cache) hold(ctx context.Context, id store.ID, n int) error {
	s := c.sparse
	s.mu.Lock()
	s.held = append(s.held, id)
	s.bytes += int64(n)
	full := len(s.held) >= segmentChunks || s.bytes >= segmentBytes
	s.mu.Unlock()
	if n, ok, err := c.index.Champion(id); err != nil {
		return fmt.Errorf("look up chunk: %w", err)
	} else if ok {
		c.fetchTable(n)
	}
	if !full {
		return nil
	}
	return c.decide(ctx)
}

// fetchTable begins to bring the table of a champion into the index, unless that is
// being done, or was in vain a short time ago. It returns what is closed at the end.
func (c *Cache) fetchTable(n store.Name) <-chan struct{} {
	s := c.sparse
	s.mu.Lock()
	defer s.mu.Unlock()
	if done, ok := s.fetching[n]; ok {
		return done
	}
	now := time.Now()
	if until, ok := s.failed[n]; ok && now.Before(until) || now.Before(s.away) || c.isForbidden(n) {
		return nil
	}
	done := make(chan struct{})
	_, err := c.start(func(ctx context.Context) {
		defer close(done)
		err := c.readChampion(ctx, n)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.fetching, n)
		if err != nil {
			s.fail(n, time.Now().Add(tablePause), store.IsLost(err))
		}
	})
	if err != nil {
		return nil
	}
	s.fetching[n] = done
	return done
}

// fail notes that a table could not be had. If that is not its own fault, others are
// not asked for either. s.mu is held.
func (s *sparse) fail(n store.Name, until time.Time, lost bool) {
	if !lost {
		s.away = until
		return
	}
	if len(s.failed) >= maxFailed {
		clear(s.failed)
	}
	s.failed[n] = until
}

func (c *Cache) readChampion(ctx context.Context, n store.Name) error {
	select {
	case c.sparse.slots <- struct{}{}:
		defer func() { <-c.sparse.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, tablePatience)
	defer cancel()
	table, err := c.learnTable(ctx, n)
	if err == nil {
		c.fetched.Add(int64(len(table)) * (int64(len(store.ID{})) + 3))
		return nil
	}
	if store.IsLost(err) {
		c.loseMultichunk(n)
	}
	c.trouble(fmt.Errorf("what multichunk %v holds is stored again: %w", n, err))
	return err
}

// decide finds out which of the held chunks are stored already, and packs the others.
func (c *Cache) decide(ctx context.Context) error {
	s := c.sparse
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	ids := s.held
	s.held, s.bytes = nil, 0
	s.mu.Unlock()
	if len(ids) == 0 {
		return nil
	}
	err := c.findHeld(ctx, ids)
	if ctx.Err() != nil {
		s.mu.Lock()
		s.held = append(ids, s.held...)
		s.mu.Unlock()
		return ctx.Err()
	}
	for i, id := range ids {
		if err == nil {
			err = c.settle(ctx, id)
		}
		if err != nil {
			c.letGo(ids[i:])
			return err
		}
	}
	return nil
}

// findHeld brings in the tables that held chunks lead to, as far as they come in time.
func (c *Cache) findHeld(ctx context.Context, ids []store.ID) error {
	if err := c.awaitHooks(ctx); err != nil {
		return err
	}
	timeout := time.NewTimer(tablePatience)
	defer timeout.Stop()
	for range 2 { // what one table does not have, another may
		wanted := map[store.Name]<-chan struct{}{}
		for _, id := range ids {
			n, ok, err := c.index.Champion(id)
			if err != nil {
				return fmt.Errorf("look up chunk: %w", err)
			}
			if ok && wanted[n] == nil {
				if done := c.fetchTable(n); done != nil {
					wanted[n] = done
				}
			}
		}
		if len(wanted) == 0 {
			return nil
		}
		for _, done := range wanted {
			select {
			case <-done:
			case <-timeout.C:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// awaitHooks waits until hooks have been loaded, or it has taken too long.
func (c *Cache) awaitHooks(ctx context.Context) error {
	s := c.sparse
	s.mu.Lock()
	expected, left := s.expected, hooksPatience-time.Since(s.since)
	s.mu.Unlock()
	if expected == nil {
		return nil
	}
	timer := time.NewTimer(max(left, 0))
	defer timer.Stop()
	select {
	case <-expected:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// settle packs a held chunk, unless it has turned out to be stored.
func (c *Cache) settle(ctx context.Context, id store.ID) error {
	c.mu.Lock()
	p := c.pending[id]
	held := p != nil && p.state == chunkHeld
	c.mu.Unlock()
	if !held {
		return nil
	}
	h, ok, err := c.relied(ctx, id)
	if err != nil {
		return err
	}
	c.mu.Lock()
	if ok {
		c.knowLocked(p, h)
	} else {
		p.state = chunkWaiting
	}
	c.mu.Unlock()
	if ok {
		return nil
	}
	return c.packFromLog(ctx, id, p)
}

// letGo leaves held chunks to the next publication, which packs them.
func (c *Cache) letGo(ids []store.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		if p := c.pending[id]; p != nil && (p.state == chunkHeld || p.state == chunkWaiting) {
			p.state = chunkWaiting
			c.waiting = append(c.waiting, id)
		}
	}
}

// relied returns where a chunk lies that may be deduplicated against.
func (c *Cache) relied(ctx context.Context, id store.ID) (h store.Hint, ok bool, err error) {
	h, found, err := c.index.Get(id)
	if err != nil {
		return store.Hint{}, false, fmt.Errorf("look up chunk: %w", err)
	}
	if !found {
		return store.Hint{}, false, nil
	}
	ok, err = c.standing(ctx, h.Multichunk)
	return h, ok, err
}

// knowLocked notes that a pending chunk lies at h already. Nodes may have been saved
// without that hint, in commits up to the one that is being made: until these are
// published its bytes stay in the log, so that nothing depends on the database.
func (c *Cache) knowLocked(p *pendingChunk, h store.Hint) {
	p.state, p.hint = chunkKnown, h
	p.needed = c.neededLocked()
	c.pendingBytes -= int64(p.len)
	c.known++
}

// dropKnown lets go of chunks that turned out to be stored and whose hints stand in
// what was published up to commit n.
func (c *Cache) dropKnown(n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == 0 {
		return
	}
	for id, p := range c.pending {
		if p.state == chunkKnown && p.needed <= n {
			c.dropKnownLocked(id, p)
		}
	}
}

func (c *Cache) dropKnownLocked(id store.ID, p *pendingChunk) {
	c.releaseLocked(p)
	delete(c.pending, id)
	c.known--
}
