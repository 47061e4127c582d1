package fs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
)

// answerHolds is how many chunks and nodes an answer in a full remote holds at most: the commit is some megabytes long then.
const answerHolds = 1 << 16

// publishInFull is publishNewest while the remote has refused data because it is full. A state that needs none of that is published,
// and what only older ones need is given up. Otherwise nothing is but an answer to garbage collection, if one is owed. c.publishMu is held.
func (c *committer) publishInFull(ctx context.Context, full error) error {
	v := c.v
	if err := c.mu.lock(ctx); err != nil {
		return err
	}
	defer c.mu.unlock()
	if err := c.commitLocked(ctx, nil); err != nil {
		return err
	}
	_, _, _, _, n, _, _ := v.ca.LastCommit()
	v.member.answerFrom(n)
	pub, err := v.ca.PackNodes(ctx, full)
	if errors.Is(err, full) {
		return errors.Join(fmt.Errorf("upload: %w", err), v.member.answerInFull(ctx))
	}
	if err != nil || pub == nil {
		return err
	}
	made, err := v.publishCommit(ctx, pub)
	if err != nil {
		return err
	}
	if err := c.notePublished(pub, made); err != nil {
		return err
	}
	c.unstable.Store(false)
	c.synced.Store(time.Now().UnixNano())
	return nil
}

// answerInFull acknowledges what is to be deleted, though there are changes here that are not published: their data does not fit. The
// commit says again what one says that is there, and holds what these changes refer to beside that (R4). No local commit is made
// meanwhile, and the newest has every reference.
func (m *member) answerInFull(ctx context.Context) error {
	v := m.v
	last, err := m.last(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	present, known := m.present, m.known
	m.mu.Unlock()
	if !known {
		return nil
	}
	from, err := m.newestState(ctx, last)
	if err != nil || from == nil {
		return err
	}
	if last != nil && !owes(present, last) && from.Root.ID == last.Root.ID && from.Snapshots.ID == last.Snapshots.ID {
		return nil
	}
	refs, err := v.ca.Relied(ctx, true, answerHolds)
	if errors.Is(err, cache.ErrTooMany) && last != nil {
		from = last // all that it leads to is kept for this client
		refs, err = v.ca.Relied(ctx, false, answerHolds)
	}
	if err != nil {
		return err
	}
	st := v.ca.State()
	c := (&store.Registration{Client: st.Client, Incarnation: st.Incarnation}).Next(last)
	c.Volume, c.Root, c.Snapshots = from.Volume, from.Root, from.Snapshots
	c.Seen = withoutPast(v.repo, withoutChain(v.counted(append(slices.Clone(from.Seen), from.Head())), st.Client, st.Incarnation))
	c.Time, c.Host = v.opt.Now(), v.name()
	c.Acks, c.Held = present, append(m.held(), refs...)
	sealed, err := v.repo.SealCommit(c, st.Key)
	if err != nil {
		return err
	}
	if err := v.ca.UpdateState(func(s *State) { s.Intent = *sealed }); err != nil {
		return fmt.Errorf("keep the answer: %w", err)
	}
	return v.finishIntent(ctx)
}

// newestState returns the newest commit whose state this client may say to have, without its changes that are not published: it has
// merged it, and all that it has published itself is in it. Last is its own newest. It returns nil if there is none.
func (m *member) newestState(ctx context.Context, last *store.Commit) (*store.Commit, error) {
	v := m.v
	newest := last
	for _, h := range v.counted(v.ca.State().Seen) {
		c, err := v.repo.GetCommit(ctx, h)
		switch {
		case errors.Is(err, remote.ErrNotExist) || isDamage(err): // another will do
		case err != nil:
			return nil, err
		case newest == nil || store.Dominates(c, newest):
			newest = c
		}
	}
	return newest, nil
}

// isFull reports whether err says that the remote is full.
func isFull(err error) bool { return errors.Is(err, remote.ErrNoSpace) }
