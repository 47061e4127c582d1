package fs

import (
	"context"
	"fmt"
	"slices"
	"sync"

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
	if seen, merged := v.commits.seen.of(pub.N); merged {
		c.Seen = withoutPast(v.repo, withoutChain(v.counted(seen), c.Client, c.Incarnation))
	}
	last, err := v.member.last(ctx)
	if err != nil {
		return stamp{}, err
	}
	c.Multichunks = pub.Multichunks
	from := pub.N
	if pub.Early {
		from = 0 // it does not have all that this client refers to: it acknowledges nothing new (docs/gc.md, R4)
	}
	c.Acks, c.Held = v.member.due(last, from), v.member.held()
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

// seenOf remembers what local commits have seen that are older than the last merge: one of them may be on its way to the remote,
// and must not say that it has what was merged meanwhile.
type seenOf struct {
	mu   sync.Mutex // guards past
	past []pastSeen // in the order of the numbers
}

type pastSeen struct {
	below uint64 // local commits of lower numbers have seen this
	seen  []store.Head
}

// idleSeen is how much is remembered while nothing is on its way: an acknowledgement may be.
const idleSeen = 8

// before notes that local commit n is the first to have seen more than seen. Idle says that all before it is published.
func (s *seenOf) before(n uint64, seen []store.Head, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.past = append(s.past, pastSeen{n, seen})
	if idle && len(s.past) > idleSeen {
		s.past = s.past[len(s.past)-idleSeen:]
	}
}

// of returns what local commit n has seen if that is less than what the newest has.
func (s *seenOf) of(n uint64) (seen []store.Head, less bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.past {
		if n < p.below {
			return p.seen, true
		}
	}
	return nil, false
}

// published forgets what is not asked for after the publication of local commit n.
func (s *seenOf) published(n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.past = slices.DeleteFunc(s.past, func(p pastSeen) bool { return p.below <= n })
}
