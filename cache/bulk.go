package cache

import (
	"bytes"
	"context"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dgraph-io/badger/v4"
)

// A Want is a run of bytes of one chunk, and where a reader wants them.
type Want struct {
	Ref  store.Ref
	Size int    // of the whole chunk, bytes
	From int    // of the first byte wanted, in the chunk
	To   []byte // takes the bytes
}

// fill copies out of the bytes of the chunk.
func (w *Want) fill(b []byte) error {
	if len(b) != w.Size {
		return corruptf("chunk %v has %d bytes, want %d", w.Ref.ID, len(b), w.Size)
	}
	copy(w.To, b[w.From:])
	return nil
}

// ReadChunks fills all wants, which are best in the order in which they were
// written: neighbours in the log are read at once. Where the bytes come from, and
// that they are checked, is as with Chunk; but bytes in the log that this process
// gives away at once are checked against the sums of their blocks, see inLog. A chunk
// that is wanted as a whole is not kept in memory: the reader has it now.
func (c *Cache) ReadChunks(ctx context.Context, wants []Want) error {
	left, err := c.readMemory(wants)
	if err != nil || len(left) == 0 {
		return err
	}
	if left, err = c.readLog(left); err != nil {
		return err
	}
	for _, w := range left {
		if err := c.readGroup(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// readMemory fills what it can from memory, and returns what is left.
func (c *Cache) readMemory(wants []Want) ([]*Want, error) {
	left := make([]*Want, 0, len(wants))
	for i := range wants {
		w := &wants[i]
		b, ok := c.chunks.get(w.Ref.ID)
		if !ok {
			left = append(left, w)
		} else if err := w.fill(b); err != nil {
			return nil, err
		}
	}
	return left, nil
}

// took keeps a chunk that was read for a part of it: the rest is mostly wanted next.
func (c *Cache) took(w *Want, b []byte) error {
	if len(w.To) < w.Size {
		c.chunks.put(w.Ref.ID, bytes.Clone(b), int64(len(b))+128)
	}
	return w.fill(b)
}

// readGroup fills w from a multichunk.
func (c *Cache) readGroup(ctx context.Context, w *Want) error {
	if err := c.lost.get(w.Ref.ID); err != nil {
		return err
	}
	b, err := c.chunkFromHints(ctx, w.Ref, store.ErrNotFound)
	if err != nil {
		c.lost.note(w.Ref.ID, err)
		return err
	}
	return c.took(w, b)
}

// inLogs returns where the log has chunks, or had them once; nothing for those that it never had.
func (c *Cache) inLogs(ids []store.ID) []inLog {
	at := make([]inLog, len(ids))
	c.mu.Lock()
	for i, id := range ids {
		if p := c.pending[id]; p != nil {
			at[i] = p.inLog
		}
	}
	c.mu.Unlock()
	var left []int
	for i, id := range ids {
		if len(at[i].place) > 0 {
			continue
		}
		var ok bool
		if at[i], ok = c.places.get(id); !ok {
			left = append(left, i)
		}
	}
	if c.db == nil || len(left) == 0 {
		return at
	}
	key := make([]byte, 1+len(store.ID{}))
	key[0] = keyPlace
	c.db.View(func(txn *badger.Txn) error {
		for _, i := range left {
			copy(key[1:], ids[i][:])
			item, err := txn.Get(key)
			if err != nil {
				continue // not there, or to be found elsewhere
			}
			item.Value(func(b []byte) (err error) {
				if found, ok := parseInLog(b); ok {
					at[i] = found
					c.places.put(ids[i], found)
				}
				return nil
			})
		}
		return nil
	})
	return at
}
