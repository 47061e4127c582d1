package cache

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

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

// latest keeps the values that were put last, whatever the large cache thinks of
// them: it admits what is asked for often, and later, while who has fetched a node
// begins again at once and counts on it, and who reads ahead is followed by the reader.
type latest[V any] struct {
	keep int // values

	mu     sync.Mutex // guards all below
	values map[store.ID]V
	ring   []store.ID
	next   int // in ring, once it is full
}

func (l *latest[V]) get(id store.ID) (V, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok := l.values[id]
	return v, ok
}

func (l *latest[V]) put(id store.ID, v V) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.values == nil {
		l.values = make(map[store.ID]V)
	}
	_, known := l.values[id]
	l.values[id] = v
	switch {
	case known:
	case len(l.ring) < l.keep:
		l.ring = append(l.ring, id)
	default:
		delete(l.values, l.ring[l.next])
		l.ring[l.next] = id
		l.next = (l.next + 1) % l.keep
	}
}

// recentGroups keeps the groups that were opened last. Who reads a file in order
// finds the next chunks in them: the large cache, which admits what is asked for
// often, would not have taken chunks that nobody has asked for yet.
type recentGroups struct {
	budget int64            // bytes
	now    func() time.Time // for the age of groups

	mu     sync.Mutex // guards what follows
	bytes  int64
	groups []recentGroup // that used last is the last
}

type recentGroup struct {
	hint  store.Hint
	group *store.Group
	used  time.Time
}

func (r *recentGroups) get(h store.Hint) *store.Group {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.groups, func(g recentGroup) bool { return g.hint == h })
	if i < 0 {
		return nil
	}
	g := r.groups[i]
	g.used = r.now()
	r.groups = append(slices.Delete(r.groups, i, i+1), g)
	return g.group
}

func (r *recentGroups) put(h store.Hint, g *store.Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.groups = append(r.groups, recentGroup{h, g, r.now()})
	r.bytes += int64(g.Size())
	for r.bytes > r.budget && len(r.groups) > 1 {
		r.dropOldest()
	}
}

// expire drops the groups that nobody has used since t.
func (r *recentGroups) expire(t time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.groups) > 0 && r.groups[0].used.Before(t) {
		r.dropOldest()
	}
}

// dropOldest drops the group that was used least recently. r.mu is held.
func (r *recentGroups) dropOldest() {
	r.bytes -= int64(r.groups[0].group.Size())
	r.groups = slices.Delete(r.groups, 0, 1)
}
