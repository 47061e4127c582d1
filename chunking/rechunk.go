package chunking

import (
	"fmt"
	"io"
	"slices"
)

// Boundaries answers for the cut of a stream: the starts of its chunks, and
// its size.
type Boundaries interface {
	// Floor returns the largest boundary that is at most off, 0 if none.
	Floor(off int64) (int64, error)

	// Ceil returns the smallest boundary that is at least off, the size of
	// the stream if none.
	Ceil(off int64) (int64, error)
}

// Rechunk cuts a changed stream again, reading as little of it as it can.
//
// src is the new content, of size bytes. old is the cut of the previous
// content, of oldSize bytes, by the same chunker. The two are equal outside
// [lo, hi); if their sizes differ, all bytes at or after the smaller size
// count as changed.
//
// Rechunk calls emit for every chunk of the new cut in [from, to), in order;
// data is valid only during the call. The old chunks below from, and those at
// or above to, are chunks of the new cut too. If the sizes differ, to is the
// larger one; if nothing changed, from and to are 0. With the emitted chunks they
// are what cutting the whole of src would give. An error of src, of old or of
// emit ends the work.
func Rechunk(c Chunker, src io.ReaderAt, size int64, old Boundaries, oldSize, lo, hi int64, emit func(off int64, data []byte) error) (from, to int64, err error) {
	if size != oldSize {
		lo, hi = min(lo, size, oldSize), max(size, oldSize)
	}
	if lo >= hi {
		return 0, 0, nil
	}
	from, err = firstAffected(c, old, lo)
	if err != nil {
		return 0, 0, err
	}
	w := window{chunker: c, src: src, size: size, off: from}
	for to = from; to < size; {
		data, err := w.next()
		if err != nil {
			return 0, 0, err
		}
		end := to + int64(len(data))
		if from == to && end <= lo {
			same, err := isChunk(old, to, end)
			if err != nil {
				return 0, 0, err
			}
			if same {
				from, to = end, end
				continue
			}
		}
		if err := emit(to, data); err != nil {
			return 0, 0, err
		}
		to = end
		if size == oldSize && end >= hi {
			b, err := old.Ceil(end)
			if err != nil {
				return 0, 0, err
			}
			if b == end {
				return from, to, nil
			}
		}
	}
	return from, max(size, oldSize), nil
}

// isChunk reports whether old has a chunk [start, end), start being a boundary.
func isChunk(old Boundaries, start, end int64) (bool, error) {
	before, err := old.Floor(end - 1)
	if err != nil || before != start {
		return false, err
	}
	after, err := old.Ceil(end)
	return after == end, err
}

// firstAffected returns the start of the first old chunk whose end can depend
// on the byte at lo, having looked at as many bytes as a largest chunk has.
func firstAffected(c Chunker, old Boundaries, lo int64) (int64, error) {
	_, most := c.Bounds()
	if int64(most) > lo {
		return 0, nil
	}
	b, err := old.Ceil(lo - int64(most) + 1)
	if err == nil && b > lo {
		err = fmt.Errorf("no chunk boundary in [%d, %d]: the old cut is not one of %s", lo-int64(most)+1, lo, c.Name())
	}
	return b, err
}

// A window moves over a stream and cuts it, reading little beyond each chunk.
type window struct {
	chunker Chunker
	src     io.ReaderAt
	size    int64

	off   int64  // where in src buf begins
	buf   []byte // buf[start:] has been read, and not been returned
	start int
	ends  []int // ends of decided chunks in buf that have not been returned
}

// next returns the next chunk, which is valid until the next call.
func (w *window) next() ([]byte, error) {
	for len(w.ends) == 0 {
		if err := w.read(); err != nil {
			return nil, err
		}
		w.ends = w.chunker.Ends(w.ends, w.buf, w.off+int64(len(w.buf)) == w.size)
	}
	chunk := w.buf[w.start:w.ends[0]]
	w.start, w.ends = w.ends[0], w.ends[1:]
	return chunk, nil
}

// read moves the window to the next chunk and reads a part of a chunk's length
// more: a small one, for a change often ends within the next chunk.
func (w *window) read() error {
	lo, hi := w.chunker.Bounds()
	step := max(min(lo, hi/4), 4<<10)
	n := copy(w.buf, w.buf[w.start:])
	w.off, w.start, w.buf = w.off+int64(w.start), 0, w.buf[:n]
	more := int(min(int64(step), w.size-w.off-int64(n)))
	w.buf = slices.Grow(w.buf, more)[:n+more]
	got, err := w.src.ReadAt(w.buf[n:], w.off+int64(n))
	switch {
	case got == more:
		return nil
	case err == io.EOF:
		return io.ErrUnexpectedEOF
	}
	return err
}
