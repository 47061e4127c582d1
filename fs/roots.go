package fs

import (
	"context"
	"encoding/binary"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dgraph-io/badger/v4"
)

// contentRoots remembers which file has which content, so that an equal content is shared and not written again. It is
// a hint and may be lost: a root is used only after a look-up has shown that it stands in the base, whose nodes every
// commit that follows may share.
type contentRoots struct {
	v  *Volume
	db *badger.DB // nil: nothing is remembered
}

func rootKey(id store.ID) []byte { return append([]byte("FR"), id[:16]...) }

// find returns the reference of a content root that is in the base, hint and all.
func (c *contentRoots) find(ctx context.Context, root store.Ref) (store.Ref, bool) {
	if c.db == nil {
		return store.Ref{}, false
	}
	var ino Ino
	err := c.db.View(func(txn *badger.Txn) error {
		item, err := txn.Get(rootKey(root.ID))
		if err != nil {
			return err
		}
		return item.Value(func(b []byte) error {
			if len(b) == 8 {
				ino = Ino(binary.BigEndian.Uint64(b))
			}
			return nil
		})
	})
	if err != nil || ino == 0 {
		return store.Ref{}, false
	}
	c.v.mu.RLock()
	base := c.v.base
	c.v.mu.RUnlock()
	e, ok, err := base.Get(ctx, []byte(contentKey(ino)))
	if err != nil || !ok {
		return store.Ref{}, false
	}
	m, err := parseExtentMap(&e)
	return m.Ref, err == nil && m.Ref.ID == root.ID && m.Ref.Kind == store.RefNode
}

// learn remembers the contents of a commit that has become the base.
func (c *contentRoots) learn(o *overlay) {
	if c.db == nil {
		return
	}
	wb := c.db.NewWriteBatch()
	defer wb.Cancel()
	o.t.Scan(func(ch change) bool {
		ino, kind, _, ok := splitKey(ch.key)
		if !ok || kind != keyContent || ch.entry == nil {
			return true
		}
		if m, err := parseExtentMap(ch.entry); err == nil && m.Ref.Kind == store.RefNode && !m.Ref.IsZero() {
			_ = wb.Set(rootKey(m.Ref.ID), binary.BigEndian.AppendUint64(nil, uint64(ino)))
		}
		return true
	})
	if err := wb.Flush(); err != nil {
		c.v.opt.Logger.Debug("remember contents", "err", err)
	}
}
