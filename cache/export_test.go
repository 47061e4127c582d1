package cache

import (
	"math"
	"time"

	"github.com/dedupfs/dedupfs/store"
)

// OpenTestLog opens a log alone, without a budget.
func OpenTestLog(fsys Files, cut Pos, segment int64) (*Log, error) {
	if err := fsys.Mkdir("log"); err != nil {
		return nil, err
	}
	if err := fsys.SyncDir("."); err != nil {
		return nil, err
	}
	sp := newSpace(math.MaxInt64/2, 0, func() {}, nil)
	l, err := openLog(fsys, sp, cut, logOptions{size: segment, now: time.Now, onGrowth: func(int64) {}})
	if err == nil {
		sp.evictOne = func() (int64, error) {
			if _, remove, ok := l.idle(); ok {
				return remove()
			}
			return 0, nil
		}
	}
	return l, err
}

func (l *Log) CloseForTest() error { return l.close() }

func (l *Log) SetCutForTest(pos Pos) { l.setCut(pos) }

// EvictForTest removes one segment that nobody needs.
func (l *Log) EvictForTest() (int64, error) { return l.space.evictOne() }

func (l *Log) UsedForTest() int64 { return l.space.used.Load() }

// DropMemoryForTest forgets all decoded chunks and parsed nodes.
func (c *Cache) DropMemoryForTest() {
	c.chunks.cache.Clear()
	c.nodes.cache.Clear()
	c.latest.mu.Lock()
	c.latest.values, c.latest.ring, c.latest.next = nil, nil, 0
	c.latest.mu.Unlock()
	c.recent.mu.Lock()
	c.recent.groups, c.recent.bytes = nil, 0
	c.recent.mu.Unlock()
}

// EvictAllForTest removes all that is only cache.
func (c *Cache) EvictAllForTest() {
	for {
		if n, err := c.evictOne(); n == 0 || err != nil {
			return
		}
	}
}

func (c *Cache) HasMultichunkForTest(n store.Name) bool { return c.disk.has(n) }

func MultichunkFileForTest(n store.Name) string { return multichunkName(n) }

// NodeInMemoryForTest returns a node that LocalNode would find without reading.
func (c *Cache) NodeInMemoryForTest(id store.ID) *store.Node {
	c.nodes.cache.Wait()
	n, _ := c.nodes.get(id)
	return n
}
