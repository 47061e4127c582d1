package fs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/store"
	"golang.org/x/sync/errgroup"
)

// pinner keeps on this machine what is pinned: files, and all that is in directories, as they change.
type pinner struct {
	v *Volume

	mu   sync.Mutex // held by who works on pins; guards seen
	seen store.ID   // the state that was looked at last

	stop context.CancelFunc
	done sync.WaitGroup
}

// pinEvery is how often what is pinned is looked through, if something has changed.
const pinEvery = 30 * time.Second

func (p *pinner) start() {
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	p.done.Go(func() {
		for ctx.Err() == nil {
			if err := p.refresh(ctx); err != nil && ctx.Err() == nil {
				p.v.opt.Logger.Warn("not all that is pinned is on this machine", "err", err)
			}
			sleep(ctx, pinEvery)
		}
	})
}

func (p *pinner) close() {
	if p.stop != nil {
		p.stop()
	}
	p.done.Wait()
}

// refresh fetches what is missing of what is pinned.
func (p *pinner) refresh(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	pins := p.v.ca.Pins()
	now := p.v.baseState().root.ID
	if len(pins.Roots) == 0 || now == p.seen && p.v.ca.Info().Missing == 0 {
		return nil
	}
	if err := p.set(ctx, pins.Roots, nil); err != nil {
		return err
	}
	p.seen = now
	return nil
}

// set makes roots all that is pinned, and fetches what is missing of it. p.mu is held.
func (p *pinner) set(ctx context.Context, roots []uint64, progress func(Progress)) error {
	v := p.v
	need := map[store.Name]bool{}
	var there []uint64
	for _, ino := range roots {
		err := v.needs(ctx, v.baseRecords(), Ino(ino), need)
		if errors.Is(err, syscall.ENOENT) {
			continue // it was removed
		}
		if err != nil {
			return err
		}
		there = append(there, ino)
	}
	names := slices.Collect(maps.Keys(need))
	if err := v.ca.SetPins(cache.Pins{Roots: there, Names: names}); err != nil {
		return err
	}
	return v.keep(ctx, names, true, progress)
}

// baseRecords is the state of the last local commit.
func (v *Volume) baseRecords() *snapTree { return v.snapTree("", v.baseState().root) }

// needs adds the multichunks that hold the contents of ino, and of all below it.
func (v *Volume) needs(ctx context.Context, r *snapTree, ino Ino, need map[store.Name]bool) error {
	a, err := loadAttrs(ctx, r, ino)
	if err != nil {
		return err
	}
	switch a.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		return v.needsBelow(ctx, r, ino, need)
	case syscall.S_IFREG:
		m, err := loadExtentMap(ctx, r, ino)
		if err != nil {
			return err
		}
		return v.contentReader(*m).chunks(ctx, 0, func(c chunkAt) bool {
			if h := v.bestHint(c.ref); !h.IsZero() {
				need[h.Multichunk] = true
			}
			return true
		})
	}
	return nil
}

func (v *Volume) needsBelow(ctx context.Context, r *snapTree, dir Ino, need map[store.Name]bool) error {
	var children []Ino
	var bad error
	err := r.scan(ctx, string(key(dir, keyEntry, 0)), prefixEnd(dir, keyEntry), func(_ string, e *store.Entry) bool {
		var ino Ino
		ino, _, bad = parseEntryValue(e.Value)
		children = append(children, ino)
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	for _, ino := range children {
		if err != nil {
			return err
		}
		err = v.needs(ctx, r, ino, need)
	}
	return err
}

// bestHint returns where a chunk is read from: where it is on this machine, if it is.
func (v *Volume) bestHint(ref store.Ref) store.Hint {
	known := v.ca.Hint(ref.ID)
	if known.IsZero() || !ref.Hint.IsZero() && !v.ca.Here(known.Multichunk) && v.ca.Here(ref.Hint.Multichunk) {
		return ref.Hint
	}
	return known
}

// keepWorkers is how many multichunks are fetched at the same time.
const keepWorkers = 4

// keep fetches multichunks that are not here.
func (v *Volume) keep(ctx context.Context, names []store.Name, pinned bool, progress func(Progress)) error {
	names = slices.DeleteFunc(slices.Clone(names), v.ca.Here)
	slices.SortFunc(names, func(a, b store.Name) int { return slices.Compare(a[:], b[:]) })
	size := int64(v.repo.Config().MultichunkSize)
	var mu sync.Mutex // guards at, and orders the calls of progress
	at := Progress{Total: size * int64(len(names))}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(keepWorkers)
	for _, n := range names {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if _, err := v.ca.Keep(ctx, n, pinned); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if at.Done += size; progress != nil {
				progress(at)
			}
			return nil
		})
	}
	return g.Wait()
}

// errPinSnapshot says that a snapshot is no place for a pin.
var errPinSnapshot = fmt.Errorf("a snapshot cannot be pinned, only what is in the volume now; `dedupfs cache warm` fetches it once: %w", syscall.EINVAL)

// Pin keeps ino, and all that is and will be below it, on this machine. It returns when it is here.
func (v *Volume) Pin(ctx context.Context, ino Ino, progress func(Progress)) error {
	if isSnapshotIno(ino) {
		return errPinSnapshot
	}
	if err := v.commitOwn(ctx); err != nil {
		return err
	}
	v.pinner.mu.Lock()
	defer v.pinner.mu.Unlock()
	old := v.ca.Pins()
	roots := old.Roots
	if !slices.Contains(roots, uint64(ino)) {
		roots = append(roots, uint64(ino))
	}
	err := v.pinner.set(ctx, roots, progress)
	if errors.Is(err, cache.ErrPinsFull) || errors.Is(err, syscall.ENOSPC) {
		err = errors.Join(err, v.ca.SetPins(old))
	}
	return err
}

// commitOwn makes a local commit of what has changed here.
func (v *Volume) commitOwn(ctx context.Context) error {
	if v.opt.ReadOnly {
		return nil
	}
	return v.commits.commit(ctx, nil)
}

// ErrNotPinned says that there is nothing to unpin.
var ErrNotPinned = fmt.Errorf("it is not pinned itself; `dedupfs cache info` lists what is: %w", syscall.ENOENT)

// Unpin takes a pin back. What it held stays until its space is needed.
func (v *Volume) Unpin(ctx context.Context, ino Ino) error {
	v.pinner.mu.Lock()
	defer v.pinner.mu.Unlock()
	roots := v.ca.Pins().Roots
	i := slices.Index(roots, uint64(ino))
	if i < 0 {
		return ErrNotPinned
	}
	return v.pinner.set(ctx, slices.Delete(roots, i, i+1), nil)
}

// Pinned returns the paths of what is pinned.
func (v *Volume) Pinned(ctx context.Context) []string {
	paths := []string{}
	for _, ino := range v.ca.Pins().Roots {
		path := v.pathOf(ctx, Ino(ino))
		if Ino(ino) == Root {
			path = "/"
		}
		paths = append(paths, path)
	}
	return paths
}

// needsOf returns the multichunks that hold what ino, which may be in a snapshot, and all below it hold.
func (v *Volume) needsOf(ctx context.Context, ino Ino) ([]store.Name, error) {
	var r *snapTree
	if isSnapshotIno(ino) {
		n, err := v.snapshots.node(ino)
		if err != nil {
			return nil, err
		}
		if n.snap == nil {
			return nil, fmt.Errorf("name one snapshot: %w", syscall.EINVAL)
		}
		r, ino = n.snap, n.ino
	} else if err := v.commitOwn(ctx); err != nil {
		return nil, err
	} else {
		r = v.baseRecords()
	}
	need := map[store.Name]bool{}
	err := v.needs(ctx, r, ino, need)
	return slices.Collect(maps.Keys(need)), err
}

// Warm fetches what ino and all below it hold, once.
func (v *Volume) Warm(ctx context.Context, ino Ino, progress func(Progress)) error {
	names, err := v.needsOf(ctx, ino)
	if err != nil {
		return err
	}
	return v.keep(ctx, names, false, progress)
}

// DropCached removes from this machine what can be fetched again of ino and all below it, or of everything if ino is the root. It
// returns the bytes freed.
func (v *Volume) DropCached(ctx context.Context, ino Ino) (int64, error) {
	if ino == Root {
		return v.ca.DropAll()
	}
	names, err := v.needsOf(ctx, ino)
	return v.ca.Drop(names), err
}

// CacheInfo tells what the local disk is used for.
func (v *Volume) CacheInfo() cache.Info { return v.ca.Info() }

// ResizeCache changes the budget of the local disk, in bytes, for as long as the volume is open.
func (v *Volume) ResizeCache(size int64) error { return v.ca.Resize(size) }
