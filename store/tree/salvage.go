package tree

import (
	"bytes"
	"context"

	"github.com/dedupfs/dedupfs/store"
)

// Gap is where a lost node was: it had all records from From on and before To, which is nil for the end of the map.
type Gap struct{ From, To []byte }

// Salvage returns the root of the tree of all records that do not lie in or below a lost node, and the gaps between them, in order. A
// node is lost if loading it gives an error for which lost is true; leaves are taken to be there, unseen, unless suspect says
// otherwise of their id. If the root is lost the tree is empty, and the only gap is everything. t itself stays as it is.
func (t *Tree) Salvage(ctx context.Context, suspect func(store.ID) bool, lost func(error) bool) (store.Ref, []Gap, error) {
	s := &salvage{t: t, suspect: suspect, lost: lost, gone: map[store.ID]bool{}, out: writer{t: t}}
	if t.root.IsZero() {
		return t.root, nil, nil
	}
	n, err := t.load(ctx, t.root)
	switch {
	case err != nil && lost(err):
		return store.Ref{}, []Gap{{}}, nil
	case err != nil:
		return store.Ref{}, nil, err
	}
	if err := s.look(ctx, n, nil); err != nil || len(s.gaps) == 0 {
		return t.root, nil, err
	}
	if err := s.write(ctx, n, t.root, nil); err != nil {
		return store.Ref{}, nil, err
	}
	root, err := s.out.finish(ctx)
	return root, s.gaps, err
}

// salvage is one run of Salvage: it looks for gaps, and then writes the tree around them.
type salvage struct {
	t       *Tree
	suspect func(store.ID) bool
	lost    func(error) bool
	gaps    []Gap
	gone    map[store.ID]bool // the nodes of the gaps

	out    writer
	passed int // gaps that are behind
}

// look finds the gaps below n, before whose end the next node begins.
func (s *salvage) look(ctx context.Context, n *store.Node, end []byte) error {
	if n.Level == 0 {
		return nil
	}
	for i := range n.Entries {
		e := &n.Entries[i]
		if n.Level == 1 && len(e.Refs) == 1 && !s.suspect(e.Refs[0].ID) {
			continue
		}
		c, err := s.t.child(ctx, n, i)
		switch {
		case err == nil:
			err = s.look(ctx, c, childEnd(n, i, end))
		case s.lost(err) && len(e.Refs) == 1:
			s.gone[e.Refs[0].ID] = true
			s.gaps = append(s.gaps, Gap{e.Key, childEnd(n, i, end)})
			err = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// childEnd returns where the node behind the i-th child of n begins, before whose end the next node begins.
func childEnd(n *store.Node, i int, end []byte) []byte {
	if i+1 < len(n.Entries) {
		return n.Entries[i+1].Key
	}
	return end
}

// write writes n, named ref, without its gaps. What lies between them is taken over unseen, as in editor.node.
func (s *salvage) write(ctx context.Context, n *store.Node, ref store.Ref, end []byte) error {
	s.out.enter(n, ref)
	for i, e := range n.Entries {
		next := childEnd(n, i, end)
		switch {
		case n.Level > 0 && s.gone[e.Refs[0].ID]:
			s.passed++
		case n.Level == 0, !s.due(next) && s.out.aligned(int(n.Level)):
			if err := s.out.put(ctx, int(n.Level), e); err != nil {
				return err
			}
		default:
			c, err := s.t.child(ctx, n, i)
			if err != nil {
				return err
			}
			if err := s.write(ctx, c, e.Refs[0], next); err != nil {
				return err
			}
		}
	}
	return nil
}

// due reports whether the next gap begins before end (nil: beyond all keys).
func (s *salvage) due(end []byte) bool {
	return s.passed < len(s.gaps) && (end == nil || bytes.Compare(s.gaps[s.passed].From, end) < 0)
}
