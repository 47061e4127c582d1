package cache

import (
	"bytes"
	"context"
	"sync"

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
// that they are checked, is as with Chunk. A chunk that is wanted as a whole is
// not kept in memory: the reader has it now.
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

// A logRun is a part of a segment that holds chunks, to be read at once.
type logRun struct {
	at, end Pos
	chunks  []runChunk
}

type runChunk struct {
	want  *Want
	place Place
}

const (
	maxRun    = 1280 << 10 // bytes of a run: a request of the kernel, and the rest of the chunks at its ends
	maxRunGap = 32 << 10   // bytes read in vain between two chunks
)

var runBuffers = sync.Pool{New: func() any { b := make([]byte, maxRun); return &b }}

// readLog fills what it can from the log, and returns what is left.
func (c *Cache) readLog(wants []*Want) (left []*Want, err error) {
	if c.log == nil {
		return wants, nil
	}
	ids := make([]store.ID, len(wants))
	for i, w := range wants {
		ids[i] = w.Ref.ID
	}
	places := c.placesOf(ids)
	var runs []logRun
	for i, w := range wants {
		if len(places[i]) == 0 || places[i].size() != int64(w.Size) {
			left = append(left, w)
		} else {
			runs = addToRuns(runs, runChunk{w, places[i]})
		}
	}
	for _, r := range runs {
		failed, err := c.readRun(r)
		if err != nil {
			return nil, err
		}
		left = append(left, failed...)
	}
	return left, nil
}

// bounds returns the part of a segment that p lies in; ok is false if it is scattered.
func (p Place) bounds() (at, end Pos, ok bool) {
	at, end = p[0].Pos, p[0].Pos
	for _, piece := range p {
		if piece.Pos < end || piece.Pos-end > maxRunGap || piece.Pos.segment() != at.segment() {
			return 0, 0, false
		}
		end = piece.Pos + Pos(piece.Len)
	}
	return at, end, end-at <= maxRun
}

// addToRuns adds a chunk to the last run if it lies behind what is in it. A run
// without bounds stands for a chunk that is read alone.
func addToRuns(runs []logRun, rc runChunk) []logRun {
	at, end, ok := rc.place.bounds()
	if !ok {
		return append(runs, logRun{chunks: []runChunk{rc}})
	}
	if n := len(runs); n > 0 {
		r := &runs[n-1]
		if r.end > 0 && at >= r.end && at-r.end <= maxRunGap && end-r.at <= maxRun && at.segment() == r.at.segment() {
			r.end = end
			r.chunks = append(r.chunks, rc)
			return runs
		}
	}
	return append(runs, logRun{at: at, end: end, chunks: []runChunk{rc}})
}

// readRun fills what a run is for, and returns what is not where it should be.
func (c *Cache) readRun(r logRun) (failed []*Want, err error) {
	if r.end == 0 {
		rc := r.chunks[0]
		b, err := c.readPlace(rc.want.Ref.ID, rc.place)
		if err != nil {
			return []*Want{rc.want}, nil
		}
		return nil, c.took(rc.want, b)
	}
	bp := runBuffers.Get().(*[]byte)
	defer runBuffers.Put(bp)
	buf := (*bp)[:r.end-r.at]
	there := c.log.ReadAt(buf, r.at) == nil
	var joined []byte
	for _, rc := range r.chunks {
		var b []byte
		if there {
			b, joined = rc.place.of(buf, r.at, joined)
		}
		if !there || c.repo.ChunkID(b) != rc.want.Ref.ID {
			failed = append(failed, rc.want) // an outdated place; there are others
			continue
		}
		if err := c.took(rc.want, b); err != nil {
			return nil, err
		}
	}
	return failed, nil
}

// of returns the bytes at p out of buf, which was read from at on. If they lie in
// several pieces they are joined in space, which is returned for the next time.
func (p Place) of(buf []byte, at Pos, space []byte) (b, _ []byte) {
	if len(p) == 1 {
		return buf[p[0].Pos-at:][:p[0].Len], space
	}
	space = space[:0]
	for _, piece := range p {
		space = append(space, buf[piece.Pos-at:][:piece.Len]...)
	}
	return space, space
}

// placesOf is placeOf for many chunks.
func (c *Cache) placesOf(ids []store.ID) []Place {
	places := make([]Place, len(ids))
	c.mu.Lock()
	for i, id := range ids {
		if p := c.pending[id]; p != nil {
			places[i] = p.place
		}
	}
	c.mu.Unlock()
	if c.db == nil {
		return places
	}
	key := make([]byte, 1+len(store.ID{}))
	key[0] = keyPlace
	c.db.View(func(txn *badger.Txn) error {
		for i := range ids {
			if len(places[i]) > 0 {
				continue
			}
			copy(key[1:], ids[i][:])
			item, err := txn.Get(key)
			if err != nil {
				continue // not there, or to be found elsewhere
			}
			item.Value(func(b []byte) error {
				d := decoder{b: b}
				if p := d.place(); d.done() {
					places[i] = p
				}
				return nil
			})
		}
		return nil
	})
	return places
}
