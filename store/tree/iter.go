package tree

import (
	"context"

	"github.com/dedupfs/dedupfs/store"
)

// maxAhead is the most nodes that are announced to Options.Prefetch beyond the one being read.
const maxAhead = 32

// Iter walks records in ascending order of their keys:
//
//	it := t.Seek(ctx, from)
//	for it.Next(ctx) {
//		use(it.Entry())
//	}
//	if err := it.Err(); err != nil { ... }
//
// It is for one goroutine, holds one node per level, and needs no closing.
type Iter struct {
	c    cursor
	from []byte
	cur  *store.Entry // nil at the end and after an error
	err  error
	held bool // Seek has done what the next Next is to report

	ahead     int         // nodes to announce; doubles with each leaf that was read to its end
	parent    *store.Node // of the leaves announced last
	announced int         // how many children of parent have been announced or passed
}

// Seek returns an iterator that begins with the first record whose key is not below from. It loads the way there; if that
// goes wrong, the first Next says so.
func (t *Tree) Seek(ctx context.Context, from []byte) *Iter {
	it := &Iter{c: cursor{t: t}, from: from, held: true}
	it.move(ctx)
	return it
}

// Next moves to the next record and reports whether there is one. If not, Err tells the end from an error; after an
// error, Next tries again from the same place.
func (it *Iter) Next(ctx context.Context) bool {
	if it.held {
		it.held = false
	} else {
		it.move(ctx)
	}
	return it.cur != nil
}

// move sets cur to the next record, or to nil, with err.
func (it *Iter) move(ctx context.Context) {
	if it.cur != nil {
		it.c.skip()
	}
	it.cur, it.err = nil, nil
	for {
		e, level := it.c.head()
		switch {
		case e != nil && level == 0:
			it.cur = e
			return
		case e == nil && it.c.begun:
			return
		}
		if it.err = it.down(ctx); it.err != nil {
			return
		}
	}
}

// Entry returns the record that Next has moved to. Its slices are shared.
func (it *Iter) Entry() store.Entry { return *it.cur }

// Err returns the error that ended the last Next, nil if it was the end of the tree.
func (it *Iter) Err() error { return it.err }

// down enters the next node and passes in it what is below from.
func (it *Iter) down(ctx context.Context) error {
	it.prefetch()
	passed := it.c.passed
	if err := it.c.down(ctx); err != nil || len(it.c.stack) == 0 || it.c.passed > passed {
		return err
	}
	f := &it.c.stack[len(it.c.stack)-1]
	if f.n.Level > 0 {
		f.i = childFor(f.n, it.from)
		return nil
	}
	f.i, _ = find(f.n, it.from)
	it.c.pop()
	return nil
}

// prefetch announces the leaves that follow the one about to be loaded. The first leaf announces none, so that a look at
// a few records stays cheap.
func (it *Iter) prefetch() {
	announce := it.c.t.opt.Prefetch
	if len(it.c.stack) == 0 || announce == nil {
		return
	}
	f := it.c.stack[len(it.c.stack)-1]
	if f.n.Level != 1 {
		return
	}
	if f.n != it.parent {
		it.parent, it.announced = f.n, 0
	}
	first, end := max(it.announced, f.i+1), min(f.i+1+it.ahead, len(f.n.Entries))
	it.ahead = min(max(1, 2*it.ahead), maxAhead)
	if first >= end {
		return
	}
	it.announced = end
	refs := make([]store.Ref, 0, end-first)
	for _, e := range f.n.Entries[first:end] {
		refs = append(refs, e.Refs...)
	}
	announce(refs)
}
