package store

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dedupfs/dedupfs/remote"
)

// marks is what a walk from all kept states has reached.
type marks struct {
	r *Repository

	states map[[2]ID]bool // roots of the trees and of the snapshots that are kept

	nodes  map[ID]bool   // whole ids: that of a node which is taken for another would hide all beneath it
	live   idRuns        // of everything that was reached
	hinted map[Name]bool // multichunks where something reached was said to lie
	stack  []Ref

	groups map[Hint]*Group // of nodes, read lately
	recent []Hint          // of groups, oldest first
}

// mark walks from every state that s says is kept, and from what clients hold open. Any error means that what is needed is not known.
//
// Memory: about sixty bytes for every node, nine for every chunk that is reached, and a few groups.
func (r *Repository) mark(ctx context.Context, s *survey) (*marks, error) {
	m := &marks{r: r, states: map[[2]ID]bool{}, nodes: map[ID]bool{}, hinted: map[Name]bool{}, groups: map[Hint]*Group{}}
	err := r.kept(ctx, s, func(c *Commit) error {
		m.states[[2]ID{c.Root.ID, c.Snapshots.ID}] = true
		if s.rules.noSnapshots {
			return m.walk(ctx, c.Root)
		}
		return m.walk(ctx, c.Root, c.Snapshots)
	})
	if err != nil {
		return m, fmt.Errorf("mark what is needed: %w", err)
	}
	for c, head := range s.heads {
		if !s.active[c] || s.rules.noHeld {
			continue
		}
		if err := m.walk(ctx, head.Held...); err != nil {
			return m, fmt.Errorf("mark what is held open: %w", err)
		}
	}
	return m, nil
}

// walk marks all that can be reached from refs.
func (m *marks) walk(ctx context.Context, refs ...Ref) error {
	for _, ref := range refs {
		m.reach(ref)
	}
	for len(m.stack) > 0 {
		ref := m.stack[len(m.stack)-1]
		m.stack = m.stack[:len(m.stack)-1]
		n, err := m.load(ctx, ref)
		if err != nil {
			return fmt.Errorf("node %v: %w", ref.ID, err)
		}
		for i := range n.Entries {
			for _, child := range n.Entries[i].Refs {
				m.reach(child)
			}
		}
	}
	return nil
}

// reach marks what ref refers to, and has it looked at if it is a node that was not reached before.
func (m *marks) reach(ref Ref) {
	if ref.IsZero() {
		return
	}
	if !ref.Hint.IsZero() {
		m.hinted[ref.Hint.Multichunk] = true
	}
	if ref.Kind == RefNode {
		if m.nodes[ref.ID] {
			return
		}
		m.nodes[ref.ID] = true
		m.stack = append(m.stack, ref)
	}
	m.live.add(ref.ID)
}

// load reads a node from where its hint says. It looks nowhere else: a repository whose nodes do not lie there needs repair first.
func (m *marks) load(ctx context.Context, ref Ref) (*Node, error) {
	g, err := m.group(ctx, ref.Hint)
	if err != nil && !lostObject(err) {
		return nil, err
	}
	var data []byte
	ok := false
	if err == nil {
		data, ok = g.Find(ref.ID)
	}
	if !ok { // a multichunk that was repaired has its groups elsewhere
		if g, err = m.r.FindGroup(m.r.RemoteReader(ctx, ref.Hint.Multichunk), -1, ref.Hint.Multichunk, ref.ID); err != nil {
			return nil, err
		}
		data, ok = g.Find(ref.ID)
	}
	if !ok {
		return nil, fmt.Errorf("in group at %d of multichunk %v: %w", ref.Hint.Off, ref.Hint.Multichunk, ErrNotFound)
	}
	return m.r.CheckNode(ref.ID, data)
}

func (m *marks) group(ctx context.Context, h Hint) (*Group, error) {
	if g := m.groups[h]; g != nil {
		return g, nil
	}
	g, err := m.r.ReadGroup(m.r.RemoteReader(ctx, h.Multichunk), -1, h)
	if err != nil {
		return nil, err
	}
	m.groups[h] = g
	m.recent = append(m.recent, h)
	if len(m.recent) > groupsHeld {
		delete(m.groups, m.recent[0])
		m.recent = m.recent[1:]
	}
	return g, nil
}

// needs reports whether anything in multichunk n was reached, by whatever hint. A multichunk that is not there is not needed.
func (m *marks) needs(ctx context.Context, n Name, size int64) (bool, error) {
	if m.hinted[n] {
		return true, nil
	}
	_, table, err := m.r.ReadTable(m.r.RemoteReader(ctx, n), size, n)
	if errors.Is(err, remote.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(table, func(e TableEntry) bool { return m.live.has(e.ID) }), nil
}

// idRuns is a set of ids by their fingerprints, so that it may seem to have what it has not, and never the other way round. It keeps
// sorted runs, one for each first byte, and merges into them what has been added since.
type idRuns struct {
	runs [256]idRun
}

type idRun struct {
	sorted []fingerprint
	added  []fingerprint // in any order
}

// addedRoom is how many fingerprints wait to be merged into a run.
const addedRoom = 4096

func (s *idRuns) add(id ID) {
	r := &s.runs[id[0]]
	r.added = append(r.added, fingerprintOf(id))
	if len(r.added) >= max(addedRoom, len(r.sorted)/16) {
		r.merge()
	}
}

func (s *idRuns) has(id ID) bool {
	r := &s.runs[id[0]]
	if len(r.added) > 0 {
		r.merge()
	}
	_, found := slices.BinarySearch(r.sorted, fingerprintOf(id))
	return found
}

// merge sorts what was added into the run.
func (r *idRun) merge() {
	slices.Sort(r.added)
	added := slices.Compact(r.added)
	merged := make([]fingerprint, 0, len(r.sorted)+len(added))
	for i, j := 0, 0; i < len(r.sorted) || j < len(added); {
		switch {
		case j == len(added) || i < len(r.sorted) && r.sorted[i] < added[j]:
			merged = append(merged, r.sorted[i])
			i++
		case i == len(r.sorted) || added[j] < r.sorted[i]:
			merged = append(merged, added[j])
			j++
		default:
			j++ // it stands in both
		}
	}
	r.sorted, r.added = merged, r.added[:0]
}
