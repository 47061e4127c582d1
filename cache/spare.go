package cache

import (
	"io"

	"github.com/dedupfs/dedupfs/store"
)

var _ store.Spare = (*Cache)(nil)

// SpareMultichunk returns a sealed multichunk that is on this machine: on its way
// to the remote, in the spool, or kept from reading. It has not been checked.
func (c *Cache) SpareMultichunk(n store.Name) []byte {
	for _, open := range c.localSources() {
		src := open(n)
		if src == nil {
			continue
		}
		wire, err := io.ReadAll(io.NewSectionReader(src, 0, min(src.size, 2*store.MaxMultichunk)))
		src.close()
		if err == nil {
			return wire
		}
	}
	return nil
}

// SpareChunk returns a chunk, or an encoded node, that is on this machine outside
// of multichunks. It has not been checked.
func (c *Cache) SpareChunk(ref store.Ref) []byte {
	if ref.Kind == store.RefChunk {
		if b, ok := c.chunks.get(ref.ID); ok {
			return b
		}
		b, _ := c.chunkFromLog(ref.ID) // what cannot be read is not there
		return b
	}
	if b, ok, err := c.localNode(ref.ID); ok && err == nil {
		return b
	}
	var node []byte
	c.dbGet(dbKey(keyNode, ref.ID), func(b []byte) error {
		node = append(node, b...)
		return nil
	})
	if n, ok := c.nodes.get(ref.ID); ok && node == nil {
		node = store.AppendNode(nil, n)
	}
	return node
}
