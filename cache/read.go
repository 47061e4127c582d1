package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
)

// Chunk returns the bytes of a chunk: from memory, the log, a multichunk on disk
// or in the spool, or else the remote, of which it fetches the whole multichunk
// and keeps it. The bytes have been checked against the id. They are shared and
// must not be changed. It returns an error that wraps store.ErrCorrupt if no
// intact copy could be found.
func (c *Cache) Chunk(ctx context.Context, ref store.Ref) ([]byte, error) {
	if b, ok := c.chunks.get(ref.ID); ok {
		return b, nil
	}
	if err := c.lost.get(ref.ID); err != nil {
		return nil, err
	}
	return c.chunkFlights.do(ctx, ref.ID, c.start, func(ctx context.Context) ([]byte, error) {
		b, err := c.findChunk(ctx, ref)
		if err != nil {
			c.lost.note(ref.ID, err)
			return nil, err
		}
		c.chunks.put(ref.ID, b, int64(len(b))+128)
		return b, nil
	})
}

// findChunk looks in one place after the other, the cheapest first.
func (c *Cache) findChunk(ctx context.Context, ref store.Ref) ([]byte, error) {
	b, err := c.chunkFromLog(ref.ID)
	if err == nil {
		return b, nil
	}
	b, err = c.chunkFromHints(ctx, ref, err)
	return bytes.Clone(b), err // a part of its group would keep the whole in memory
}

// chunkFromHints finds a chunk in a multichunk. Hints may be outdated: what is found is checked, and the next one is
// tried. Without any the error is errs. The bytes are a part of a group.
func (c *Cache) chunkFromHints(ctx context.Context, ref store.Ref, errs error) ([]byte, error) {
	hints := c.hintsOf(ref)
	if len(hints) > 0 {
		errs = nil // the places that count are yet to come
	}
	for _, h := range hints {
		b, err := c.chunkFromMultichunk(ctx, ref.ID, h)
		if err == nil {
			return b, nil
		}
		errs = errors.Join(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	if h := ref.Hint; ctx.Err() == nil && store.IsLost(errs) && c.hasMoved(ctx, ref.ID, &h) {
		if b, err := c.chunkFromMultichunk(ctx, ref.ID, h); err == nil {
			return b, nil
		}
	}
	if ctx.Err() == nil && store.IsLost(errs) {
		b, err := c.searchChunk(ctx, ref, hints)
		if err == nil {
			return bytes.Clone(b), nil
		}
		if !store.IsLost(err) {
			errs = err
		}
	}
	return nil, fmt.Errorf("chunk %v: %w", ref.ID, errs)
}

func (c *Cache) chunkFromLog(id store.ID) ([]byte, error) {
	place := c.placeOf(id)
	if len(place) == 0 || place.size() > store.MaxChunk {
		return nil, store.ErrNotFound
	}
	return c.readPlace(id, place)
}

// placeOf returns where the log has a chunk, or had it once; nil if it never did.
func (c *Cache) placeOf(id store.ID) Place {
	if c.log == nil {
		return nil
	}
	return c.inLogs([]store.ID{id})[0].place
}

// hintsOf returns where ref may lie, the most likely first.
func (c *Cache) hintsOf(ref store.Ref) []store.Hint {
	var hints []store.Hint
	known := []store.Hint{c.Hint(ref.ID), c.heal.place(ref.ID), ref.Hint}
	moved := make([]store.Hint, 0, len(known))
	for _, h := range known {
		moved = append(moved, c.movedHint(c.ctx, ref.ID, h))
	}
	for _, h := range append(moved, known...) {
		if !h.IsZero() && !slices.Contains(hints, h) {
			hints = append(hints, h)
		}
	}
	return hints
}

func (c *Cache) chunkFromMultichunk(ctx context.Context, id store.ID, h store.Hint) ([]byte, error) {
	g, err := c.group(ctx, h)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	if err == nil && g.Kind() == store.KindData {
		if b, ok := g.Find(id); ok {
			return b, nil
		}
	}
	// The hint leads to another group: the table knows better.
	wire, err := c.multichunk(ctx, h.Multichunk)
	if err != nil {
		return nil, err
	}
	_, table, err := c.repo.ReadTable(wire, wire.size, h.Multichunk)
	wire.close()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(table, func(e store.TableEntry) bool { return e.ID == id })
	if i < 0 || table[i].Hint == h {
		return nil, fmt.Errorf("multichunk %v does not hold it: %w", h.Multichunk, store.ErrNotFound)
	}
	if g, err = c.group(ctx, table[i].Hint); err != nil {
		return nil, err
	}
	if b, ok := g.Find(id); ok {
		c.noteMoved(h.Multichunk, id, table)
		return b, nil
	}
	return nil, corruptf("multichunk %v holds something else", h.Multichunk)
}

// group returns an opened group of a data multichunk.
func (c *Cache) group(ctx context.Context, h store.Hint) (*store.Group, error) {
	if g := c.recent.get(h); g != nil {
		return g, nil
	}
	return c.groupFlights.do(ctx, h, c.start, func(ctx context.Context) (*store.Group, error) {
		g, err := c.openGroup(ctx, h)
		if err == nil {
			c.recent.put(h, g)
		}
		return g, err
	})
}

// openGroup reads a group from a local copy of its multichunk, or else from the
// remote. A copy that is damaged is dropped and fetched again, once.
func (c *Cache) openGroup(ctx context.Context, h store.Hint) (*store.Group, error) {
	g, err := c.localGroup(h)
	if g == nil && err == nil && c.fetchFile(ctx, h.Multichunk) {
		g, err = c.localGroup(h)
	}
	if g != nil || err != nil {
		return g, err
	}
	for range 2 {
		var wire []byte
		if wire, err = c.download(ctx, h.Multichunk); err != nil {
			return nil, err
		}
		if g, err = c.repo.ReadGroup(bytesSource(wire), int64(len(wire)), h); err == nil {
			c.regained(h.Multichunk, wire)
			return g, nil
		}
		if c.wrongHint(bytesSource(wire), h) {
			return nil, noGroup(h)
		}
		c.dropCopy(h.Multichunk)
	}
	if whole, mendErr := c.mend(ctx, h.Multichunk); mendErr == nil {
		return c.repo.ReadGroup(bytesSource(whole), int64(len(whole)), h)
	}
	if store.IsLost(err) {
		// What it held is stored again when somebody writes it again.
		c.loseMultichunk(h.Multichunk)
	}
	c.trouble(err)
	return nil, err
}

// wrongHint reports whether an intact multichunk has no group where h says.
func (c *Cache) wrongHint(src *sealedSource, h store.Hint) bool {
	_, table, err := c.repo.ReadTable(src, src.size, h.Multichunk)
	return err == nil && !slices.ContainsFunc(table, func(e store.TableEntry) bool { return e.Hint == h })
}

func noGroup(h store.Hint) error {
	return fmt.Errorf("multichunk %v has no such group: %w", h.Multichunk, store.ErrNotFound)
}

// localGroup reads a group from what is here; nil if that cannot be done. The error
// says that there is no such group.
func (c *Cache) localGroup(h store.Hint) (*store.Group, error) {
	for _, open := range c.localSources() {
		src := open(h.Multichunk)
		if src == nil {
			continue
		}
		g, err := c.repo.ReadGroup(src, src.size, h)
		wrong := err != nil && c.wrongHint(src, h)
		src.close()
		if err == nil {
			return g, nil
		}
		if wrong {
			return nil, noGroup(h)
		}
		c.dropCopy(h.Multichunk)
		c.trouble(fmt.Errorf("local copy is fetched again: %w", err))
	}
	return nil, nil
}

// localSources returns the ways to a multichunk that is on this machine.
func (c *Cache) localSources() []func(store.Name) *sealedSource {
	return []func(store.Name) *sealedSource{c.fromUploads, c.fromDisk, c.fromSpool, c.fromWires}
}

func (c *Cache) fromUploads(n store.Name) *sealedSource {
	if c.uploads == nil {
		return nil
	}
	wire, ok := c.uploads.source(n)
	if !ok {
		return nil
	}
	return bytesSource(wire)
}

func (c *Cache) fromDisk(n store.Name) *sealedSource {
	if c.disk == nil {
		return nil
	}
	f, size := c.disk.open(n)
	if f == nil {
		return nil
	}
	return fileSource(f, size)
}

func (c *Cache) fromSpool(n store.Name) *sealedSource {
	if c.uploads == nil || !c.uploads.has(n) {
		return nil
	}
	f, err := c.fsys.Open(spoolName(n))
	if err != nil {
		return nil
	}
	size, err := f.Size()
	if err != nil {
		f.Close()
		return nil
	}
	return fileSource(f, size-spoolFooterSize)
}

func (c *Cache) fromWires(n store.Name) *sealedSource {
	wire, ok := c.wires.get(n)
	if !ok {
		return nil
	}
	return bytesSource(wire)
}

// dropCopy forgets a copy of a multichunk that can be fetched again.
func (c *Cache) dropCopy(n store.Name) {
	if c.disk != nil {
		c.disk.drop(n)
	}
	c.wires.drop(n)
}

// multichunk returns a copy of a whole multichunk, fetched if need be.
func (c *Cache) multichunk(ctx context.Context, n store.Name) (*sealedSource, error) {
	for _, open := range c.localSources() {
		if src := open(n); src != nil {
			return src, nil
		}
	}
	wire, err := c.download(ctx, n)
	if err != nil {
		return nil, err
	}
	return bytesSource(wire), nil
}

// download fetches a multichunk and keeps it on disk. Callers share one download.
func (c *Cache) download(ctx context.Context, n store.Name) ([]byte, error) {
	if err := c.heal.missed(n, c.o.Now()); err != nil {
		return nil, err
	}
	return c.downloads.do(ctx, n, c.start, func(ctx context.Context) ([]byte, error) {
		var wire []byte
		err := c.patiently(ctx, func() (err error) {
			wire, err = c.repo.Storage().Get(ctx, store.ObjectName(n), 0, -1)
			return err
		})
		if err != nil {
			err = fmt.Errorf("fetch multichunk %v: %w", n, err)
			if errors.Is(err, remote.ErrNotExist) {
				c.loseMultichunk(n)
				c.heal.noteMissed(n, err, c.o.Now())
			}
			return nil, err
		}
		c.fetched.Add(int64(len(wire)))
		if c.disk != nil {
			c.disk.put(n, wire)
		} else {
			c.wires.put(n, wire)
		}
		return wire, nil
	})
}

// fetchFile brings a multichunk to the disk without having it in memory, where the
// storage can do that, and reports whether it is there. Whatever is wrong, download
// is the way then. Callers share the work.
func (c *Cache) fetchFile(ctx context.Context, n store.Name) bool {
	st, ok := c.repo.Storage().(remote.Fetcher)
	if !ok || c.disk == nil {
		return false
	}
	done, err := c.fileFetches.do(ctx, n, c.start, func(ctx context.Context) (bool, error) {
		if lost, err := c.index.Lost(n); err != nil || lost {
			return false, err
		}
		size, ok := c.disk.fetch(n, int64(c.repo.Config().MultichunkSize), func(f *os.File) (int64, error) {
			return st.Fetch(ctx, store.ObjectName(n), f)
		})
		c.fetched.Add(size)
		return ok, nil
	})
	return done && err == nil
}

// patiently repeats a read of the remote while the remote is away, as long as
// Options.Offline says.
func (c *Cache) patiently(ctx context.Context, read func() error) error {
	began := time.Now()
	missing := false
	for pause := c.o.RetryMin; ; pause = min(2*pause, c.o.RetryMax) {
		err := read()
		switch {
		case err == nil, ctx.Err() != nil, errors.Is(err, remote.ErrAuth):
			return err
		case errors.Is(err, remote.ErrNotExist) && !missing:
			missing = true // asked twice, because one answer may come from a bad moment
		case store.IsLost(err), errors.Is(err, store.ErrEpoch):
			return err
		case c.o.Offline >= 0 && time.Since(began)+pause > c.o.Offline:
			return err
		}
		if _, err := c.again.wait(ctx, pause); err != nil {
			return err
		}
	}
}

// Node returns a node: from memory, local commits, the database, or else the
// remote, of which it reads the range that the hint says. The node has been
// checked against its id. It is shared and must not be changed.
func (c *Cache) Node(ctx context.Context, ref store.Ref) (*store.Node, error) {
	n, err := c.LocalNode(ref)
	if !errors.Is(err, ErrNotLocal) {
		return n, err
	}
	if err := c.lost.get(ref.ID); err != nil {
		return nil, err
	}
	return c.nodeFlights.do(ctx, ref.ID, c.start, func(ctx context.Context) (*store.Node, error) {
		n, err := c.fetchNode(ctx, ref)
		if err != nil {
			c.lost.note(ref.ID, err)
			return nil, err
		}
		c.latest.put(ref.ID, n)
		return n, nil
	})
}

// LocalNode is Node without the remote: it returns ErrNotLocal if that had to be asked.
func (c *Cache) LocalNode(ref store.Ref) (*store.Node, error) {
	if n, ok := c.nodes.get(ref.ID); ok {
		return n, nil
	}
	if n, ok := c.latest.get(ref.ID); ok {
		return n, nil
	}
	b, ok, err := c.localNode(ref.ID)
	if err != nil {
		return nil, err
	}
	if ok {
		n, err := c.keepNode(ref.ID, b)
		if err == nil && !c.isLocal(ref.ID) {
			c.nodes.del(ref.ID) // published meanwhile: this one is without the hints that later local commits need
		}
		return n, err
	}
	var n *store.Node
	found, err := c.dbGet(dbKey(keyNode, ref.ID), func(b []byte) (err error) {
		n, err = c.keepNode(ref.ID, b)
		return err
	})
	if err != nil || !found {
		return nil, ErrNotLocal // what the database cannot tell is on the remote
	}
	return n, nil
}

// keepNode checks an encoded node and keeps it in memory.
func (c *Cache) keepNode(id store.ID, b []byte) (*store.Node, error) {
	n, err := c.repo.CheckNode(id, b)
	if err != nil {
		return nil, err
	}
	c.nodes.put(id, n, nodeCost(n))
	return n, nil
}

// fetchNode reads a node from the remote. The others of its group go to the
// database: who reads one node reads its neighbours soon.
func (c *Cache) fetchNode(ctx context.Context, ref store.Ref) (*store.Node, error) {
	h := ref.Hint
	if h.IsZero() {
		h = c.knownHint(ref)
	}
	if h.IsZero() {
		return nil, fmt.Errorf("node %v: %w", ref.ID, store.ErrNotFound)
	}
	if moved := c.movedHint(ctx, ref.ID, h); !moved.IsZero() {
		if b, err := c.nodeFrom(ctx, ref.ID, moved); err == nil {
			return c.keepNode(ref.ID, b)
		}
	}
	b, err := c.nodeFrom(ctx, ref.ID, h)
	if ctx.Err() == nil && err != nil && store.IsLost(err) && c.hasMoved(ctx, ref.ID, &h) {
		b, err = c.nodeFrom(ctx, ref.ID, h)
	}
	if ctx.Err() == nil && err != nil && store.IsLost(err) {
		elsewhere, searchErr := c.search(ctx, ref, []store.Hint{h}, func(h store.Hint) ([]byte, error) { return c.nodeFrom(ctx, ref.ID, h) })
		if searchErr == nil || !store.IsLost(searchErr) {
			b, err = elsewhere, searchErr
		}
	}
	if err != nil {
		return nil, fmt.Errorf("node %v: %w", ref.ID, err)
	}
	return c.keepNode(ref.ID, b)
}

// nodeFrom returns a node from the group of h, or from another of its multichunk:
// one that was repaired has its groups elsewhere.
func (c *Cache) nodeFrom(ctx context.Context, id store.ID, h store.Hint) ([]byte, error) {
	g, err := c.nodeGroup(ctx, h)
	if err != nil && !errors.Is(err, store.ErrCorrupt) {
		return nil, err
	}
	if err == nil && g.Kind() == store.KindNodes {
		if b, ok := g.Find(id); ok {
			return b, nil
		}
	}
	found, tableErr := c.searchTable(ctx, id, h)
	if tableErr != nil {
		return nil, errors.Join(err, tableErr)
	}
	b, ok := found.Find(id)
	if !ok {
		return nil, corruptf("node %v is not where multichunk %v says", id, h.Multichunk)
	}
	return b, nil
}

// nodeGroup reads a group of nodes by range, twice if it is damaged.
func (c *Cache) nodeGroup(ctx context.Context, h store.Hint) (*store.Group, error) {
	if g := c.recent.get(h); g != nil {
		return g, nil
	}
	return c.groupFlights.do(ctx, h, c.start, func(ctx context.Context) (g *store.Group, err error) {
		for range 2 {
			err = c.patiently(ctx, func() (err error) {
				g, err = c.repo.ReadGroup(c.repo.RemoteReader(ctx, h.Multichunk), -1, h)
				return err
			})
			if !errors.Is(err, store.ErrCorrupt) {
				break
			}
		}
		if errors.Is(err, store.ErrCorrupt) {
			if whole, mendErr := c.mend(ctx, h.Multichunk); mendErr == nil {
				g, err = c.repo.ReadGroup(bytesSource(whole), int64(len(whole)), h)
			}
		}
		if err != nil {
			return nil, err
		}
		c.fetched.Add(int64(h.Len))
		c.recent.put(h, g)
		if g.Kind() == store.KindNodes {
			nodes := nodeBatch{c: c}
			for i := range g.Len() {
				nodes.add(g.Chunk(i))
			}
			nodes.flush()
		}
		return g, nil
	})
}

// searchTable returns the group of a node that is not in the group of h.
func (c *Cache) searchTable(ctx context.Context, id store.ID, h store.Hint) (*store.Group, error) {
	var table []store.TableEntry
	err := c.patiently(ctx, func() (err error) {
		_, table, err = c.repo.ReadTable(c.repo.RemoteReader(ctx, h.Multichunk), -1, h.Multichunk)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i := range table {
		if table[i].ID == id && table[i].Hint != h {
			return c.nodeGroup(ctx, table[i].Hint)
		}
	}
	return nil, fmt.Errorf("multichunk %v does not hold it: %w", h.Multichunk, store.ErrNotFound)
}

// Fetched returns how many bytes have been read from the remote since Open.
func (c *Cache) Fetched() int64 { return c.fetched.Load() }

// lost remembers for a short time what could not be had, so that a program that
// reads a damaged file again and again is answered at once.
type lost struct {
	now func() time.Time

	mu   sync.Mutex // guards what
	what map[store.ID]lostItem
}

type lostItem struct {
	err   error
	until time.Time
}

const (
	lostTime = 10 * time.Second
	lostMax  = 10000
)

func (l *lost) get(id store.ID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	item, ok := l.what[id]
	if !ok {
		return nil
	}
	if !l.now().Before(item.until) {
		delete(l.what, id)
		return nil
	}
	return item.err
}

// note remembers err if asking again soon would not help.
func (l *lost) note(id store.ID, err error) {
	if !errors.Is(err, store.ErrCorrupt) && !errors.Is(err, remote.ErrNotExist) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.what == nil || len(l.what) >= lostMax {
		l.what = make(map[store.ID]lostItem)
	}
	l.what[id] = lostItem{err, l.now().Add(lostTime)}
}

// clear forgets all.
func (l *lost) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.what)
}

// forget lets what has been stored again be found again.
func (l *lost) forget(id store.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.what, id)
}

// wires are the multichunks fetched last by a cache without a disk.
type wires struct {
	budget int // bytes

	mu    sync.Mutex // guards all below
	bytes int
	list  []wireItem // the newest last
}

type wireItem struct {
	name store.Name
	wire []byte
}

func (w *wires) get(n store.Name) ([]byte, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.list, func(item wireItem) bool { return item.name == n })
	if i < 0 {
		return nil, false
	}
	item := w.list[i]
	w.list = append(slices.Delete(w.list, i, i+1), item)
	return item.wire, true
}

func (w *wires) put(n store.Name, wire []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, wireItem{n, wire})
	w.bytes += len(wire)
	for w.bytes > w.budget && len(w.list) > 1 {
		w.bytes -= len(w.list[0].wire)
		w.list = slices.Delete(w.list, 0, 1)
	}
}

func (w *wires) drop(n store.Name) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = slices.DeleteFunc(w.list, func(item wireItem) bool {
		if item.name == n {
			w.bytes -= len(item.wire)
		}
		return item.name == n
	})
}
