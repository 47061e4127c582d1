package chunking

import "io"

const (
	// readAhead is how many bytes a Reader holds beyond a largest chunk, so
	// that one call of the chunker decides many chunks; in the second-level
	// cache, lest they come from memory twice.
	readAhead = 256 << 10

	// firstBuffer is the first buffer of a Reader: most files are smaller.
	firstBuffer = 32 << 10
)

// A Reader cuts a stream into chunks. It holds a largest chunk and, read ahead,
// 256 KiB or another one if that is more. It is not safe for concurrent use.
type Reader struct {
	src     io.Reader
	chunker Chunker
	limit   int // size that buf grows to; beyond only if a chunk needs it

	buf   []byte // read, and not yet overwritten
	start int    // where the next chunk starts in buf
	ends  []int  // ends of decided chunks that have not been returned
	next  int    // index in ends of the next chunk's end
	err   error  // what ended src
}

// NewReader returns a Reader that cuts r with c.
func NewReader(r io.Reader, c Chunker) *Reader {
	_, most := c.Bounds()
	most = min(most, repoMax)
	return &Reader{src: r, chunker: c, limit: most + max(most, readAhead)}
}

// Reset makes r cut src from its beginning, with the buffers that it has.
func (r *Reader) Reset(src io.Reader) {
	r.src, r.err = src, nil
	r.buf, r.ends = r.buf[:0], r.ends[:0]
	r.start, r.next = 0, 0
}

// Next returns the next chunk, which is valid until the next call. At the end
// of the stream it returns io.EOF. If reading fails, the chunks that had been
// decided come first, and then the error.
func (r *Reader) Next() ([]byte, error) {
	for r.next == len(r.ends) {
		if r.err != nil {
			return nil, r.err
		}
		r.fill()
	}
	chunk := r.buf[r.start:r.ends[r.next]]
	r.start += len(chunk)
	r.next++
	return chunk, nil
}

// fill reads until the buffer is full or src ends, and cuts what there is.
func (r *Reader) fill() {
	n := copy(r.buf, r.buf[r.start:])
	r.buf, r.start = r.buf[:n], 0
	if n == cap(r.buf) || cap(r.buf) < r.limit {
		r.grow()
	}
	for len(r.buf) < cap(r.buf) && r.err == nil {
		n, r.err = r.src.Read(r.buf[len(r.buf):cap(r.buf)])
		r.buf = r.buf[:len(r.buf)+n]
	}
	r.ends, r.next = r.chunker.Ends(r.ends[:0], r.buf, r.err == io.EOF), 0
}

// grow doubles the buffer, up to limit if a chunk is sure to fit into that.
func (r *Reader) grow() {
	size := 2 * cap(r.buf)
	if cap(r.buf) < r.limit {
		size = min(size, r.limit)
	}
	r.buf = append(make([]byte, 0, max(size, firstBuffer)), r.buf...)
}
