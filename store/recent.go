package store

import "sync"

// recentCommits remembers a few commits that have been read, of those that are not large.
type recentCommits struct {
	mu      sync.Mutex // guards commits
	commits map[Head]*Commit
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
	for h := range m.commits {
		if len(m.commits) < maxRecent {
			break
		}
		delete(m.commits, h)
	}
	m.commits[c.Head()] = c
}
