package fs

import (
	"context"
	"sync"
	"syscall"

	"github.com/dedupfs/dedupfs/cache"
)

// inode is a file that is open, has changed content, or has been unlinked while the kernel still knows it. All others
// are records only.
type inode struct {
	ino Ino

	mu      sync.RWMutex // guards what follows; acquired after Volume.mu
	attrs   attrs
	content *extentMap // what lies below the layers; nil until it is needed
	active  *layer     // changes since the last cut; nil if none
	frozen  *layer     // changes of the cut that is being committed; nil if none
	logged  bool       // the attributes stand in the overlay and the log since the last cut
	stale   bool       // the attributes changed since they were put into the overlay
	orphan  bool       // has no name any more, or never had one: its records go when nobody uses it
	cutOff  bool       // another client's state has taken its place: it has no records, and goes when nobody uses it

	opens, writers int // guarded by Volume.mu
}

func (in *inode) isDir() bool { return in.attrs.Mode&syscall.S_IFMT == syscall.S_IFDIR }

// layers returns the layers that are there, the newest first. in.mu must be held.
func (in *inode) layers() []*layer {
	ls := make([]*layer, 0, 2)
	for _, l := range []*layer{in.active, in.frozen} {
		if !l.empty() {
			ls = append(ls, l)
		}
	}
	return ls
}

// layer returns the layer for new changes. in.mu must be held.
func (in *inode) layer(log retainer) *layer {
	if in.active == nil {
		in.active = newLayer(log)
	}
	return in.active
}

// apply is the one door for changes of a content; what it is given is in the log. in.mu must be held.
func (in *inode) apply(op contentOp) {
	l := in.active
	switch {
	case op.truncate:
		l.truncate(op.off)
	case op.src != nil:
		l.put(extent{off: op.off, n: op.n, from: fromCopy, pos: cache.Pos(op.at), src: op.src})
	default:
		l.put(extent{off: op.off, n: op.n, from: fromHole})
	}
}

// load returns the inode in the table for ino, made from its record if need be. Volume.mu must be held exclusively.
func (t *tx) load(ino Ino) (*inode, error) {
	if in := t.v.table[ino]; in != nil {
		t.lock(in)
		return in, nil
	}
	a, err := loadAttrs(t.ctx, t.layered, ino)
	if err != nil {
		return nil, err
	}
	if a.Nlink == 0 {
		return nil, syscall.ENOENT // nobody uses it any more, and its records are about to go
	}
	in := &inode{ino: ino, attrs: *a}
	t.lock(in)
	t.v.table[ino] = in
	return in, nil
}

// loadContent returns what lies below in's layers.
func (t *tx) loadContent(in *inode) (*extentMap, error) {
	if in.content == nil {
		m, err := loadExtentMap(t.ctx, t.layered, in.ino)
		if err != nil {
			return nil, err
		}
		in.content = m
	}
	return in.content, nil
}

func loadExtentMap(ctx context.Context, r records, ino Ino) (*extentMap, error) {
	e, err := r.get(ctx, contentKey(ino))
	if err != nil {
		return nil, err
	}
	m, err := parseExtentMap(e)
	return &m, err
}

// ensureContent loads what lies below in's layers, without any lock held by the caller.
func (v *Volume) ensureContent(ctx context.Context, in *inode) error {
	in.mu.RLock()
	have := in.content != nil
	in.mu.RUnlock()
	if have {
		return nil
	}
	return v.view(ctx, func(r *layered) error {
		in.mu.Lock()
		defer in.mu.Unlock()
		if in.content != nil {
			return nil
		}
		m, err := loadExtentMap(ctx, r, in.ino)
		if err == nil {
			in.content = m
		}
		return err
	})
}

// lockContent takes l, which is in.mu in one of its modes, with what lies below in's layers loaded: taking over another client's
// state may drop it again before the lock is held. The remote is called without any lock.
func (v *Volume) lockContent(ctx context.Context, in *inode, l sync.Locker) error {
	for {
		if err := v.ensureContent(ctx, in); err != nil {
			return err
		}
		l.Lock()
		if in.content != nil {
			return nil
		}
		l.Unlock()
	}
}

func (v *Volume) markDirty(in *inode) {
	v.dirtyMu.Lock()
	v.dirty[in] = struct{}{}
	v.dirtyMu.Unlock()
}

// settle drops in from the table when nothing needs it there. Volume.mu must be held exclusively, in.mu not.
func (v *Volume) settle(in *inode) {
	in.mu.Lock()
	defer in.mu.Unlock()
	lost := in.orphan || in.cutOff
	if in.opens > 0 || lost && v.lookups.get(in.ino) > 0 {
		return
	}
	if !lost && (in.stale || !in.active.empty() || in.frozen != nil) {
		return
	}
	if lost {
		// Nobody can reach it any more. A layer that a flush is reading is given back when the flush is over.
		in.active.releaseAll()
		in.active = nil
		v.dirtyMu.Lock()
		delete(v.dirty, in)
		v.dirtyMu.Unlock()
	}
	delete(v.cutOffs, in)
	if v.table[in.ino] == in {
		delete(v.table, in.ino)
		if in.orphan {
			v.unused = append(v.unused, in.ino)
			v.changed()
		}
	}
}

// lookupCounts counts how often the kernel has been told of an inode. Most of the memory that a million known files
// cost is here, so it is a map of small numbers and nothing more.
type lookupCounts struct {
	stripe [16]struct {
		mu sync.Mutex
		n  map[Ino]uint32
	}
}

func (c *lookupCounts) add(ino Ino) {
	s := &c.stripe[ino%16]
	s.mu.Lock()
	if s.n == nil {
		s.n = map[Ino]uint32{}
	}
	s.n[ino]++
	s.mu.Unlock()
}

func (c *lookupCounts) get(ino Ino) uint32 {
	s := &c.stripe[ino%16]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n[ino]
}

// sub takes n look-ups back and reports whether none is left.
func (c *lookupCounts) sub(ino Ino, n uint64) bool {
	s := &c.stripe[ino%16]
	s.mu.Lock()
	defer s.mu.Unlock()
	if uint64(s.n[ino]) > n {
		s.n[ino] -= uint32(n)
		return false
	}
	delete(s.n, ino)
	return true
}

// Forget takes back n look-ups of ino.
func (v *Volume) Forget(ino Ino, n uint64) {
	if !v.lookups.sub(ino, n) {
		return
	}
	if isSnapshotIno(ino) {
		v.snapshots.forget(ino)
		return
	}
	v.mu.RLock()
	in := v.table[ino]
	v.mu.RUnlock()
	if in == nil {
		return
	}
	v.mu.Lock()
	v.settle(in)
	v.mu.Unlock()
}
