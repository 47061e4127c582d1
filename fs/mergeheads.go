package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
)

// volumeState is what a commit names: a tree of the volume, and a map of snapshots.
type volumeState struct{ root, snaps store.Ref }

func stateOf(c *store.Commit) volumeState { return volumeState{c.Root, c.Snapshots} }

// same reports whether two states are equal: hints do not count.
func (s volumeState) same(o volumeState) bool {
	return s.root.ID == o.root.ID && s.snaps.ID == o.snaps.ID
}

// chain is the commits of one incarnation.
type chain struct {
	client      store.ClientID
	incarnation store.Incarnation
}

func chainOf(h store.Head) chain { return chain{h.Client, h.Incarnation} }

// history is a set of commits that has with each all those before it: of every chain the newest one.
type history map[chain]store.Head

func (h history) add(heads ...store.Head) {
	for _, head := range heads {
		if !head.IsZero() && head.Seq > h[chainOf(head)].Seq {
			h[chainOf(head)] = head
		}
	}
}

func (h history) contains(head store.Head) bool { return h[chainOf(head)].Seq >= head.Seq }

// heads returns the newest commits of all chains, in the order in which heads are merged.
func (h history) heads() []store.Head { return slices.SortedFunc(maps.Values(h), compareHeads) }

func compareHeads(a, b store.Head) int {
	if c := bytes.Compare(a.Client[:], b.Client[:]); c != 0 {
		return c
	}
	return bytes.Compare(a.Incarnation[:], b.Incarnation[:])
}

// historyOf returns what c contains.
func historyOf(c *store.Commit) history {
	h := history{}
	h.add(c.Seen...)
	h.add(c.Head())
	return h
}

// commitGetter finds commits by their heads; *store.Repository is one.
type commitGetter interface {
	GetCommit(ctx context.Context, h store.Head) (*store.Commit, error)
}

// mergeStates merges two states that have a base in common; host tells what people call a client.
type mergeStates func(ctx context.Context, base, first, second volumeState, host func(store.ClientID) (string, error)) (volumeState, error)

// reducer makes one state of any number of heads. The state is a pure function of the set of heads.
type reducer struct {
	commits commitGetter
	merge   mergeStates
}

// outcome is the state to which a client has to go.
type outcome struct {
	state   volumeState
	history history
	head    *store.Commit // one that has this state; nil if nobody has published it yet
}

// follow returns where a client goes that has everything in position and sees heads. It returns nil if there is nothing
// new in them.
func (r *reducer) follow(ctx context.Context, position history, heads []store.Head) (*outcome, error) {
	all := maps.Clone(position)
	all.add(heads...)
	if !slices.ContainsFunc(heads, func(h store.Head) bool { return !position.contains(h) }) {
		return nil, nil
	}
	fresh := slices.DeleteFunc(slices.Clone(heads), position.contains)
	maximal, err := r.maximal(ctx, all.heads(), fresh...)
	if err != nil {
		return nil, err
	}
	state, h, err := r.reduce(ctx, maximal)
	if err != nil {
		return nil, err
	}
	out := &outcome{state: state, history: h}
	for _, c := range maximal {
		if stateOf(c).same(state) {
			out.head, out.state = c, stateOf(c) // with its hints
			break
		}
	}
	return out, nil
}

// stateOf returns the state that follows from a history.
func (r *reducer) stateOf(ctx context.Context, h history) (volumeState, error) {
	maximal, err := r.maximal(ctx, h.heads())
	if err != nil {
		return volumeState{}, err
	}
	state, _, err := r.reduce(ctx, maximal)
	return state, err
}

// maximal returns the commits of those heads that none of the others contains, in the order in which they are merged. Those named
// first are read first: what they contain need not be read, and there may be one for every mount that ever was.
func (r *reducer) maximal(ctx context.Context, heads []store.Head, first ...store.Head) ([]*store.Commit, error) {
	read := map[store.Head]*store.Commit{}
	contained := history{} // in what has been read, beside itself
	for _, h := range append(slices.Clone(first), heads...) {
		if read[h] != nil || contained.contains(h) || !slices.Contains(heads, h) {
			continue
		}
		c, err := r.commits.GetCommit(ctx, h)
		if errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", h, err)
		}
		read[h] = c
		contained.add(withoutChain(c.Seen, h.Client, h.Incarnation)...)
	}
	var out []*store.Commit
	for _, h := range heads {
		if c := read[h]; c != nil && !contained.contains(c.Head()) {
			out = append(out, c)
		}
	}
	return out, nil
}

// reduce merges commits of which none contains another, one after the other in their order, and returns what the result
// contains. No commits make the empty state.
func (r *reducer) reduce(ctx context.Context, commits []*store.Commit) (state volumeState, h history, err error) {
	h = history{}
	for i, c := range commits {
		if i == 0 {
			state, h = stateOf(c), historyOf(c)
			continue
		}
		next := historyOf(c)
		base, err := r.base(ctx, h, next)
		if err != nil {
			return volumeState{}, nil, err
		}
		h.add(next.heads()...)
		if state, err = r.mergeTwo(ctx, base, state, stateOf(c), h); err != nil {
			return volumeState{}, nil, fmt.Errorf("merge %s: %w", c.Head(), err)
		}
	}
	return state, h, nil
}

// base returns the state that two histories have in common: of several newest commits that both contain, the merged one.
func (r *reducer) base(ctx context.Context, x, y history) (volumeState, error) {
	common := history{}
	for _, h := range x {
		if other := y[chainOf(h)]; other.Seq < h.Seq {
			h = other
		}
		common.add(h)
	}
	bases, err := r.maximal(ctx, common.heads())
	if err != nil {
		return volumeState{}, fmt.Errorf("what histories have in common: %w", err)
	}
	var different []*store.Commit
	for _, c := range bases {
		if !slices.ContainsFunc(different, func(o *store.Commit) bool { return stateOf(o).same(stateOf(c)) }) {
			different = append(different, c)
		}
	}
	state, _, err := r.reduce(ctx, different)
	return state, err
}

func (r *reducer) mergeTwo(ctx context.Context, base, first, second volumeState, h history) (volumeState, error) {
	switch {
	case first.same(second), base.same(second):
		return first, nil
	case base.same(first):
		return second, nil
	}
	return r.merge(ctx, base, first, second, func(c store.ClientID) (string, error) { return r.host(ctx, h, c) })
}

// host returns the name that a client gave itself in its newest commit in h; part of its id if there is none.
func (r *reducer) host(ctx context.Context, h history, client store.ClientID) (string, error) {
	for _, head := range slices.Backward(h.heads()) {
		if head.Client != client {
			continue
		}
		c, err := r.commits.GetCommit(ctx, head)
		switch {
		case errors.Is(err, remote.ErrNotExist), errors.Is(err, errGone):
			continue
		case err != nil:
			return "", err
		case c.Host != "":
			return c.Host, nil
		}
	}
	return client.String()[:8], nil
}
