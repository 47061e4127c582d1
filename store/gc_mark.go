package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/dedupfs/dedupfs/remote"
)

// marks is what a walk from all kept states has reached.
type marks struct {
	r *Repository

	states map[[2]ID]bool // roots of the trees and of the snapshots that are kept

	nodes  map[ID]bool  // whole ids: that of a node which is taken for another would hide all beneath it
	live   idRuns       // of everything that was reached
	hinted map[Name]int // multichunks where something reached was said to lie, numbered in the order of the tree
	stack  []Ref

	groups map[Hint]*Group // of nodes, read lately
	recent []Hint          // of groups, oldest first

	condemned func(Name) bool // what lies there counts for nothing when something else is to go
	tables    map[Name]map[ID]Hint
	held      []Name // in tables, oldest first

	mu sync.Mutex // guards what a regrouper notes
}

// mark walks from every state that s says is kept, and from what clients hold open. Any error means that what is needed is not known.
//
// Memory: about sixty bytes for every node, what idRuns takes for chunks, and a few groups.
func (r *Repository) mark(ctx context.Context, s *survey) (*marks, error) {
	m := &marks{r: r, states: map[[2]ID]bool{}, nodes: map[ID]bool{}, hinted: map[Name]int{}, groups: map[Hint]*Group{},
		condemned: s.condemns, tables: map[Name]map[ID]Hint{}}
	m.live.room = s.idsRoom
	if _, err := r.ReadMoves(ctx); err != nil {
		return m, fmt.Errorf("mark what is needed: %w", err)
	}
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
	if m.live.settle(); m.live.err != nil {
		return m, fmt.Errorf("keep what was reached: %w", m.live.err)
	}
	return m, nil
}

// close lets go of what marking keeps on the disk.
func (m *marks) close() { m.live.close() }

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
		below := len(m.stack)
		for i := range n.Entries {
			for _, child := range n.Entries[i].Refs {
				m.reach(child)
			}
		}
		slices.Reverse(m.stack[below:]) // the first is looked at first
	}
	return nil
}

// reach marks what ref refers to, and has it looked at if it is a node that was not reached before.
func (m *marks) reach(ref Ref) {
	if ref.IsZero() {
		return
	}
	if !ref.Hint.IsZero() {
		if _, ok := m.hinted[ref.Hint.Multichunk]; !ok {
			m.hinted[ref.Hint.Multichunk] = len(m.hinted)
		}
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

// load reads a node from where its hint says, or where regrouping has moved it. It looks nowhere else: a repository whose nodes do not
// lie there needs repair first.
func (m *marks) load(ctx context.Context, ref Ref) (*Node, error) {
	n, err := m.loadAt(ctx, ref.ID, ref.Hint)
	if !IsLost(err) {
		return n, err
	}
	for _, to := range m.r.MovedTo(ref.Hint.Multichunk) {
		table, terr := m.table(ctx, to)
		if terr != nil {
			return nil, terr
		}
		if h, ok := table[ref.ID]; ok {
			return m.loadAt(ctx, ref.ID, h)
		}
	}
	return nil, err
}

func (m *marks) loadAt(ctx context.Context, id ID, h Hint) (*Node, error) {
	g, err := m.group(ctx, h)
	if err != nil {
		return nil, err
	}
	data, ok := g.Find(id)
	if !ok {
		return nil, fmt.Errorf("in group at %d of multichunk %v: %w", h.Off, h.Multichunk, ErrNotFound)
	}
	return m.r.CheckNode(id, data)
}

// tablesHeld is how many tables are kept of multichunks to which something was moved.
const tablesHeld = 16

// table returns what lies in a multichunk to which something was moved: nothing if it is not there.
func (m *marks) table(ctx context.Context, n Name) (map[ID]Hint, error) {
	if t, ok := m.tables[n]; ok {
		return t, nil
	}
	_, entries, err := m.r.ReadTable(m.r.RemoteReader(ctx, n), -1, n)
	if err != nil && !IsLost(err) {
		return nil, err
	}
	t := make(map[ID]Hint, len(entries))
	for _, e := range entries {
		t[e.ID] = e.Hint
	}
	m.tables[n] = t
	if m.held = append(m.held, n); len(m.held) > tablesHeld {
		delete(m.tables, m.held[0])
		m.held = m.held[1:]
	}
	return t, nil
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

// needs reports whether anything in multichunk n was reached, by whatever hint, and does not lie where it was moved to. A multichunk that
// is not there is not needed.
func (m *marks) needs(ctx context.Context, n Name, size int64) (bool, error) {
	if _, ok := m.hinted[n]; ok && len(m.r.MovedTo(n)) == 0 {
		return true, nil
	}
	_, table, err := m.r.ReadTable(m.r.RemoteReader(ctx, n), size, n)
	if errors.Is(err, remote.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	lacking, err := m.lacking(ctx, n, table)
	return len(lacking) > 0, err
}

// lacking returns what of multichunk n, which has the given table, was reached and lies nowhere else as far as moves tell. Where it lies
// too is read again each time it matters, and does not count if it is condemned: of two that lie in each other's place neither
// goes (docs/gc.md).
func (m *marks) lacking(ctx context.Context, n Name, table []TableEntry) ([]TableEntry, error) {
	var live []TableEntry
	for _, e := range table {
		if m.live.has(e.ID) {
			live = append(live, e)
		}
	}
	if m.live.err != nil {
		return nil, fmt.Errorf("look up what was reached: %w", m.live.err)
	}
	for _, to := range m.r.MovedTo(n) {
		if len(live) == 0 {
			break
		}
		if m.condemned(to) {
			continue
		}
		there, err := m.table(ctx, to)
		if err != nil {
			return nil, err
		}
		live = slices.DeleteFunc(live, func(e TableEntry) bool { _, ok := there[e.ID]; return ok })
	}
	return live, nil
}
