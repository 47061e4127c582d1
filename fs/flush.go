package fs

import (
	"context"
	"fmt"
	"iter"
	"math"
	"sync"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/chunking"
	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// kindHead is how much of a file decides how it is cut, in bytes.
const kindHead = 64 << 10

// flushBuffer is how much of a file is in memory while it is cut, in bytes: a few of the largest chunks.
const flushBuffer = 4 << 20

// flushBuffers keeps buffers between files. The garbage collector empties it, which is often when memory is short.
var flushBuffers = sync.Pool{New: func() any { b := make([]byte, flushBuffer); return &b }}

// smallFlush is the size of a file up to which it gets a buffer of its own length: a full one costs more than it.
const smallFlush = 512 << 10

// maxPieces is the longest list of places that a chunk is kept as; longer ones are copied together by the cache.
const maxPieces = 8

// flusher turns the frozen layer of one file into chunks, around what changed and nowhere else.
type flusher struct {
	v     *Volume
	ctx   context.Context
	view  fileView
	kind  chunking.Kind
	cut   chunking.Chunker
	reach int64 // the longest chunk: how far a change can move the end of a chunk that starts before it
	buf   []byte

	fresh   []chunkAt // chunks of the new cut, in order
	stale   []int64   // offsets of chunks of the old cut that go, in order
	dropped int64     // bytes of them

	lost  map[origin]bool // chunks that cannot be read any more
	cause error           // of the first of them
}

// origin names a chunk that is stored already: where it begins in which content.
type origin struct {
	src *contentReader
	off int64
}

// span is a range of bytes [lo, hi).
type span struct{ lo, hi int64 }

// flush cuts what changed in one file and stores its chunks. The nodes of its content go to nodes.
func (v *Volume) flush(ctx context.Context, f *frozenFile, nodes tree.Store) (extentMap, error) {
	if m, ok := f.layer.wholeCopy(f.size); ok {
		return m, nil
	}
	old := f.base
	if f.layer.clip == 0 || f.size == 0 {
		old = extentMap{}
	}
	old.Length = min(old.Length, f.layer.clip)
	m, err := v.flushOver(ctx, f, v.contentReader(old), nodes, nil)
	if store.IsLost(err) {
		layer, lerr := f.layer.withoutLostLists(ctx)
		if lerr != nil {
			return extentMap{}, lerr
		}
		f = &frozenFile{in: f.in, layer: layer, size: f.size, base: f.base}
		m, err = v.flushOver(ctx, f, v.contentReader(old), nodes, nil)
	}
	if store.IsLost(err) && old.Ref.Kind == store.RefNode && !old.Ref.IsZero() {
		return v.flushOver(ctx, f, v.contentReader(old).asOne(), nodes, err)
	}
	return m, err
}

// flushOver is flush over a given content, which is known to be lost if cause is not nil.
func (v *Volume) flushOver(ctx context.Context, f *frozenFile, base *contentReader, nodes tree.Store, cause error) (extentMap, error) {
	old := base.m // if its list of chunks is lost, it has one
	fl := &flusher{v: v, ctx: ctx, view: fileView{log: v.log, layers: []*layer{f.layer}, base: base, size: f.size}}
	m := extentMap{Kind: old.Kind, Decided: old.Decided, Length: f.size}
	if cause != nil {
		fl.lost, fl.cause = map[origin]bool{{base, 0}: true}, cause
	}
	if err := fl.decideKind(&m); err != nil {
		return extentMap{}, err
	}
	fl.kind, fl.cut = m.Kind, v.repo.Chunkers()[m.Kind]
	_, max := fl.cut.Bounds()
	fl.reach = int64(max)
	dirty := f.layer.dirty(f.base.Length)
	if m.Kind != old.Kind && !old.Ref.IsZero() { // cut anew from the start; the old bytes are still read
		dirty = []span{{0, math.MaxInt64}}
	}
	if err := fl.run(dirty); err != nil {
		return extentMap{}, err
	}
	if fl.cause != nil {
		v.tellLost(ctx, f.in.ino, fl.cause)
	}
	return fl.finish(m, old, nodes)
}

// decideKind lets the first 64 KiB of a file say how it is cut, once they are there.
func (fl *flusher) decideKind(m *extentMap) error {
	if m.Decided || fl.view.size < kindHead {
		return nil
	}
	head := make([]byte, kindHead)
	if err := fl.view.readAt(fl.ctx, head, 0); store.IsLost(err) {
		return nil
	} else if err != nil {
		return err
	}
	if chunking.IsZero(head) {
		return nil
	}
	m.Kind, m.Decided = chunking.Detect(head), true
	return nil
}

// dirty returns what changed, in order and without touching ranges. baseLen is the length of the content below.
func (l *layer) dirty(baseLen int64) []span {
	var ds []span
	add := func(s span) {
		if n := len(ds); n > 0 && s.lo <= ds[n-1].hi {
			ds[n-1].hi = max(ds[n-1].hi, s.hi)
			return
		}
		ds = append(ds, s)
	}
	tail := span{l.clip, math.MaxInt64}
	if l.clip >= baseLen {
		tail.lo = math.MaxInt64
	}
	l.ext.Scan(func(e extent) bool {
		if e.off >= tail.lo {
			return false
		}
		add(span{e.off, e.end()})
		return true
	})
	if tail.lo < math.MaxInt64 {
		add(tail)
	} else {
		l.ext.Ascend(extent{off: tail.lo}, func(e extent) bool { add(span{e.off, e.end()}); return true })
	}
	return ds
}

// run cuts around every dirty range. Before done everything is as it will be; done is a boundary of the old cut, or lies
// in a hole of it.
func (fl *flusher) run(dirty []span) error {
	if fl.view.size <= smallFlush {
		fl.buf = make([]byte, fl.view.size)
	} else {
		bp := flushBuffers.Get().(*[]byte)
		defer flushBuffers.Put(bp)
		fl.buf = *bp
	}
	done := int64(0)
	for i := 0; i < len(dirty); i++ {
		d := dirty[i]
		if d.hi <= done {
			continue
		}
		from, err := fl.restart(max(d.lo, done), done)
		if err != nil {
			return err
		}
		to, err := fl.recut(from, d.hi, dirty[i+1:])
		if err != nil {
			return err
		}
		if err := fl.dropOld(from, to); err != nil {
			return err
		}
		done = to
	}
	return nil
}

// restart returns where cutting has to begin for a change at lo: the first chunk of the run of data before it whose end
// may have depended on bytes at lo.
func (fl *flusher) restart(lo, done int64) (int64, error) {
	at := lo
	for at > done {
		c, ok, err := fl.view.base.before(fl.ctx, at)
		if err != nil {
			return 0, err
		}
		if !ok || min(c.end(), fl.view.base.m.Length) < at || c.off < done || c.off <= lo-fl.reach && c.end() <= lo {
			break
		}
		at = c.off
	}
	return at, nil
}

// boundary reports whether the old cut has a boundary at off, or nothing there.
func (fl *flusher) boundary(off int64) (bool, error) {
	if off >= fl.view.base.m.Length {
		return true, nil
	}
	c, ok, err := fl.view.base.before(fl.ctx, off+1)
	return err == nil && (!ok || c.off == off || c.end() <= off), err
}

// recut cuts from a boundary on until the new cut has met the old one at or after hi. later are the dirty ranges that
// follow; it goes through those that begin before the cuts meet. It returns where they met.
func (fl *flusher) recut(from, hi int64, later []span) (int64, error) {
	met := func(at int64) (bool, error) {
		for len(later) > 0 && later[0].lo-fl.reach <= at { // a chunk that starts here could reach the next change
			hi = max(hi, later[0].hi)
			later = later[1:]
		}
		if at < hi {
			return false, nil
		}
		return fl.boundary(at)
	}
	at := from
	for at < fl.view.size {
		data, err := fl.view.nextData(fl.ctx, at)
		if err != nil {
			return 0, err
		}
		if data > at {
			at = data
			if ok, err := met(at); ok || err != nil {
				return at, err
			}
			continue
		}
		if part, ok, err := fl.lostAt(at); err != nil {
			return 0, err
		} else if ok {
			fl.fresh = append(fl.fresh, part)
			at = part.end()
			if ok, err := met(at); ok || err != nil {
				return at, err
			}
			continue
		}
		if shared, err := fl.share(at); err != nil {
			return 0, err
		} else if shared > at {
			at = shared
			if ok, err := met(at); ok || err != nil {
				return at, err
			}
			continue
		}
		end, ok, err := fl.cutRun(at, met)
		if ok || err != nil {
			return end, err
		}
		at = end
	}
	return math.MaxInt64, nil
}

// cutRun cuts the run of data that begins at from. It stops where met says so, where chunks can be shared, or at the end of the
// run: at a hole, or at what is lost.
func (fl *flusher) cutRun(from int64, met func(int64) (bool, error)) (at int64, stopped bool, err error) {
	limit, more := from, true // up to limit it is known to be data; more says that it may go on behind it
	have := int64(0)          // bytes in the buffer that are not decided yet; they begin at at
	step := 2 * fl.reach      // bytes to have in the buffer: few at first, because most changes are small
	var ends []int
	for at = from; ; step = min(2*step, int64(len(fl.buf))) {
		if want := at + min(step, fl.view.size-at); more && limit < want {
			if limit, err = fl.nextHole(limit, want); err != nil {
				return 0, false, err
			}
			more = limit == want && want < fl.view.size
		}
		fill := min(limit-at, step)
		if n, err := fl.read(fl.buf[have:fill], at+have); err != nil {
			return 0, false, err
		} else if have+n < fill {
			fill, limit, more = have+n, at+have+n, false
		}
		if fill == 0 {
			return at, false, nil
		}
		fl.v.cutBytes.Add(max(fill-have, 0))
		ends = fl.cut.Ends(ends[:0], fl.buf[:fill], !more)
		start := 0
		for _, end := range ends {
			if err := fl.add(at+int64(start), fl.buf[start:end]); err != nil {
				return 0, false, err
			}
			start = end
			if ok, err := met(at + int64(end)); ok || err != nil {
				return at + int64(end), ok, err
			}
			if _, ok, err := fl.shareable(at + int64(end)); ok || err != nil {
				return at + int64(end), false, err
			}
		}
		have = int64(copy(fl.buf, fl.buf[start:fill]))
		at += int64(start)
		if !more {
			return at, false, nil
		}
		if start == 0 {
			return 0, false, fmt.Errorf("chunker %s decided nothing in %d bytes", fl.cut.Name(), fill)
		}
	}
}

// nextHole returns the first hole at or after off, or want if there is none before it.
func (fl *flusher) nextHole(off, want int64) (int64, error) {
	part := fl.view
	part.size = min(part.size, want)
	hole, err := part.nextHole(fl.ctx, off)
	if err != nil {
		return 0, err
	}
	if lost, ok, err := fl.nextLost(off, hole); ok || err != nil {
		return lost.off, err
	}
	return hole, nil
}

// minHole is the shortest run of zeros that becomes a hole, in bytes: a block of a local file system. A shorter file of zeros
// shows the blocks that were written, also after it was cut.
const minHole = 4096

// add stores one chunk. Zeros are not stored: they are a hole.
func (fl *flusher) add(off int64, data []byte) error {
	if err := fl.v.repo.Pacer().Background(fl.ctx); err != nil {
		return err
	}
	if len(data) >= minHole && chunking.IsZero(data) {
		return nil
	}
	id := fl.v.repo.ChunkID(data)
	if _, err := fl.v.ca.AddChunk(fl.ctx, id, data, fl.place(off, int64(len(data)))); err != nil {
		return err
	}
	ref := store.Ref{ID: id, Kind: store.RefChunk, Hint: fl.v.ca.Hint(id)}
	fl.fresh = append(fl.fresh, chunkAt{off: off, n: int64(len(data)), ref: ref})
	return nil
}

// place says where the bytes of a chunk stand in the log, if they all do.
func (fl *flusher) place(off, n int64) cache.Place {
	ps := fl.view.resolve(off, off+n)
	if len(ps) > maxPieces {
		return nil
	}
	place := make(cache.Place, 0, len(ps))
	for _, p := range ps {
		if p.from != fromLog {
			return nil
		}
		place = append(place, cache.Piece{Pos: p.pos, Len: uint32(p.n)})
	}
	return place
}

// dropOld notes the chunks of the old cut in [from, to).
func (fl *flusher) dropOld(from, to int64) error {
	return fl.view.base.chunks(fl.ctx, from, func(c chunkAt) bool {
		if c.off >= to {
			return false
		}
		if c.off >= from {
			fl.stale = append(fl.stale, c.off)
			fl.dropped += c.n
		}
		return true
	})
}

// edits merges what goes and what comes into changes of the content tree, in order.
func (fl *flusher) edits() iter.Seq[tree.Edit] {
	return func(yield func(tree.Edit) bool) {
		stale := fl.stale
		for _, c := range fl.fresh {
			for len(stale) > 0 && stale[0] <= c.off {
				if stale[0] < c.off && !yield(tree.Edit{Key: offsetKey(stale[0])}) {
					return
				}
				stale = stale[1:]
			}
			e := chunkEntry(c)
			if !yield(tree.Edit{Key: e.Key, Entry: e}) {
				return
			}
		}
		for _, off := range stale {
			if !yield(tree.Edit{Key: offsetKey(off)}) {
				return
			}
		}
	}
}

// finish makes the new content out of the old one and the changes.
func (fl *flusher) finish(m, old extentMap, nodes tree.Store) (extentMap, error) {
	allocated := int64(old.Allocated) - fl.dropped
	for _, c := range fl.fresh {
		allocated += c.n
	}
	if fl.view.base.t == nil && !old.Ref.IsZero() { // a single chunk has no tree yet
		one := chunkAt{n: int64(old.Allocated), ref: old.Ref}
		if len(fl.stale) == 0 {
			fl.fresh = append([]chunkAt{one}, fl.fresh...)
		}
		fl.stale, old.Ref = nil, store.Ref{}
	}
	if old.Ref.IsZero() && len(fl.fresh) == 0 {
		return m, nil
	}
	scratch := newScratch(fl.v.repo, nodes)
	t := tree.New(scratch, old.Ref, fl.v.treeOptions())
	root, err := t.Apply(fl.ctx, fl.edits())
	if err != nil {
		return extentMap{}, fmt.Errorf("write the list of chunks: %w", err)
	}
	m.Ref = root
	if root.IsZero() {
		return m, nil
	}
	m.Allocated = uint64(allocated)
	only, err := onlyChunk(fl.ctx, t.At(root))
	if err != nil {
		return extentMap{}, err
	}
	if only != nil {
		m.Ref, m.Allocated = only.ref, uint64(only.n)
		return m, nil
	}
	if known, ok := fl.v.roots.find(fl.ctx, root); ok {
		m.Ref = known
		return m, nil
	}
	return m, scratch.save(fl.ctx)
}

// onlyChunk returns the chunk of a content that is one chunk at offset 0, nil for all others.
func onlyChunk(ctx context.Context, t *tree.Tree) (*chunkAt, error) {
	it := t.Seek(ctx, nil)
	if !it.Next(ctx) {
		return nil, it.Err()
	}
	e := it.Entry()
	c, err := parseChunkEntry(&e)
	if err != nil || c.off != 0 || c.skip+c.rest > 0 || c.nested() || it.Next(ctx) {
		return nil, err
	}
	return &c, it.Err()
}
