package fs

import (
	"context"

	"github.com/dedupfs/dedupfs/store"
)

// What lies around a change is cut anew, so it has to be read. If that is lost on the remote, a change must neither wait for ever
// nor be given up: the new content refers to those parts of the old chunk that did not change, and when it is found again, or
// stored again, they read again. If the list of the old chunks is lost, the old content as a whole takes the place of a chunk. What
// is only out of reach is waited for.

// read fills p from off on, as far as nothing is lost, and returns how far that is.
func (fl *flusher) read(p []byte, off int64) (int64, error) {
	n := int64(len(p))
	err := fl.view.readAt(fl.ctx, p, off)
	if !store.IsLost(err) {
		return n, err
	}
	if err := fl.noteLost(p, off); err != nil {
		return 0, err
	}
	lost, ok, err := fl.nextLost(off, off+n)
	if err != nil {
		return 0, err
	}
	if ok {
		n = lost.off - off
	}
	return n, fl.view.readAt(fl.ctx, p[:n], off)
}

// noteLost tries all stored chunks of which bytes are to be read from off on. What is in p afterwards is not said.
func (fl *flusher) noteLost(p []byte, off int64) error {
	return fl.needed(off, off+int64(len(p)), func(c chunkAt, at origin, from int64) (bool, error) {
		err := at.src.readAt(fl.ctx, p[c.off-off:][:c.n], from)
		if !store.IsLost(err) {
			return true, err
		}
		if fl.lost == nil {
			fl.lost, fl.cause = map[origin]bool{}, err
		}
		fl.lost[at] = true
		return true, nil
	})
}

// nextLost returns the first part of a chunk that is known to be lost and needed between lo and hi.
func (fl *flusher) nextLost(lo, hi int64) (part chunkAt, ok bool, err error) {
	if fl.cause == nil {
		return chunkAt{}, false, nil
	}
	err = fl.needed(lo, hi, func(c chunkAt, at origin, _ int64) (bool, error) {
		part, ok = c, fl.lost[at]
		return !ok, nil
	})
	return part, ok, err
}

// lostAt returns the part of a chunk that is known to be lost and begins at off, as long as it shows through.
func (fl *flusher) lostAt(off int64) (part chunkAt, ok bool, err error) {
	for window := int64(flushBuffer); ; window = min(2*window, lastWindow) {
		hi := off + min(window, fl.view.size-off)
		part, ok, err = fl.nextLost(off, hi)
		ok = ok && part.off == off
		if !ok || err != nil || part.end() < hi || hi == fl.view.size {
			return part, ok, err
		}
	}
}

// needed calls fn for all parts of stored chunks that show through between lo and hi, in order, with the chunk that each is of and
// where the part begins in that content, until it returns false.
func (fl *flusher) needed(lo, hi int64, fn func(c chunkAt, of origin, from int64) (bool, error)) error {
	for _, pc := range fl.view.resolve(lo, hi) {
		if !pc.stored() {
			continue
		}
		src, from := fl.view.stored(pc)
		shift, on := pc.off-from, true
		var bad error
		err := src.chunks(fl.ctx, from, func(c chunkAt) bool {
			if c.off >= from+pc.n {
				return false
			}
			part := c.part(from, from+pc.n)
			at := part.off
			part.off += shift
			on, bad = fn(part, origin{src, c.off}, at)
			return on && bad == nil
		})
		if err == nil {
			err = bad
		}
		if err != nil || !on {
			return err
		}
	}
	return nil
}

// asOne returns a reader of c's content, whose list of chunks is lost, that has all of it as one chunk.
func (c *contentReader) asOne() *contentReader {
	m := c.m
	m.Allocated = uint64(m.Length)
	return &contentReader{ca: c.ca, m: m, v: c.v}
}

// withoutLostLists returns the layer with each copy of a content whose list of chunks is lost as a copy of one chunk.
func (l *layer) withoutLostLists(ctx context.Context) (*layer, error) {
	var err error
	out := &layer{ext: l.ext.Copy(), clip: l.clip}
	l.ext.Scan(func(e extent) bool {
		if e.from != fromCopy {
			return true
		}
		if err = e.src.chunks(ctx, int64(e.pos), func(c chunkAt) bool { return c.end() < int64(e.pos)+e.n }); store.IsLost(err) {
			e.src, err = e.src.asOne(), nil
			out.ext.Set(e)
		}
		return err == nil
	})
	return out, err
}

// tellLost logs that a file was changed in or beside what is lost, once for each file.
func (v *Volume) tellLost(ctx context.Context, ino Ino, err error) {
	if _, told := v.commits.lost.LoadOrStore(ino, true); !told {
		v.opt.Logger.Error("a file was changed beside what is lost of it; what was written is kept, and the rest reads again when it is found or written again",
			"file", v.pathOf(ctx, ino), "err", err)
	}
}
