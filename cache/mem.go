package cache

import (
	"encoding/binary"
	"slices"
	"sync"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dgraph-io/ristretto/v2"
)

// memory keeps values by id within a budget of bytes. Keys are the first bytes of
// ids, so that look-ups allocate nothing; the whole id is compared.
type memory[V any] struct {
	cache *ristretto.Cache[uint64, *memoryItem[V]]
}

type memoryItem[V any] struct {
	id    store.ID
	value V
}

// newMemory returns a memory for values of about the given size each.
func newMemory[V any](budget, each int64) (*memory[V], error) {
	c, err := ristretto.NewCache(&ristretto.Config[uint64, *memoryItem[V]]{
		NumCounters:        max(10*budget/each, 1000),
		MaxCost:            budget,
		BufferItems:        64,
		IgnoreInternalCost: true,
	})
	if err != nil {
		return nil, err
	}
	return &memory[V]{cache: c}, nil
}

func memoryKey(id store.ID) uint64 { return binary.BigEndian.Uint64(id[:]) }

func (m *memory[V]) get(id store.ID) (v V, ok bool) {
	item, ok := m.cache.Get(memoryKey(id))
	if !ok || item.id != id {
		return v, false
	}
	return item.value, true
}

func (m *memory[V]) put(id store.ID, v V, cost int64) {
	m.cache.Set(memoryKey(id), &memoryItem[V]{id, v}, cost)
}

func (m *memory[V]) del(id store.ID) { m.cache.Del(memoryKey(id)) }

func (m *memory[V]) close() { m.cache.Close() }

// nodeCost is about what a parsed node takes in memory, in bytes.
func nodeCost(n *store.Node) int64 {
	cost := int64(64)
	for i := range n.Entries {
		e := &n.Entries[i]
		cost += 80 + int64(len(e.Key)+len(e.Value)) + 64*int64(len(e.Refs))
	}
	return cost
}

// latestNodes keeps the nodes that were fetched last, whatever the large cache thinks
// of them: it admits what is asked for often, and later, while who has fetched a
// node begins again at once and counts on it.
type latestNodes struct {
	mu    sync.Mutex
	nodes map[store.ID]*store.Node
	ring  [256]store.ID
	next  int // in ring
}

func (l *latestNodes) get(id store.ID) (*store.Node, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, ok := l.nodes[id]
	return n, ok
}

func (l *latestNodes) put(id store.ID, n *store.Node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.nodes[id]; ok {
		return
	}
	if l.nodes == nil {
		l.nodes = make(map[store.ID]*store.Node, len(l.ring))
	}
	delete(l.nodes, l.ring[l.next])
	l.nodes[id], l.ring[l.next] = n, id
	l.next = (l.next + 1) % len(l.ring)
}

// recentGroups keeps the groups that were opened last. Who reads a file in order
// finds the next chunks in them: the large cache, which admits what is asked for
// often, would not have taken chunks that nobody has asked for yet.
type recentGroups struct {
	budget int64 // bytes

	mu     sync.Mutex
	bytes  int64
	groups []recentGroup // the newest last
}

type recentGroup struct {
	hint  store.Hint
	group *store.Group
}

func (r *recentGroups) get(h store.Hint) *store.Group {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.groups, func(g recentGroup) bool { return g.hint == h })
	if i < 0 {
		return nil
	}
	g := r.groups[i]
	r.groups = append(slices.Delete(r.groups, i, i+1), g)
	return g.group
}

func (r *recentGroups) put(h store.Hint, g *store.Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.groups = append(r.groups, recentGroup{h, g})
	r.bytes += int64(g.Size())
	for r.bytes > r.budget && len(r.groups) > 1 {
		r.bytes -= int64(r.groups[0].group.Size())
		r.groups = slices.Delete(r.groups, 0, 1)
	}
}
