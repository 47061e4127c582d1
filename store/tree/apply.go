package tree

import (
	"bytes"
	"context"
	"fmt"
	"iter"

	"github.com/dedupfs/dedupfs/store"
)

// Edit changes one record. Entry is what the key shall have (its own Key is not looked at), nil if it shall have nothing.
type Edit struct {
	Key   []byte
	Entry *store.Entry
}

// Apply returns the root of the tree with edits made, which come in ascending order of their keys, each key once. The
// result is the tree that Build makes of the same records. t itself stays as it is, and so does everything if Apply
// fails: what it has saved by then is garbage. Slices of the edits are kept in nodes.
//
// Edits are taken one by one and memory does not grow with them. Nodes without an edit are neither loaded nor saved, except
// the few behind a changed one until a new boundary meets an old one; references to them keep their hints. An edit that
// changes nothing, hints apart, saves nothing.
func (t *Tree) Apply(ctx context.Context, edits iter.Seq[Edit]) (store.Ref, error) {
	next, stop := iter.Pull(edits)
	defer stop()
	ed := editor{t: t, out: writer{t: t}, next: next}
	if err := ed.advance(); err != nil {
		return store.Ref{}, err
	}
	if !ed.more {
		return t.root, nil
	}
	if err := ed.run(ctx); err != nil {
		return store.Ref{}, err
	}
	return ed.out.finish(ctx)
}

// Build returns the root of the tree of records, which come in ascending order of their keys, each key once. It has the
// store and the options of t, and nothing else of it. Slices of the records are kept in nodes.
func (t *Tree) Build(ctx context.Context, records iter.Seq[store.Entry]) (store.Ref, error) {
	out := writer{t: t}
	var last []byte
	for e := range records {
		if err := t.checkRecord(last, e.Key, &e); err != nil {
			return store.Ref{}, err
		}
		if err := out.put(ctx, 0, e); err != nil {
			return store.Ref{}, err
		}
		last = e.Key
	}
	return out.finish(ctx)
}

// checkRecord refuses what cannot stand in a tree. e is nil for a deletion; last is the key before, nil if there is none.
func (t *Tree) checkRecord(last, key []byte, e *store.Entry) error {
	switch {
	case len(key) == 0 || len(key) > store.MaxKey:
		return fmt.Errorf("key of %d bytes; 1 to %d are possible", len(key), store.MaxKey)
	case last != nil && bytes.Compare(last, key) >= 0:
		return fmt.Errorf("key %x after %x: keys must ascend", key, last)
	case e == nil:
		return nil
	case len(e.Value) > store.MaxValue:
		return fmt.Errorf("record %x has a value of %d bytes; %d are possible", key, len(e.Value), store.MaxValue)
	case entrySize(e) > t.rule.maxRecord():
		return fmt.Errorf("record %x with %d references has %d bytes; %d are possible", key, len(e.Refs), entrySize(e), t.rule.maxRecord())
	}
	return nil
}

// editor walks the old tree and the edits side by side and writes the new tree.
type editor struct {
	t    *Tree
	out  writer
	next func() (Edit, bool)

	edit Edit // the next one
	more bool // there is one
}

// advance takes the next edit.
func (ed *editor) advance() error {
	last := ed.edit.Key
	ed.edit, ed.more = ed.next()
	if !ed.more {
		return nil
	}
	return ed.t.checkRecord(last, ed.edit.Key, ed.edit.Entry)
}

func (ed *editor) run(ctx context.Context) error {
	if ed.t.root.IsZero() {
		return ed.leaf(ctx, &store.Node{}, nil)
	}
	n, err := ed.t.load(ctx, ed.t.root)
	if err != nil {
		return err
	}
	return ed.node(ctx, n, ed.t.root, nil)
}

// node writes the old node n, named ref, with the edits that fall before end, where the next node begins (nil: there is
// none).
//
// A child can be taken over unseen when no edit falls into it and no lower level is in the middle of a new node: then it
// begins at a boundary as it did in the old tree, and its own ends are where they were.
func (ed *editor) node(ctx context.Context, n *store.Node, ref store.Ref, end []byte) error {
	ed.out.enter(n, ref)
	if n.Level == 0 {
		return ed.leaf(ctx, n, end)
	}
	for i, e := range n.Entries {
		childEnd := end
		if i+1 < len(n.Entries) {
			childEnd = n.Entries[i+1].Key
		}
		if !ed.due(childEnd) && ed.out.aligned(int(n.Level)) {
			if err := ed.out.put(ctx, int(n.Level), e); err != nil {
				return err
			}
			continue
		}
		c, err := ed.t.child(ctx, n, i)
		if err != nil {
			return err
		}
		if err := ed.node(ctx, c, e.Refs[0], childEnd); err != nil {
			return err
		}
	}
	return nil
}

// leaf writes the records of n with the edits that fall before end.
func (ed *editor) leaf(ctx context.Context, n *store.Node, end []byte) error {
	for i := range n.Entries {
		e := &n.Entries[i]
		if err := ed.insertBefore(ctx, e.Key); err != nil {
			return err
		}
		if ed.more && bytes.Equal(ed.edit.Key, e.Key) {
			if err := ed.replace(ctx, e); err != nil {
				return err
			}
		} else if err := ed.out.put(ctx, 0, *e); err != nil {
			return err
		}
	}
	return ed.insertBefore(ctx, end)
}

// insertBefore writes the edits before end. None of their keys is in the old tree, so a deletion does nothing.
func (ed *editor) insertBefore(ctx context.Context, end []byte) error {
	for ed.due(end) {
		if err := ed.putEdit(ctx); err != nil {
			return err
		}
	}
	return nil
}

// replace makes the next edit to the old record e. If nothing changes the old one stays, with the hints that it has.
func (ed *editor) replace(ctx context.Context, e *store.Entry) error {
	if n := ed.edit.Entry; n == nil || !sameEntry(e, &store.Entry{Key: e.Key, Value: n.Value, Refs: n.Refs}) {
		return ed.putEdit(ctx)
	}
	if err := ed.out.put(ctx, 0, *e); err != nil {
		return err
	}
	return ed.advance()
}

// putEdit writes what the next edit brings, and takes the one after it.
func (ed *editor) putEdit(ctx context.Context) error {
	if n := ed.edit.Entry; n != nil {
		if err := ed.out.put(ctx, 0, store.Entry{Key: ed.edit.Key, Value: n.Value, Refs: n.Refs}); err != nil {
			return err
		}
	}
	return ed.advance()
}

// due reports whether the next edit falls before end (nil: beyond all keys).
func (ed *editor) due(end []byte) bool {
	return ed.more && (end == nil || bytes.Compare(ed.edit.Key, end) < 0)
}
