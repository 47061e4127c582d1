package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dedupfs/dedupfs/store"
)

// What is lost or damaged on the remote leaves deduplication as soon as it is met:
// whoever writes the same bytes again stores them again. Files that were written
// before still refer to the old place. A chunk that is not there is looked for in
// the index, and then in what others have committed, so that they read again too.

// healer finds chunks and nodes in other places than those that are known.
type healer struct {
	turn chan struct{} // holds a token while somebody searches

	mu       sync.Mutex // guards all below
	searches map[store.Kind]*searching
	places   map[store.ID]store.Hint   // that have been found of nodes, and of chunks without an index
	missing  map[store.Name]missedItem // multichunks that could not be had lately
}

// searching is how far the multichunks of a kind have been looked through.
type searching struct {
	finder  *store.Finder
	began   time.Time
	renewed time.Time // when it last looked for new commits
	ended   bool      // it has come to its end
}

type missedItem struct {
	err   error
	until time.Time
}

const (
	findAgain  = 5 * time.Second  // between two looks for new commits
	findAnew   = 10 * time.Minute // between two searches from the beginning
	findTries  = 8                // places that one search tries
	maxPlaces  = 1 << 17          // that are remembered without an index
	maxMissing = 1 << 12
)

func newHealer() *healer {
	return &healer{turn: make(chan struct{}, 1), searches: make(map[store.Kind]*searching), places: make(map[store.ID]store.Hint), missing: make(map[store.Name]missedItem)}
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
	for _, s := range h.searches {
		s.renewed = time.Time{}
	}
}

// searchChunk returns a chunk from a place that is neither among tried nor known yet.
func (c *Cache) searchChunk(ctx context.Context, ref store.Ref, tried []store.Hint) ([]byte, error) {
	return c.search(ctx, ref, tried, func(h store.Hint) ([]byte, error) { return c.chunkFromMultichunk(ctx, ref.ID, h) })
}

// search returns what read finds of ref in a place that is neither among tried
// nor known yet.
func (c *Cache) search(ctx context.Context, ref store.Ref, tried []store.Hint, read func(store.Hint) ([]byte, error)) ([]byte, error) {
	select {
	case c.heal.turn <- struct{}{}:
		defer func() { <-c.heal.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for range findTries {
		h := c.knownElsewhere(ref, tried)
		if h.IsZero() {
			var err error
			if h, err = c.findPlace(ctx, ref, tried); err != nil {
				return nil, err
			}
		}
		b, err := read(h)
		if err == nil || !store.IsLost(err) {
			return b, err
		}
		tried = append(tried, h)
	}
	return nil, store.ErrNotFound
}

// knownElsewhere returns a place of ref that is not among tried: somebody else's
// search may have found it.
func (c *Cache) knownElsewhere(ref store.Ref, tried []store.Hint) store.Hint {
	places := []store.Hint{c.heal.place(ref.ID)}
	if ref.Kind == store.RefChunk {
		places = append(places, c.Hint(ref.ID))
	}
	for _, h := range places {
		if !h.IsZero() && !slices.Contains(tried, h) {
			return h
		}
	}
	return store.Hint{}
}

// findPlace reads tables until one has what ref refers to. All of them become
// known. The caller has the turn.
func (c *Cache) findPlace(ctx context.Context, ref store.Ref, tried []store.Hint) (store.Hint, error) {
	s := c.startSearch(ref.Kind)
	if s == nil {
		return store.Hint{}, store.ErrNotFound
	}
	for {
		n, table, err := s.finder.Next(ctx)
		if errors.Is(err, store.ErrNotFound) {
			c.heal.mu.Lock()
			s.ended = true
			c.heal.mu.Unlock()
		}
		if err != nil {
			return store.Hint{}, err
		}
		if err := c.noteOlder(ref.Kind, n, table); err != nil {
			return store.Hint{}, err
		}
		i := slices.IndexFunc(table, func(e store.TableEntry) bool { return e.ID == ref.ID })
		if i >= 0 && !slices.ContainsFunc(tried, func(h store.Hint) bool { return h.Multichunk == n }) {
			return table[i].Hint, nil
		}
	}
}

// startSearch returns the search to go on with, or nil if it has come to its end a
// short time ago.
func (c *Cache) startSearch(what store.RefKind) *searching {
	kind := store.KindData
	if what == store.RefNode {
		kind = store.KindNodes
	}
	h, now := c.heal, c.o.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.searches[kind]
	if s == nil || s.ended && now.Sub(s.began) > findAnew {
		s = &searching{finder: c.repo.NewFinder(kind), began: now, renewed: now}
		h.searches[kind] = s
	}
	if now.Sub(s.renewed) > findAgain {
		s.finder.Renew()
		s.renewed, s.ended = now, false
	}
	if s.ended {
		return nil
	}
	return s
}

// noteOlder makes known where things lie that are not known yet: tables come the
// newest first, and what is newer counts.
func (c *Cache) noteOlder(what store.RefKind, n store.Name, table []store.TableEntry) error {
	if what == store.RefNode || c.index == nil || c.isForbidden(n) {
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
	return c.addTable(n, fresh, false)
}

// noteMoved makes known where the chunks of a multichunk lie that has them in other
// groups than before, because it was repaired.
func (c *Cache) noteMoved(n store.Name, id store.ID, table []store.TableEntry) {
	if c.index == nil {
		c.heal.mu.Lock()
		defer c.heal.mu.Unlock()
		if len(c.heal.places)+len(table) > maxPlaces {
			clear(c.heal.places)
		}
		for i := range table {
			c.heal.places[table[i].ID] = table[i].Hint
		}
		return
	}
	if c.Hint(id).Multichunk != n && !c.Hint(id).IsZero() {
		return
	}
	if err := c.addTable(n, table, false); err != nil {
		c.trouble(err)
	}
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

// mend returns a multichunk that is damaged on the remote as it was, by its parity,
// and keeps it.
func (c *Cache) mend(ctx context.Context, n store.Name) (whole []byte, err error) {
	err = c.patiently(ctx, func() (err error) {
		whole, err = c.repo.Mend(ctx, n, nil)
		return err
	})
	if err != nil {
		return nil, err
	}
	c.trouble(fmt.Errorf("multichunk %v is damaged on the remote, and was read with the help of its parity; run `dedupfs repair`", n))
	if c.disk != nil {
		c.disk.put(n, whole)
	} else {
		c.wires.put(n, whole)
	}
	return whole, nil
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
