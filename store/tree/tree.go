// Package tree keeps a persistent sorted map as a tree of immutable nodes, cut by content (a prolly tree): equal records give
// equal nodes and an equal root, whatever the order in which they were written.
//
// It owns where nodes begin and end, and it promises that a change costs what changed times the depth: Apply, Diff and
// Merge3 load and save only the nodes on the way to what differs, and a few neighbours. It leaves to others how a node is
// encoded and named (store), where it is kept (a Store, given), and what keys and values mean (fs).
//
// # Boundaries
//
// A node ends after an entry when the keyed hash of the entry's key says so, or when the node has reached its maximum
// size. Both are decided by the entries since the last boundary and nothing else, so that after a change the old
// boundaries come back soon. The rule is in cut.go, the measurements behind it in docs/tree.md. An inner node holds, for
// each of its children, the child's first key and the reference to it, and is cut by the same rule. The root is the only
// node of its level; a level above it does not exist, and the empty map has no node at all: its root is the zero Ref.
//
// INVARIANT: every node but the last of its level ends where the rule ends it, and the last one never passes such an end.
package tree

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sort"

	"github.com/dedupfs/dedupfs/store"
)

// Store keeps nodes by identity. What it returns, and what it is given, is shared and never modified.
type Store interface {
	// Load returns the node that ref names, checked against its id. It may wait, and may be called again after an error.
	Load(ctx context.Context, ref store.Ref) (*store.Node, error)

	// Save keeps n, and its slices, and returns what it is loaded by. Saving equal nodes twice gives refs of one id.
	Save(ctx context.Context, n *store.Node) (store.Ref, error)
}

// The default sizes of a node; docs/tree.md has the measurements.
const (
	DefaultMin    = 1 << 10
	DefaultTarget = 4 << 10
	DefaultMax    = 32 << 10
)

// Options are the parameters of a tree. Trees are comparable, node by node, only if Key and the sizes are the same.
type Options struct {
	Key [16]byte // of the hash that decides boundaries

	// Sizes of a node, by the bound that entrySize gives. Zero is the default.
	Min    int // no boundary before this many bytes; DefaultMin
	Target int // mean size; DefaultTarget
	Max    int // a boundary as soon as a node has this many bytes; DefaultMax; at most store.MaxNode/2

	// Prefetch, if not nil, is told which nodes an Iter that has been moving forward will load next. It must not block.
	Prefetch func([]store.Ref)

	// Gone, if not nil, says of which errors of loading a node the node counts as having no records, for all that only reads: Diff,
	// Merge3 of its base, Get, Seek. What is written is never made without them: Apply returns the error.
	Gone func(error) bool
}

// Tree is one state of the map. It is immutable, and safe for concurrent use as far as its Store is.
type Tree struct {
	st   Store
	root store.Ref
	opt  Options
	rule rule
}

// New returns the tree whose root is root; the zero Ref is the empty tree. Nothing is loaded yet.
func New(st Store, root store.Ref, o Options) *Tree {
	if o.Min == 0 {
		o.Min = DefaultMin
	}
	if o.Target == 0 {
		o.Target = DefaultTarget
	}
	if o.Max == 0 {
		o.Max = DefaultMax
	}
	if o.Min < 0 || o.Target < o.Min || o.Max < o.Target || o.Max > store.MaxNode/2 {
		panic(fmt.Sprintf("tree: node sizes %d, %d, %d are not in order, or beyond %d", o.Min, o.Target, o.Max, store.MaxNode/2))
	}
	return &Tree{st: st, root: root, opt: o, rule: newRule(o)}
}

// Root returns the reference that New was given.
func (t *Tree) Root() store.Ref { return t.root }

// At returns the tree with another root, and with the store and the options of t.
func (t *Tree) At(root store.Ref) *Tree {
	u := *t
	u.root = root
	return &u
}

// NodeError is the error of an operation that met a node it could not load or save. A caller that gets one from a Store that
// knows only local nodes may fetch Ref and try again: an operation that has returned an error has changed nothing.
type NodeError struct {
	Op  string    // "load" or "save"
	Ref store.Ref // of the node; zero if it was to be saved
	Err error
}

func (e *NodeError) Error() string {
	if e.Ref.IsZero() {
		return fmt.Sprintf("%s node: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("%s node %s: %v", e.Op, e.Ref.ID, e.Err)
}

func (e *NodeError) Unwrap() error { return e.Err }

// Get returns the record of key, and whether there is one. Its slices are shared.
func (t *Tree) Get(ctx context.Context, key []byte) (store.Entry, bool, error) {
	n, err := t.leaf(ctx, func(n *store.Node) int { return childFor(n, key) })
	if n == nil {
		return store.Entry{}, false, err
	}
	i, found := find(n, key)
	if !found {
		return store.Entry{}, false, nil
	}
	return n.Entries[i], true, nil
}

// Last returns the record with the largest key below below, and whether there is one; a nil below is beyond all keys.
func (t *Tree) Last(ctx context.Context, below []byte) (store.Entry, bool, error) {
	before := func(n *store.Node) int {
		if below == nil {
			return len(n.Entries) - 1
		}
		i, _ := find(n, below)
		return i - 1
	}
	n, err := t.leaf(ctx, before)
	if n == nil || before(n) < 0 {
		return store.Entry{}, false, err
	}
	return n.Entries[before(n)], true, nil
}

// leaf walks from the root to a leaf, through the children whose index choose returns. It returns nil if there is no
// root, or if choose returns a negative index.
func (t *Tree) leaf(ctx context.Context, choose func(*store.Node) int) (*store.Node, error) {
	if t.root.IsZero() {
		return nil, nil
	}
	n, err := t.load(ctx, t.root)
	for err == nil && n.Level > 0 {
		i := choose(n)
		if i < 0 {
			return nil, nil
		}
		n, err = t.child(ctx, n, i)
	}
	if err != nil && !t.gone(err) {
		return nil, err
	}
	if err != nil {
		return nil, nil
	}
	return n, nil
}

func (t *Tree) gone(err error) bool { return t.opt.Gone != nil && t.opt.Gone(err) }

// load returns the node named by ref, which has an entry at least. A node that is not what its parent promises is
// store.ErrCorrupt: whoever wrote it had the keys, and did not keep to the rules.
func (t *Tree) load(ctx context.Context, ref store.Ref) (*store.Node, error) {
	n, err := t.st.Load(ctx, ref)
	if err == nil && len(n.Entries) == 0 {
		err = fmt.Errorf("no entries: %w", store.ErrCorrupt)
	}
	if err != nil {
		return nil, &NodeError{Op: "load", Ref: ref, Err: err}
	}
	return n, nil
}

// child returns the i-th child of the inner node n. That a child is one level lower than its parent is what ends every walk.
func (t *Tree) child(ctx context.Context, n *store.Node, i int) (*store.Node, error) {
	e := &n.Entries[i]
	if len(e.Refs) != 1 || e.Refs[0].Kind != store.RefNode {
		return nil, fmt.Errorf("child %x of a node of level %d has no single reference to a node: %w", e.Key, n.Level, store.ErrCorrupt)
	}
	c, err := t.load(ctx, e.Refs[0])
	if err != nil {
		return nil, err
	}
	if c.Level != n.Level-1 || !bytes.Equal(c.Entries[0].Key, e.Key) {
		err := fmt.Errorf("level %d and first key %x, parent says %d and %x: %w", c.Level, c.Entries[0].Key, n.Level-1, e.Key, store.ErrCorrupt)
		return nil, &NodeError{Op: "load", Ref: e.Refs[0], Err: err}
	}
	return c, nil
}

// find returns the index of the first entry of n whose key is not below key, and whether it is key.
func find(n *store.Node, key []byte) (int, bool) {
	return sort.Find(len(n.Entries), func(i int) int { return bytes.Compare(key, n.Entries[i].Key) })
}

// childFor returns the index of the child of n that holds key, if any does. What is smaller than all keys belongs to the
// first.
func childFor(n *store.Node, key []byte) int {
	i, found := find(n, key)
	if !found && i > 0 {
		i--
	}
	return i
}

// sameEntry reports whether a and b are the same record: hints do not count.
func sameEntry(a, b *store.Entry) bool {
	return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value) && slices.EqualFunc(a.Refs, b.Refs, sameRef)
}

func sameRef(a, b store.Ref) bool { return a.ID == b.ID && a.Kind == b.Kind }
