package fs

import (
	"math"
	"slices"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/tidwall/btree"
)

// extent is a run of a file's bytes that changed: bytes in the log, a hole, or a copy of a run of a stored content.
type extent struct {
	off, n int64
	from   source         // not fromBase
	pos    cache.Pos      // of the first byte, in the log or in src
	src    *contentReader // of what it is a copy; nil if it is not one
}

func (e extent) end() int64 { return e.off + e.n }

// slice returns the part of e in [lo, hi), which must not be empty.
func (e extent) slice(lo, hi int64) extent {
	lo, hi = max(lo, e.off), min(hi, e.end())
	s := extent{off: lo, n: hi - lo, from: e.from, src: e.src}
	if e.from != fromHole {
		s.pos = e.pos + cache.Pos(lo-e.off)
	}
	return s
}

// follows reports whether e goes on where the copy before ends, in both files.
func (e extent) follows(before extent) bool {
	return e.from == fromCopy && before.from == fromCopy && before.end() == e.off &&
		before.pos+cache.Pos(before.n) == e.pos && before.src.m == e.src.m
}

// layer is what changed in one file's content between two cuts.
//
// INVARIANT: extents are not empty and do not overlap.
type layer struct {
	ext  *btree.BTreeG[extent]
	clip int64 // what lies below this layer is visible below clip only: the smallest size the file had
	data int64 // bytes of extents that are not holes
	log  retainer
}

// retainer keeps bytes of the log from going away; *cache.Log is one.
type retainer interface {
	Retain(pos cache.Pos, n int64)
	Release(pos cache.Pos, n int64)
}

const noClip = math.MaxInt64

func newLayer(log retainer) *layer {
	less := func(a, b extent) bool { return a.off < b.off }
	return &layer{ext: btree.NewBTreeGOptions(less, btree.Options{NoLocks: true, Degree: 16}), clip: noClip, log: log}
}

// empty reports whether the layer changes nothing.
func (l *layer) empty() bool { return l == nil || l.ext.Len() == 0 && l.clip == noClip }

// put lays e over what is there and keeps its bytes in the log.
func (l *layer) put(e extent) {
	if e.n == 0 {
		return
	}
	es := l.overlapping(e.off, e.end())
	if len(es) == 1 && es[0].off == e.off && es[0].n == e.n && es[0].from == fromLog && e.from == fromLog {
		// Blocks of a file are mostly written again as they were written before.
		l.log.Retain(e.pos, e.n)
		l.ext.Set(e)
		l.log.Release(es[0].pos, e.n)
		return
	}
	l.cut(es, e.off, e.end())
	if e.from == fromCopy { // a copy that came in parts is one again, so that a whole file can be known as such
		if before, ok := l.before(e.off); ok && e.follows(before) {
			l.drop(before)
			e.off, e.n, e.pos = before.off, before.n+e.n, before.pos
		}
	}
	l.add(e)
}

// before returns the last extent that begins before off.
func (l *layer) before(off int64) (e extent, ok bool) {
	l.ext.Descend(extent{off: off - 1}, func(at extent) bool {
		e, ok = at, true
		return false
	})
	return e, ok
}

// at returns the extent that has the byte at off, and whether there is one.
func (l *layer) at(off int64) (extent, bool) {
	e, ok := l.before(off + 1)
	return e, ok && e.end() > off
}

func (l *layer) add(e extent) {
	l.retain(e)
	l.ext.Set(e)
}

func (l *layer) retain(e extent) {
	if e.from == fromLog {
		l.log.Retain(e.pos, e.n)
	}
	if e.from != fromHole {
		l.data += e.n
	}
}

func (l *layer) drop(e extent) {
	l.release(e)
	l.ext.Delete(e)
}

func (l *layer) release(e extent) {
	if e.from == fromLog {
		l.log.Release(e.pos, e.n)
	}
	if e.from != fromHole {
		l.data -= e.n
	}
}

// remove takes everything in [lo, hi) out.
func (l *layer) remove(lo, hi int64) { l.cut(l.overlapping(lo, hi), lo, hi) }

// cut takes [lo, hi) out of es, which are all that touch it.
func (l *layer) cut(es []extent, lo, hi int64) {
	for _, e := range es {
		// What stays is retained before the whole goes.
		var keep []extent
		if e.off < lo {
			keep = append(keep, e.slice(e.off, lo))
		}
		if e.end() > hi {
			keep = append(keep, e.slice(hi, e.end()))
		}
		for _, k := range keep {
			l.retain(k)
		}
		l.drop(e)
		for _, k := range keep {
			l.ext.Set(k)
		}
	}
}

// overlapping returns the extents that touch [lo, hi), in order.
func (l *layer) overlapping(lo, hi int64) []extent {
	var es []extent
	l.ext.Descend(extent{off: hi - 1}, func(e extent) bool {
		if e.end() <= lo {
			return false
		}
		es = append(es, e)
		return true
	})
	slices.Reverse(es)
	return es
}

// truncate cuts the file to size: nothing at or above it shows through any more.
func (l *layer) truncate(size int64) {
	l.remove(size, math.MaxInt64)
	l.clip = min(l.clip, size)
}

// releaseAll gives all bytes in the log back; the layer must not be used any more.
func (l *layer) releaseAll() {
	if l == nil {
		return
	}
	l.ext.Scan(func(e extent) bool {
		l.release(e)
		return true
	})
	l.ext.Clear()
}

// piece is a run of a file's bytes and where they come from.
type piece struct {
	off, n int64
	from   source
	pos    cache.Pos      // of the first byte, in the log or in src
	src    *contentReader // of what it is a copy; nil if it is not one
}

// stored reports whether the bytes come from a content: it can be read without any lock, and may have to be fetched.
func (p piece) stored() bool { return p.from == fromBase || p.from == fromCopy }

type source uint8

const (
	fromHole source = iota // zeros
	fromLog
	fromBase // the content below all layers
	fromCopy // another content
)

// resolve says where the bytes of [lo, hi) come from, in order and without gaps. Layers are given the newest first;
// baseLen is the length of the content below them.
func resolve(layers []*layer, baseLen, lo, hi int64) []piece {
	return appendResolved(nil, layers, baseLen, lo, hi)
}

func appendResolved(ps []piece, layers []*layer, baseLen, lo, hi int64) []piece {
	if lo >= hi {
		return ps
	}
	if len(layers) == 0 {
		if n := min(hi, baseLen) - lo; n > 0 {
			ps = append(ps, piece{off: lo, n: n, from: fromBase})
			lo += n
		}
		return appendHole(ps, lo, hi)
	}
	l := layers[0]
	if l.empty() {
		return appendResolved(ps, layers[1:], baseLen, lo, hi)
	}
	below := func(ps []piece, a, b int64) []piece {
		ps = appendResolved(ps, layers[1:], baseLen, a, min(b, l.clip))
		return appendHole(ps, max(a, min(b, l.clip)), b)
	}
	for _, e := range l.overlapping(lo, hi) {
		s := e.slice(lo, hi)
		ps = below(ps, lo, s.off)
		if s.from == fromHole {
			ps = appendHole(ps, s.off, s.end())
		} else {
			ps = append(ps, piece(s))
		}
		lo = s.end()
	}
	return below(ps, lo, hi)
}

func appendHole(ps []piece, lo, hi int64) []piece {
	if lo >= hi {
		return ps
	}
	return append(ps, piece{off: lo, n: hi - lo, from: fromHole})
}
