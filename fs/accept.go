package fs

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/dedupfs/dedupfs/store"
)

// Acceptance is what was accepted of a history that is not what was seen before.
type Acceptance struct {
	Client      string `json:"client"`
	Incarnation string `json:"incarnation"`
	Kept        uint64 `json:"kept"` // the number of its last commit that counts; 0 if none does
	Told        string `json:"told"` // what was wrong
}

// AcceptHistory takes the history on the remote as it is now, though this client has seen another, or two of one: roll-backs and
// forks. That is recorded in the state of this client, and on the remote for all others; whose history it was goes on as a new
// incarnation.
func (v *Volume) AcceptHistory(ctx context.Context) ([]Acceptance, error) {
	if err := v.repo.ReadOnly(); err != nil {
		return nil, err
	}
	v.follower.pollMu.Lock()
	defer v.follower.pollMu.Unlock()
	var all []Acceptance
	back := false
	for { // what was hidden behind one may come to light with the next
		_, err := v.pollHeads(ctx, true)
		if err != nil && !tolerable(err) {
			return all, err
		}
		if !errors.Is(err, store.ErrRollback) {
			break
		}
		found, aerr := v.acceptOnce(ctx, err)
		if aerr != nil {
			return all, aerr
		}
		all = append(all, found...)
		back = back || slices.ContainsFunc(joined(err), isRollback)
	}
	if len(all) == 0 || v.opt.ReadOnly {
		return all, nil
	}
	if back {
		if err := v.adoptRemote(ctx); err != nil {
			return all, err
		}
	}
	// Others must not be sent to commits that are gone: what this client publishes next names them no more.
	if err := v.commits.commit(ctx, sameSnapshots); err != nil {
		return all, err
	}
	return all, v.follower.look(ctx, true, afterUploads)
}

func isRollback(err error) bool {
	var back *store.RollbackError
	return errors.As(err, &back)
}

// adoptRemote goes to the state of what is on the remote after a roll-back: of what was there and is gone, only the commits are
// known to be. What has not been published yet is merged in.
func (v *Volume) adoptRemote(ctx context.Context) error {
	heads, err := v.pollHeads(ctx, true)
	if err != nil && !tolerable(err) {
		return err
	}
	if err := v.commits.publishMu.lock(ctx); err != nil {
		return err
	}
	defer v.commits.publishMu.unlock()
	lc := &lazyCommit{ca: v.ca}
	defer func() { lc.discard() }()
	red := reducer{v.commitsThatCount(), v.merger(lc)}
	maximal, err := red.maximal(ctx, heads)
	if err != nil {
		return err
	}
	out := &outcome{}
	if out.state, out.history, err = red.reduce(ctx, maximal); err != nil {
		return err
	}
	root, snaps := v.ca.PublishedBase()
	for range quickTries {
		if err := v.commits.commit(ctx, nil); err != nil {
			return err
		}
		sw, err := v.tryGoTo(ctx, volumeState{root, snaps}, out, lc)
		if sw != nil {
			sw.tellKernel()
		}
		if sw != nil || err != nil {
			return err
		}
	}
	return errors.New("files keep changing here; try again")
}

// acceptOnce accepts what a poll has complained about.
func (v *Volume) acceptOnce(ctx context.Context, complaint error) (found []Acceptance, err error) {
	trust, err := v.trust()
	if err != nil {
		return nil, err
	}
	kept := trust.AcceptAll(complaint)
	if err := v.repo.RecordAcceptance(ctx, kept...); err != nil {
		return nil, err
	}
	if err := v.keepTrust(trust); err != nil {
		return nil, err
	}
	if err := v.correctSeen(ctx, trust); err != nil {
		return nil, err
	}
	for _, h := range kept {
		found = append(found, Acceptance{h.Client.String(), h.Incarnation.String(), uint64(h.Seq), complaint.Error()})
	}
	if st := v.ca.State(); !st.Head.IsZero() && slices.ContainsFunc(kept, func(h store.Head) bool { return chainOf(h) == chainOf(st.Head) }) {
		return found, v.leaveHistory(ctx, trust)
	}
	return found, nil
}

// leaveHistory lets this client go on as a new incarnation after its own history was rolled back or forked.
func (v *Volume) leaveHistory(ctx context.Context, trust *store.Trust) error {
	if v.opt.ReadOnly {
		return nil
	}
	if err := v.commits.publishMu.lock(ctx); err != nil {
		return err
	}
	defer v.commits.publishMu.unlock()
	if err := v.commits.mu.lock(ctx); err != nil {
		return err
	}
	defer v.commits.mu.unlock()
	own := v.ca.State().Head
	last, err := v.lastInCommon(ctx, own, trust)
	if err != nil {
		return err
	}
	return v.reincarnate(ctx, func(h history) {
		delete(h, chainOf(own))
		h.add(last)
	})
}

// correctSeen makes what this client has seen of others what their accepted histories have.
func (v *Volume) correctSeen(ctx context.Context, trust *store.Trust) error {
	st := v.ca.State()
	var seen []store.Head
	for _, h := range st.Seen {
		last, err := v.lastInCommon(ctx, h, trust)
		if err != nil {
			return err
		}
		if !last.IsZero() {
			seen = append(seen, last)
		}
	}
	if slices.Equal(seen, st.Seen) {
		return nil
	}
	return v.ca.UpdateState(func(s *State) { s.Seen = seen })
}

// lastInCommon returns the newest commit up to own that the accepted history has too: what came after it counts as changes that are
// not published yet.
func (v *Volume) lastInCommon(ctx context.Context, own store.Head, trust *store.Trust) (store.Head, error) {
	for _, e := range trust.Exceptions() {
		if !e.Fork || chainOf(e.Lost) != chainOf(own) || own.Seq < e.From {
			continue
		}
		other := e.Kept
		for other.Seq > own.Seq {
			var err error
			if other, err = v.predecessor(ctx, other); err != nil {
				return store.Head{}, err
			}
		}
		if other == own {
			return own, nil // it is on the branch that was kept
		}
		for own.Seq >= e.From && !own.IsZero() {
			var err error
			if own, err = v.predecessor(ctx, own); err != nil {
				return store.Head{}, err
			}
		}
		return own, nil
	}
	return trust.Counted(own), nil
}

// predecessor returns the commit before h in its history, zero before the first.
func (v *Volume) predecessor(ctx context.Context, h store.Head) (store.Head, error) {
	c, err := v.repo.GetCommit(ctx, h)
	if err != nil || c.Seq == 1 {
		return store.Head{}, err
	}
	h.Seq, h.Hash = c.Seq-1, c.Prev
	return h, nil
}

// acceptRecorded accepts of what a poll has complained about that which somebody has accepted for all, and reports whether
// there was any.
func (v *Volume) acceptRecorded(ctx context.Context, complaint error, trust *store.Trust) bool {
	if !errors.Is(complaint, store.ErrRollback) {
		return false
	}
	notices, err := v.repo.Notices(ctx, nil)
	if err != nil {
		return false // then it is reported as it is
	}
	st := v.ca.State()
	any := false
	for _, e := range joined(complaint) {
		if errors.Is(e, store.ErrRollback) && store.Unaccepted(e, notices) == nil && !aboutChain(e, chainOf(st.Head)) {
			trust.AcceptAll(e)
			any = true
		}
	}
	if any && v.correctSeen(ctx, trust) != nil {
		return false
	}
	return any
}

// aboutChain reports whether a complaint is about one incarnation.
func aboutChain(err error, c chain) bool {
	var back *store.RollbackError
	var fork *store.ForkError
	return errors.As(err, &back) && chainOf(back.Accepted) == c || errors.As(err, &fork) && chainOf(fork.A) == c
}

// joined returns the errors that err joins.
func joined(err error) []error {
	all, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var flat []error
	for _, e := range all.Unwrap() {
		flat = append(flat, joined(e)...)
	}
	return flat
}

// trust returns what this client has accepted of all histories.
func (v *Volume) trust() (*store.Trust, error) {
	t := &store.Trust{}
	if b := v.ca.State().Trust; len(b) > 0 {
		if err := t.UnmarshalBinary(b); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (v *Volume) keepTrust(t *store.Trust) error {
	after, err := t.MarshalBinary()
	if err != nil || bytes.Equal(after, v.ca.State().Trust) {
		return err
	}
	return v.ca.UpdateState(func(s *State) { s.Trust = after })
}

// counted returns heads without those that are gone, as was accepted.
func (v *Volume) counted(heads []store.Head) []store.Head {
	t, err := v.trust()
	if err != nil || len(t.Exceptions()) == 0 {
		return heads
	}
	var counted []store.Head
	for _, h := range heads {
		if h = t.Counted(h); !h.IsZero() {
			counted = append(counted, h)
		}
	}
	return counted
}

// errGone says that a commit is gone, and that none stands in its place: its loss was accepted, or its incarnation has ended and all
// who count have what it published.
var errGone = errors.New("commit is gone")

// commitsThatCount finds commits, and for one that is gone the one that was accepted in its place.
func (v *Volume) commitsThatCount() commitGetter {
	t, err := v.trust()
	if err != nil {
		t = new(store.Trust)
	}
	return countedCommits{v.repo, t, v.hasEnded}
}

type countedCommits struct {
	commitGetter
	trust *store.Trust
	ended func(store.Head) bool
}

// GetCommit returns the commit that counts as h.
func (c countedCommits) GetCommit(ctx context.Context, h store.Head) (*store.Commit, error) {
	if h = c.trust.Counted(h); h.IsZero() || c.ended(h) {
		return nil, errGone
	}
	return c.commitGetter.GetCommit(ctx, h)
}

// hasEnded reports whether h is of an incarnation that is as if it had never been.
func (v *Volume) hasEnded(h store.Head) bool { return v.member.cond.HasEnded(h) || v.repo.HasPassed(h) }
