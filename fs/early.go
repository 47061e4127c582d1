package fs

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// A local commit is one instant of the whole volume, and is published when all that is in it has been uploaded. Where that takes long,
// early commits go before it, so that what is small does not wait for what is large. An early commit has the newest local commit without
// its late files, those of which much is not uploaded yet: they are in it as they were, or not at all, and come with a later commit. For
// this client an early commit is what others have, and the late files are changes of its own beside it, as all that is not published.
//
// Between a late file and others the order of changes is lost. A file for which somebody has asked to keep it is never late (mayBeLate).

// early says what may go before, and remembers what must not.
type early struct {
	late     int64         // bytes of a file that are not uploaded: from so many on it is late; less if others are many
	patience time.Duration // how long uploading may take before early commits are made
	every    time.Duration // how often they are, at least: files stop being late
	longest  time.Duration // how long nothing but early commits is published

	newer chan struct{} // one place: there is a newer local commit
	root  atomic.Pointer[store.Ref]

	looked time.Duration // how long it last took to find what is late; who publishes has it

	mu      sync.Mutex        // guards what follows
	since   time.Time         // of the first early commit since all was published; zero if there is none
	waits   bool              // what an earlier mount has left is to be published first
	ordered map[Ino]cache.Pos // files and directories that were synced, at which end of the log
	tooMany cache.Pos         // if they were too many: when that was last so
}

// maxOrdered is how many synced files are remembered. If there are more, nothing goes before them.
const maxOrdered = 1 << 16

func newEarly() *early {
	return &early{late: 8 << 20, patience: time.Second, every: 10 * time.Second, longest: time.Hour,
		newer: make(chan struct{}, 1), ordered: map[Ino]cache.Pos{}}
}

// synced notes that somebody wants what ino is now to be there before all that comes after.
func (e *early) synced(ino Ino, end cache.Pos) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, known := e.ordered[ino]; known || len(e.ordered) < maxOrdered {
		e.ordered[ino] = end
		return
	}
	e.tooMany = max(e.tooMany, end)
}

// published notes that all before cut is on the remote.
func (e *early) published(cut cache.Pos) {
	e.root.Store(nil)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.since, e.waits = time.Time{}, false
	maps.DeleteFunc(e.ordered, func(_ Ino, end cache.Pos) bool { return end <= cut })
	if e.tooMany <= cut {
		e.tooMany = 0
	}
}

// wentBefore notes that an early commit is on the remote.
func (e *early) wentBefore(root store.Ref) {
	e.root.Store(&root)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.since.IsZero() {
		e.since = time.Now()
	}
}

// allowed reports whether early commits may be made now.
func (e *early) allowed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.waits && (e.since.IsZero() || time.Since(e.since) < e.longest)
}

// isOrdered reports whether somebody has synced ino since it was published.
func (e *early) isOrdered(ino Ino) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.ordered[ino]
	return ok || e.tooMany > 0
}

// uploadBeside returns when all that is pending now is on the remote. If that takes long, early commits are made.
func (c *committer) uploadBeside(ctx context.Context, progress func(done, total int64)) error {
	done := make(chan error, 1)
	go func() { done <- c.v.ca.UploadPending(ctx, progress) }()
	t := time.NewTimer(c.early.patience)
	defer t.Stop()
	var newer chan struct{} // nil: patience is not at its end
	for {
		select {
		case err := <-done:
			return err
		case <-newer:
		case <-t.C:
		}
		if err := c.publishEarly(ctx); err != nil && ctx.Err() == nil {
			c.v.opt.Logger.Info("nothing was published before large files are uploaded", "err", err)
		}
		select { // looking must not become all that is done
		case err := <-done:
			return err
		case <-time.After(9 * c.early.looked):
		}
		newer = c.early.newer
		t.Reset(c.early.every)
	}
}

// publishEarly publishes the newest local commit without its late files, if there are any and there is something else. Who publishes
// calls it.
func (c *committer) publishEarly(ctx context.Context) error {
	v := c.v
	if !c.early.allowed() || c.copied.Load() || v.member.isEvicted() {
		return nil
	}
	begin := time.Now()
	position, newest, n := v.newestLocal()
	lc := &lazyCommit{ca: v.ca}
	defer lc.discard()
	red := reducer{v.commitsThatCount(), v.merger(lc)}
	before, err := red.stateOf(ctx, position)
	if err != nil {
		return err
	}
	root, ok, err := v.withoutLate(ctx, lc, before.root, newest.root)
	c.early.looked = time.Since(begin)
	if err != nil || !ok || root.ID == before.root.ID {
		return err
	}
	pub, err := v.ca.PackEarly(ctx, n, root, before.snaps, lc.begin())
	if err != nil {
		return err
	}
	if _, err := v.publishCommit(ctx, pub); err != nil {
		return err
	}
	if err := v.ca.PublishedEarly(pub); err != nil {
		return err
	}
	c.early.wentBefore(pub.Root)
	return nil
}

// newestLocal returns the newest local commit: what it contains of others, its state, and its number.
func (v *Volume) newestLocal() (position history, state volumeState, n uint64) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	_, _, _, _, n, _, _ = v.ca.LastCommit()
	return v.position(), volumeState{v.base.Root(), v.snapMap}, n
}

// earlyTree turns the newest state into that of an early commit.
type earlyTree struct {
	v           *Volume
	before, now records
	edits       edits // of one file, that make it again what it was before
}

// withoutLate returns the state now with late files as they are in the state before. It is not ok if there are none.
func (v *Volume) withoutLate(ctx context.Context, nodes tree.Store, before, now store.Ref) (root store.Ref, ok bool, err error) {
	from, to := tree.New(nodes, before, v.treeOptionsPast()), tree.New(nodes, now, v.treeOptions())
	late, err := v.lateFiles(ctx, from, to)
	if err != nil || len(late) == 0 {
		return store.Ref{}, false, err
	}
	all := edits{}
	for _, ino := range late {
		t := &earlyTree{v, &layered{base: from}, &layered{base: to}, edits{}}
		ok, err := t.leaveOut(ctx, ino)
		if err != nil {
			return store.Ref{}, false, err
		}
		if ok {
			maps.Copy(all, t.edits)
		}
	}
	if len(all) == 0 {
		return store.Ref{}, false, nil
	}
	root, err = to.Apply(ctx, slices.Values(all.sorted()))
	return root, err == nil, err
}

// pendingFile is a changed file that is not all on the remote.
type pendingFile struct {
	ino Ino
	n   int64 // bytes that are not there, at most early.late
}

// lateFiles returns the files of which much is new, and not on the remote. What is left has to be uploaded before an early commit: if
// that is more than a few large files, because there are many, less makes a file late.
func (v *Volume) lateFiles(ctx context.Context, before, now *tree.Tree) (late []Ino, err error) {
	most := v.commits.early.late
	least := most / 64
	var files []pendingFile
	var left int64
	err = tree.Diff(ctx, before, now, func(k []byte, _, e *store.Entry) error {
		ino, kind, _, ok := splitKey(string(k))
		if !ok || kind != keyContent || e == nil {
			return nil
		}
		m, err := parseExtentMap(e)
		if err != nil || int64(m.Allocated) < least {
			return err
		}
		n, err := v.ca.PendingBelow(ctx, m.Ref, most)
		if n >= least {
			files = append(files, pendingFile{ino, n})
			left += n
		}
		return err
	})
	for limit := most; limit == most || limit >= least && left > 2*most; limit /= 8 {
		files = slices.DeleteFunc(files, func(f pendingFile) bool {
			if f.n >= limit {
				late = append(late, f.ino)
				left -= f.n
			}
			return f.n >= limit
		})
	}
	return late, err
}

// leaveOut makes a late file what it was before. It is not ok if the file must not be late: then it is waited for.
func (t *earlyTree) leaveOut(ctx context.Context, ino Ino) (ok bool, err error) {
	was, err := loadVersion(ctx, t.before, ino)
	if err != nil {
		return false, err
	}
	is, err := loadVersion(ctx, t.now, ino)
	if err != nil || !t.v.mayBeLate(ino, &is) {
		return false, err
	}
	if was.attrs != nil {
		// Where it has moved, its old content would be neither the old state nor the new one.
		t.replace(&is, &was)
		return slices.Equal(was.links, is.links), nil
	}
	for _, l := range is.links {
		if ok, err := t.giveBack(ctx, ino, l); !ok || err != nil {
			return false, err
		}
	}
	t.replace(&is, &version{})
	return true, nil
}

// mayBeLate reports whether others may see later changes before those of a file. Who syncs a file or its directory has said no, and who
// lets nobody write to it has finished it, and goes on to refer to it: as git does with its objects.
func (v *Volume) mayBeLate(ino Ino, is *version) bool {
	e := v.commits.early
	return is.attrs != nil && is.attrs.Mode&0o222 != 0 && ino&mergeClass == 0 && !e.isOrdered(ino) &&
		!slices.ContainsFunc(is.links, func(l nameIn) bool { return e.isOrdered(l.parent) })
}

// replace has the records of one version of an inode in the place of another's.
func (t *earlyTree) replace(is, was *version) {
	for k := range is.records {
		t.edits[k] = nil
	}
	for k, e := range was.records {
		t.edits[k] = e
	}
}

// giveBack takes a name from a file that was not there before, and gives it back to the file that had it: others see the old file or the
// new one, never none. It is not ok if that one has another name now, or had.
func (t *earlyTree) giveBack(ctx context.Context, ino Ino, l nameIn) (ok bool, err error) {
	t.edits[linkKey(ino, l.parent, []byte(l.name))] = nil
	at, _, err := t.v.find(ctx, t.now, l.parent, []byte(l.name))
	if err != nil || at == nil {
		return false, err
	}
	t.edits[at.key] = nil
	had, _, err := t.v.find(ctx, t.before, l.parent, []byte(l.name))
	if err != nil || had == nil {
		return err == nil, err
	}
	was, err := loadVersion(ctx, t.before, had.ino)
	if err != nil {
		return false, err
	}
	is, err := loadVersion(ctx, t.now, had.ino)
	if err != nil || had.isDir() || len(was.links) != 1 || len(is.links) > 0 {
		return false, err
	}
	t.replace(&is, &was)
	k := linkKey(had.ino, l.parent, []byte(l.name))
	t.edits[k] = &store.Entry{Key: []byte(k)}
	t.edits[at.key] = &store.Entry{Key: []byte(at.key), Value: entryValue(had.ino, had.mode)}
	return true, nil
}

// wentEarly reports whether the last early commit has a file as it is in base.
func (v *Volume) wentEarly(ctx context.Context, base *tree.Tree, ino Ino) (bool, error) {
	root := v.commits.early.root.Load()
	if root == nil {
		return false, nil
	}
	there, here := layered{base: v.localTree(*root)}, layered{base: base}
	for _, k := range []string{inodeKey(ino), contentKey(ino)} {
		x, err := there.get(ctx, k)
		if err != nil {
			return false, err
		}
		y, err := here.get(ctx, k)
		if err != nil || !sameRecord(x, y) {
			return false, err
		}
	}
	return true, nil
}
