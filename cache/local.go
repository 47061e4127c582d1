package cache

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/dedupfs/dedupfs/store"
)

// A local commit is a state of the volume that this machine has and the remote
// may not: the nodes that are new in it, where the chunks lie that are not yet on
// the remote, and the roots. Its file is written once; nodes are read from it by
// offset, so that many unpublished nodes take little memory.

const (
	localHeaderSize = 8  // magic
	frameHeaderSize = 40 // id, length, checksum
	localFooterSize = 32 // offset, length and checksum of the trailer, magic
)

func localName(n uint64) string { return fmt.Sprintf("local/%016x", n) }

// localFile is a finished local commit.
type localFile struct {
	Base
	size   int64
	nodes  []localNode
	places []chunkPlace
}

// localNode says where the encoding of a node lies in a local commit.
type localNode struct {
	id  store.ID
	off int64
	len uint32
}

type chunkPlace struct {
	id    store.ID
	len   uint32
	place Place
}

// nodeLoc is a node of some local commit.
type nodeLoc struct {
	n   uint64
	off int64
	len uint32
}

// appendTrailer appends everything of f but its nodes' encodings.
func appendTrailer(dst []byte, f *localFile) []byte {
	dst = appendBase(dst, &f.Base)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(f.nodes)))
	for _, n := range f.nodes {
		dst = append(dst, n.id[:]...)
		dst = binary.BigEndian.AppendUint64(dst, uint64(n.off))
		dst = binary.BigEndian.AppendUint32(dst, n.len)
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(f.places)))
	for _, p := range f.places {
		dst = append(dst, p.id[:]...)
		dst = binary.BigEndian.AppendUint32(dst, p.len)
		dst = appendPlace(dst, p.place)
	}
	return dst
}

func parseTrailer(b []byte) (*localFile, bool) {
	d := decoder{b: b}
	f := &localFile{Base: d.base()}
	f.nodes = make([]localNode, d.count(44))
	for i := range f.nodes {
		f.nodes[i] = localNode{id: d.id(), off: int64(d.uint64()), len: d.uint32()}
	}
	f.places = make([]chunkPlace, d.count(40))
	for i := range f.places {
		f.places[i] = chunkPlace{id: d.id(), len: d.uint32(), place: d.place()}
	}
	return f, d.done()
}

func appendBase(dst []byte, b *Base) []byte {
	dst = binary.BigEndian.AppendUint64(dst, b.N)
	dst = binary.BigEndian.AppendUint64(dst, uint64(b.Cut))
	dst = appendRef(appendRef(dst, b.Root), b.Snapshots)
	return appendBytes(dst, b.Meta)
}

func (d *decoder) base() Base {
	return Base{N: d.uint64(), Cut: Pos(d.uint64()), Root: d.nodeRef(), Snapshots: d.nodeRef(), Meta: d.bytes()}
}

// readLocal reads what a local commit says, without its nodes.
func readLocal(fsys Files, n uint64) (*localFile, error) {
	name := localName(n)
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	damaged := corruptf("local commit %s", name)
	var footer [localFooterSize]byte
	if err := readFull(f, footer[:], size-localFooterSize); err != nil {
		return nil, errors.Join(damaged, ignoreEOF(err))
	}
	off, length := int64(binary.BigEndian.Uint64(footer[:])), int64(binary.BigEndian.Uint64(footer[8:]))
	if magic(footer[24:]) != magicEnd || off < localHeaderSize || length < 0 || off > size || length != size-localFooterSize-off {
		return nil, damaged
	}
	trailer := make([]byte, length)
	if err := readFull(f, trailer, off); err != nil {
		return nil, errors.Join(damaged, ignoreEOF(err))
	}
	sum := binary.BigEndian.Uint32(footer[16:])
	file, ok := parseTrailer(trailer)
	if crc32.Checksum(trailer, castagnoli) != sum || !ok || file.N != n {
		return nil, damaged
	}
	file.size = size
	return file, nil
}

// LocalCommit is a local commit that is being made. It is a tree.Store: nodes
// are saved in it, and loaded from it and from all that the cache can reach. Its
// end is Finish or Discard. It is safe for concurrent use.
type LocalCommit struct {
	c *Cache

	mu    sync.Mutex // guards all below
	name  string     // of the temporary file
	file  File       // nil after the end
	off   int64      // where buf goes
	buf   []byte
	taken int64 // bytes of disk
	nodes map[store.ID]localNode
	order []localNode
}

// NewLocalCommit begins a local commit.
func (c *Cache) NewLocalCommit() *LocalCommit {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.making++
	c.temps++
	return &LocalCommit{c: c, name: fmt.Sprintf("local/%d%s", c.temps, tmpSuffix), nodes: make(map[store.ID]localNode)}
}

// Load returns the node that ref names; see Cache.Node.
func (lc *LocalCommit) Load(ctx context.Context, ref store.Ref) (*store.Node, error) {
	if n, ok := lc.c.nodes.get(ref.ID); ok {
		return n, nil
	}
	if b, ok, err := lc.own(ref.ID); ok || err != nil {
		if err != nil {
			return nil, err
		}
		return lc.c.keepNode(ref.ID, b)
	}
	return lc.c.Node(ctx, ref)
}

// own returns the encoding of a node that was saved in lc.
func (lc *LocalCommit) own(id store.ID) ([]byte, bool, error) {
	lc.mu.Lock()
	defer lc.mu.Unlock()
	loc, ok := lc.nodes[id]
	if !ok || lc.file == nil {
		return nil, false, nil
	}
	if loc.off >= lc.off {
		return append([]byte(nil), lc.buf[loc.off-lc.off:][:loc.len]...), true, nil
	}
	b := make([]byte, loc.len)
	if err := readFull(lc.file, b, loc.off); err != nil {
		return nil, false, fmt.Errorf("read %s: %w", lc.name, err)
	}
	return b, true, nil
}

// Save adds a node and returns its reference, which has no hint. References of n
// without hints get those that are known, so that the file alone tells where
// everything lies that is on the remote.
func (lc *LocalCommit) Save(ctx context.Context, n *store.Node) (store.Ref, error) {
	id := lc.c.repo.NodeID(store.AppendCanonical(nil, n))
	ref := store.Ref{ID: id, Kind: store.RefNode}
	lc.mu.Lock()
	defer lc.mu.Unlock()
	// An older local commit may have the node too, and not keep it: one that is
	// published takes everything with it that its own roots do not need.
	if _, ok := lc.nodes[id]; ok {
		return ref, nil
	}
	if err := lc.add(id, store.AppendNode(nil, lc.c.withHints(n))); err != nil {
		return store.Ref{}, fmt.Errorf("save node: %w", err)
	}
	lc.c.nodes.put(id, n, nodeCost(n))
	return ref, nil
}

func (lc *LocalCommit) add(id store.ID, b []byte) error {
	if lc.file == nil {
		if err := lc.create(); err != nil {
			return err
		}
	}
	at := localNode{id: id, off: lc.off + int64(len(lc.buf)) + frameHeaderSize, len: uint32(len(b))}
	start := len(lc.buf)
	lc.buf = append(lc.buf, id[:]...)
	lc.buf = binary.BigEndian.AppendUint32(lc.buf, uint32(len(b)))
	sum := crc32.Update(crc32.Checksum(lc.buf[start:], castagnoli), castagnoli, b)
	lc.buf = binary.BigEndian.AppendUint32(lc.buf, sum)
	lc.buf = append(lc.buf, b...)
	lc.nodes[id] = at
	lc.order = append(lc.order, at)
	if len(lc.buf) >= 1<<20 {
		return lc.flush()
	}
	return nil
}

// create makes the temporary file.
func (lc *LocalCommit) create() error {
	if lc.nodes == nil {
		panic("cache: use of a local commit after its end")
	}
	err := lc.c.retryFull(0, func() (err error) {
		lc.file, err = lc.c.fsys.Create(lc.name)
		return err
	})
	if err != nil {
		return err
	}
	lc.buf = append(lc.buf[:0], magicLocal[:]...)
	return nil
}

func (lc *LocalCommit) flush() error {
	n := int64(len(lc.buf))
	lc.c.space.force(n)
	lc.taken += n
	err := lc.c.retryFull(n, func() error { return lc.file.WriteAt(lc.off, lc.buf) })
	if err != nil {
		return err
	}
	lc.off += n
	lc.buf = lc.buf[:0]
	return nil
}

// Discard ends the commit and forgets it. After Finish it does nothing.
func (lc *LocalCommit) Discard() {
	lc.mu.Lock()
	defer lc.mu.Unlock()
	if lc.nodes == nil {
		return
	}
	lc.end()
	lc.c.space.give(lc.taken)
}

// end lets go of the file; a temporary one goes.
func (lc *LocalCommit) end() {
	if lc.file != nil {
		lc.file.Close()
		lc.file = nil
		lc.c.fsys.Remove(lc.name) // best effort; not there after Finish
	}
	for id := range lc.nodes {
		if !lc.c.isLocal(id) {
			lc.c.nodes.del(id) // it has no place
		}
	}
	lc.nodes, lc.buf, lc.order = nil, nil, nil
	lc.c.mu.Lock()
	lc.c.making--
	lc.c.mu.Unlock()
}

// Finish makes the state with these roots the newest local commit: everything
// answered before cut is in it, and the log before cut is not replayed any more.
// When it returns nil, the state survives a crash. Meta is given back by
// LastCommit. After an error the commit is discarded and nothing has changed.
func (lc *LocalCommit) Finish(root, snapshots store.Ref, cut Pos, meta []byte) error {
	cut = lc.c.log.cutAfter(cut)
	// Bytes that the commit refers to have to last before it does.
	if err := lc.c.log.Sync(lc.c.log.End()); err != nil {
		lc.Discard()
		return fmt.Errorf("local commit: %w", err)
	}
	lc.mu.Lock()
	defer lc.mu.Unlock()
	c := lc.c
	c.finishMu.Lock()
	defer c.finishMu.Unlock()
	f := &localFile{Base: Base{Root: root, Snapshots: snapshots, Cut: cut, Meta: meta}, nodes: lc.order}
	var listed int
	f.N, f.places, listed = c.unlistedPlaces()
	err := lc.write(f)
	if err == nil {
		err = c.fsys.Rename(lc.name, localName(f.N))
	}
	if err == nil {
		err = c.fsys.SyncDir("local")
	}
	if err == nil {
		c.addLocal(f, listed)
	} else {
		c.listAgain(listed)
		c.space.give(lc.taken)
		err = fmt.Errorf("local commit %d: %w", f.N, err)
	}
	lc.end()
	return err
}

// write completes the temporary file.
func (lc *LocalCommit) write(f *localFile) error {
	if lc.file == nil {
		if err := lc.create(); err != nil {
			return err
		}
	}
	off := lc.off + int64(len(lc.buf))
	trailer := appendTrailer(nil, f)
	lc.buf = append(lc.buf, trailer...)
	lc.buf = binary.BigEndian.AppendUint64(lc.buf, uint64(off))
	lc.buf = binary.BigEndian.AppendUint64(lc.buf, uint64(len(trailer)))
	lc.buf = binary.BigEndian.AppendUint32(lc.buf, crc32.Checksum(trailer, castagnoli))
	lc.buf = append(lc.buf, 0, 0, 0, 0)
	lc.buf = append(lc.buf, magicEnd[:]...)
	if err := lc.flush(); err != nil {
		return err
	}
	f.size = lc.off
	return lc.c.retryFull(0, lc.file.Sync)
}

// unlistedPlaces returns the number of the next local commit, and the places of
// pending chunks that no local commit lists and that lie nowhere else.
func (c *Cache) unlistedPlaces() (n uint64, places []chunkPlace, listed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range c.unlisted {
		p := c.pending[id]
		if p == nil {
			continue
		}
		p.fresh = false // who finds it from now on, may do so for the next
		if p.state != chunkSpooled {
			places = append(places, chunkPlace{id: id, len: p.len, place: p.place})
		}
	}
	return c.newestLocked().N + 1, places, len(c.unlisted)
}

// listAgain has the next local commit list what one that came to nothing would have.
func (c *Cache) listAgain(listed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range c.unlisted[:listed] {
		if p := c.pending[id]; p != nil {
			p.fresh = true
		}
	}
}

// addLocal makes a finished local commit the newest.
func (c *Cache) addLocal(f *localFile, listed int) {
	c.mu.Lock()
	c.commits = append(c.commits, f)
	for _, n := range f.nodes {
		c.local[n.id] = nodeLoc{n: f.N, off: n.off, len: n.len}
	}
	c.unlisted = append([]store.ID(nil), c.unlisted[listed:]...)
	f.nodes = nil // c.local has them
	f.places = nil
	c.mu.Unlock()
	c.log.setCut(f.Cut)
}

// newestLocked returns the newest state. The caller holds mu.
func (c *Cache) newestLocked() Base {
	if n := len(c.commits); n > 0 {
		return c.commits[n-1].Base
	}
	return c.base
}

// LastCommit returns the newest state of the volume that this machine has. It
// answers ok = false before the first.
func (c *Cache) LastCommit() (root, snapshots store.Ref, cut Pos, meta []byte, n uint64, published, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.newestLocked()
	return b.Root, b.Snapshots, b.Cut, b.Meta, b.N, len(c.commits) == 0, b.N > 0
}

func (c *Cache) isLocal(id store.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.local[id]
	return ok
}

// localNode returns the encoding of a node of a local commit; ok is false if no commit has it.
func (c *Cache) localNode(id store.ID) (b []byte, ok bool, err error) {
	for {
		c.mu.Lock()
		loc, ok := c.local[id]
		c.mu.Unlock()
		if !ok {
			return nil, false, nil
		}
		b, err = c.readFrame(id, loc)
		if errors.Is(err, fs.ErrNotExist) && !c.stillAt(id, loc) {
			continue // published meanwhile
		}
		return b, true, err
	}
}

func (c *Cache) stillAt(id store.ID, loc nodeLoc) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.local[id] == loc
}

func (c *Cache) readFrame(id store.ID, loc nodeLoc) ([]byte, error) {
	f, err := c.fsys.Open(localName(loc.n))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, frameHeaderSize+int(loc.len))
	if err := readFull(f, b, loc.off-frameHeaderSize); err != nil {
		return nil, corruptf("node %v in local commit %d: %v", id, loc.n, err)
	}
	sum := crc32.Update(crc32.Checksum(b[:36], castagnoli), castagnoli, b[frameHeaderSize:])
	if store.ID(b[:32]) != id || binary.BigEndian.Uint32(b[36:]) != sum {
		return nil, corruptf("node %v in local commit %d", id, loc.n)
	}
	return b[frameHeaderSize:], nil
}

// loadLocal reads base and local commits when the cache is opened.
func (c *Cache) loadLocal() error {
	b, err := readSmallFile(c.fsys, "base", magicBase, maxSmallFile)
	if err == nil {
		err = c.parseBase(b)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("read published state: %w", err)
	}
	numbers, err := c.listLocal()
	if err != nil {
		return err
	}
	for _, n := range numbers {
		if n <= c.base.N {
			c.fsys.Remove(localName(n)) // left by a crash while it was being dropped
			continue
		}
		f, err := readLocal(c.fsys, n)
		if err != nil {
			return fmt.Errorf("read local commit: %w", err)
		}
		c.space.force(f.size)
		for _, node := range f.nodes {
			c.local[node.id] = nodeLoc{n: n, off: node.off, len: node.len}
		}
		f.nodes = nil
		c.commits = append(c.commits, f)
	}
	for id, h := range c.hints {
		h.needed = c.newestLocked().N
		c.hints[id] = h
	}
	return nil
}

// listLocal returns the numbers of the local commits in order, and removes what was not finished.
func (c *Cache) listLocal() ([]uint64, error) {
	list, err := c.fsys.List("local")
	if err != nil {
		return nil, err
	}
	var numbers []uint64
	for _, info := range list {
		if strings.HasSuffix(info.Name, tmpSuffix) {
			c.fsys.Remove("local/" + info.Name)
		} else if n, err := strconv.ParseUint(info.Name, 16, 64); err == nil && len(info.Name) == 16 {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// parseBase takes over what the file base says: the newest published state, and
// where nodes lie that local commits refer to without hints.
func (c *Cache) parseBase(b []byte) error {
	d := decoder{b: b}
	base := d.base()
	base.Published = true
	hints := d.count(56)
	for range hints {
		id := d.id()
		c.hints[id] = heldHint{hint: d.hint()}
	}
	if !d.done() {
		return corruptf("local file base")
	}
	c.base = base
	return nil
}

// writeBase makes base the published state on disk. With keep the hints are
// written too: local commits that are left refer to nodes without them.
func (c *Cache) writeBase(base Base, keep map[store.ID]store.Hint) error {
	b := appendBase(nil, &base)
	b = binary.BigEndian.AppendUint32(b, uint32(len(keep)))
	for id, h := range keep {
		b = appendHint(append(b, id[:]...), h)
	}
	b = appendSmallFile(nil, magicBase, b)
	return c.retryFull(int64(len(b)), func() error { return writeFile(c.fsys, "base", b) })
}

// AdoptBase makes another client's state the newest: the roots have hints, and
// nothing local is newer. What the log holds before its end is not replayed any more.
func (c *Cache) AdoptBase(root, snapshots store.Ref) error {
	c.finishMu.Lock()
	defer c.finishMu.Unlock()
	c.mu.Lock()
	unpublished := len(c.commits) > 0
	base := c.base
	c.mu.Unlock()
	if unpublished {
		panic("cache: another base while local commits are not published")
	}
	base.N++
	base.Root, base.Snapshots, base.Published = root, snapshots, true
	if c.log != nil { // a reader has none, and keeps its base in memory
		base.Cut = c.log.End()
		if err := c.writeBase(base, nil); err != nil {
			return fmt.Errorf("take over state: %w", err)
		}
		c.log.setCut(base.Cut)
	}
	c.mu.Lock()
	c.base = base
	c.mu.Unlock()
	return nil
}
