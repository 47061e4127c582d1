package store

import "sync"

// recentCommits remembers a few commits that have been read, of those that are not large.
type recentCommits struct {
	mu      sync.Mutex // guards what follows
	commits map[Head]*Commit
	order   []Head // the oldest first
}

const (
	maxRecent     = 32
	maxRecentWire = 256 << 10 // bytes
)

func (m *recentCommits) get(h Head) *Commit {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.commits[h]
}

func (m *recentCommits) put(c *Commit, wire int) {
	if wire > maxRecentWire {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.commits == nil {
		m.commits = make(map[Head]*Commit)
	}
	h := c.Head()
	if m.commits[h] == nil {
		m.order = append(m.order, h)
	}
	m.commits[h] = c
	if len(m.order) > maxRecent {
		delete(m.commits, m.order[0])
		m.order = m.order[1:]
	}
}
