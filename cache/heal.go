package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/dedupfs/dedupfs/store"
)

// What is lost or damaged on the remote leaves deduplication as soon as it is met:
// whoever writes the same bytes again stores them again. Files that were written
// before still refer to the old place. A chunk that is not there is looked for in
// the index, and then in what others have committed, so that they read again too.

// healer finds chunks in other places than those that are known.
type healer struct {
	turn chan struct{} // holds a token while somebody searches, who owns finder

	finder *store.Finder
	began  time.Time // when finder was made

	mu      sync.Mutex                // guards all below
	renewed time.Time                 // when finder last looked for new commits
	ended   bool                      // finder has come to its end
	places  map[store.ID]store.Hint   // what a cache without an index has found
	missing map[store.Name]missedItem // multichunks that could not be had lately
}

type missedItem struct {
	err   error
	until time.Time
}

const (
	findAgain   = 5 * time.Second  // between two looks for new commits
	findAnew    = 10 * time.Minute // between two searches from the beginning
	findTries   = 8                // places that one search tries
	maxPlaces   = 1 << 17          // that are remembered without an index
	maxMissing  = 1 << 12
	lostNameDir = "lost"
)

func newHealer() *healer {
	return &healer{turn: make(chan struct{}, 1), places: make(map[store.ID]store.Hint), missing: make(map[store.Name]missedItem)}
}

// place returns where a search has found a chunk.
func (h *healer) place(id store.ID) store.Hint {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.places[id]
}

// missed returns why a multichunk could not be had a short time ago.
func (h *healer) missed(n store.Name, now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if item, ok := h.missing[n]; ok && now.Before(item.until) {
		return item.err
	}
	return nil
}

func (h *healer) noteMissed(n store.Name, err error, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.missing) >= maxMissing {
		clear(h.missing)
	}
	h.missing[n] = missedItem{err, now.Add(lostTime)}
}

// hopeAgain forgets what could not be had, because something new is on the remote.
func (c *Cache) hopeAgain() {
	c.lost.clear()
	h := c.heal
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.missing)
	h.renewed = time.Time{}
}

// search returns a chunk from a place that is neither among tried nor known yet.
func (c *Cache) search(ctx context.Context, id store.ID, tried []store.Hint) ([]byte, error) {
	select {
	case c.heal.turn <- struct{}{}:
		defer func() { <-c.heal.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for range findTries {
		h := c.Hint(id) // somebody else's search may have found it
		if h.IsZero() || slices.Contains(tried, h) {
			var err error
			if h, err = c.findPlace(ctx, id, tried); err != nil {
				return nil, err
			}
		}
		b, err := c.chunkFromMultichunk(ctx, id, h)
		if err == nil || !store.IsLost(err) {
			return b, err
		}
		tried = append(tried, h)
	}
	return nil, store.ErrNotFound
}

// findPlace reads tables until one has the chunk. All of them become known. The
// caller has the turn.
func (c *Cache) findPlace(ctx context.Context, id store.ID, tried []store.Hint) (store.Hint, error) {
	f := c.startFinder()
	if f == nil {
		return store.Hint{}, store.ErrNotFound
	}
	for {
		n, table, err := f.Next(ctx)
		if errors.Is(err, store.ErrNotFound) {
			c.heal.mu.Lock()
			c.heal.ended = true
			c.heal.mu.Unlock()
		}
		if err != nil {
			return store.Hint{}, err
		}
		if err := c.noteOlder(n, table); err != nil {
			return store.Hint{}, err
		}
		i := slices.IndexFunc(table, func(e store.TableEntry) bool { return e.ID == id })
		if i >= 0 && !slices.ContainsFunc(tried, func(h store.Hint) bool { return h.Multichunk == n }) {
			return table[i].Hint, nil
		}
	}
}

// startFinder returns the finder, or nil if it has been asked a short time ago and
// would not find more.
func (c *Cache) startFinder() *store.Finder {
	h, now := c.heal, c.o.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.finder == nil || h.ended && now.Sub(h.began) > findAnew {
		h.finder, h.began, h.ended = c.repo.NewFinder(), now, false
		h.renewed = now
		return h.finder
	}
	if now.Sub(h.renewed) > findAgain {
		h.finder.Renew()
		h.renewed, h.ended = now, false
	}
	if h.ended {
		return nil
	}
	return h.finder
}

// noteOlder makes known where chunks lie that are not known yet: tables come the
// newest first, and what is newer counts.
func (c *Cache) noteOlder(n store.Name, table []store.TableEntry) error {
	if c.index == nil {
		c.heal.mu.Lock()
		defer c.heal.mu.Unlock()
		for i := range table {
			if _, ok := c.heal.places[table[i].ID]; !ok && len(c.heal.places) < maxPlaces {
				c.heal.places[table[i].ID] = table[i].Hint
			}
		}
		return nil
	}
	if known, err := c.index.Known(n); known || err != nil {
		return err
	}
	var fresh []store.TableEntry
	for i := range table {
		known, err := c.index.Has(table[i].ID)
		if err != nil {
			return err
		}
		if !known {
			fresh = append(fresh, table[i])
		}
	}
	return c.addTable(n, fresh, true)
}

// Lose takes multichunks that are lost or damaged on the remote out of
// deduplication. Copies on this machine go on being read.
func (c *Cache) Lose(names ...store.Name) error {
	for _, n := range names {
		if err := c.lose(n); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cache) lose(n store.Name) error {
	if c.index == nil {
		return nil
	}
	if err := c.dbRoom(); err != nil {
		return err
	}
	return c.index.Lose(n)
}

// Regain lets multichunks that are intact again be found again.
func (c *Cache) Regain(names ...store.Name) error {
	defer c.hopeAgain()
	for _, n := range names {
		if c.index == nil {
			break
		}
		if err := c.index.Regain(n); err != nil {
			return err
		}
	}
	return nil
}

// loseMultichunk is Lose for what a reader has met.
func (c *Cache) loseMultichunk(n store.Name) {
	if err := c.lose(n); err != nil {
		c.trouble(err)
	}
}

// regained lets a multichunk that was given up be known again if all of it is intact.
func (c *Cache) regained(n store.Name, wire []byte) {
	if c.index == nil {
		return
	}
	if lost, err := c.index.Lost(n); err != nil || !lost || c.repo.VerifyMultichunk(n, wire) != nil {
		return
	}
	if err := c.index.Regain(n); err != nil {
		c.trouble(err)
	}
}

// TakeLost gives up the multichunks that another process on this machine has found
// lost, and left word of in the directory "lost".
func (c *Cache) TakeLost() error {
	list, err := c.fsys.List(lostNameDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what was found lost: %w", err)
	}
	for _, info := range list {
		n, ok := parseName(info.Name)
		if ok {
			err = c.lose(n)
		}
		if err == nil {
			err = c.fsys.Remove(lostNameDir + "/" + info.Name)
		}
		if err != nil {
			return fmt.Errorf("give up what was found lost: %w", err)
		}
	}
	return nil
}
