package fs

import (
	"context"
	"encoding/binary"

	"github.com/dedupfs/dedupfs/store"
)

// contentRoots remembers which file has which content, so that an equal content is shared and not written again. It is
// a hint and may be lost: a root is used only after a look-up has shown that it stands in the base, whose nodes every
// commit that follows may share.
type contentRoots struct{ v *Volume }

func rootKey(id store.ID) []byte { return append([]byte("root"), id[:16]...) }

// find returns the reference of a content root that is in the base, hint and all.
func (c *contentRoots) find(ctx context.Context, root store.Ref) (store.Ref, bool) {
	var ino Ino
	c.v.ca.Recall(rootKey(root.ID), func(b []byte) {
		if len(b) == 8 {
			ino = Ino(binary.BigEndian.Uint64(b))
		}
	})
	if ino == 0 {
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
	c.v.ca.Remember(func(set func(key, value []byte)) {
		o.t.Scan(func(ch change) bool {
			ino, kind, _, ok := splitKey(ch.key)
			if !ok || kind != keyContent || ch.entry == nil {
				return true
			}
			if m, err := parseExtentMap(ch.entry); err == nil && m.Ref.Kind == store.RefNode && !m.Ref.IsZero() {
				set(rootKey(m.Ref.ID), binary.BigEndian.AppendUint64(nil, uint64(ino)))
			}
			return true
		})
	})
}
