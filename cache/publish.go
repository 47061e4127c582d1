package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/dedupfs/dedupfs/store"
)

// PackForPublication brings everything of the newest local commit to the remote,
// verified and last there, and returns what a commit needs. It returns nil if
// there is no local commit that is not published. Progress, which may be nil, is
// told how many bytes of chunks are done.
func (c *Cache) PackForPublication(ctx context.Context, progress func(done, total int64)) (*Publication, error) {
	c.publishMu.Lock()
	defer c.publishMu.Unlock()
	c.mu.Lock()
	unpublished := len(c.commits) > 0
	base := c.newestLocked()
	total := c.pendingBytes
	c.mu.Unlock()
	if !unpublished {
		return nil, nil
	}
	if p := c.packed; p != nil && p.N == base.N {
		return p, nil // its commit could not be written
	}
	var p *Publication
	err := c.unlessFull(ctx, func(ctx context.Context) (err error) {
		p, err = c.publication(ctx, base, reporter{c, progress, total})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("publish local commit %d: %w", base.N, err)
	}
	c.packed = p
	return p, nil
}

func (c *Cache) publication(ctx context.Context, base Base, r reporter) (*Publication, error) {
	if err := c.learnDamaged(ctx); err != nil {
		return nil, err
	}
	if err := c.uploadChunks(ctx, r); err != nil {
		return nil, err
	}
	return c.publicationOf(ctx, base, newWaves(c))
}

// publicationOf packs the nodes of a state, of which all chunks are on the remote.
func (c *Cache) publicationOf(ctx context.Context, base Base, w *waves) (*Publication, error) {
	if err := w.planAll(ctx, base.Root, base.Snapshots); err != nil {
		return nil, err
	}
	if err := w.pack(ctx); err != nil {
		return nil, err
	}
	if err := c.syncRemote(ctx); err != nil {
		return nil, err
	}
	p := &Publication{N: base.N, Root: base.Root, Snapshots: base.Snapshots, Cut: base.Cut, hints: w.hints, nodes: w.nodes}
	p.Root.Hint, p.Snapshots.Hint = w.hint(p.Root), w.hint(p.Snapshots)
	p.Multichunks = c.announced(w, func(store.Name) bool { return true })
	return p, nil
}

// syncRemote returns when the remote has everything for good.
func (c *Cache) syncRemote(ctx context.Context) error {
	if s, ok := c.repo.Storage().(interface{ Sync(context.Context) error }); ok {
		if err := s.Sync(ctx); err != nil {
			return fmt.Errorf("sync remote: %w", err)
		}
	}
	return nil
}

// announced returns the multichunks that a commit tells others of: those of its nodes, and of data those that are wanted and that no
// commit has told of.
func (c *Cache) announced(w *waves, wanted func(store.Name) bool) (list []store.MultichunkInfo) {
	c.mu.Lock()
	for n, r := range c.receipts {
		if !r.announced && wanted(n) {
			list = append(list, store.MultichunkInfo{Name: n, Kind: store.KindData, Hooks: r.hooks})
		}
	}
	c.mu.Unlock()
	for _, n := range w.names {
		list = append(list, store.MultichunkInfo{Name: n, Kind: store.KindNodes})
	}
	slices.SortFunc(list, func(a, b store.MultichunkInfo) int { return slices.Compare(a.Name[:], b.Name[:]) })
	return list
}

// A reporter tells how far uploading has come.
type reporter struct {
	c     *Cache
	fn    func(done, total int64)
	total int64
}

func (r reporter) report() {
	if r.fn == nil {
		return
	}
	r.c.mu.Lock()
	left := min(r.c.pendingBytes, r.total)
	r.c.mu.Unlock()
	r.fn(r.total-left, r.total)
}

// uploadChunks returns when all chunks that are pending now are verified.
func (c *Cache) uploadChunks(ctx context.Context, r reporter) error {
	c.mu.Lock()
	ids := make([]store.ID, 0, len(c.pending))
	for id := range c.pending {
		ids = append(ids, id)
	}
	c.mu.Unlock()
	for len(ids) > 0 {
		r.report()
		if err := c.seal(ctx); err != nil {
			return err
		}
		for _, up := range c.uploads.waiting(store.KindData) {
			if err := c.waitUpload(ctx, up); err != nil {
				return err
			}
			r.report()
		}
		// One that is still pending was lost from the spool, or its packer has failed.
		c.mu.Lock()
		ids = slices.DeleteFunc(ids, func(id store.ID) bool { return c.pending[id] == nil || c.pending[id].state == chunkKnown })
		c.mu.Unlock()
	}
	r.report()
	return nil
}

func (c *Cache) waitUpload(ctx context.Context, up *upload) error {
	select {
	case <-up.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
}

// flushPacker seals what the packer holds. It goes on when ctx ends, since a
// packer that is broken off is lost.
func (c *Cache) flushPacker(ctx context.Context) error {
	p := c.packer()
	done := make(chan error, 1)
	_, err := c.start(func(context.Context) {
		err := p.Flush(c.ctx)
		if err != nil {
			c.replacePacker(p)
		}
		done <- err
	})
	if err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// waves packs the nodes of a state, children before their parents, so that every
// node is encoded with the hints of what it refers to.
type waves struct {
	c       *Cache
	own     *LocalCommit             // has nodes beside those of local commits; may be nil
	chunk   func(ref store.Ref) bool // is told of the chunks of planned nodes, until it returns false; may be nil
	enough  bool                     // it did
	heights map[store.ID]int         // of local nodes
	levels  [][]store.ID             // local nodes by height
	hints   map[store.ID]store.Hint
	nodes   map[store.ID]*store.Node // with hints, as many as memory takes
	cost    int64                    // of those, bytes
	names   []store.Name             // of the multichunks
	used    map[store.Name]bool      // multichunks of chunks that packed nodes refer to
	ups     []*upload
	put     func(ctx context.Context, s *store.Sealed) error // puts multichunks at once; nil if they are queued
}

func newWaves(c *Cache) *waves {
	return &waves{c: c, heights: make(map[store.ID]int), hints: make(map[store.ID]store.Hint),
		nodes: make(map[store.ID]*store.Node), used: make(map[store.Name]bool)}
}

// planAll finds what pack has to pack.
func (w *waves) planAll(ctx context.Context, roots ...store.Ref) error {
	for _, root := range roots {
		if _, err := w.plan(ctx, root); err != nil {
			return err
		}
	}
	return nil
}

func (w *waves) pack(ctx context.Context) error {
	if len(w.levels) == 0 {
		return nil
	}
	packer := w.c.repo.NewPacker(store.KindNodes, func(_ context.Context, s *store.Sealed) error {
		if err := w.bring(ctx, s); err != nil {
			return err
		}
		w.names = append(w.names, s.Name)
		return nil
	})
	for _, level := range w.levels {
		if err := w.wave(ctx, packer, level); err != nil {
			return err
		}
	}
	if err := packer.Flush(ctx); err != nil {
		return err
	}
	for _, up := range w.ups {
		if err := w.c.waitUpload(ctx, up); err != nil {
			w.giveUp()
			return err
		}
	}
	return nil
}

// bring puts a multichunk, or has it uploaded.
func (w *waves) bring(ctx context.Context, s *store.Sealed) error {
	if w.put != nil {
		return w.put(ctx, s)
	}
	up, err := w.c.enqueue(ctx, s)
	if err == nil {
		w.ups = append(w.ups, up)
	}
	return err
}

// giveUp lets the uploads end that nobody waits for any more.
func (w *waves) giveUp() {
	for _, up := range w.ups {
		up.given.Store(true)
	}
}

// plan finds the local nodes below ref and returns the height of ref among them:
// 1 if nothing below it is local, 0 if it is not local itself.
func (w *waves) plan(ctx context.Context, ref store.Ref) (int, error) {
	if ref.IsZero() || w.enough {
		return 0, nil
	}
	if ref.Kind != store.RefNode {
		if w.chunk != nil {
			w.enough = !w.chunk(ref)
		}
		return 0, nil
	}
	if h, ok := w.heights[ref.ID]; ok {
		return h, nil
	}
	if w.c.packedEarly(ref.ID) {
		return 0, nil
	}
	n, ok, err := w.load(ctx, ref.ID)
	if err != nil || !ok {
		return 0, err
	}
	height := 0
	for i := range n.Entries {
		for _, r := range n.Entries[i].Refs {
			h, err := w.plan(ctx, r)
			if err != nil {
				return 0, err
			}
			height = max(height, h)
		}
	}
	for len(w.levels) <= height {
		w.levels = append(w.levels, nil)
	}
	w.levels[height] = append(w.levels[height], ref.ID)
	w.heights[ref.ID] = height + 1
	return height + 1, nil
}

// load returns a local node, which is the caller's; ok is false if it is not local.
func (w *waves) load(ctx context.Context, id store.ID) (n *store.Node, ok bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	b, ok, err := w.c.localNode(id)
	if err == nil && !ok && w.own != nil {
		b, ok, err = w.own.own(id)
	}
	if err != nil || !ok {
		return nil, false, err
	}
	n, err = w.c.repo.CheckNode(id, b)
	return n, true, err
}

// wave packs nodes whose children have been packed.
func (w *waves) wave(ctx context.Context, packer *store.Packer, level []store.ID) error {
	nodes := nodeBatch{c: w.c}
	for _, id := range level {
		n, ok, err := w.load(ctx, id)
		if err == nil && !ok {
			err = corruptf("node %v of a local commit is gone", id)
		}
		if err != nil {
			return err
		}
		if err := w.fill(ctx, n); err != nil {
			return fmt.Errorf("node %v: %w", id, err)
		}
		b := store.AppendNode(nil, n)
		if err := packer.Add(ctx, id, b); err != nil {
			return err
		}
		nodes.add(id, b)
		w.keep(id, n)
	}
	nodes.flush()
	if err := packer.CloseGroup(ctx); err != nil {
		return err
	}
	for _, id := range level {
		h, ok := packer.Hint(id)
		if !ok {
			panic("cache: packed node without a place")
		}
		w.hints[id] = h
	}
	return nil
}

// keep remembers a node for when it is published: it is read again at once, by the next change if by nobody else. Of too many the
// levels that are packed last, which are the upper ones, are worth the most.
func (w *waves) keep(id store.ID, n *store.Node) {
	cost := nodeCost(n)
	for other, m := range w.nodes {
		if w.cost+cost <= w.c.o.NodeMemory {
			break
		}
		delete(w.nodes, other)
		w.cost -= nodeCost(m)
	}
	w.nodes[id] = n
	w.cost += cost
}

// fill gives all references of n their hints.
func (w *waves) fill(ctx context.Context, n *store.Node) error {
	for i := range n.Entries {
		refs := n.Entries[i].Refs
		for j := range refs {
			h := w.hint(refs[j])
			if h.IsZero() && refs[j].Kind == store.RefChunk {
				// Its table was given up or forgotten just when it was found in it.
				if _, err := w.c.searchChunk(ctx, refs[j], nil); err == nil {
					h = w.c.Hint(refs[j].ID)
				}
			}
			if h.IsZero() {
				return corruptf("nobody knows where %v lies", refs[j].ID)
			}
			refs[j].Hint = h
			if refs[j].Kind == store.RefChunk {
				w.used[h.Multichunk] = true
			}
		}
	}
	return nil
}

// packedEarly reports whether a node, and so all below it, was published before the local commit that has it. That holds until a local
// commit is published: from then on collecting garbage may have found that nobody needs it.
func (c *Cache) packedEarly(id store.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.early[id]
}

// hint returns where ref lies on the remote; zero if that is not known.
func (w *waves) hint(ref store.Ref) store.Hint {
	if ref.IsZero() {
		return store.Hint{}
	}
	if h, ok := w.hints[ref.ID]; ok {
		return h
	}
	if !ref.Hint.IsZero() {
		return ref.Hint
	}
	return w.c.knownHint(ref)
}

// PublishedBase returns the roots of the newest state here that is on the remote.
func (c *Cache) PublishedBase() (root, snapshots store.Ref) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.base.Root, c.base.Snapshots
}

// HintOf returns where ref lies on the remote; zero if that is not known, as before it is there.
func (c *Cache) HintOf(ref store.Ref) store.Hint {
	if !ref.Hint.IsZero() {
		return ref.Hint
	}
	return c.knownHint(ref)
}

// knownHint returns the hint of a reference that has none; zero if it is not known.
func (c *Cache) knownHint(ref store.Ref) store.Hint {
	if ref.Kind == store.RefChunk {
		return c.Hint(ref.ID)
	}
	c.mu.Lock()
	held, ok := c.hints[ref.ID]
	c.mu.Unlock()
	h := held.hint
	if ok {
		return h
	}
	c.dbGet(dbKey(keyHint, ref.ID), func(b []byte) error {
		d := decoder{b: b}
		if hint := d.hint(); d.done() {
			h = hint
		}
		return nil
	})
	return h
}

// withHints returns n with the hints of all references that are known to be on
// the remote. It returns n itself if there is nothing to add.
func (c *Cache) withHints(n *store.Node) *store.Node {
	var filled *store.Node
	for i := range n.Entries {
		for j, ref := range n.Entries[i].Refs {
			if !ref.Hint.IsZero() || c.isPending(ref) {
				continue
			}
			h := c.knownHint(ref)
			if h.IsZero() {
				continue
			}
			if filled == nil {
				filled = cloneNode(n)
			}
			filled.Entries[i].Refs[j].Hint = h
		}
	}
	if filled == nil {
		return n
	}
	return filled
}

func (c *Cache) isPending(ref store.Ref) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ref.Kind == store.RefChunk {
		p := c.pending[ref.ID]
		return p != nil && p.state != chunkKnown
	}
	_, ok := c.local[ref.ID]
	return ok
}

// cloneNode copies what withHints changes.
func cloneNode(n *store.Node) *store.Node {
	m := &store.Node{Level: n.Level, Entries: slices.Clone(n.Entries)}
	for i := range m.Entries {
		m.Entries[i].Refs = slices.Clone(m.Entries[i].Refs)
	}
	return m
}

// Published is called after the commit of p is on the remote. Local commits up to
// it are dropped, and LastCommit tells it as published. After an error it may be
// called again.
func (c *Cache) Published(p *Publication) error {
	c.publishMu.Lock()
	defer c.publishMu.Unlock()
	c.finishMu.Lock()
	defer c.finishMu.Unlock()
	kept := c.putHints(p.hints)
	base, hints := c.supersede(p, kept)
	if err := c.writeBase(base, hints); err != nil {
		return fmt.Errorf("note publication of local commit %d: %w", p.N, err)
	}
	c.packed = nil
	c.dropKnown(p.N)
	if p.alone {
		c.giveUpUnneeded()
	}
	err := errors.Join(c.removeDropped(), c.dropReceipts(p.N))
	c.trimDB()
	if err != nil {
		return fmt.Errorf("note publication of local commit %d: %w", p.N, err)
	}
	return nil
}

// HintIn returns where ref lies on the remote now that p is published; zero if that is not known.
func (c *Cache) HintIn(p *Publication, ref store.Ref) store.Hint {
	if ref.Kind == store.RefNode {
		return p.hints[ref.ID]
	}
	return c.Hint(ref.ID)
}

// A heldHint is where a published node lies, for local commits that refer to it without that.
type heldHint struct {
	hint   store.Hint
	needed uint64 // the last of them
}

func bareHints(held map[store.ID]heldHint) map[store.ID]store.Hint {
	hints := make(map[store.ID]store.Hint, len(held))
	for id, h := range held {
		hints[id] = h.hint
	}
	return hints
}

// supersede makes p the base and forgets local commits up to it. Later ones that are there, or are being made, may
// refer to chunks and nodes of p without hints, as they were saved before: where those lie must stay known until the
// last of these is published, whatever happens to the database. Who never stops changing something always has later
// ones, so what is kept for them goes with them. InDB says that the database has taken the hints of p.
func (c *Cache) supersede(p *Publication, inDB bool) (base Base, hints map[store.ID]store.Hint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	needed := c.neededLocked()
	if !inDB {
		needed = max(needed, p.N+1)
	}
	for id := range c.early { // they were not packed again
		c.hints[id] = heldHint{c.hints[id].hint, needed}
	}
	clear(c.early)
	base = Base{N: p.N, Root: p.Root, Snapshots: p.Snapshots, Cut: p.Cut, Meta: c.base.Meta, Published: true}
	for len(c.commits) > 0 && c.commits[0].N <= p.N {
		base.Meta = c.commits[0].Meta
		c.dropped = append(c.dropped, c.commits[0])
		c.commits = c.commits[1:]
	}
	maps.DeleteFunc(c.hints, func(_ store.ID, h heldHint) bool { return h.needed <= p.N })
	if needed > p.N {
		for id, h := range p.hints {
			c.hints[id] = heldHint{h, needed}
		}
	}
	for _, n := range p.dataNames() {
		if r := c.receipts[n]; r != nil {
			r.announced, r.needed = true, needed
		}
	}
	for id, loc := range c.local {
		if loc.n <= p.N {
			delete(c.local, id)
			// As it was parsed from the local commit it has no hints.
			if n := p.nodes[id]; n != nil {
				c.nodes.put(id, n, nodeCost(n))
			} else {
				c.nodes.del(id)
			}
		}
	}
	c.base = base
	return base, bareHints(c.hints)
}

// neededLocked returns the number of the last local commit that may refer without a hint to what is being published
// now: the newest, or the one that is being made. The caller holds mu.
func (c *Cache) neededLocked() uint64 { return c.newestLocked().N + uint64(c.making) }

// removeDropped removes the files of local commits that are superseded.
func (c *Cache) removeDropped() error {
	c.mu.Lock()
	dropped := c.dropped
	c.dropped = nil
	c.mu.Unlock()
	for i, f := range dropped {
		if err := c.fsys.Remove(localName(f.N)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.mu.Lock()
			c.dropped = append(c.dropped, dropped[i:]...)
			c.mu.Unlock()
			return err
		}
		c.space.give(f.size)
	}
	return nil
}

func (p *Publication) dataNames() []store.Name {
	var names []store.Name
	for i := range p.Multichunks {
		if p.Multichunks[i].Kind == store.KindData {
			names = append(names, p.Multichunks[i].Name)
		}
	}
	return names
}

// A nodeBatch collects published nodes on their way to the database.
type nodeBatch struct {
	c     *Cache
	ids   []store.ID
	nodes [][]byte
	bytes int
}

func (b *nodeBatch) add(id store.ID, node []byte) {
	b.ids, b.nodes = append(b.ids, id), append(b.nodes, node)
	if b.bytes += len(node); b.bytes > 1<<20 {
		b.flush()
	}
}

func (b *nodeBatch) flush() {
	b.c.dbPut(func(set func(key, value []byte)) {
		for i, id := range b.ids {
			set(dbKey(keyNode, id), b.nodes[i])
		}
	})
	b.ids, b.nodes, b.bytes = nil, nil, 0
}

func (c *Cache) putHints(hints map[store.ID]store.Hint) bool {
	return c.dbPut(func(set func(key, value []byte)) {
		for id, h := range hints {
			set(dbKey(keyHint, id), appendHint(nil, h))
		}
	})
}
