package cache

import (
	"context"
	"errors"
	"fmt"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
)

// A pendingChunk is one that is not yet verified on the remote.
type pendingChunk struct {
	len    uint32
	inLog             // no place if it is only in the spool
	hint   store.Hint // zero until its multichunk is sealed
	needed uint64     // of what is known: the newest local commit that may refer to it without a hint
	state  chunkState
	retain bool // the place is retained
	fresh  bool // the next local commit lists it: it was added or found again since the last
}

type chunkState uint8

const (
	chunkWaiting chunkState = iota // left by an earlier process, or by a failure: to be packed
	chunkPacked                    // in the packer, or sealed in memory
	chunkSpooled                   // sealed, and lasting in the spool
	chunkHeld                      // to be looked for by hooks
	chunkKnown                     // found to be on the remote
)

// AddChunk stores a chunk unless it is stored already, which it reports. Place
// says where its bytes lie in the log, in which they are kept until the chunk is
// verified on the remote; a place that is shorter than data is not used, and the
// chunk is appended to the log. AddChunk waits when uploading cannot keep up and
// there is no space for the spool, but not while the remote is full. The chunk
// lasts from the next Finish on.
func (c *Cache) AddChunk(ctx context.Context, id store.ID, data []byte, place Place) (dup bool, err error) {
	if dup, err = c.stored(id); dup && err == nil {
		dup, err = c.sharable(ctx, id)
	}
	if dup || err != nil {
		return dup, err
	}
	full := c.uploads.fullErr() != nil
	if !full {
		if err := c.uploads.waitStall(ctx, c.ctx); err != nil {
			return false, fmt.Errorf("store chunk: %w", err)
		}
	}
	if place.size() != int64(len(data)) {
		if place, err = c.keepChunk(id, data); err != nil {
			return false, fmt.Errorf("keep chunk: %w", err)
		}
	}
	state := chunkPacked
	switch {
	case full:
		state = chunkWaiting
	case c.holds():
		state = chunkHeld
	}
	if !c.addPending(id, uint32(len(data)), inLog{place, sumBlocks(data)}, state) {
		return true, nil
	}
	switch state {
	case chunkWaiting:
		return false, nil // until there is room on the remote
	case chunkHeld:
		return false, c.hold(ctx, id, len(data))
	}
	return false, c.pack(id, data)
}

// keepChunk appends a chunk to the log. It waits for nobody: chunks are added to
// make commits, and those are what others wait for when the budget is used up.
func (c *Cache) keepChunk(id store.ID, data []byte) (Place, error) {
	_, at, err := c.log.append(typeChunk, id[:], data)
	if err != nil {
		return nil, err
	}
	return Place{{Pos: at, Len: uint32(len(data))}}, nil
}

// stored reports whether a chunk is on the remote or on its way there.
func (c *Cache) stored(id store.ID) (bool, error) {
	c.mu.Lock()
	p := c.pending[id]
	c.mu.Unlock()
	if p != nil {
		return true, nil
	}
	ok, err := c.index.Has(id)
	if err != nil {
		return false, fmt.Errorf("look up chunk: %w", err)
	}
	return ok, nil
}

// size returns the number of bytes at p.
func (p Place) size() (n int64) {
	for _, piece := range p {
		n += int64(piece.Len)
	}
	return n
}

// addPending notes a new chunk, and reports false if another was quicker. One that
// is known to be stored and added even so lies where it may be deleted.
func (c *Cache) addPending(id store.ID, n uint32, at inLog, state chunkState) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pending[id]; p != nil && p.state != chunkKnown {
		return false
	} else if p != nil {
		c.dropKnownLocked(id, p)
	}
	p := &pendingChunk{len: n, inLog: at, state: state}
	c.retainLocked(p)
	c.pending[id] = p
	c.pendingBytes += int64(n)
	c.listLocked(id, p)
	if state == chunkWaiting {
		c.waiting = append(c.waiting, id)
	}
	c.lost.forget(id)
	return true
}

// listLocked has the next local commit list a pending chunk, whatever becomes of those that do already.
func (c *Cache) listLocked(id store.ID, p *pendingChunk) {
	if !p.fresh {
		p.fresh = true
		c.unlisted = append(c.unlisted, id)
	}
}

// pack puts a pending chunk into the packer. A packer that fails is replaced, and
// what was in it is packed anew for the next publication.
func (c *Cache) pack(id store.ID, data []byte) error {
	p := c.packer()
	err := p.Add(c.ctx, id, data)
	if err != nil {
		c.replacePacker(p)
		return fmt.Errorf("pack chunk: %w", err)
	}
	return nil
}

func (c *Cache) packer() *store.Packer {
	c.packMu.Lock()
	defer c.packMu.Unlock()
	return c.data
}

// replacePacker puts a new packer in the place of old, which has failed.
func (c *Cache) replacePacker(old *store.Packer) {
	c.packMu.Lock()
	defer c.packMu.Unlock()
	if c.data != old {
		return
	}
	c.data = c.repo.NewPacker(store.KindData, c.sealed)
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, p := range c.pending {
		if p.state == chunkPacked && p.hint.IsZero() {
			p.state = chunkWaiting
			c.waiting = append(c.waiting, id)
		}
	}
}

// sealed takes a data multichunk over from the packer.
func (c *Cache) sealed(ctx context.Context, s *store.Sealed) error {
	c.mu.Lock()
	for i := range s.Table {
		if p := c.pending[s.Table[i].ID]; p != nil {
			p.hint = s.Table[i].Hint
		}
	}
	c.mu.Unlock()
	_, err := c.enqueue(ctx, s)
	if errors.Is(err, remote.ErrNoSpace) { // its chunks are in the log, and wait there
		c.repack(s.Table)
		s.Release()
		return nil
	}
	return err
}

// markSpooled notes that the chunks of table last in the spool.
func (c *Cache) markSpooled(table []store.TableEntry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range table {
		if p := c.pending[table[i].ID]; p != nil && p.hint == table[i].Hint {
			p.state = chunkSpooled
			c.releaseLocked(p)
		}
	}
}

// retainLocked keeps the bytes of p in the log, if they are still there.
func (c *Cache) retainLocked(p *pendingChunk) {
	if p.retain {
		return
	}
	p.retain = true
	for _, piece := range p.place {
		c.log.Retain(piece.Pos, int64(piece.Len))
	}
}

// releaseLocked lets the log remove the bytes of p when it needs space.
func (c *Cache) releaseLocked(p *pendingChunk) {
	if !p.retain {
		return
	}
	p.retain = false
	for _, piece := range p.place {
		c.log.Release(piece.Pos, int64(piece.Len))
	}
}

// verified notes that the chunks of table are on the remote. Their places go to
// the database, as a cache.
func (c *Cache) verified(table []store.TableEntry) {
	places := make(map[store.ID]inLog)
	c.mu.Lock()
	for i := range table {
		id := table[i].ID
		p := c.pending[id]
		if p == nil {
			continue
		}
		if len(p.place) > 0 {
			places[id] = p.inLog
		}
		c.releaseLocked(p)
		delete(c.pending, id)
		c.pendingBytes -= int64(p.len)
	}
	c.mu.Unlock()
	c.dbPut(func(set func(key, value []byte)) {
		for id, at := range places {
			c.places.put(id, at)
			set(dbKey(keyPlace, id), appendInLog(nil, at))
		}
	})
}

// repack notes that the chunks of table have to be packed again.
func (c *Cache) repack(table []store.TableEntry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range table {
		id := table[i].ID
		if p := c.pending[id]; p != nil && p.hint == table[i].Hint {
			p.hint, p.state = store.Hint{}, chunkWaiting
			c.retainLocked(p)
			c.waiting = append(c.waiting, id)
		}
	}
}

// Hint returns where a chunk lies, or will when its multichunk is uploaded; the
// zero Hint if that is not known yet.
func (c *Cache) Hint(id store.ID) store.Hint {
	c.mu.Lock()
	p := c.pending[id]
	var h store.Hint
	if p != nil {
		h = p.hint
	}
	c.mu.Unlock()
	if p != nil || c.index == nil {
		return h
	}
	h, _, _ = c.index.Get(id) // what the index cannot tell is not known
	return h
}

// loadPlaces notes the chunks that local commits list and that are not on the
// remote. Receipts and spool have been loaded before.
func (c *Cache) loadPlaces() error {
	for _, f := range c.commits {
		for _, p := range f.places {
			if known, err := c.stored(p.id); err != nil {
				return err
			} else if known {
				continue
			}
			held := &pendingChunk{len: p.len, inLog: inLog{place: p.place}, state: chunkHeld}
			c.retainLocked(held)
			c.pending[p.id] = held
			c.sparse.held = append(c.sparse.held, p.id)
		}
		f.places = nil
	}
	for _, p := range c.pending {
		c.pendingBytes += int64(p.len)
	}
	return nil
}

// packWaiting packs chunks anew from their places in the log.
func (c *Cache) packWaiting(ctx context.Context) error {
	for {
		c.mu.Lock()
		if len(c.waiting) == 0 {
			c.mu.Unlock()
			return nil
		}
		id := c.waiting[0]
		p := c.pending[id]
		c.mu.Unlock()
		if p != nil {
			if err := c.packFromLog(ctx, id, p); err != nil {
				return err
			}
		}
		c.mu.Lock()
		c.waiting = c.waiting[1:]
		c.mu.Unlock()
	}
}

func (c *Cache) packFromLog(ctx context.Context, id store.ID, p *pendingChunk) error {
	if err := c.uploads.waitStall(ctx, c.ctx); err != nil {
		return err
	}
	if err := c.repo.Pacer().Background(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	if p.state != chunkWaiting {
		c.mu.Unlock()
		return nil
	}
	place := p.place
	p.state = chunkPacked
	c.mu.Unlock()
	data, err := c.readPlace(id, place)
	if err == nil {
		return c.pack(id, data)
	}
	if known, ierr := c.index.Has(id); ierr == nil && known {
		c.verified([]store.TableEntry{{ID: id}})
		return nil
	}
	c.mu.Lock()
	p.state = chunkWaiting
	c.mu.Unlock()
	return fmt.Errorf("chunk %v is lost before it was uploaded: %w", id, err)
}

// readPlace returns the bytes at a place, which are the chunk named id.
func (c *Cache) readPlace(id store.ID, place Place) ([]byte, error) {
	b := make([]byte, place.size())
	for rest := b; len(place) > 0; place = place[1:] {
		n := int(place[0].Len)
		if err := c.log.ReadAt(rest[:n], place[0].Pos); err != nil {
			return nil, err
		}
		rest = rest[n:]
	}
	if c.repo.ChunkID(b) != id {
		return nil, corruptf("log does not hold chunk %v any more", id)
	}
	return b, nil
}
