package store

import (
	"context"
	"fmt"
	"runtime"
	"sync"
)

// A Packer packs chunks, or nodes, into multichunks: it collects them in groups, compresses full groups in parallel, puts
// them one behind the other in the order of Add, and seals and hands to its sink each multichunk that is full.
//
// All full multichunks have one length on the wire. What is left at Flush is padded to one of few lengths. A group that
// does not fit into what is left of a multichunk is cut in two, so that little is lost to padding.
//
// Memory: one stream and one sealed object of Config.MultichunkSize, a table of less than twice that for the smallest
// chunks (a hundredth for chunks of 8 KiB), a buffer of twice Config.GroupSize for each core and one more, and an encoder of
// 5 MiB for each core. With 8 MiB and 512 KiB on two cores that is 30 MiB. What a sink keeps of a Sealed after it has
// returned is the sink's.
//
// A Packer is safe for concurrent use. Once an error has been met, whoever caused it, every method returns it.
type Packer struct {
	repo *Repository
	kind Kind
	sink func(context.Context, *Sealed) error

	slots chan struct{} // holds one element for each group that is being compressed or placed

	addMu sync.Mutex // guards cur and last; acquired before mu
	cur   *groupBuffer
	last  chan struct{} // closed once all groups that were closed have been placed; nil before the first

	open *stream // only touched by the goroutine whose turn it is to place its group, and by Flush when all are placed

	mu    sync.Mutex // guards all below
	hints map[ID]Hint
	err   error
}

// NewPacker returns a Packer that hands its multichunks to sink, one at a time and in order. The table of a Sealed should
// be findable when sink returns, because Hint may not know its chunks any more. Until then Add waits, so that a sink that
// waits slows the writer. Sink runs with the ctx of the call that closed a group, which must therefore last until Flush.
func (r *Repository) NewPacker(kind Kind, sink func(context.Context, *Sealed) error) *Packer {
	return &Packer{
		repo: r, kind: kind, sink: sink,
		slots: make(chan struct{}, runtime.GOMAXPROCS(0)),
		hints: map[ID]Hint{},
	}
}

// Add puts the chunk or encoded node named id into the current group, and closes the group first if it is full. It copies
// data.
func (p *Packer) Add(ctx context.Context, id ID, data []byte) error {
	if len(data) > MaxChunk {
		panic(fmt.Sprintf("store: chunk of %d bytes", len(data)))
	}
	p.addMu.Lock()
	defer p.addMu.Unlock()
	if err := p.failed(); err != nil {
		return err
	}
	if g := p.cur; g != nil && (g.size()+len(data) > p.repo.cfg.GroupSize || len(g.ids) == maxGroupChunks) {
		if err := p.closeGroup(ctx); err != nil {
			return err
		}
	}
	if p.cur == nil {
		p.cur = p.repo.blocks.group()
	}
	p.cur.add(id, data)
	return nil
}

// CloseGroup closes the current group and waits until it has its place: after it, Hint knows all that was added.
func (p *Packer) CloseGroup(ctx context.Context) error {
	p.addMu.Lock()
	defer p.addMu.Unlock()
	return p.closeAndWait(ctx)
}

// Flush closes the current group and multichunk, and returns after sink has returned for all.
func (p *Packer) Flush(ctx context.Context) error {
	p.addMu.Lock()
	defer p.addMu.Unlock()
	if err := p.closeAndWait(ctx); err != nil {
		return err
	}
	if p.open != nil {
		if err := p.seal(ctx, false); err != nil {
			return p.fail(err)
		}
	}
	p.mu.Lock()
	clear(p.hints)
	p.mu.Unlock()
	return nil
}

// Hint returns where the chunk named id lies, if its group has been placed: chunks until sink has returned for their
// multichunk, nodes, which their parents are going to ask for, until Flush.
func (p *Packer) Hint(id ID) (Hint, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, ok := p.hints[id]
	return h, ok
}

// closeAndWait closes the current group and waits until all groups have been placed. p.addMu is held.
func (p *Packer) closeAndWait(ctx context.Context) error {
	if err := p.failed(); err != nil {
		return err
	}
	if p.cur != nil {
		if err := p.closeGroup(ctx); err != nil {
			return err
		}
	}
	if p.last != nil {
		select {
		case <-p.last:
		case <-ctx.Done():
			return p.fail(ctx.Err())
		}
	}
	return p.failed()
}

// closeGroup starts to compress and place the current group. p.addMu is held.
func (p *Packer) closeGroup(ctx context.Context) error {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return p.fail(ctx.Err())
	}
	g, before, placed := p.cur, p.last, make(chan struct{})
	p.cur, p.last = nil, placed
	go func() {
		p.repo.Pacer().Worker()
		p.pack(ctx, g, before)
		<-p.slots
		close(placed)
	}()
	return nil
}

// pack compresses g, waits for the group before it, and places g. Compressing is a unit of background work of its own: of a group it may
// take a hundred times as long as its chunks took.
func (p *Packer) pack(ctx context.Context, g *groupBuffer, before <-chan struct{}) {
	out := g.out
	done, err := p.repo.Pacer().Long(ctx)
	if err == nil {
		out, err = p.repo.blocks.appendGroup(out, p.kind, g.block(0, len(g.ids)))
		done()
	}
	if before != nil {
		<-before
	}
	if p.failed() != nil {
		return
	}
	if err == nil {
		g.out = out
		err = p.place(ctx, g)
	}
	if err != nil {
		p.fail(err)
		return
	}
	p.repo.blocks.groups.Put(g)
}

// place puts g, which stands compressed in g.out, into the open multichunk. What of it does not fit goes into the next.
func (p *Packer) place(ctx context.Context, g *groupBuffer) error {
	for i, n := 0, len(g.ids); ; {
		if p.open == nil {
			p.open = p.repo.blocks.newStream(p.kind)
		}
		if p.fits(len(g.out), n-i) {
			p.put(g, i, n, g.out)
			return nil
		}
		placed, err := p.placeSome(g, i)
		if err != nil || placed == n {
			return err
		}
		if err := p.seal(ctx, true); err != nil {
			return err
		}
		if placed > i {
			i = placed
			if g.out, err = p.repo.blocks.appendGroup(g.out[:0], p.kind, g.block(i, n)); err != nil {
				return err
			}
		}
	}
}

// placeSome fills what is left of the open multichunk with chunks of g from i on, whose rest stands compressed in g.out. It
// returns the first that it has not placed, which is i if it was not worth while. An empty multichunk always takes one.
func (p *Packer) placeSome(g *groupBuffer, i int) (int, error) {
	full, empty := p.repo.blocks.full, len(p.open.groups) == 0
	room := full - p.open.size(0, 0)
	if !empty && room < full/worthFilling {
		return i, nil
	}
	// The share that fits if its chunks compress like the whole, and a little less, for they may not.
	rest := len(g.buf) - g.start(i)
	share := rest * room / len(g.out) * 15 / 16
	for try := 0; ; try++ {
		n := g.chunksWithin(i, share)
		switch {
		case !empty && (n == 0 || try == 2):
			return i, nil
		case n == 0 || try == 2:
			n = 1 // a chunk that is larger than a multichunk makes a longer one
		}
		out, err := p.repo.blocks.appendGroup(nil, p.kind, g.block(i, i+n))
		if err != nil {
			return i, err
		}
		if p.fits(len(out), n) || empty && n == 1 {
			p.put(g, i, i+n, out)
			return i + n, nil
		}
		share /= 2
	}
}

// worthFilling is the part of a multichunk, 1/worthFilling, that is rather padded than filled with a piece of a group.
const worthFilling = 128

// fits reports whether the open multichunk has room for a group of the given length and number of chunks.
func (p *Packer) fits(stored, chunks int) bool {
	return p.open.size(stored, chunks) <= p.repo.blocks.full
}

// put puts the chunks of g from i up to j, compressed into group, into the open multichunk.
func (p *Packer) put(g *groupBuffer, i, j int, group []byte) {
	h := p.open.add(g, i, j, group)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range g.ids[i:j] {
		p.hints[id] = h
	}
}

// seal closes the open multichunk and hands it to the sink. A full one gets the one length that all full ones have.
func (p *Packer) seal(ctx context.Context, full bool) error {
	s := p.open
	p.open = nil
	sealed, err := p.repo.blocks.seal(p.repo.keys.now.Load(), s, full)
	if err != nil {
		return fmt.Errorf("seal multichunk %v: %w", s.name, err)
	}
	if err := p.sink(ctx, sealed); err != nil {
		return fmt.Errorf("store multichunk %v: %w", s.name, err)
	}
	if p.kind == KindNodes {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range s.table {
		if p.hints[s.table[i].ID].Multichunk == s.name {
			delete(p.hints, s.table[i].ID)
		}
	}
	return nil
}

// fail makes err the error of p unless it has one, and returns the error of p.
func (p *Packer) fail(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
	return p.err
}

func (p *Packer) failed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
