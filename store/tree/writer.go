package tree

import (
	"context"
	"slices"

	"github.com/dedupfs/dedupfs/store"
)

// writer makes nodes from the entries of each level, and from finished nodes the entries of the level above.
type writer struct {
	t      *Tree
	levels []level
}

// level is the unfinished node of one level.
type level struct {
	entries []store.Entry
	size    int  // of entries
	used    bool // an entry has been put, now or before

	old    *store.Node // the node of the old tree whose entries are being put, if any
	oldRef store.Ref
}

// at returns level lv. The pointer is good until the next call.
func (w *writer) at(lv int) *level {
	for len(w.levels) <= lv {
		w.levels = append(w.levels, level{})
	}
	return &w.levels[lv]
}

// enter says that the entries of n, named ref, come next. If a new node turns out equal, ref is used again, with its
// hint, and nothing is saved.
func (w *writer) enter(n *store.Node, ref store.Ref) {
	l := w.at(int(n.Level))
	l.old, l.oldRef = n, ref
	l.entries = slices.Grow(l.entries, len(n.Entries)+1)
}

// aligned reports whether all levels below lv are at a boundary.
func (w *writer) aligned(lv int) bool {
	for i := range w.levels[:min(lv, len(w.levels))] {
		if len(w.levels[i].entries) > 0 {
			return false
		}
	}
	return true
}

// put appends e to level lv, whose lower levels must be at a boundary.
func (w *writer) put(ctx context.Context, lv int, e store.Entry) error {
	l := w.at(lv)
	size := entrySize(&e)
	l.entries = append(l.entries, e)
	l.size += size
	l.used = true
	if !w.t.rule.endsAfter(lv, e.Key, size, len(l.entries), l.size) {
		return nil
	}
	return w.end(ctx, lv)
}

// end finishes the node of level lv and puts it into the level above.
func (w *writer) end(ctx context.Context, lv int) error {
	l := w.at(lv)
	ref, err := w.save(ctx, lv, l)
	if err != nil {
		return err
	}
	first := l.entries[0].Key
	clear(l.entries)
	l.entries, l.size = l.entries[:0], 0
	return w.put(ctx, lv+1, store.Entry{Key: first, Refs: []store.Ref{ref}})
}

func (w *writer) save(ctx context.Context, lv int, l *level) (store.Ref, error) {
	same := func(a, b store.Entry) bool { return sameEntry(&a, &b) }
	if l.old != nil && slices.EqualFunc(l.old.Entries, l.entries, same) {
		return l.oldRef, nil
	}
	if err := ctx.Err(); err != nil {
		return store.Ref{}, err
	}
	ref, err := w.t.st.Save(ctx, &store.Node{Level: uint8(lv), Entries: slices.Clone(l.entries)})
	if err != nil {
		return store.Ref{}, &NodeError{Op: "save", Err: err}
	}
	return ref, nil
}

// finish ends the last node of every level, from below, and returns the root: the only node of the lowest level that has
// only one.
func (w *writer) finish(ctx context.Context) (store.Ref, error) {
	for lv := 0; lv < len(w.levels); lv++ {
		l := &w.levels[lv]
		if lv > 0 && len(l.entries) == 1 && w.highest() == lv {
			return w.root(ctx, lv, l.entries[0].Refs[0])
		}
		if len(l.entries) == 0 {
			continue
		}
		if err := w.end(ctx, lv); err != nil {
			return store.Ref{}, err
		}
	}
	return store.Ref{}, nil
}

// highest returns the highest level in use.
func (w *writer) highest() int {
	for lv := len(w.levels) - 1; lv > 0; lv-- {
		if w.levels[lv].used {
			return lv
		}
	}
	return 0
}

// root returns the root below the only entry of level lv, which is ref. A node made here has several children, or is a
// leaf; one taken over unseen may have been the last of its level, with a single child, and then is a root no more than
// its parent was.
func (w *writer) root(ctx context.Context, lv int, ref store.Ref) (store.Ref, error) {
	if lv < 2 || w.levels[lv-1].used {
		return ref, nil
	}
	n, err := w.t.load(ctx, ref)
	for err == nil && n.Level > 0 && len(n.Entries) == 1 {
		ref = n.Entries[0].Refs[0]
		n, err = w.t.child(ctx, n, 0)
	}
	return ref, err
}
