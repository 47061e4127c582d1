package fs

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// remoteNodes loads nodes from wherever they are.
type remoteNodes struct{ ca *cache.Cache }

func (r remoteNodes) Load(ctx context.Context, ref store.Ref) (*store.Node, error) {
	return r.ca.Node(ctx, ref)
}

func (r remoteNodes) Save(context.Context, *store.Node) (store.Ref, error) {
	panic("fs: a content is changed by local commits only")
}

// chunkAt is one chunk of a content, or a part of one, or a part of a whole content whose list of chunks was lost.
type chunkAt struct {
	off, n     int64
	ref        store.Ref
	skip, rest int64 // bytes of the chunk before and after the part; 0 unless it was lost when the file was changed in it
}

// nested reports whether c is a part of another content.
func (c chunkAt) nested() bool { return c.ref.Kind == store.RefNode }

func (c chunkAt) end() int64 { return c.off + c.n }

// part returns what of c lies in [lo, hi), which must not be empty.
func (c chunkAt) part(lo, hi int64) chunkAt {
	lo, hi = max(lo, c.off), min(hi, c.end())
	return chunkAt{off: lo, n: hi - lo, ref: c.ref, skip: c.skip + lo - c.off, rest: c.rest + c.end() - hi}
}

// want asks for the bytes from off on, which are all in c.
func (c chunkAt) want(p []byte, off int64) cache.Want {
	return cache.Want{Ref: c.ref, Size: int(c.skip + c.n + c.rest), From: int(c.skip + off - c.off), To: p}
}

// contentReader reads an immutable content. It may call the remote: no lock is held when it is used.
type contentReader struct {
	ca *cache.Cache
	m  extentMap
	t  *tree.Tree // nil if the content is at most one chunk
	v  *Volume
}

func (v *Volume) contentReader(m extentMap) *contentReader {
	c := &contentReader{ca: v.ca, m: m, v: v}
	if m.Ref.Kind == store.RefNode && !m.Ref.IsZero() {
		c.t = tree.New(remoteNodes{v.ca}, m.Ref, v.treeOptions())
	}
	return c
}

func offsetKey(off int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(off)) }

// chunkEntry is the record of one chunk in a content tree.
func chunkEntry(c chunkAt) *store.Entry {
	value := binary.AppendUvarint(nil, uint64(c.n))
	if c.skip+c.rest > 0 {
		value = binary.AppendUvarint(value, uint64(c.skip))
		value = binary.AppendUvarint(value, uint64(c.rest))
	}
	return &store.Entry{Key: offsetKey(c.off), Value: value, Refs: []store.Ref{c.ref}}
}

func parseChunkEntry(e *store.Entry) (chunkAt, error) {
	r := reader{b: e.Value}
	n, skip, rest := r.uvarint(), uint64(0), uint64(0)
	if len(r.b) > 0 {
		skip, rest = r.uvarint(), r.uvarint()
		r.bad = r.bad || skip == 0 && rest == 0
	}
	most := uint64(1) << 30
	if len(e.Refs) == 1 && e.Refs[0].Kind == store.RefNode {
		most = maxSize
	}
	if len(e.Key) != 8 || r.bad || len(r.b) > 0 || n == 0 || n > most || skip > most || rest > most || len(e.Refs) != 1 {
		return chunkAt{}, fmt.Errorf("chunk of a content: %w", errRecord)
	}
	off := binary.BigEndian.Uint64(e.Key)
	if off > maxSize-n || skip > maxSize-n || rest > maxSize-n-skip {
		return chunkAt{}, fmt.Errorf("chunk of a content: %w", errRecord)
	}
	return chunkAt{int64(off), int64(n), e.Refs[0], int64(skip), int64(rest)}, nil
}

// chunks calls fn for every chunk that ends after from, in order, until it returns false.
func (c *contentReader) chunks(ctx context.Context, from int64, fn func(chunkAt) bool) error {
	if c.t == nil {
		if one := int64(c.m.Allocated); !c.m.Ref.IsZero() && one > from {
			fn(chunkAt{n: one, ref: c.m.Ref})
		}
		return nil
	}
	start := offsetKey(from)
	if e, ok, err := c.t.Last(ctx, offsetKey(from+1)); err != nil {
		return err
	} else if ok {
		start = e.Key
	}
	it := c.t.Seek(ctx, start)
	for it.Next(ctx) {
		e := it.Entry()
		at, err := parseChunkEntry(&e)
		if err != nil {
			return err
		}
		if at.end() > from && !fn(at) {
			return nil
		}
	}
	return it.Err()
}

// before returns the chunk that starts before off, if there is one.
func (c *contentReader) before(ctx context.Context, off int64) (at chunkAt, ok bool, err error) {
	if off <= 0 {
		return chunkAt{}, false, nil
	}
	if c.t == nil {
		return chunkAt{n: int64(c.m.Allocated), ref: c.m.Ref}, !c.m.Ref.IsZero(), nil
	}
	e, ok, err := c.t.Last(ctx, offsetKey(off))
	if err != nil || !ok {
		return chunkAt{}, false, err
	}
	at, err = parseChunkEntry(&e)
	return at, err == nil, err
}

// readAt fills p with the bytes from off on, zeros where there are none.
func (c *contentReader) readAt(ctx context.Context, p []byte, off int64) error {
	done := off
	hi := off + int64(len(p))
	var wants []cache.Want
	var nested []nestedWant
	err := c.chunks(ctx, off, func(at chunkAt) bool {
		if at.off >= hi {
			return false
		}
		lo := max(at.off, done)
		clear(p[done-off : lo-off])
		done = min(at.end(), hi)
		if at.nested() {
			nested = append(nested, nestedWant{at, lo, p[lo-off : done-off]})
			return done < hi
		}
		wants = append(wants, at.want(p[lo-off:done-off], lo))
		return done < hi
	})
	if err != nil {
		return err
	}
	clear(p[done-off:])
	for _, w := range nested {
		below := c.v.contentReader(extentMap{Ref: w.at.ref})
		if err := below.readAt(ctx, w.to, w.at.skip+w.lo-w.at.off); err != nil {
			return err
		}
	}
	return c.ca.ReadChunks(ctx, wants)
}

// nestedWant is a run of bytes of a part of another content.
type nestedWant struct {
	at chunkAt
	lo int64
	to []byte
}

// fileView is a file's content as it is at one moment: layers over a content. The layers must not change while it is
// used, and nobody may give their bytes in the log back.
type fileView struct {
	log    *cache.Log
	layers []*layer
	base   *contentReader
	size   int64
}

func (f *fileView) resolve(lo, hi int64) []piece {
	return resolve(f.layers, f.base.m.Length, lo, min(hi, f.size))
}

// readAt fills p from off on; p must end at or before the size.
func (f *fileView) readAt(ctx context.Context, p []byte, off int64) error {
	for _, pc := range f.resolve(off, off+int64(len(p))) {
		if err := f.readPiece(ctx, p[pc.off-off:][:pc.n], pc); err != nil {
			return err
		}
	}
	return nil
}

func (f *fileView) readPiece(ctx context.Context, p []byte, pc piece) error {
	switch pc.from {
	case fromLog:
		return f.log.ReadAt(p, pc.pos)
	case fromBase, fromCopy:
		src, at := f.stored(pc)
		return src.readAt(ctx, p, at)
	}
	clear(p)
	return nil
}

// stored returns the content that a piece which is stored comes from, and where it begins there.
func (f *fileView) stored(pc piece) (src *contentReader, at int64) {
	if pc.from == fromCopy {
		return pc.src, int64(pc.pos)
	}
	return f.base, pc.off
}

// nextData and nextHole look at a window of the file at a time, which doubles with each step: what is sought is mostly near,
// or there is nothing for exabytes.
const (
	firstWindow = 1 << 20
	lastWindow  = 1 << 60
)

// nextData returns the first byte at or after off that is not in a hole; the size if there is none.
func (f *fileView) nextData(ctx context.Context, off int64) (int64, error) {
	return f.next(ctx, off, true)
}

// nextHole returns the first byte at or after off that is in a hole; the size if there is none.
func (f *fileView) nextHole(ctx context.Context, off int64) (int64, error) {
	return f.next(ctx, off, false)
}

func (f *fileView) next(ctx context.Context, off int64, data bool) (int64, error) {
	for window := int64(firstWindow); off < f.size; window = min(2*window, lastWindow) {
		hi := f.size
		if len(f.layers) > 0 {
			hi = off + min(window, f.size-off)
		}
		for _, pc := range f.resolve(off, hi) {
			at, ok, err := f.nextIn(ctx, pc, data)
			if ok || err != nil {
				return at, err
			}
		}
		off = hi
	}
	return f.size, nil
}

// nextIn looks for data, or a hole, in one piece.
func (f *fileView) nextIn(ctx context.Context, pc piece, data bool) (at int64, ok bool, err error) {
	if !pc.stored() {
		return pc.off, (pc.from == fromLog) == data, nil
	}
	src, from := f.stored(pc)
	shift, end := pc.off-from, pc.off+pc.n
	at, ok = pc.off, !data // before the first chunk there is a hole
	err = src.chunks(ctx, from, func(c chunkAt) bool {
		c.off += shift
		if data {
			at = max(pc.off, c.off)
			ok = at < end
			return false
		}
		if c.off > at {
			return false
		}
		at = c.end()
		ok = at < end
		return ok
	})
	return at, ok, err
}
