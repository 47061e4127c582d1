package fs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
)

// member keeps this client's side of garbage collection: it registers, goes by notices, says so in commits, and retires. The rules
// R1 to R9 are those of docs/gc.md.
type member struct {
	v    *Volume
	cond *store.Condemned

	mu        sync.Mutex       // guards what follows
	known     bool             // they have been read since the volume was opened
	pastKnown bool             // and then, which incarnations are past
	present   []store.NoticeID // the notices that are there, as last read; the cache goes by all of them
	acks      []store.NoticeID // what commits acknowledge,
	from      uint64           // if they publish this local commit or a later one
	evicted   bool             // others go on without this incarnation
	snaps     map[*Handle]bool // open files of snapshots
}

func newMember(v *Volume) *member {
	return &member{v: v, cond: new(store.Condemned), snaps: map[*Handle]bool{}}
}

// ErrEvicted says that others have given this client up while it was away, and that it has changes which they do not know.
var ErrEvicted = errors.New("this machine was given up with `dedupfs clients evict` while it had changes that were not uploaded; " +
	"copy what you need out of the mount, unmount, and delete its cache directory")

// prepare begins a new incarnation on this machine, whose base contains what seen does; it is registered later. Without network it
// does so too if the volume can be used without: one of the range's numbers is then another's with a chance of one in half a
// billion for each client.
func (m *member) prepare(ctx context.Context, seen history) error {
	v := m.v
	others, err := v.repo.Registrations(ctx)
	if _, _, _, _, _, _, known := v.ca.LastCommit(); err != nil && !(known && offline(err)) && !isDamage(err) {
		return err
	}
	if _, err := v.repo.ReadPast(ctx); err != nil && !offline(err) && !isDamage(err) { // ranges that nobody may have again
		return err
	}
	st := v.ca.State()
	client := st.Client
	if client == (store.ClientID{}) {
		client = store.NewClientID()
	}
	reg, key, err := v.repo.PrepareRegistration(client, v.name(), others)
	if err != nil {
		return err
	}
	v.ca.HoldUploads()
	err = v.ca.UpdateState(func(s *State) {
		s.Seen, s.Head = seen.heads(), store.Head{}
		s.Client, s.Incarnation, s.Key, s.InodeRange = client, reg.Incarnation, key, reg.InodeRange
		s.NextInode = uint64(reg.InodeRange) << 32
		s.RegName, s.RegWire, s.Registered = reg.Name, reg.Wire, false
	})
	if err != nil {
		return fmt.Errorf("keep the registration: %w", err)
	}
	m.mu.Lock()
	m.acks, m.from, m.evicted = nil, 0, false
	m.mu.Unlock()
	v.mu.Lock()
	v.nextIno, v.limit = Ino(reg.InodeRange)<<32, Ino(reg.InodeRange)<<32
	v.mu.Unlock()
	if err := v.ca.BeginIncarnation(reg.Incarnation); err != nil {
		return err
	}
	return v.ca.Settled()
}

func offline(err error) bool {
	return errors.Is(err, remote.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded)
}

func isDamage(err error) bool { return err != nil && tolerable(err) }

// withHead returns heads and h, which is of another incarnation than any of them, or a later one.
func withHead(heads []store.Head, h store.Head) []store.Head {
	if h.IsZero() {
		return heads
	}
	return append(withoutChain(heads, h.Client, h.Incarnation), h)
}

// register puts the registration if that has not been done. Until then nothing is put and nothing deduplicated against (R1).
func (m *member) register(ctx context.Context) error {
	v := m.v
	for {
		st := v.ca.State()
		if !st.Pending() {
			return nil
		}
		if err := v.finishIntent(ctx); err != nil { // the last of the incarnation before
			return err
		}
		s := &store.SealedRegistration{Name: st.RegName, Wire: st.RegWire,
			Registration: store.Registration{Client: st.Client, Incarnation: st.Incarnation, InodeRange: st.InodeRange}}
		err := v.repo.PutRegistration(ctx, s)
		switch {
		case errors.Is(err, store.ErrRangeTaken):
			if err := m.prepare(ctx, v.position()); err != nil {
				return err
			}
			continue
		case err != nil:
			return fmt.Errorf("register this client: %w", err)
		}
		if err := v.ca.UpdateState(func(s *State) { s.Registered = true }); err != nil {
			return err
		}
		v.ca.AllowUploads()
		return nil
	}
}

// read reads the notices and goes by them (R2, R3). It comes before everything else that a poll looks at (R1).
func (m *member) read(ctx context.Context) error {
	v := m.v
	if v.opt.ReadOnly {
		_, _, err := m.cond.Read(ctx, v.repo, nil)
		if err == nil {
			err = m.readPast(ctx)
		}
		if err == nil {
			err = v.ca.LearnMoves(ctx)
		}
		return err
	}
	if err := m.register(ctx); err != nil {
		return err
	}
	last, err := m.last(ctx)
	if errors.Is(err, remote.ErrNotExist) {
		if err := m.readPast(ctx); err != nil {
			return err
		}
		if v.repo.HasPassed(v.ca.State().Head) {
			return v.stopPublishing()
		}
	}
	if err != nil {
		return err
	}
	var also []store.NoticeID
	if last != nil {
		also = last.Acks
	}
	present, fresh, err := m.cond.Read(ctx, v.repo, also)
	if err == nil && len(fresh) > 0 {
		err = v.ca.Condemn(fresh)
	}
	if err != nil {
		return fmt.Errorf("read what is to be deleted: %w", err)
	}
	if err := m.readPast(ctx); err != nil {
		return err
	}
	if v.hasEnded(store.Head{Incarnation: v.ca.State().Incarnation}) { // by a copy of this directory that has retired
		return v.stopPublishing()
	}
	v.ca.AllowProbes()
	if err := v.ca.LearnMoves(ctx); err != nil && offline(err) {
		return err
	}
	st := v.ca.State()
	m.mu.Lock()
	m.known, m.present = true, present
	m.evicted = m.cond.Evicted(st.Client, st.Incarnation)
	evicted := m.evicted
	m.mu.Unlock()
	if evicted {
		return m.comeBack(ctx)
	}
	return nil
}

// readPast reads which incarnations are past, after the notices that told of their ends: when the volume has been opened, and whenever one
// of these notices has gone. What is past is not named any more.
func (m *member) readPast(ctx context.Context) error {
	v := m.v
	m.mu.Lock()
	known := m.pastKnown
	m.mu.Unlock()
	if known && !m.cond.MustReadPast() {
		return nil
	}
	if _, err := v.repo.ReadPast(ctx); err != nil && !isDamage(err) {
		return fmt.Errorf("read which clients are past: %w", err)
	}
	m.cond.NotePast(v.repo)
	m.mu.Lock()
	m.pastKnown = true
	m.mu.Unlock()
	if !slices.ContainsFunc(v.ca.State().Seen, v.repo.HasPassed) {
		return nil
	}
	return v.ca.UpdateState(func(s *State) { s.Seen = withoutPast(v.repo, s.Seen) })
}

// last returns the newest commit of this incarnation, nil if there is none.
func (m *member) last(ctx context.Context) (*store.Commit, error) {
	h := m.v.ca.State().Head
	if h.IsZero() {
		return nil, nil
	}
	c, err := m.v.repo.GetCommit(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("read the last commit of this client: %w", err)
	}
	return c, nil
}

// comeBack begins a new incarnation after an eviction (R8). What was published in time counts, and what this client shows came from
// commits that others have: only what nobody else knows is in the way.
func (m *member) comeBack(ctx context.Context) error {
	v := m.v
	st := v.ca.State()
	counts := m.cond.Heads([]store.Head{st.Head})
	if !st.Intent.Head.IsZero() || !v.isClean() || len(counts) == 1 && counts[0] != st.Head || len(counts) == 0 && !st.Head.IsZero() {
		return ErrEvicted
	}
	v.opt.Logger.Warn("this machine had been given up; it goes on as a new one", "host", v.opt.Host)
	if err := v.reincarnate(ctx, nil); err != nil {
		return err
	}
	return m.read(ctx)
}

// isEvicted reports whether nothing must be published any more.
func (m *member) isEvicted() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.evicted
}

// acknowledge publishes that this client goes by all notices that are there, unless its newest commit says so (R9).
func (m *member) acknowledge(ctx context.Context, how manner) error {
	v := m.v
	m.mu.Lock()
	present := slices.Clone(m.present)
	m.mu.Unlock()
	last, err := m.last(ctx)
	if err != nil {
		return err
	}
	if !owes(present, last) {
		if m.holdsLess(last) {
			return v.commits.publishFor(ctx, how)
		}
		return nil
	}
	// What was referred to before the cache went by a notice is in the local commits up to here (R4).
	if err := v.commits.commit(ctx, nil); err != nil {
		return err
	}
	_, _, _, _, n, _, _ := v.ca.LastCommit()
	m.mu.Lock()
	m.acks, m.from = present, n
	m.mu.Unlock()
	return v.commits.publishFor(ctx, how)
}

// publishFor is publishAll, unless uploads are not to be waited for: those that go on are followed by one more.
func (c *committer) publishFor(ctx context.Context, how manner) error {
	if how == besideUploads && !c.v.allPublished() {
		signal(c.publish)
		return nil
	}
	return c.publishAll(ctx, nil)
}

// owes reports whether some of present is not acknowledged.
func owes(present []store.NoticeID, last *store.Commit) bool {
	return slices.ContainsFunc(present, func(id store.NoticeID) bool { return last == nil || !slices.Contains(last.Acks, id) })
}

// due returns what a commit of local commit n acknowledges: beside what may be said from n on, what the last has said already and
// that is still there.
func (m *member) due(last *store.Commit, n uint64) []store.NoticeID {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.known && last != nil {
		return last.Acks
	}
	var ids []store.NoticeID
	for _, id := range m.present {
		if n >= m.from && slices.Contains(m.acks, id) || last != nil && slices.Contains(last.Acks, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// answerFrom has the commit that publishes local commit n, which has every reference that was made before, acknowledge all that this
// client goes by (R4).
func (m *member) answerFrom(n uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known {
		m.acks, m.from = slices.Clone(m.present), n
	}
}

// answer publishes a commit that only acknowledges, if one is owed. The committer's lock is held, and all else is published.
func (m *member) answer(ctx context.Context) error {
	last, err := m.last(ctx)
	if err != nil {
		return err
	}
	root, snaps, cut, _, n, _, _ := m.v.ca.LastCommit()
	if !owes(m.due(last, n), last) && !m.holdsLess(last) {
		return nil
	}
	_, err = m.v.publishCommit(ctx, &cache.Publication{N: n, Root: root, Snapshots: snaps, Cut: cut})
	return err
}

// held returns what open files need that may be in no tree (R5).
func (m *member) held() []store.Ref {
	v := m.v
	var refs []store.Ref
	add := func(ref store.Ref) {
		if ref.IsZero() {
			return
		}
		if ref.Hint.IsZero() {
			ref.Hint = v.ca.HintOf(ref)
		}
		if !ref.Hint.IsZero() && !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	v.mu.RLock()
	for in := range v.cutOffs {
		in.mu.RLock()
		if in.opens > 0 && in.content != nil {
			add(in.content.Ref)
		}
		in.mu.RUnlock()
	}
	v.mu.RUnlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	for h := range m.snaps {
		add(h.snap.m.Ref)
	}
	return refs
}

// holdsLess reports whether last keeps something from being collected that was open then.
func (m *member) holdsLess(last *store.Commit) bool {
	if last == nil || len(last.Held) == 0 {
		return false
	}
	now := m.held()
	return slices.ContainsFunc(last.Held, func(ref store.Ref) bool { return !slices.Contains(now, ref) })
}

// hold notes an open file of a snapshot.
func (m *member) hold(h *Handle) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.snaps[h] = true
}

func (m *member) letGo(h *Handle) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.snaps, h)
}

// isClean reports whether nothing is here that is not on the remote.
func (v *Volume) isClean() bool {
	if v.commits.first.Load() != 0 || !v.allPublished() || v.ca.Pending().Chunks > 0 {
		return false
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	v.dirtyMu.Lock()
	defer v.dirtyMu.Unlock()
	return v.active.len() == 0 && v.frozen == nil && len(v.dirty) == 0
}

// retireTime is how long an unmount waits to say that this client needs nothing any more.
const retireTime = 20 * time.Second

// retire ends this incarnation if nothing is here that is not on the remote, so that nobody waits for it. All else has ended. The
// next mount begins a new one.
func (m *member) retire(ctx context.Context) error {
	v := m.v
	st := v.ca.State()
	if v.opt.ReadOnly || m.isEvicted() || !v.isClean() || !st.Intent.Head.IsZero() || st.Incarnation == (store.Incarnation{}) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, retireTime)
	defer cancel()
	if st.Head.IsZero() && st.RegName != "" {
		if done, err := m.takeBack(ctx, st.RegName); done || err != nil {
			return err
		}
	}
	root, snaps, _, _, _, _, _ := v.ca.LastCommit()
	c, err := v.nextCommit(ctx, root, snaps)
	if err != nil {
		return err
	}
	c.Retired, c.Held = true, nil
	sealed, err := v.repo.SealCommit(c, st.Key)
	if err != nil {
		return err
	}
	err = v.ca.UpdateState(func(s *State) {
		endIncarnation(s)
		s.Intent = *sealed
		s.Seen = withHead(s.Seen, sealed.Head)
	})
	if err != nil {
		return err
	}
	return v.finishIntent(ctx)
}

// takeBack deletes the registration of this incarnation, which has published nothing, if that is allowed. If it stops half-way the
// next mount puts it again.
func (m *member) takeBack(ctx context.Context, name string) (done bool, err error) {
	v := m.v
	if err := v.ca.UpdateState(func(s *State) { s.Registered = false }); err != nil {
		return false, err
	}
	if err := v.repo.TakeBack(ctx, name); err != nil {
		if offline(err) {
			return true, err
		}
		return false, v.ca.UpdateState(func(s *State) { s.Registered = true })
	}
	return true, v.ca.UpdateState(endIncarnation)
}

// endIncarnation makes the next mount register anew.
func endIncarnation(s *State) {
	s.Seen = withHead(s.Seen, s.Head)
	s.Head, s.Incarnation, s.Key = store.Head{}, store.Incarnation{}, nil
	s.RegName, s.RegWire, s.Registered = "", nil, false
}
