package fs

import (
	"context"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// scratch keeps the nodes of one content in memory until it is known whether they are new: a file that is copied has
// the root of the original, and costs a reference. Beyond scratchNodes they go on at once.
type scratch struct {
	repo  *store.Repository
	below tree.Store
	nodes map[store.ID]*store.Node
	order []store.ID
	buf   []byte
}

const scratchNodes = 256

func newScratch(repo *store.Repository, below tree.Store) *scratch {
	return &scratch{repo: repo, below: below, nodes: map[store.ID]*store.Node{}}
}

func (s *scratch) Load(ctx context.Context, ref store.Ref) (*store.Node, error) {
	if n := s.nodes[ref.ID]; n != nil {
		return n, nil
	}
	return s.below.Load(ctx, ref)
}

func (s *scratch) Save(ctx context.Context, n *store.Node) (store.Ref, error) {
	s.buf = store.AppendCanonical(s.buf[:0], n)
	id := s.repo.NodeID(s.buf)
	if s.nodes[id] == nil {
		s.nodes[id] = n
		s.order = append(s.order, id)
	}
	if len(s.order) > scratchNodes {
		if err := s.save(ctx); err != nil {
			return store.Ref{}, err
		}
	}
	return store.Ref{ID: id, Kind: store.RefNode}, nil
}

// save passes the nodes on.
func (s *scratch) save(ctx context.Context) error {
	for _, id := range s.order {
		if _, err := s.below.Save(ctx, s.nodes[id]); err != nil {
			return err
		}
		delete(s.nodes, id)
	}
	s.order = s.order[:0]
	return nil
}
