package fs

import (
	"context"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
	"github.com/tidwall/btree"
)

// change is the newest state of one record: a nil entry says that it is gone.
type change struct {
	key   string
	entry *store.Entry
}

// overlay holds what changed since a base, in the order of keys.
type overlay struct {
	t *btree.BTreeG[change]
}

func newOverlay() *overlay {
	return &overlay{btree.NewBTreeGOptions(func(a, b change) bool { return a.key < b.key }, btree.Options{NoLocks: true})}
}

func (o *overlay) len() int                     { return o.t.Len() }
func (o *overlay) set(k string, e *store.Entry) { o.t.Set(change{k, e}) }
func (o *overlay) get(k string) (*store.Entry, bool) {
	c, ok := o.t.Get(change{key: k})
	return c.entry, ok
}

// records is a state of the volume that can be read: the live one under its lock, or a snapshot.
type records interface {
	// get returns the record of k, nil if there is none.
	get(ctx context.Context, k string) (*store.Entry, error)
	// scan calls fn for every record from (including) to (excluding), in order, until it returns false.
	scan(ctx context.Context, from, to string, fn func(k string, e *store.Entry) bool) error
}

// layered reads through overlays, the newest first, down to a base tree.
type layered struct {
	over []*overlay
	base *tree.Tree
}

func (l *layered) get(ctx context.Context, k string) (*store.Entry, error) {
	for _, o := range l.over {
		if e, ok := o.get(k); ok {
			return e, nil
		}
	}
	e, ok, err := l.base.Get(ctx, []byte(k))
	if err != nil || !ok {
		return nil, err
	}
	return &e, nil
}

func (l *layered) scan(ctx context.Context, from, to string, fn func(k string, e *store.Entry) bool) error {
	curs := make([]cursor, 0, len(l.over)+1)
	for _, o := range l.over {
		if o.len() > 0 {
			curs = append(curs, newOverlayCursor(o, from))
		}
	}
	base := newTreeCursor(ctx, l.base, from)
	curs = append(curs, base)
	for base.it.Err() == nil {
		c := smallest(curs)
		if c == nil || c.key() >= to {
			break
		}
		k, e := c.key(), c.entry()
		for _, o := range curs {
			if o.valid() && o.key() == k {
				o.next()
			}
		}
		if e != nil && !fn(k, e) {
			return nil
		}
	}
	return base.it.Err()
}

// smallest returns the first of the cursors that stands at the smallest key; nil if all are at the end.
func smallest(curs []cursor) (best cursor) {
	for _, c := range curs {
		if c.valid() && (best == nil || c.key() < best.key()) {
			best = c
		}
	}
	return best
}

// cursor walks one layer.
type cursor interface {
	valid() bool
	key() string
	entry() *store.Entry
	next()
}

type overlayCursor struct {
	it btree.IterG[change]
	ok bool
}

func newOverlayCursor(o *overlay, from string) *overlayCursor {
	c := &overlayCursor{it: o.t.Iter()}
	c.ok = c.it.Seek(change{key: from})
	return c
}

func (c *overlayCursor) valid() bool         { return c.ok }
func (c *overlayCursor) key() string         { return c.it.Item().key }
func (c *overlayCursor) entry() *store.Entry { return c.it.Item().entry }
func (c *overlayCursor) next()               { c.ok = c.it.Next() }

type treeCursor struct {
	ctx context.Context
	it  *tree.Iter
	ok  bool
	e   store.Entry
	k   string
}

func newTreeCursor(ctx context.Context, t *tree.Tree, from string) *treeCursor {
	c := &treeCursor{ctx: ctx, it: t.Seek(ctx, []byte(from))}
	c.next()
	return c
}

func (c *treeCursor) valid() bool { return c.ok }
func (c *treeCursor) key() string { return c.k }

func (c *treeCursor) entry() *store.Entry {
	e := c.e
	return &e
}

func (c *treeCursor) next() {
	if c.ok = c.it.Next(c.ctx); c.ok {
		c.e = c.it.Entry()
		c.k = string(c.e.Key)
	}
}
