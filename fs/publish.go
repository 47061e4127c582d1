package fs

import (
	"context"
	"fmt"
	"slices"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/store"
)

// publishCommit puts the commit of a publication. Before it is put it is kept on this machine: a crash, or an answer that
// got lost, must not lead to a second commit of the same number. It returns what the commit says of when and where.
func (v *Volume) publishCommit(ctx context.Context, pub *cache.Publication) (stamp, error) {
	st := v.ca.State()
	c, err := v.nextCommit(ctx, pub.Root, pub.Snapshots)
	if err != nil {
		return stamp{}, err
	}
	last, err := v.member.last(ctx)
	if err != nil {
		return stamp{}, err
	}
	c.Multichunks = pub.Multichunks
	c.Acks, c.Held = v.member.due(last, pub.N), v.member.held()
	sealed, err := v.repo.SealCommit(c, st.Key)
	if err != nil {
		return stamp{}, err
	}
	if err := v.ca.UpdateState(func(s *State) { s.Intent = *sealed }); err != nil {
		return stamp{}, fmt.Errorf("keep the commit: %w", err)
	}
	return stampOf(c), v.finishIntent(ctx)
}

// nextCommit returns the commit after the last of this client, with the given roots.
func (v *Volume) nextCommit(ctx context.Context, root, snaps store.Ref) (*store.Commit, error) {
	st := v.ca.State()
	prev, err := v.member.last(ctx)
	if err != nil {
		return nil, err
	}
	c := (&store.Registration{Client: st.Client, Incarnation: st.Incarnation}).Next(prev)
	c.Seen = withoutPast(v.repo, withoutChain(v.counted(st.Seen), c.Client, c.Incarnation))
	c.Volume = v.repo.Config().Volume
	c.Root, c.Snapshots = root, snaps
	c.Time, c.Host = v.opt.Now(), v.name()
	return c, nil
}

// finishIntent puts a commit that was sealed and may or may not have reached the remote.
func (v *Volume) finishIntent(ctx context.Context) error {
	st := v.ca.State()
	if st.Intent.Head.IsZero() {
		return nil
	}
	if err := v.repo.PutSealed(ctx, &st.Intent); err != nil {
		return err
	}
	return v.ca.UpdateState(func(s *State) {
		s.BaseHead = st.Intent.Head
		if s.Incarnation == st.Intent.Head.Incarnation { // else it was the last of the incarnation before
			s.Head = st.Intent.Head
		}
		s.Intent = store.SealedCommit{}
	})
}

// withoutChain returns the heads that are not of one incarnation.
func withoutChain(heads []store.Head, c store.ClientID, i store.Incarnation) []store.Head {
	var rest []store.Head
	for _, h := range heads {
		if h.Client != c || h.Incarnation != i {
			rest = append(rest, h)
		}
	}
	return rest
}

// withoutPast returns the heads that are not past. That everybody goes by that is certain: else one who does not would merge them anew.
func withoutPast(repo *store.Repository, heads []store.Head) []store.Head {
	return slices.DeleteFunc(slices.Clone(heads), repo.HasPassed)
}
