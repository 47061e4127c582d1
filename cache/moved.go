package cache

import (
	"context"
	"sync"

	"github.com/dedupfs/dedupfs/store"
)

// movedTables are the tables of multichunks to which garbage collection has moved what lay elsewhere, those used last.
type movedTables struct {
	mu     sync.Mutex // guards what follows
	tables map[store.Name]map[store.ID]store.Hint
	order  []store.Name // the oldest first
}

// movedHeld is how many tables are kept; one of a full multichunk takes about 100 KB.
const movedHeld = 32

// movedHint returns where what lay at h has been moved to by regrouping, zero if it has not.
func (c *Cache) movedHint(ctx context.Context, id store.ID, h store.Hint) store.Hint {
	if h.IsZero() {
		return store.Hint{}
	}
	for _, to := range c.repo.MovedTo(h.Multichunk) {
		if table := c.movedTable(ctx, to); !table[id].IsZero() {
			return table[id]
		}
	}
	return store.Hint{}
}

// movedTable returns the table of a multichunk; nil if it cannot be had.
func (c *Cache) movedTable(ctx context.Context, n store.Name) map[store.ID]store.Hint {
	m := &c.moved
	m.mu.Lock()
	defer m.mu.Unlock()
	if t, ok := m.tables[n]; ok {
		return t
	}
	var entries []store.TableEntry
	var err error
	for _, open := range c.localSources() {
		if src := open(n); src != nil {
			_, entries, err = c.repo.ReadTable(src, src.size, n)
			src.close()
			if err == nil {
				break
			}
		}
	}
	if entries == nil {
		if _, entries, err = c.repo.ReadTable(c.repo.RemoteReader(ctx, n), -1, n); err != nil {
			return nil
		}
	}
	t := make(map[store.ID]store.Hint, len(entries))
	for _, e := range entries {
		t[e.ID] = e.Hint
	}
	if m.tables == nil {
		m.tables = map[store.Name]map[store.ID]store.Hint{}
	}
	m.tables[n] = t
	if m.order = append(m.order, n); len(m.order) > movedHeld {
		delete(m.tables, m.order[0])
		m.order = m.order[1:]
	}
	return t
}

// LearnMoves looks for what has been moved, and makes known what was new there.
func (c *Cache) LearnMoves(ctx context.Context) error {
	fresh, err := c.repo.ReadMoves(ctx)
	if err != nil || len(fresh) == 0 {
		return err
	}
	c.hopeAgain()
	if c.index == nil {
		return nil
	}
	return c.LearnTables(ctx, fresh)
}

// hasMoved looks for what has been moved lately, and reports whether that is so for what lay at h, which it changes.
func (c *Cache) hasMoved(ctx context.Context, id store.ID, h *store.Hint) bool {
	if _, err := c.repo.ReadMoves(ctx); err != nil {
		return false
	}
	moved := c.movedHint(ctx, id, *h)
	if moved.IsZero() {
		return false
	}
	*h = moved
	return true
}
