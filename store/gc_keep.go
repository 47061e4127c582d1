package store

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
)

// survey is one look at the repository: what garbage collection decides by.
type survey struct {
	notices []*Notice
	evicted map[chain]Head
	heads   map[chain]*Commit // the newest commit that counts of every incarnation that has one
	active  map[chain]bool    // incarnations that may need anything: registered or heard of, neither retired nor excused

	registered map[chain]*Registration

	moves map[[16]byte]*move // that were there; after Look
	past  *seenPast
	ended map[Incarnation]bool // by a notice that is there, or past: as if they had never been

	idsRoom int // see CollectOptions
	rules   collectRules
}

// condemns reports whether a notice condemns n.
func (s *survey) condemns(n Name) bool {
	return slices.ContainsFunc(s.notices, func(notice *Notice) bool { return notice.condemns(n) })
}

func newSurvey() *survey {
	return &survey{evicted: map[chain]Head{}, heads: map[chain]*Commit{}, active: map[chain]bool{}, registered: map[chain]*Registration{},
		ended: map[Incarnation]bool{}}
}

// survey reads the notices, and after them registrations and heads: whoever is not among these has read the notices itself.
func (r *Repository) survey(ctx context.Context) (*survey, error) {
	s := newSurvey()
	var err error
	if s.notices, err = r.Notices(ctx, nil); err != nil {
		return nil, err
	}
	if s.past, err = r.lookAtPast(ctx); err != nil {
		return nil, err
	}
	registrations, err := r.Registrations(ctx)
	if err != nil {
		return nil, err
	}
	heads, err := r.Poll(ctx, new(Trust))
	if err := Unaccepted(err, s.notices); err != nil {
		return nil, err
	}
	for i, g := range registrations {
		s.active[chain{g.Client, g.Incarnation}] = true
		s.registered[chain{g.Client, g.Incarnation}] = &registrations[i]
	}
	if err := s.take(ctx, r, heads); err != nil {
		return nil, err
	}
	return s, nil
}

// take takes heads as they count by the notices.
func (s *survey) take(ctx context.Context, r *Repository, heads []Head) (err error) {
	if s.past == nil {
		if s.past, err = r.lookAtPast(ctx); err != nil && !aboutObject(err) {
			return err
		}
	}
	for _, n := range s.notices {
		for _, h := range n.Evicted {
			s.evicted[h.chain()] = earlier(s.evicted, h)
		}
		for _, p := range n.Passing {
			if p.Ended {
				s.ended[p.Incarnation] = true
			}
		}
	}
	for i, p := range s.past.of {
		if p.ended {
			s.ended[i] = true
		}
	}
	maps.DeleteFunc(s.active, func(c chain, _ bool) bool { return s.ended[c.incarnation] })
	for _, h := range cutEvicted(heads, s.evicted) {
		if s.ended[h.Incarnation] {
			continue
		}
		if last, ok := s.evicted[h.chain()]; ok && last.Seq < s.past.of[h.Incarnation].seq {
			continue // all have seen later ones: it was past when the eviction was made
		}
		c, err := r.GetCommit(ctx, h)
		if err != nil {
			return err
		}
		s.heads[h.chain()] = c
		s.active[h.chain()] = true
	}
	s.excuse()
	return nil
}

// excuse takes those off the active ones that need not be waited for: who has retired, and who is evicted. An eviction holds once
// all that remain go by it: until then one of them may yet take over what the evicted client has published meanwhile.
func (s *survey) excuse() {
	for c, commit := range s.heads {
		if commit.Retired {
			delete(s.active, c)
		}
	}
	evictions := slices.DeleteFunc(slices.Clone(s.notices), func(n *Notice) bool { return len(n.Evicted) == 0 })
	for {
		remaining := maps.Clone(s.active)
		for _, n := range evictions {
			for _, h := range n.Evicted {
				delete(remaining, h.chain())
			}
		}
		holding := slices.DeleteFunc(slices.Clone(evictions), func(n *Notice) bool { return len(s.lacking(n, remaining)) > 0 })
		if len(holding) == len(evictions) {
			s.active = remaining
			return
		}
		evictions = holding
	}
}

// missing returns the active incarnations that have not acknowledged n, in their order.
func (s *survey) missing(n *Notice) []chain { return s.lacking(n, s.active) }

// lacking returns those of chains whose heads do not acknowledge n, in their order.
func (s *survey) lacking(n *Notice, chains map[chain]bool) []chain {
	var lacking []chain
	for c := range chains {
		if head := s.heads[c]; head == nil || !slices.Contains(head.Acks, n.ID) {
			lacking = append(lacking, c)
		}
	}
	slices.SortFunc(lacking, compareChains)
	return lacking
}

func compareChains(a, b chain) int {
	if c := bytes.Compare(a.client[:], b.client[:]); c != 0 {
		return c
	}
	return bytes.Compare(a.incarnation[:], b.incarnation[:])
}

// counted returns the heads that everybody has to merge or goes on from: those of active incarnations, and those that nobody has
// merged yet.
func (s *survey) counted() []*Commit {
	var counted []*Commit
	for c, commit := range s.heads {
		if s.active[c] || !s.isMerged(commit) {
			counted = append(counted, commit)
		}
	}
	return counted
}

func (s *survey) isMerged(c *Commit) bool {
	for _, other := range s.heads {
		if Dominates(other, c) {
			return true
		}
	}
	return false
}

// sees returns the newest commit of a chain that c has seen, itself in its own; zero if none.
func (c *Commit) sees(of chain) Head {
	if c.chain() == of {
		return c.Head()
	}
	for _, h := range c.Seen {
		if h.chain() == of {
			return h
		}
	}
	return Head{}
}

// settled returns, for each chain, the newest commit that all counted heads have seen; zero if they have seen none in common.
func (s *survey) settled() map[chain]Head {
	counted := s.counted()
	settled := map[chain]Head{}
	for c := range s.heads {
		settled[c] = Head{}
	}
	for _, head := range counted {
		for _, h := range head.Seen {
			if !s.ended[h.Incarnation] {
				settled[h.chain()] = Head{}
			}
		}
	}
	for c := range settled {
		for i, head := range counted {
			if seen := head.sees(c); i == 0 || seen.Seq < settled[c].Seq {
				settled[c] = seen
			}
		}
	}
	return settled
}

// kept calls fn with every commit whose state somebody may still need: those that not all counted heads have seen, for they
// may have to be merged, and the newest of those that all have seen, from which merges start.
func (r *Repository) kept(ctx context.Context, s *survey, fn func(*Commit) error) error {
	settled := s.settled()
	if s.rules.noUnseen {
		settled = s.newest()
	}
	for _, c := range slices.SortedFunc(maps.Keys(s.heads), compareChains) {
		for commit := s.heads[c]; commit.Seq > settled[c].Seq || s.rules.noUnseen; {
			if err := fn(commit); err != nil {
				return err
			}
			if commit.Seq <= settled[c].Seq+1 {
				break
			}
			var err error
			if commit, err = r.before(ctx, commit); err != nil {
				return err
			}
		}
	}
	bases, err := r.bases(ctx, settled)
	if err != nil || s.rules.noBases {
		return err
	}
	for _, base := range bases {
		if err := fn(base); err != nil {
			return err
		}
	}
	return nil
}

// newest returns the heads themselves, as if all had seen all.
func (s *survey) newest() map[chain]Head {
	newest := map[chain]Head{}
	for c, commit := range s.heads {
		newest[c] = commit.Head()
	}
	return newest
}

// before returns the predecessor of c.
func (r *Repository) before(ctx context.Context, c *Commit) (*Commit, error) {
	h := Head{c.Client, c.Incarnation, c.Seq - 1, c.Prev}
	p, err := r.GetCommit(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("commit before %s: %w", c.Head(), err)
	}
	return p, nil
}

// bases returns the newest of the settled commits: those that no other of them has seen.
func (r *Repository) bases(ctx context.Context, settled map[chain]Head) ([]*Commit, error) {
	var commits []*Commit
	for _, c := range slices.SortedFunc(maps.Keys(settled), compareChains) {
		if settled[c].IsZero() {
			continue
		}
		commit, err := r.GetCommit(ctx, settled[c])
		if err != nil {
			return nil, err
		}
		commits = append(commits, commit)
	}
	return slices.DeleteFunc(slices.Clone(commits), func(c *Commit) bool {
		return slices.ContainsFunc(commits, func(other *Commit) bool { return Dominates(other, c) })
	}), nil
}
