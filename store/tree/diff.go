package tree

import (
	"bytes"
	"context"

	"github.com/dedupfs/dedupfs/store"
)

// Diff calls fn for every key whose records differ between a and b, in ascending order; ea or eb is nil where there is
// none. Hints make no difference. Sub-trees with equal ids are passed unseen, at whatever depth they lie, so that the
// cost is what differs times the depth. An error of fn ends the walk and is returned as it is. fn may keep what it is
// given, and modifies nothing of it.
func Diff(ctx context.Context, a, b *Tree, fn func(key []byte, ea, eb *store.Entry) error) error {
	d := newDiffer(a, b)
	for {
		key, ea, eb, err := d.next(ctx)
		if err != nil || key == nil {
			return err
		}
		if err := fn(key, ea, eb); err != nil {
			return err
		}
	}
}

// differ walks two trees side by side and stops where they differ.
type differ struct{ a, b cursor }

func newDiffer(a, b *Tree) *differ {
	d := &differ{a: cursor{t: a}, b: cursor{t: b}}
	if sameRef(a.root, b.root) {
		d.a.begun, d.b.begun = true, true // and at the end
	}
	return d
}

// next passes the next records that differ and returns them and their key, which is nil at the end.
//
// Whichever cursor stands before the smaller key goes down or on: that key is not in the other tree, so the nodes on the
// way to it differ. With equal keys the higher one goes down, until both stand before sub-trees of one height, and either
// these are equal or a difference is in them or ends them.
func (d *differ) next(ctx context.Context) (key []byte, ea, eb *store.Entry, err error) {
	for err == nil {
		ha, la := d.a.head()
		hb, lb := d.b.head()
		order := compareHeads(ha, hb)
		switch {
		case !d.a.begun:
			err = d.a.down(ctx)
		case !d.b.begun:
			err = d.b.down(ctx)
		case ha == nil && hb == nil:
			return nil, nil, nil, nil
		case order == 0 && la == lb && sameEntry(ha, hb):
			d.a.skip()
			d.b.skip()
		case la > 0 && (order < 0 || order == 0 && la >= lb):
			err = d.a.down(ctx)
		case lb > 0 && (order > 0 || order == 0 && lb > la):
			err = d.b.down(ctx)
		case order < 0:
			d.a.skip()
			return ha.Key, ha, nil, nil
		case order > 0:
			d.b.skip()
			return hb.Key, nil, hb, nil
		default:
			d.a.skip()
			d.b.skip()
			return ha.Key, ha, hb, nil
		}
	}
	return nil, nil, nil, err
}

// compareHeads compares two keys; nil, the end, is beyond all.
func compareHeads(a, b *store.Entry) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return bytes.Compare(a.Key, b.Key)
}
