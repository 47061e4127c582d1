package fs

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
	"golang.org/x/sync/errgroup"
)

// committer turns changes into local commits, and local commits into commits on the remote.
type committer struct {
	v *Volume

	mu   waitLock // held by who makes a local commit, which takes long under a processor limit; guards cut
	cut_ *cut     // a cut whose commit has not been finished; nil if none

	publishMu waitLock // held by who publishes; acquired before mu where both are needed

	first, last atomic.Int64  // times of the first and last change since the cut, Unix nanoseconds; first is 0 if there was none
	poke        chan struct{} // one place: look at the clock again
	urgent      atomic.Bool   // do not wait for quiet
	publish     chan struct{} // one place: there is something to publish
	again       chan struct{} // one place: publishing is to be tried again now

	synced   atomic.Int64 // when last all was on the remote, Unix nanoseconds
	lastErr  atomic.Pointer[error]
	unstable atomic.Bool // there are local commits that are not published
	copied   atomic.Bool // nothing is published any more: see ErrCopied
	seen     seenOf      // what local commits have seen that are older than the last merge
	early    *early
	moment   time.Duration // how long following waits for uploads that it can do without
	waiting  atomic.Int32  // who waits for a publication
	lost     sync.Map      // numbers of the files that tellLost has told of

	stop context.CancelFunc
	done sync.WaitGroup
}

// waitLock is a lock of one place. Who holds it may take long, so waiting for it ends with a context.
type waitLock chan struct{}

func (l waitLock) lock(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hold is lock for what must be done in any case.
func (l waitLock) hold()   { l <- struct{}{} }
func (l waitLock) unlock() { <-l }

func newCommitter(v *Volume) *committer {
	return &committer{v: v, mu: make(waitLock, 1), publishMu: make(waitLock, 1), poke: make(chan struct{}, 1), publish: make(chan struct{}, 1), again: make(chan struct{}, 1), early: newEarly(), moment: time.Second}
}

// start runs the background work until the committer is closed.
func (c *committer) start() {
	ctx, cancel := context.WithCancel(context.Background())
	c.stop = cancel
	c.done.Go(func() { c.commitLoop(ctx) })
	c.done.Go(func() { c.publishLoop(ctx) })
}

func (c *committer) close() {
	if c.stop != nil {
		c.stop()
	}
	c.done.Wait()
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// changed notes a change of the volume. The caller holds cutMu.
func (v *Volume) changed() {
	c := v.commits
	now := time.Now().UnixNano()
	c.last.Store(now)
	if c.first.CompareAndSwap(0, now) {
		signal(c.poke)
	}
	if v.staged.Load() > v.dirtyBytes() {
		c.hurry()
	}
}

// soonBytes are the staged bytes that force a commit where the processor is limited: what is not begun with, while requests leave
// some of the limit, has to be done later.
const soonBytes = 64 << 20

// dirtyBytes returns the staged bytes that force a commit now.
func (v *Volume) dirtyBytes() int64 {
	if v.repo.Pacer().Limited() {
		return min(v.opt.DirtyBytes, soonBytes)
	}
	return v.opt.DirtyBytes
}

// hurry makes the next commit come at once.
func (c *committer) hurry() {
	if !c.urgent.Swap(true) {
		signal(c.poke)
	}
}

// pressure is called when the log takes much of the disk budget.
func (v *Volume) pressure() {
	c := v.commits
	if c.first.Load() != 0 {
		c.hurry()
	}
	signal(c.publish)
}

// due returns how long to wait before the next commit; ok is false if nothing has changed.
func (c *committer) due() (wait time.Duration, ok bool) {
	first := c.first.Load()
	if first == 0 {
		return 0, false
	}
	if c.urgent.Load() {
		return 0, true
	}
	quiet := time.Unix(0, c.last.Load()).Add(c.v.opt.CommitAfter)
	longest := time.Unix(0, first).Add(c.v.opt.CommitEvery)
	if longest.Before(quiet) {
		quiet = longest
	}
	return time.Until(quiet), true
}

func (c *committer) commitLoop(ctx context.Context) {
	c.v.repo.Pacer().Worker()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait, ok := c.due()
		if !ok {
			wait = time.Hour
		}
		timer.Reset(max(wait, 0))
		select {
		case <-ctx.Done():
			return
		case <-c.poke:
			continue
		case <-timer.C:
		}
		if wait, ok := c.due(); !ok || wait > 0 {
			continue
		}
		if err := c.commit(ctx, nil); err != nil && ctx.Err() == nil {
			c.v.opt.Logger.Error("commit failed; it will be tried again", "err", err)
			sleep(ctx, 5*time.Second)
		}
	}
}

func (c *committer) publishLoop(ctx context.Context) {
	c.v.repo.Pacer().Worker()
	pause := time.Second
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.publish:
		}
		err := c.publishAll(ctx, nil)
		if err == nil || ctx.Err() != nil {
			pause = time.Second
			continue
		}
		c.v.opt.Logger.Warn("publishing failed; it will be tried again", "err", err, "in", pause)
		if c.pause(ctx, pause) {
			pause = time.Second
		} else {
			pause = min(2*pause, publishPause(err))
		}
		signal(c.publish)
	}
}

// publishPause is how long publishing waits at most after err. In a full remote little is tried, and garbage collection waits for it.
func publishPause(err error) time.Duration {
	if isFull(err) {
		return 10 * time.Second
	}
	return time.Minute
}

// pause waits for d, or until somebody says that the remote is there again, which it reports.
func (c *committer) pause(ctx context.Context, d time.Duration) (early bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c.again:
		return true
	case <-ctx.Done():
	case <-t.C:
	}
	return false
}

// tryAgain ends all pauses that were made because the remote was away.
func (v *Volume) tryAgain() {
	v.ca.Again()
	signal(v.commits.again)
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// cut is the state of the volume at one instant, on its way to becoming a local commit.
type cut struct {
	pos   cache.Pos // what the log has before it is part of this state
	files []*frozenFile
	lc    *cache.LocalCommit
}

// startOver forgets what has been flushed: the local commit that had the nodes of it is gone.
func (c *cut) startOver(lc *cache.LocalCommit) {
	c.lc = lc
	for _, f := range c.files {
		f.flushed = nil
	}
}

// frozenFile is a file whose content changed before the cut.
type frozenFile struct {
	in    *inode
	layer *layer
	size  int64
	base  extentMap // below the layer; set when flushing begins

	flushed *extentMap // the new content, whose nodes can be read when the local commit is finished
}

// takeCut freezes what has changed. Every change answered before is in it, none after. It returns nil if nothing has
// changed, unless a cut is wanted even so.
func (v *Volume) takeCut(even bool) *cut {
	v.cutMu.Lock()
	defer v.cutMu.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	c := &cut{}
	for _, in := range v.takeDirty() {
		in.mu.Lock()
		v.freeze(c, in)
		in.mu.Unlock()
	}
	for _, in := range v.table {
		in.mu.Lock()
		in.logged = false
		in.mu.Unlock()
	}
	v.commits.first.Store(0)
	v.commits.urgent.Store(false)
	v.staged.Store(0)
	if v.active.len() == 0 && !even {
		return nil
	}
	v.frozen, v.active = v.active, newOverlay()
	c.pos = v.log.End()
	c.lc = v.ca.NewLocalCommit()
	return c
}

// takeDirty empties the list of dirty inodes. What has no records stays: it is nobody's but its openers'.
func (v *Volume) takeDirty() (ins []*inode) {
	v.dirtyMu.Lock()
	defer v.dirtyMu.Unlock()
	for in := range v.dirty {
		if !in.cutOff {
			delete(v.dirty, in)
			ins = append(ins, in)
		}
	}
	// What was made together is stored together, and read together later.
	slices.SortFunc(ins, func(a, b *inode) int { return cmp.Compare(a.ino, b.ino) })
	return ins
}

// freeze puts a dirty inode into the cut. All its locks are held.
func (v *Volume) freeze(c *cut, in *inode) {
	if in.stale {
		e := &store.Entry{Key: []byte(inodeKey(in.ino)), Value: appendAttrs(nil, &in.attrs)}
		v.active.set(string(e.Key), e)
		in.stale = false
	}
	if in.active.empty() {
		return
	}
	if in.frozen != nil {
		panic("fs: a file is frozen twice")
	}
	in.frozen, in.active = in.active, nil
	c.files = append(c.files, &frozenFile{in: in, layer: in.frozen, size: int64(in.attrs.Size)})
}

// commit makes a local commit of all changes so far. edit, if not nil, changes the map of snapshots as part of it, and
// is called even if nothing else changed.
func (c *committer) commit(ctx context.Context, edit snapshotEdit) error {
	if err := c.mu.lock(ctx); err != nil {
		return err
	}
	defer c.mu.unlock()
	if err := c.finishCut(ctx); err != nil {
		return err
	}
	if err := c.v.dropUnused(ctx); err != nil {
		c.v.opt.Logger.Warn("records of unlinked files stay for now", "err", err) // a commit is what makes room
	}
	return c.commitLocked(ctx, edit)
}

// finishCut finishes a commit that has failed half-way. c.mu is held.
func (c *committer) finishCut(ctx context.Context) error {
	if c.cut_ == nil {
		return nil
	}
	return c.finish(ctx, c.cut_, nil)
}

// commitLocked is commit with c.mu held. It changes nothing itself, so it works while changes are held back.
func (c *committer) commitLocked(ctx context.Context, edit snapshotEdit) error {
	if err := c.finishCut(ctx); err != nil {
		return err
	}
	cut := c.v.takeCut(edit != nil)
	if cut == nil {
		return nil
	}
	c.cut_ = cut
	return c.finish(ctx, cut, edit)
}

// finish makes a local commit of a cut. It may be called again after it has failed: what was done stays done.
func (c *committer) finish(ctx context.Context, cut *cut, edit snapshotEdit) error {
	v := c.v
	if err := c.flushFiles(ctx, cut); err != nil {
		return err
	}
	v.mu.RLock()
	frozen, base, snaps := v.frozen, v.base.Root(), v.snapMap
	v.mu.RUnlock()
	root, err := tree.New(cut.lc, base, v.treeOptions()).Apply(ctx, frozen.edits())
	if err != nil {
		return fmt.Errorf("write the tree: %w", err)
	}
	snaps = v.enterPast(ctx, cut.lc, snaps, root)
	if edit != nil {
		if snaps, err = edit(ctx, cut.lc, snaps, root); err != nil {
			if root.ID == base.ID && len(cut.files) == 0 {
				c.drop(cut) // there is nothing to commit
			}
			return err
		}
	}
	if err := cut.lc.Finish(root, snaps, cut.pos, nil); err != nil {
		cut.startOver(v.ca.NewLocalCommit())
		return fmt.Errorf("write the local commit: %w", err)
	}
	c.unstable.Store(true)
	v.rebase(cut, root, snaps)
	c.cut_ = nil
	v.roots.learn(frozen)
	c.tellPublisher()
	return nil
}

// tellPublisher says that there is a newer local commit.
func (c *committer) tellPublisher() {
	signal(c.publish)
	signal(c.early.newer)
}

// drop gives up a cut in which nothing has changed.
func (c *committer) drop(cut *cut) {
	cut.lc.Discard()
	c.v.mu.Lock()
	c.v.frozen = nil
	c.v.mu.Unlock()
	c.cut_ = nil
}

// edits yields the records of the overlay as changes of a tree.
func (o *overlay) edits() iter.Seq[tree.Edit] {
	return func(yield func(tree.Edit) bool) {
		o.t.Scan(func(c change) bool { return yield(tree.Edit{Key: []byte(c.key), Entry: c.entry}) })
	}
}

// flushWorkers is how many files are cut at the same time.
const flushWorkers = 2

// flushFiles stores what is small before what is large, and each in multichunks of its own, so that what is small can be uploaded first;
// of a cut that has much, too, nothing is in one with what comes later.
func (c *committer) flushFiles(ctx context.Context, cut *cut) error {
	var small, large []*frozenFile
	sum := int64(0)
	for _, f := range cut.files {
		sum += f.layer.data
		if f.layer.data < c.early.late {
			small = append(small, f)
		} else {
			large = append(large, f)
		}
	}
	for _, files := range [][]*frozenFile{small, large} {
		if err := c.flushEach(ctx, cut, files); err != nil {
			return err
		}
		if len(files) > 0 && sum >= c.early.late {
			if err := c.v.ca.SealChunks(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *committer) flushEach(ctx context.Context, cut *cut, files []*frozenFile) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(flushWorkers)
	for _, f := range files {
		if f.flushed != nil {
			continue // by an earlier try
		}
		g.Go(func() error {
			c.v.repo.Pacer().Worker()
			return c.flushFile(ctx, cut, f)
		})
	}
	return g.Wait()
}

func (c *committer) flushFile(ctx context.Context, cut *cut, f *frozenFile) error {
	v, in := c.v, f.in
	if err := v.lockContent(ctx, in, in.mu.RLocker()); err != nil {
		return err
	}
	f.base = *in.content
	in.mu.RUnlock()
	m, err := v.flush(ctx, f, cut.lc)
	if err != nil {
		return fmt.Errorf("store %q: %w", v.pathOf(ctx, in.ino), err)
	}
	v.mu.Lock()
	v.frozen.set(contentKey(in.ino), m.entry(in.ino))
	v.mu.Unlock()
	f.flushed = &m
	return nil
}

// rebase puts a finished local commit below everything: from now on it is read instead of what was frozen.
func (v *Volume) rebase(cut *cut, root, snaps store.Ref) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if root.ID != v.base.Root().ID {
		v.baseMade = v.stampNow()
	}
	v.base, v.frozen, v.snapMap = v.localTree(root), nil, snaps
	for _, f := range cut.files {
		f.in.mu.Lock()
		f.in.content, f.in.frozen = f.flushed, nil
		f.in.mu.Unlock()
		f.layer.releaseAll()
	}
	for _, in := range v.table {
		if in.opens == 0 {
			v.settle(in)
		}
	}
}

// Progress tells how much of what must go to the remote is there.
type Progress struct {
	Done, Total int64 // bytes
}

// Sync makes everything so far durable on the remote, and looks for what other clients have published.
func (v *Volume) Sync(ctx context.Context, progress func(Progress)) error {
	if v.opt.Snapshot != "" {
		return nil
	}
	v.tryAgain()
	if !v.opt.ReadOnly && v.ca.Pending().Bytes+v.staged.Load() > longUpload && !v.follower.alone() {
		_ = v.follower.poll(ctx, besideUploads) // others' changes need not wait; what fails here is met again
	}
	if err := v.syncOwn(ctx, progress); err != nil {
		return err
	}
	return v.follower.poll(ctx, afterUploads)
}

// longUpload is how many bytes are worth a look at others before they are uploaded.
const longUpload = 16 << 20

// syncOwn makes everything so far durable on the remote. Unlike Sync it does not touch the kernel's caches, so that a
// request may wait for it.
func (v *Volume) syncOwn(ctx context.Context, progress func(Progress)) error {
	if v.opt.ReadOnly {
		return nil
	}
	if err := v.commits.commit(ctx, nil); err != nil {
		return err
	}
	return v.commits.publishAll(ctx, progress)
}

// publishAll brings the newest local commit to the remote. It returns when it is there.
func (c *committer) publishAll(ctx context.Context, progress func(Progress)) error {
	c.waiting.Add(1)
	err := c.publishMu.lock(ctx)
	c.waiting.Add(-1)
	if err != nil {
		return err
	}
	defer c.publishMu.unlock()
	err = c.publishNewest(ctx, progress)
	c.lastErr.Store(&err)
	return err
}

func (c *committer) publishNewest(ctx context.Context, progress func(Progress)) error {
	v := c.v
	if c.copied.Load() {
		return ErrCopied
	}
	if v.member.isEvicted() {
		return ErrEvicted
	}
	if err := v.member.register(ctx); err != nil {
		return err
	}
	if err := v.finishIntent(ctx); err != nil {
		return err
	}
	if v.allPublished() {
		if err := v.member.answer(ctx); err != nil {
			return err
		}
		c.synced.Store(time.Now().UnixNano())
		return nil
	}
	if full := v.ca.RemoteFull(); full != nil {
		return c.publishInFull(ctx, full)
	}
	tell := func(done, total int64) {
		if progress != nil {
			progress(Progress{done, total})
		}
	}
	for !v.opt.InOrder && v.ca.Pending().Bytes >= c.early.late && c.early.allowed() {
		if err := c.uploadBeside(ctx, tell); err != nil {
			return fmt.Errorf("upload: %w", err)
		}
		if c.waiting.Load() > 0 {
			break // who waits does not want what others write meanwhile
		}
	}
	pub, err := v.ca.PackForPublication(ctx, tell)
	if err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	made, err := v.publishCommit(ctx, pub)
	if err != nil {
		return err
	}
	c.mu.hold()
	err = c.notePublished(pub, made)
	c.mu.unlock()
	if err != nil {
		return err
	}
	if v.allPublished() {
		c.unstable.Store(false)
		c.synced.Store(time.Now().UnixNano())
	}
	return nil
}

// allPublished reports whether the newest local commit is on the remote.
func (v *Volume) allPublished() bool {
	_, _, _, _, _, published, ok := v.ca.LastCommit()
	return published || !ok
}

// notePublished lets go of what has been published. No local commit is made meanwhile, for which c.mu is held: it would start from
// references whose hints are not filled in yet, and whose nodes are no longer local.
func (c *committer) notePublished(pub *cache.Publication, made stamp) error {
	if err := c.v.ca.Published(pub); err != nil {
		return err
	}
	c.v.adoptPublished(pub, made)
	c.seen.published(pub.N)
	c.early.published(pub.Cut)
	return nil
}

// adoptPublished gives the base, if it is still the base, and open files the hints that publication has found. From now on the base is
// as old for this client as for all others.
func (v *Volume) adoptPublished(pub *cache.Publication, made stamp) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.base.Root().ID == pub.Root.ID {
		v.base, v.baseMade = v.localTree(pub.Root), made
	}
	if v.snapMap.ID == pub.Snapshots.ID {
		v.snapMap = pub.Snapshots
	}
	for _, in := range v.table {
		in.mu.Lock()
		if m := in.content; m != nil && m.Ref.Hint.IsZero() {
			hinted := *m
			hinted.Ref.Hint = v.ca.HintIn(pub, m.Ref)
			in.content = &hinted
		}
		in.mu.Unlock()
	}
}
