package fs

import (
	"context"
	"io"

	"github.com/dedupfs/dedupfs/store"
)

// Missing returns the first run of bytes in [off, end), which holds data only, that there does not have at the same place; an empty
// one at end if it has them all. What it has is told by the ids of chunks: of the file nothing is fetched but the list of them.
// Bytes that have no id of their own, those not stored yet and parts of chunks, count as missing.
func (h *Handle) Missing(ctx context.Context, there io.ReaderAt, off, end int64) (from, to int64, err error) {
	view, err := h.shape(ctx)
	if err != nil {
		return 0, 0, err
	}
	c := comparison{v: h.v, there: there, from: end, to: end}
	for _, pc := range view.resolve(off, end) {
		if pc.stored() {
			err = c.stored(ctx, view, pc)
		} else {
			c.add(pc.off, pc.off+pc.n, false)
		}
		if c.over || err != nil {
			break
		}
	}
	return c.from, c.to, err
}

// comparison is of a file with the bytes that are there.
type comparison struct {
	v     *Volume
	there io.ReaderAt
	buf   []byte

	from, to int64 // the first run that differs
	found    bool  // there is one
	over     bool  // and it has come to its end
}

// add says of the run that begins where the last one ended whether it is there.
func (c *comparison) add(from, to int64, same bool) {
	switch {
	case same:
		c.over = c.found
	case !c.found:
		c.from, c.to, c.found = from, to, true
	default:
		c.to = to
	}
}

// stored compares the chunks of a piece.
func (c *comparison) stored(ctx context.Context, view *fileView, pc piece) error {
	src, from := view.stored(pc)
	end, done := from+pc.n, from
	shift := pc.off - from
	var failed error
	err := src.chunks(ctx, from, func(at chunkAt) bool {
		if at.off >= end {
			return false
		}
		lo, hi := max(at.off, from), min(at.end(), end)
		if hi <= done { // the list of chunks is damaged
			return true
		}
		same := false
		if lo == at.off && hi == at.end() {
			same, failed = c.same(at, lo+shift)
		}
		c.add(done+shift, hi+shift, same)
		done = hi
		if failed == nil {
			failed = ctx.Err()
		}
		return failed == nil && !c.over
	})
	if err != nil {
		return err
	}
	return failed
}

// same reports whether a whole chunk is there at off.
func (c *comparison) same(at chunkAt, off int64) (bool, error) {
	if at.nested() || at.skip+at.rest > 0 || at.n > store.MaxChunk {
		return false, nil
	}
	if int64(cap(c.buf)) < at.n {
		c.buf = make([]byte, at.n)
	}
	n, err := c.there.ReadAt(c.buf[:at.n], off)
	if err != nil && err != io.EOF {
		return false, err
	}
	return int64(n) == at.n && c.v.repo.ChunkID(c.buf[:n]) == at.ref.ID, nil
}
