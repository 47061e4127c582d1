package fs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// follower looks for what other clients have published, and brings this client to the state that follows from all heads:
// to another client's where that has everything, to a merged one, which it publishes, where both have changed something.
type follower struct {
	v *Volume

	pollMu sync.Mutex // held by who polls; acquired before the committer's locks
	full   time.Time  // when last all clients were looked for, not only the known ones; guarded by pollMu

	away atomic.Bool // the remote could not be asked when it last was

	mu       sync.Mutex // guards what follows
	behind   bool
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
		if err := f.tick(ctx); err != nil && ctx.Err() == nil {
			f.v.opt.Logger.Warn("looking for other clients' commits failed", "err", err)
		}
	}
}

// fullPoll is how often a mount that knows of others looks for clients that it has never seen. The known ones cost one
// listing each.
const fullPoll = time.Minute

// alone reports whether no other client is known.
func (f *follower) alone() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !slices.ContainsFunc(f.heads, func(h store.Head) bool { return h.Client != f.v.me })
}

// tick looks at the heads of the clients that are known, and now and then of all.
func (f *follower) tick(ctx context.Context) error {
	f.pollMu.Lock()
	defer f.pollMu.Unlock()
	return f.look(ctx, f.alone() || time.Since(f.full) >= fullPoll, besideUploads)
}

// poll looks at the heads of all clients and goes where they lead.
func (f *follower) poll(ctx context.Context, how manner) error {
	f.pollMu.Lock()
	defer f.pollMu.Unlock()
	return f.look(ctx, true, how)
}

// readNotices goes by what is to be deleted, and looks at nothing else.
func (f *follower) readNotices(ctx context.Context) error {
	f.pollMu.Lock()
	defer f.pollMu.Unlock()
	return f.v.member.read(ctx)
}

// ReadSettings has what was set anew in the repository count at once.
func (v *Volume) ReadSettings(ctx context.Context) error { return v.repo.ReadSettings(ctx) }

// manner is what following does about changes of this client that are not published.
type manner int

const (
	onlyClean     manner = iota // it stays where it is
	afterUploads                // they are published first, and what comes of it afterwards
	besideUploads               // they are published first if that is a matter of a moment; otherwise beside it
)

// look is poll with pollMu held.
func (f *follower) look(ctx context.Context, all bool, how manner) error {
	notices := f.v.member.read(ctx)
	if notices != nil && offline(notices) {
		f.failed(notices)
		return notices
	}
	heads, err := f.v.pollHeads(ctx, all)
	usable := err == nil || tolerable(err)
	if !usable {
		f.away.Store(true)
	}
	f.mu.Lock()
	f.lastPoll, f.lastErr = time.Now(), errors.Join(err, notices)
	if usable {
		f.heads = f.v.member.cond.Heads(heads)
	}
	f.mu.Unlock()
	f.v.learner.poke()
	if !usable {
		return err
	}
	if f.away.Swap(false) {
		f.v.tryAgain() // it answers again
	}
	if all {
		f.full = time.Now()
		if err := f.v.repo.ReadSettings(ctx); err != nil {
			f.v.opt.Logger.Warn("what was set on other machines could not be read", "err", err)
		}
	}
	if err != nil {
		f.v.opt.Logger.Error("some of what is on the remote cannot be used", "err", err)
	}
	if !f.v.opt.ReadOnly && f.v.overtaken(heads) {
		return f.v.stopPublishing()
	}
	if err != nil && (!errors.Is(err, store.ErrRollback) || f.v.opt.ReadOnly) {
		err = nil // what else is there is used
	}
	follow := f.goOn(ctx, heads, how, notices == nil)
	if notices != nil && (how == onlyClean || isDamage(notices)) {
		f.v.opt.Logger.Error("garbage collection cannot go on with this machine", "err", notices)
		notices = nil
	}
	return errors.Join(err, notices, follow)
}

// goOn follows heads, and acknowledges what is to be deleted if that was read.
func (f *follower) goOn(ctx context.Context, heads []store.Head, how manner, answer bool) error {
	if f.v.member.isEvicted() {
		return nil
	}
	if err := f.follow(ctx, f.v.member.cond.Heads(heads), how); err != nil {
		return err
	}
	if how == onlyClean || !answer || f.v.opt.ReadOnly {
		return nil
	}
	return f.v.member.acknowledge(ctx, how)
}

func (f *follower) failed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastPoll, f.lastErr = time.Now(), err
}

// tolerable reports whether err says only that some objects are damaged, or some histories are not what they were: then
// the heads that came with it are good.
func tolerable(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !tolerable(e) })
	}
	var damaged *store.ObjectError
	return errors.As(err, &damaged) || errors.Is(err, store.ErrRollback)
}

// pollHeads asks the repository for the heads of all clients, or of those that are known, and keeps what has been
// accepted. Heads that come with a tolerable error are good.
func (v *Volume) pollHeads(ctx context.Context, all bool) ([]store.Head, error) {
	st := v.ca.State()
	var trust store.Trust
	if len(st.Trust) > 0 {
		if err := trust.UnmarshalBinary(st.Trust); err != nil {
			return nil, err
		}
	}
	poll := v.repo.PollKnown
	if all {
		poll = v.repo.Poll
	}
	heads, err := poll(ctx, &trust)
	if v.acceptRecorded(ctx, err, &trust) {
		heads, err = poll(ctx, &trust)
	}
	v.follower.noteHistory(err)
	if err != nil && !tolerable(err) {
		return nil, err
	}
	after, merr := trust.MarshalBinary()
	if merr == nil && !slices.Equal(st.Trust, after) {
		merr = v.ca.UpdateState(func(s *State) { s.Trust = after })
	}
	if merr != nil {
		return nil, merr
	}
	return heads, err
}

// damage returns what was damaged of the commits when they were last looked for. Who has a state goes on with it; who has none must
// not take what is left of the history for all of it.
func (f *follower) damage() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var damaged *store.ObjectError
	if errors.As(f.lastErr, &damaged) {
		return f.lastErr
	}
	return nil
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

// followTries is how often following begins again because something here has changed meanwhile.
const followTries = 5

// follow goes to the state that follows from heads and from what this client has.
func (f *follower) follow(ctx context.Context, heads []store.Head, how manner) error {
	own := how != onlyClean && !f.v.opt.ReadOnly
	done := false
	for range followTries {
		if done = !f.v.behind(heads); done {
			break
		}
		if own { // changes made here become a head like all others
			if err := f.v.commits.commit(ctx, nil); err != nil {
				return err
			}
			if err := f.v.commits.publishAs(ctx, how); err != nil {
				return err
			}
		}
		sw, err := f.v.goTo(ctx, heads, own)
		if sw != nil {
			sw.tellKernel() // without a lock that a request may wait for
		}
		if errors.Is(err, errHeld) {
			break
		}
		if err != nil {
			return err
		}
		if done = !f.v.behind(heads); done || !own {
			break
		}
	}
	f.mu.Lock()
	f.behind = !done
	f.mu.Unlock()
	if !own || f.v.allPublished() {
		return nil
	}
	return f.v.commits.publishAs(ctx, how)
}

// publishAs is publishAll for following. Beside uploads it has them begun, and waits a moment for them: changes that are published are a
// head as all others, and others see what is merged of it.
func (c *committer) publishAs(ctx context.Context, how manner) error {
	if how != besideUploads {
		return c.publishAll(ctx, nil)
	}
	for end := time.Now().Add(c.moment); !c.v.allPublished() && time.Now().Before(end); {
		signal(c.publish)
		sleep(ctx, c.moment/50)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// position returns what the base contains.
func (v *Volume) position() history {
	st := v.ca.State()
	h := history{}
	h.add(v.counted(st.Seen)...)
	h.add(st.Head)
	return h
}

// behind reports whether heads have something that the base does not contain.
func (v *Volume) behind(heads []store.Head) bool {
	position := v.position()
	return slices.ContainsFunc(heads, func(h store.Head) bool { return !position.contains(h) })
}

// goTo brings this client to the state that follows from heads, and returns what it changed. Without own that is nothing if there are
// changes here that are not published.
func (v *Volume) goTo(ctx context.Context, heads []store.Head, own bool) (*swap, error) {
	lc := &lazyCommit{ca: v.ca}
	defer func() { lc.discard() }()
	red := reducer{v.commitsThatCount(), v.merger(lc)}
	if v.opt.ReadOnly {
		return v.goReading(ctx, &red, heads, lc)
	}
	position, from, clean, err := v.standing(ctx)
	if err != nil || !clean && !own {
		return nil, err
	}
	out, err := red.follow(ctx, position, heads)
	if out == nil || err != nil {
		return nil, err
	}
	if !clean {
		if from, err = red.stateOf(ctx, position); err != nil {
			return nil, err
		}
	}
	if !own {
		return v.tryGoTo(ctx, from, out, lc)
	}
	return v.swapTo(ctx, from, out, lc)
}

// swapTo brings this client from the state from to that of out, whatever is changed here meanwhile.
func (v *Volume) swapTo(ctx context.Context, from volumeState, out *outcome, lc *lazyCommit) (*swap, error) {
	for range quickTries {
		if err := v.commits.commit(ctx, nil); err != nil {
			return nil, err
		}
		if sw, err := v.tryGoTo(ctx, from, out, lc); sw != nil || err != nil {
			return sw, err
		}
	}
	return v.goToPaused(ctx, from, out, lc)
}

// standing returns what the base contains of others, and if it is clean the state that follows from that: the base itself. Otherwise
// the base has changes beside it that are not published.
func (v *Volume) standing(ctx context.Context) (position history, state volumeState, clean bool, err error) {
	if err := v.commits.mu.lock(ctx); err != nil {
		return nil, volumeState{}, false, err
	}
	defer v.commits.mu.unlock()
	return v.position(), v.baseState(), !v.commits.unstable.Load() && v.allPublished(), nil
}

// longestPause bounds how long changes are held back for following.
const longestPause = 2 * time.Second

// goToPaused is what is left when files change without a pause: it makes one. Each try before has fetched the nodes and has left
// little to commit, so that it takes as long as writing a small commit to the local disk.
func (v *Volume) goToPaused(ctx context.Context, from volumeState, out *outcome, lc *lazyCommit) (*swap, error) {
	c := v.commits
	if err := c.mu.lock(ctx); err != nil {
		return nil, err
	}
	defer c.mu.unlock()
	v.cutMu.pause()
	defer v.cutMu.resume()
	within, cancel := context.WithTimeout(ctx, longestPause)
	defer cancel()
	err := c.commitLocked(within, nil)
	var sw *swap
	if err == nil {
		sw, err = v.tryGoToLocked(within, from, out, lc)
	}
	if within.Err() != nil && ctx.Err() == nil {
		return sw, nil // another time
	}
	return sw, err
}

// baseState returns the state of the last local commit.
func (v *Volume) baseState() volumeState {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return volumeState{v.base.Root(), v.snapMap}
}

// goReading takes a reader, who cannot keep a merged state, to one client's state that contains what it shows now. While
// there is none it waits for somebody to merge.
func (v *Volume) goReading(ctx context.Context, red *reducer, heads []store.Head, lc *lazyCommit) (*swap, error) {
	maximal, err := red.maximal(ctx, heads)
	if err != nil {
		return nil, err
	}
	position := v.position().heads()
	for _, c := range maximal {
		all := historyOf(c)
		if slices.ContainsFunc(position, func(h store.Head) bool { return !all.contains(h) }) {
			continue
		}
		return v.tryGoTo(ctx, v.baseState(), &outcome{stateOf(c), all, c}, lc)
	}
	return nil, nil
}

// quickTries is how often the base is swapped in vain, each time with a local commit of what was in the way.
const quickTries = 3

// tryGoTo makes the state of out the base; what has been changed here since from goes into it as a side of its own. It
// returns nil if something has changed while it looked.
func (v *Volume) tryGoTo(ctx context.Context, from volumeState, out *outcome, lc *lazyCommit) (*swap, error) {
	if err := v.commits.mu.lock(ctx); err != nil {
		return nil, err
	}
	defer v.commits.mu.unlock()
	return v.tryGoToLocked(ctx, from, out, lc)
}

// tryGoToLocked is tryGoTo with the committer's lock held.
func (v *Volume) tryGoToLocked(ctx context.Context, from volumeState, out *outcome, lc *lazyCommit) (*swap, error) {
	now, to := v.baseState(), *out
	if !now.same(from) {
		red := reducer{v.commitsThatCount(), v.merger(lc)}
		var err error
		if to.state, err = red.mergeTwo(ctx, from, now, out.state, out.history); err != nil {
			return nil, fmt.Errorf("merge what has changed meanwhile: %w", err)
		}
		to.head = nil
	}
	sw := &swap{v: v, lc: lc, from: now, to: &to, fresh: map[Ino]*attrs{}}
	if err := sw.prepare(ctx); err != nil {
		return nil, err
	}
	done, err := sw.run()
	if !done {
		return nil, err
	}
	return sw, err
}

// merger returns what merges states of this volume into a local commit.
func (v *Volume) merger(lc *lazyCommit) mergeStates {
	return func(ctx context.Context, base, first, second volumeState, host func(store.ClientID) (string, error)) (volumeState, error) {
		at := func(root store.Ref) *tree.Tree { return tree.New(lc, root, v.treeOptions()) }
		past := func(root store.Ref) *tree.Tree { return tree.New(lc, root, v.treeOptionsPast()) }
		root, err := mergeTrees(ctx, past(base.root), at(first.root), at(second.root), v.cookieBase, host)
		if err != nil {
			return volumeState{}, err
		}
		snaps, err := mergeSnapshots(ctx, past(base.snaps), at(first.snaps), at(second.snaps))
		return volumeState{root, snaps}, err
	}
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

// add notes a record that differs.
func (what *changedKeys) add(k string) {
	ino, kind, rest, ok := splitKey(k)
	if !ok {
		return
	}
	what.inodes[ino] = what.inodes[ino] || kind == keyContent || kind == keyInode
	if kind != keyEntry {
		return
	}
	if _, name, ok := splitEntry(rest); ok {
		what.entries = append(what.entries, changedEntry{ino, name})
	}
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
