package tree

import (
	"bytes"
	"context"

	"github.com/dedupfs/dedupfs/store"
)

// cursor stands before an entry of a tree, and passes it, or, if it is a child's, goes down into the child. So a walk
// sees either a sub-tree as a whole or what is in it, as it chooses.
type cursor struct {
	t     *Tree
	stack []frame // from the root down; INVARIANT: the last is not at its end, and the others are past the child that is on the stack
	begun bool    // the root has been loaded, or there is none

	passed int // children that down has passed
}

type frame struct {
	n *store.Node
	i int // of the entry before which the cursor stands
}

// head returns the entry that comes next and the level of its node: 0 for a record. It returns nil at the end.
func (c *cursor) head() (*store.Entry, int) {
	if len(c.stack) == 0 {
		return nil, 0
	}
	f := &c.stack[len(c.stack)-1]
	return &f.n.Entries[f.i], int(f.n.Level)
}

// skip passes the entry that comes next, with all that is below it.
func (c *cursor) skip() {
	f := &c.stack[len(c.stack)-1]
	f.i++
	if f.i == len(f.n.Entries) {
		c.pop()
	}
}

// pop leaves nodes that have ended.
func (c *cursor) pop() {
	for n := len(c.stack); n > 0 && c.stack[n-1].i == len(c.stack[n-1].n.Entries); n-- {
		c.stack = c.stack[:n-1]
	}
}

// down enters the child that comes next, at first the root; one that counts as having no records it passes. After an error the
// cursor stands where it was.
func (c *cursor) down(ctx context.Context) error {
	n, err := c.child(ctx)
	if err != nil && !c.t.gone(err) {
		return err
	}
	if err != nil && c.begun {
		c.passed++
		c.skip()
		return nil
	}
	c.begun = true
	if n == nil {
		return nil
	}
	if len(c.stack) > 0 {
		c.stack[len(c.stack)-1].i++
	}
	c.stack = append(c.stack, frame{n: n})
	return nil
}

// child loads the child that comes next. It returns nil for the root of an empty tree.
func (c *cursor) child(ctx context.Context) (*store.Node, error) {
	switch {
	case c.begun:
		f := &c.stack[len(c.stack)-1]
		return c.t.child(ctx, f.n, f.i)
	case c.t.root.IsZero():
		return nil, nil
	}
	return c.t.load(ctx, c.t.root)
}

// find moves on to key and returns its record, nil if there is none. It finds nothing that the cursor has passed.
func (c *cursor) find(ctx context.Context, key []byte) (*store.Entry, error) {
	for !c.begun {
		if err := c.down(ctx); err != nil {
			return nil, err
		}
	}
	for {
		e, level := c.head()
		switch {
		case e == nil || bytes.Compare(e.Key, key) > 0:
			return nil, nil
		case level == 0 && bytes.Equal(e.Key, key):
			return e, nil
		case level == 0 || c.endsBy(key):
			c.skip()
		default:
			if err := c.down(ctx); err != nil {
				return nil, err
			}
		}
	}
}

// endsBy reports whether the entry after the next one, at whatever level, is not beyond key.
func (c *cursor) endsBy(key []byte) bool {
	next := c.stack[len(c.stack)-1].i + 1
	for i := len(c.stack) - 1; i >= 0; i-- {
		if n := c.stack[i].n; next < len(n.Entries) {
			return bytes.Compare(n.Entries[next].Key, key) <= 0
		}
		if i > 0 {
			next = c.stack[i-1].i
		}
	}
	return false
}
