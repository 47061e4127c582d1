package tree

import (
	"context"

	"github.com/dedupfs/dedupfs/store"
)

// Resolve decides a record that both sides have changed, each in its own way; nil is no record. It is called in ascending
// order of the keys, and modifies nothing of what it is given.
type Resolve func(key []byte, base, a, b *store.Entry) (*store.Entry, error)

// Merge3 returns the root of the tree that has the changes of a and of b against base: what one side has changed is
// taken, equal changes are one, the rest is resolved. The three have one store and equal options. An error of resolve is
// returned as it is.
//
// The cost is that of the side with fewer changes: they are made as edits of the other side, whose nodes stay. So taking
// in a small change costs little however much has changed here, and the other way round.
func Merge3(ctx context.Context, base, a, b *Tree, resolve Resolve) (store.Ref, error) {
	swap, err := Fewer(ctx, base, a, b)
	if err != nil {
		return store.Ref{}, err
	}
	if swap {
		return merge(ctx, base, b, a, func(key []byte, base, eb, ea *store.Entry) (*store.Entry, error) {
			return resolve(key, base, ea, eb)
		})
	}
	return merge(ctx, base, a, b, resolve)
}

// Fewer reports whether a has fewer changes against base than b. It counts no further than the smaller number.
func Fewer(ctx context.Context, base, a, b *Tree) (bool, error) {
	da, db := newDiffer(base, a), newDiffer(base, b)
	for {
		key, _, _, err := db.next(ctx)
		if err != nil || key == nil {
			return false, err
		}
		key, _, _, err = da.next(ctx)
		if err != nil || key == nil {
			return true, err
		}
	}
}

// merge makes the changes from base to b in a.
func merge(ctx context.Context, base, a, b *Tree, resolve Resolve) (store.Ref, error) {
	var failed error
	edits := func(yield func(Edit) bool) {
		d, ca := newDiffer(base, b), cursor{t: a}
		for {
			key, before, eb, err := d.next(ctx)
			if err == nil && key == nil {
				return
			}
			var edit *store.Entry
			if err == nil {
				edit, err = mergeRecord(ctx, &ca, key, before, eb, resolve)
			}
			if err != nil {
				failed = err
				return
			}
			if !yield(Edit{key, edit}) {
				return
			}
		}
	}
	root, err := a.Apply(ctx, edits)
	if failed != nil {
		return store.Ref{}, failed
	}
	return root, err
}

// mergeRecord returns what key shall have, which is eb in b, was before, and is in a what ca finds.
func mergeRecord(ctx context.Context, ca *cursor, key []byte, before, eb *store.Entry, resolve Resolve) (*store.Entry, error) {
	ea, err := ca.find(ctx, key)
	switch {
	case err != nil:
		return nil, err
	case sameOrNone(ea, before):
		return eb, nil
	case sameOrNone(ea, eb):
		return ea, nil
	}
	return resolve(key, before, ea, eb)
}

// sameOrNone reports whether a and b are the same record, or both nil.
func sameOrNone(a, b *store.Entry) bool {
	if a == nil || b == nil {
		return a == b
	}
	return sameEntry(a, b)
}
