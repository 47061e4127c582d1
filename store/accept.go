package store

import (
	"context"
	"errors"
	"fmt"
)

// RecordAcceptance publishes that histories end here which the remote shows otherwise than before: of each incarnation the last
// commit that counts, with number 0 if none does. It is a notice as of an eviction: nothing later of the incarnation is merged, and
// Unaccepted takes it off what others complain about.
func (r *Repository) RecordAcceptance(ctx context.Context, last ...Head) error {
	if err := r.putInFull(ctx, func() error { return r.putNotice(ctx, &Notice{Evicted: last}) }); err != nil {
		return fmt.Errorf("record what was accepted: %w", err)
	}
	return nil
}

// Unaccepted returns err, which Poll has returned, without the roll-backs and forks of incarnations that a notice has ended.
func Unaccepted(err error, notices []*Notice) error {
	if err == nil || !errors.Is(err, ErrRollback) {
		return err
	}
	var rest []error
	for _, e := range flatten(err) {
		if h, ok := historyOf(e); !ok || !ended(h, notices) {
			rest = append(rest, e)
		}
	}
	return errors.Join(rest...)
}

// historyOf returns a head of the history that err complains about.
func historyOf(err error) (Head, bool) {
	var back *RollbackError
	var fork *ForkError
	switch {
	case errors.As(err, &back):
		return back.Accepted, true
	case errors.As(err, &fork):
		return fork.A, true
	}
	return Head{}, false
}

func ended(h Head, notices []*Notice) bool {
	for _, n := range notices {
		for _, e := range n.Evicted {
			if e.chain() == h.chain() {
				return true
			}
		}
	}
	return false
}

// AcceptAll accepts the roll-backs and forks in err, which Poll has returned, and returns the heads that t goes on from, with
// number 0 where nothing is left.
func (t *Trust) AcceptAll(err error) (kept []Head) {
	if err == nil {
		return nil
	}
	for _, e := range flatten(err) {
		var back *RollbackError
		var fork *ForkError
		switch {
		case errors.As(e, &back):
			t.AcceptRollback(back)
		case errors.As(e, &fork):
			t.AcceptFork(fork)
		default:
			continue
		}
		h, _ := historyOf(e)
		last := Head{Client: h.Client, Incarnation: h.Incarnation}
		if now := t.Head(h.Client, h.Incarnation); !now.IsZero() {
			last = now
		}
		kept = append(kept, last)
	}
	return kept
}

// Counted returns h as it counts for t: if it is gone, the head that was accepted in its place, zero if that is none.
func (t *Trust) Counted(h Head) Head {
	for _, e := range t.accepted {
		if !e.Fork && e.Lost.chain() == h.chain() && e.Kept.Seq < h.Seq && h.Seq <= e.Lost.Seq {
			return e.Kept
		}
	}
	return h
}
