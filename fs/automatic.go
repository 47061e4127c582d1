package fs

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// Automatic states are what a volume was before each of its commits. They stand in the map of snapshots under their times, and
// thin out as Options.Automatic says. A commit that changes something enters the state that it takes the place of: so the
// commits of which nobody will want anything cost nothing but that, and while nothing changes nothing is entered.
//
// Only the base is ever entered. Every commit that follows may refer to it (docs/gc.md, R7), which is true of no older state.

// automaticMark begins the keys of automatic states; no name that people give has it.
const automaticMark = "@"

// DefaultAutomatic is how automatic states thin out unless somebody wants it otherwise.
var DefaultAutomatic = Policy{Last: 30, Minutely: 60, Hourly: 24, Daily: 30, Monthly: 12}

// thinEvery is how many automatic states are entered between two looks at those that may go: a look changes other nodes than
// those that entering changes.
const thinEvery = 8

// pastTime bounds how long a commit waits for the map of snapshots, which may have to be fetched.
const pastTime = 5 * time.Second

// stamp is when and where a state was made.
type stamp struct {
	time   time.Time
	host   string
	client store.ClientID
}

func (v *Volume) stampNow() stamp { return stamp{v.opt.Now(), v.name(), v.me} }

// stampOfBase returns when and where the base was made. A commit says it; a local commit that is older than this mount has the time
// of the mount.
func (v *Volume) stampOfBase(ctx context.Context) stamp {
	v.mu.RLock()
	base, made := v.base.Root(), v.baseMade
	v.mu.RUnlock()
	if !made.time.IsZero() {
		return made
	}
	if h := v.ca.State().BaseHead; !h.IsZero() && !v.follower.away.Load() {
		if c, err := v.repo.GetCommit(ctx, h); err == nil && c.Root.ID == base.ID {
			return stampOf(c)
		}
	}
	return v.opened
}

func stampOf(c *store.Commit) stamp { return stamp{c.Time, c.Host, c.Client} }

// enterPast enters the base into a map of snapshots if the state of root is to take its place, and thins out what is there. What
// prevents it does not prevent the commit: then this state is not entered.
func (v *Volume) enterPast(ctx context.Context, nodes tree.Store, snaps, root store.Ref) store.Ref {
	v.mu.RLock()
	base := v.base.Root()
	v.mu.RUnlock()
	if v.opt.Automatic.Empty() || base.IsZero() || base.ID == root.ID {
		return snaps
	}
	if v.ca.RemoteFull() != nil && !v.allPublished() {
		return snaps // its data would have to be uploaded for it, which may not fit even when the files are gone
	}
	ctx, cancel := context.WithTimeout(ctx, pastTime)
	defer cancel()
	t := tree.New(nodes, snaps, v.treeOptions())
	out, err := v.planPast(ctx, t, base)
	if err == nil {
		var after store.Ref
		if after, err = t.Apply(ctx, slices.Values(out)); err == nil {
			return after
		}
	}
	v.opt.Logger.Info("the state before this commit has no entry among the snapshots", "err", err)
	return snaps
}

// planPast returns the edits that enter the base, unless it stands there already.
func (v *Volume) planPast(ctx context.Context, t *tree.Tree, base store.Ref) ([]tree.Edit, error) {
	there, err := automaticStates(ctx, t)
	if err != nil {
		return nil, err
	}
	made := v.stampOfBase(ctx)
	s := &Snapshot{Time: made.time.UTC(), Host: made.host, Client: fmt.Sprintf("%x", made.client[:]), Automatic: true, Root: base, Order: 1}
	s.Name = s.Time.Format(snapshotTimeName)
	for _, o := range there {
		if !o.Forgotten && (o.Root.ID == base.ID || o.Name == s.Name) {
			return nil, nil
		}
		s.Order = max(s.Order, o.Order+1)
	}
	out := edits{s.key(): s.entry()}
	there = slices.DeleteFunc(there, func(o Snapshot) bool { return o.Forgotten })
	if len(there)%thinEvery == 0 {
		for _, o := range v.opt.Automatic.thin(append(there, *s), v.opt.Now()).Forget {
			if o.Name != s.Name {
				out[o.key()] = nil
			}
		}
	}
	return out.sorted(), nil
}

// automaticStates returns the automatic states of a map, forgotten ones too, in the order of their keys.
func automaticStates(ctx context.Context, t *tree.Tree) ([]Snapshot, error) {
	var states []Snapshot
	it := t.Seek(ctx, []byte(automaticMark))
	for it.Next(ctx) {
		e := it.Entry()
		if !bytes.HasPrefix(e.Key, []byte(automaticMark)) {
			break
		}
		s, err := parseSnapshot(&e)
		if err != nil {
			return nil, fmt.Errorf("snapshot %q: %w", e.Key, err)
		}
		states = append(states, *s)
	}
	return states, it.Err()
}

// thin tells which automatic states stay. They are of all machines together, and what the volume is now counts as the newest of them: of
// the last hour, day and so on it is what stays.
func (p *Policy) thin(states []Snapshot, now time.Time) RetentionGroup {
	states = slices.Clone(states)
	slices.SortFunc(states, compareAge)
	all := *p
	all.GroupBy = nil
	g := all.applyTo(append(states, Snapshot{Time: now, Order: math.MaxUint64}), time.Local)
	g.Automatic = true
	g.Keep = slices.DeleteFunc(g.Keep, func(k KeptSnapshot) bool { return k.Name == "" })
	g.Forget = slices.DeleteFunc(g.Forget, func(s Snapshot) bool { return s.Name == "" })
	return g
}
