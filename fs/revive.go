package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
	"golang.org/x/sync/errgroup"
)

// ErrCollected says that of a state something has been collected, or is about to be.
var ErrCollected = errors.New("garbage collection has begun to remove what it needs")

// revivable returns nil if all that the tree of root needs will stay, should a commit refer to it again: what lies below the base
// does, for every commit of this client refers to that. Of all else each multichunk must be there, and no notice may condemn it
// (docs/gc.md, R7). The notices are read before and after, so that one published meanwhile is not missed; the caller keeps the
// committer's lock or comes again under it.
func (v *Volume) revivable(ctx context.Context, root store.Ref) error {
	v.mu.RLock()
	base := v.base.Root()
	v.mu.RUnlock()
	r := &revival{v: v, places: map[store.Name]store.ID{}, done: map[store.ID]bool{}}
	if err := r.subtree(ctx, root, base); err != nil {
		return r.verdict(err)
	}
	if err := r.checkPlaces(ctx); err != nil {
		return r.verdict(err)
	}
	return nil
}

// revival walks what a state has and the base has not.
type revival struct {
	v      *Volume
	places map[store.Name]store.ID // multichunks that are needed, and one thing that is
	done   map[store.ID]bool       // nodes below which all has been looked at
}

// verdict makes missing things ErrCollected.
func (r *revival) verdict(err error) error {
	if errors.Is(err, remote.ErrNotExist) || errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("%w: %w", ErrCollected, err)
	}
	return err
}

// subtree notes what lies at and below ref and not below base, where a node of the same place is sought.
func (r *revival) subtree(ctx context.Context, ref, base store.Ref) error {
	if ref.IsZero() || ref.ID == base.ID || r.done[ref.ID] {
		return nil
	}
	r.done[ref.ID] = true
	n, err := r.v.ca.Node(ctx, ref)
	if err != nil {
		return err
	}
	r.need(ref)
	for i := range n.Entries {
		e := &n.Entries[i]
		same, err := r.counterpart(ctx, base, int(n.Level), e)
		if err != nil {
			return err
		}
		for j, child := range e.Refs {
			var other store.Ref
			switch {
			case n.Level > 0:
				other = base // a place is found by its key from the root
				if same != nil && same.Refs[0].ID == child.ID {
					continue
				}
			case same != nil && j < len(same.Refs):
				other = same.Refs[j]
			}
			if child.ID == other.ID {
				continue
			}
			if child.Kind != store.RefNode {
				r.need(child)
			} else if err := r.subtree(ctx, child, other); err != nil {
				return err
			}
		}
	}
	return nil
}

// counterpart returns the entry of a level and key below base; nil if there is none.
func (r *revival) counterpart(ctx context.Context, base store.Ref, level int, want *store.Entry) (*store.Entry, error) {
	for ref := base; !ref.IsZero() && ref.Kind == store.RefNode; {
		n, err := r.v.ca.Node(ctx, ref)
		if err != nil {
			return nil, err
		}
		if int(n.Level) < level {
			return nil, nil
		}
		i, found := slices.BinarySearchFunc(n.Entries, want.Key, func(e store.Entry, k []byte) int { return bytes.Compare(e.Key, k) })
		if int(n.Level) == level {
			if !found {
				return nil, nil
			}
			return &n.Entries[i], nil
		}
		if !found {
			i--
		}
		if i < 0 || len(n.Entries[i].Refs) == 0 {
			return nil, nil
		}
		ref = n.Entries[i].Refs[0]
	}
	return nil, nil
}

// need notes where ref lies. What has no place yet is on this machine, and comes to the remote with the commit.
func (r *revival) need(ref store.Ref) {
	if h := r.v.ca.HintOf(ref); !h.IsZero() {
		r.places[h.Multichunk] = ref.ID
	}
}

// checkPlaces looks whether all multichunks that are needed are there and are to stay.
func (r *revival) checkPlaces(ctx context.Context) error {
	if err := r.checkNotices(ctx); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	var mu sync.Mutex // guards gone
	var gone error
	for name, id := range r.places {
		group.Go(func() error {
			_, err := r.v.repo.Storage().Get(groupCtx, store.ObjectName(name), 0, 1)
			if errors.Is(err, remote.ErrNotExist) {
				mu.Lock()
				defer mu.Unlock()
				gone = fmt.Errorf("multichunk %s, which had %s: %w", name, id, store.ErrNotFound)
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if gone != nil {
		return gone
	}
	return r.checkNotices(ctx)
}

func (r *revival) checkNotices(ctx context.Context) error {
	notices, err := r.v.repo.Notices(ctx, nil)
	if err != nil {
		return err
	}
	var known store.Condemned
	known.Add(notices)
	for name := range r.places {
		if known.Has(name) || r.v.member.cond.Has(name) {
			return fmt.Errorf("multichunk %s is condemned: %w", name, ErrCollected)
		}
	}
	return nil
}
