package fs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// follower looks for what other clients have published. Until two histories can be merged, it takes over another client's
// state only when this client has no changes that the other has not seen; otherwise it stays, and says that it has
// diverged.
type follower struct {
	v *Volume

	pollMu sync.Mutex // held by who polls

	mu       sync.Mutex // guards what follows
	diverged bool
	heads    []store.Head // of all clients, as last seen
	lastPoll time.Time
	lastErr  error
	history  error // why the history on the remote is not what was seen before; nil if it is

	stop context.CancelFunc
	done sync.WaitGroup
}

func newFollower(v *Volume) *follower { return &follower{v: v} }

func (f *follower) start() {
	if f.v.opt.Poll < 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.stop = cancel
	f.done.Go(func() { f.loop(ctx) })
}

func (f *follower) close() {
	if f.stop != nil {
		f.stop()
	}
	f.done.Wait()
}

func (f *follower) loop(ctx context.Context) {
	for {
		sleep(ctx, f.v.opt.Poll)
		if ctx.Err() != nil {
			return
		}
		if err := f.poll(ctx); err != nil && ctx.Err() == nil {
			f.v.opt.Logger.Warn("looking for other clients' commits failed", "err", err)
		}
	}
}

// poll looks at the heads of all clients, and takes over the newest state if that loses nothing.
func (f *follower) poll(ctx context.Context) error {
	f.pollMu.Lock()
	defer f.pollMu.Unlock()
	heads, err := f.v.pollHeads(ctx)
	f.mu.Lock()
	f.lastPoll, f.lastErr = time.Now(), err
	if err == nil {
		f.heads = heads
	}
	f.mu.Unlock()
	if err != nil {
		return err
	}
	return f.follow(ctx, heads)
}

// pollHeads asks the repository and keeps what has been accepted. A history that was rolled back or forked is an error
// for who writes; a reader is told and goes on with what there is.
func (v *Volume) pollHeads(ctx context.Context) ([]store.Head, error) {
	st := v.ca.State()
	var trust store.Trust
	if len(st.Trust) > 0 {
		if err := trust.UnmarshalBinary(st.Trust); err != nil {
			return nil, err
		}
	}
	heads, err := v.repo.Poll(ctx, &trust)
	v.follower.noteHistory(err)
	if err != nil && v.opt.ReadOnly && errors.Is(err, store.ErrRollback) {
		v.opt.Logger.Error("the remote shows less than was seen before", "err", err)
		err = nil
	}
	if err != nil {
		return nil, err
	}
	after, err := trust.MarshalBinary()
	if err == nil && !slices.Equal(st.Trust, after) {
		err = v.ca.UpdateState(func(s *State) { s.Trust = after })
	}
	return heads, err
}

// noteHistory keeps what a poll has told of the history on the remote. One that failed otherwise has told nothing.
func (f *follower) noteHistory(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		f.history = nil
	case errors.Is(err, store.ErrRollback):
		f.history = err
	}
}

// follow moves to the newest state that contains everything this client has.
func (f *follower) follow(ctx context.Context, heads []store.Head) error {
	v := f.v
	maximal, err := v.repo.MaximalHeads(ctx, heads)
	if err != nil {
		return err
	}
	slices.SortFunc(maximal, func(a, b store.Head) int { return slices.Compare(a.Client[:], b.Client[:]) })
	st := v.ca.State()
	others := 0
	for _, h := range maximal {
		if h == st.BaseHead {
			continue
		}
		others++
		c, err := v.repo.GetCommit(ctx, h)
		if err != nil {
			return err
		}
		if !contains(c, st.BaseHead) {
			continue
		}
		adopted, err := v.adopt(ctx, c)
		if err != nil {
			return fmt.Errorf("take over %s: %w", h, err)
		}
		if adopted {
			others--
			break
		}
	}
	f.mu.Lock()
	f.diverged = others > 0
	f.mu.Unlock()
	return nil
}

// contains reports whether c descends from h; everything descends from no commit at all.
func contains(c *store.Commit, h store.Head) bool {
	if h.IsZero() || c.Head() == h {
		return true
	}
	if c.Client == h.Client && c.Incarnation == h.Incarnation {
		return c.Seq > h.Seq
	}
	return slices.ContainsFunc(c.Seen, func(s store.Head) bool {
		return s.Client == h.Client && s.Incarnation == h.Incarnation && s.Seq >= h.Seq
	})
}

// adopt makes the state of c the base, if nothing here has changed since the base was taken. It reports whether it did.
func (v *Volume) adopt(ctx context.Context, c *store.Commit) (bool, error) {
	v.mu.RLock()
	old, snaps := v.base.Root(), v.snapMap
	v.mu.RUnlock()
	what := &changedKeys{}
	var names []string
	if v.notifier() != nil { // else nobody has cached anything, and a mount must not walk the tree
		var err error
		if what, err = v.changesBetween(ctx, old, c.Root); err != nil {
			return false, err
		}
		if names, err = v.snapshotsBetween(ctx, snaps, c.Snapshots); err != nil {
			return false, err
		}
	}
	v.commits.publishMu.Lock()
	defer v.commits.publishMu.Unlock()
	v.commits.mu.Lock()
	defer v.commits.mu.Unlock()
	if ok, err := v.swapBase(c, old, snaps, what); !ok {
		return false, err
	}
	seen := append(withoutChain(c.Seen, c.Client, c.Incarnation), c.Head())
	err := v.ca.UpdateState(func(s *State) { s.BaseHead, s.Seen = c.Head(), seen })
	v.invalidate(what)
	if len(names) > 0 {
		v.snapshotsChanged(names...)
	}
	return true, err
}

// snapshotsBetween returns the names of snapshots that differ between two maps.
func (v *Volume) snapshotsBetween(ctx context.Context, from, to store.Ref) (names []string, err error) {
	nodes := remoteNodes{v.ca}
	a, b := tree.New(nodes, from, v.treeOptions()), tree.New(nodes, to, v.treeOptions())
	err = tree.Diff(ctx, a, b, func(name []byte, _, _ *store.Entry) error {
		names = append(names, string(name))
		return nil
	})
	return names, err
}

// swapBase replaces the base if everything is clean and nobody is writing.
func (v *Volume) swapBase(c *store.Commit, old, snaps store.Ref, what *changedKeys) (bool, error) {
	v.cutMu.Lock()
	defer v.cutMu.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.active.len() > 0 || v.frozen != nil || v.base.Root().ID != old.ID || v.snapMap.ID != snaps.ID || v.commits.unstable.Load() {
		return false, nil
	}
	for _, in := range v.table {
		if in.writers > 0 || in.stale || !in.active.empty() || in.frozen != nil {
			return false, nil
		}
	}
	if err := v.ca.AdoptBase(c.Root, c.Snapshots); err != nil {
		return false, err
	}
	for ino := range what.inodes {
		if in := v.table[ino]; in != nil { // who has it open keeps what he has opened
			in.mu.Lock()
			in.cutOff = true
			in.mu.Unlock()
			delete(v.table, ino)
		}
	}
	v.base, v.snapMap = v.localTree(c.Root), c.Snapshots
	return true, nil
}

// changedKeys is what differs between two states, as far as the kernel can have cached it.
type changedKeys struct {
	inodes  map[Ino]bool // true if the content may differ
	entries []changedEntry
}

type changedEntry struct {
	parent Ino
	name   string
}

func (v *Volume) changesBetween(ctx context.Context, from, to store.Ref) (*changedKeys, error) {
	what := &changedKeys{inodes: map[Ino]bool{}}
	nodes := remoteNodes{v.ca}
	a, b := tree.New(nodes, from, v.treeOptions()), tree.New(nodes, to, v.treeOptions())
	err := tree.Diff(ctx, a, b, func(k []byte, _, _ *store.Entry) error {
		ino, kind, rest, ok := splitKey(string(k))
		if !ok {
			return nil
		}
		what.inodes[ino] = what.inodes[ino] || kind == keyContent || kind == keyInode
		if kind == keyEntry {
			if _, name, ok := splitEntry(rest); ok {
				what.entries = append(what.entries, changedEntry{ino, name})
			}
		}
		return nil
	})
	return what, err
}

// invalidate makes the kernel look again at what has changed.
func (v *Volume) invalidate(what *changedKeys) {
	n := v.notifier()
	if n == nil {
		return
	}
	for ino, content := range what.inodes {
		if v.lookups.get(ino) == 0 && ino != Root {
			continue
		}
		if content {
			n.InvalInode(ino, 0, -1)
		} else {
			n.InvalInode(ino, -1, 0)
		}
	}
	for _, e := range what.entries {
		n.InvalEntry(e.parent, []byte(e.name))
	}
}
