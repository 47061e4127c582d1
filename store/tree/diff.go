package tree

import (
	"bytes"
	"context"

	"github.com/dedupfs/dedupfs/store"
)

// Diff calls fn for every key whose records differ between a and b, in ascending order; ea or eb is nil where there is none. Hints
// make no difference. Sub-trees with equal ids are passed unseen, at whatever depth they lie, so that the cost is
// what differs times the depth. An error of fn ends the walk and is returned as it is. fn may keep what it is given, and modifies
// nothing of it.
func Diff(ctx context.Context, a, b *Tree, fn func(key []byte, ea, eb *store.Entry) error) error {
	if sameRef(a.root, b.root) {
		return nil
	}
	ca, cb := cursor{t: a}, cursor{t: b}
	if err := ca.down(ctx); err != nil {
		return err
	}
	if err := cb.down(ctx); err != nil {
		return err
	}
	for {
		ea, eb, err := nextDifference(ctx, &ca, &cb)
		if err != nil || ea == nil && eb == nil {
			return err
		}
		key := eb
		if ea != nil {
			key = ea
		}
		if err := fn(key.Key, ea, eb); err != nil {
			return err
		}
	}
}

// nextDifference moves a and b past the next records that differ and returns these, or nil, nil at the end.
//
// Whichever stands before the smaller key goes down or is passed: that key is not in the other tree, so the nodes on the way to it
// differ. With equal keys the higher one goes down, until both stand before sub-trees of one height, and either these are
// equal or a difference is in them or ends them.
func nextDifference(ctx context.Context, a, b *cursor) (ea, eb *store.Entry, err error) {
	for {
		ha, la := a.head()
		hb, lb := b.head()
		if ha == nil && hb == nil {
			return nil, nil, nil
		}
		order := compareHeads(ha, hb)
		switch {
		case order == 0 && la == lb && sameEntry(ha, hb):
			a.skip()
			b.skip()
		case la > 0 && (order < 0 || order == 0 && la >= lb):
			err = a.down(ctx)
		case lb > 0 && (order > 0 || order == 0 && lb > la):
			err = b.down(ctx)
		default:
			if order <= 0 {
				ea = ha
				a.skip()
			}
			if order >= 0 {
				eb = hb
				b.skip()
			}
			return ea, eb, nil
		}
		if err != nil {
			return nil, nil, err
		}
	}
}

// compareHeads compares two keys; nil, the end, is beyond all.
func compareHeads(a, b *store.Entry) int {
	switch {
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return bytes.Compare(a.Key, b.Key)
}
