package cache

import (
	"encoding/binary"
	"hash/crc32"
	"sync"

	"github.com/dedupfs/dedupfs/store"
)

// inLog says where the log has a chunk, and what its bytes are checked against when they go to a reader at once: checksums that were
// computed when the chunk was named, from the same bytes. They tell damage of the disk, as the id does, cost a tenth of its hash, and
// a reader of a small part need not read the whole chunk. Who may have forged a chunk could not have it in this log.
type inLog struct {
	place Place
	sums  []uint32 // CRC-32C of each sumBlock bytes of the chunk; nil if they are not known, then the id is what counts
}

// sumBlock is how many bytes of a chunk one checksum covers.
const sumBlock = 16 << 10

func sumBlocks(data []byte) []uint32 {
	sums := make([]uint32, 0, (len(data)+sumBlock-1)/sumBlock)
	for ; len(data) > 0; data = data[min(sumBlock, len(data)):] {
		sums = append(sums, crc32.Checksum(data[:min(sumBlock, len(data))], castagnoli))
	}
	return sums
}

func appendInLog(dst []byte, at inLog) []byte {
	dst = appendPlace(dst, at.place)
	for _, sum := range at.sums {
		dst = binary.BigEndian.AppendUint32(dst, sum)
	}
	return dst
}

func parseInLog(b []byte) (at inLog, ok bool) {
	d := decoder{b: b}
	at.place = d.place()
	if d.bad {
		return inLog{}, false
	}
	if len(d.b) > 0 {
		at.sums = make([]uint32, (at.place.size()+sumBlock-1)/sumBlock)
		for i := range at.sums {
			at.sums[i] = d.uint32()
		}
	}
	if !d.done() {
		return inLog{}, false
	}
	return at, true
}

// readLog fills what it can from the log, and returns what is left.
func (c *Cache) readLog(wants []*Want) (left []*Want, err error) {
	if c.log == nil {
		return wants, nil
	}
	ids := make([]store.ID, len(wants))
	for i, w := range wants {
		ids[i] = w.Ref.ID
	}
	at := c.inLogs(ids)
	r := logReader{log: c.log, blocks: make([]blockRead, 0, len(wants)+2)}
	for i, w := range wants {
		switch {
		case len(at[i].place) == 0 || at[i].place.size() != int64(w.Size):
			left = append(left, w)
		case at[i].sums != nil:
			r.add(w, &at[i])
		default:
			if b, err := c.readPlace(w.Ref.ID, at[i].place); err != nil {
				left = append(left, w)
			} else if err := c.took(w, b); err != nil {
				return nil, err
			}
		}
	}
	return append(left, r.read()...), nil
}

// logReader reads blocks of chunks, with one system call those that lie near each other.
type logReader struct {
	log    *Log
	blocks []blockRead

	// What is read next: parts from at up to end.
	parts       [][]byte
	at, end     Pos
	first, last int // in blocks, of those that parts are for
}

// blockRead is a run of whole blocks of one chunk.
type blockRead struct {
	want   *Want
	in     *inLog
	from   int    // in the chunk, bytes
	to     []byte // part of want.To, unless spare
	spare  bool   // not all of it is wanted
	failed bool
}

// add plans how to fill w: what is not wanted of the blocks at its ends is read beside it.
func (r *logReader) add(w *Want, in *inLog) {
	lo, hi := w.From, w.From+len(w.To)
	begin, end := (lo+sumBlock-1)/sumBlock*sumBlock, hi/sumBlock*sumBlock
	if hi == w.Size {
		end = hi
	}
	part := func(from, to int, spare bool) {
		b := blockRead{want: w, in: in, from: from, spare: spare}
		if spare {
			b.to = make([]byte, to-from)
		} else {
			b.to = w.To[from-lo : to-lo]
		}
		r.blocks = append(r.blocks, b)
	}
	if begin >= end {
		part(lo/sumBlock*sumBlock, min((hi+sumBlock-1)/sumBlock*sumBlock, w.Size), true)
		return
	}
	if lo < begin {
		part(begin-sumBlock, begin, true)
	}
	part(begin, end, false)
	if end < hi {
		part(end, min(end+sumBlock, w.Size), true)
	}
}

const (
	maxRunGap = 32 << 10 // bytes read in vain between two parts
	maxRun    = 512      // parts that are read at once
)

var gaps = sync.Pool{New: func() any { return new([maxRunGap]byte) }}

// read fills what was planned, and returns what is not where it should be: there are other places.
func (r *logReader) read() (failed []*Want) {
	gap := gaps.Get().(*[maxRunGap]byte)
	defer gaps.Put(gap)
	for i := range r.blocks {
		r.blocks[i].pieces(func(at Pos, b []byte) { r.put(i, at, b, gap) })
	}
	r.flush()
	for i := range r.blocks {
		b := &r.blocks[i]
		if !b.failed && b.intact() {
			b.give()
		} else if n := len(failed); n == 0 || failed[n-1] != b.want {
			failed = append(failed, b.want)
		}
	}
	return failed
}

// put adds b, a part of block i that lies at a position, to what is read next.
func (r *logReader) put(i int, at Pos, b []byte, gap *[maxRunGap]byte) {
	near := at >= r.end && at-r.end <= maxRunGap && at.segment() == r.at.segment()
	if len(r.parts) > 0 && (!near || len(r.parts) >= maxRun) {
		r.flush()
	}
	if len(r.parts) == 0 {
		r.at, r.end, r.first = at, at, i
	}
	if skip := at - r.end; skip > 0 {
		r.parts = append(r.parts, gap[:skip])
	}
	r.parts = append(r.parts, b)
	r.end, r.last = at+Pos(len(b)), i
}

// flush reads what was put.
func (r *logReader) flush() {
	if len(r.parts) > 0 && r.log.readVec(r.at, r.parts) != nil {
		for i := r.first; i <= r.last; i++ {
			r.blocks[i].failed = true
		}
	}
	r.parts = r.parts[:0]
}

// pieces calls fn for all parts of b, in order, with where they lie.
func (b *blockRead) pieces(fn func(at Pos, part []byte)) {
	skip, to := b.from, b.to
	for _, p := range b.in.place {
		if skip >= int(p.Len) {
			skip -= int(p.Len)
			continue
		}
		n := min(int(p.Len)-skip, len(to))
		if n == 0 {
			return
		}
		fn(p.Pos+Pos(skip), to[:n])
		skip, to = 0, to[n:]
	}
}

// intact reports whether b has the bytes that were stored.
func (b *blockRead) intact() bool {
	sums := b.in.sums[b.from/sumBlock:]
	for rest := b.to; len(rest) > 0; rest, sums = rest[min(sumBlock, len(rest)):], sums[1:] {
		if crc32.Checksum(rest[:min(sumBlock, len(rest))], castagnoli) != sums[0] {
			return false
		}
	}
	return true
}

// give copies what is wanted of a spare block.
func (b *blockRead) give() {
	if w := b.want; b.spare && b.from >= w.From {
		copy(w.To[b.from-w.From:], b.to)
	} else if b.spare {
		copy(w.To, b.to[w.From-b.from:])
	}
}
