package fs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// ErrHeld says that a snapshot is held, and not forgotten.
var ErrHeld = errors.New("is held; release it first with: dedupfs snapshot hold --off")

// maxForgotten bounds how many forgotten snapshots the map remembers; the oldest go first.
const maxForgotten = 1000

// Retain forgets the snapshots that a policy does not keep, automatic states too, and returns what it has decided. With dry nothing
// changes.
func (v *Volume) Retain(ctx context.Context, p *Policy, dry bool) ([]RetentionGroup, error) {
	if p.Empty() && p.Automatic == nil && !p.All {
		return nil, fmt.Errorf("no rule keeps any: %w", ErrNothingKept)
	}
	if dry {
		snaps, err := v.AllSnapshots(ctx)
		if err != nil {
			return nil, err
		}
		return p.applyAll(snaps, v.opt.Now())
	}
	var groups []RetentionGroup
	err := v.editSnapshots(ctx, func(snaps map[string]*Snapshot) (err error) {
		if groups, err = p.applyAll(unforgotten(snaps), v.opt.Now()); err != nil {
			return err
		}
		for _, g := range groups {
			for _, s := range g.Forget {
				snaps[s.key()].Forgotten = true
			}
		}
		return nil
	})
	return groups, err
}

// applyAll is Apply to the snapshots that have a name, and thins out automatic states by the same rules or by those of their own.
func (p *Policy) applyAll(snaps []Snapshot, now time.Time) ([]RetentionGroup, error) {
	groups := []RetentionGroup{}
	if !p.Empty() || p.All {
		var err error
		if groups, err = p.Apply(named(snaps), time.Local); err != nil {
			return nil, err
		}
	}
	automatic := slices.DeleteFunc(snaps, func(s Snapshot) bool { return !s.Automatic })
	if len(automatic) == 0 {
		return groups, nil
	}
	rules := p
	if p.Automatic != nil {
		rules = p.Automatic
	}
	return append(groups, rules.thin(automatic, now)), nil
}

// find returns the snapshot of a name in the map that a change is given; nil if there is none.
func find(snaps map[string]*Snapshot, name string) *Snapshot {
	if s := snaps[name]; s != nil {
		return s
	}
	return snaps[automaticMark+name]
}

// unforgotten returns copies of the snapshots that are not forgotten, the oldest first.
func unforgotten(snaps map[string]*Snapshot) []Snapshot {
	var all []Snapshot
	for _, s := range snaps {
		if !s.Forgotten {
			all = append(all, *s)
		}
	}
	slices.SortFunc(all, compareAge)
	return all
}

// ForgetSnapshot takes the names of states away, of all or of none. What only they held can be collected.
func (v *Volume) ForgetSnapshot(ctx context.Context, names ...string) error {
	return v.editSnapshots(ctx, func(snaps map[string]*Snapshot) error {
		for _, name := range names {
			s := find(snaps, name)
			switch {
			case s == nil || s.Forgotten:
				return fmt.Errorf("%s: %w", name, ErrNoSnapshot)
			case s.Hold:
				return fmt.Errorf("snapshot %s %w", name, ErrHeld)
			}
			s.Forgotten = true
		}
		return nil
	})
}

// ForgottenSnapshots lists the snapshots that are forgotten and that the map still remembers, the oldest first. Some of what
// they need may have been collected.
func (v *Volume) ForgottenSnapshots(ctx context.Context) ([]Snapshot, error) {
	snaps, err := allSnapshots(ctx, v.snapshotMap())
	return slices.DeleteFunc(snaps, func(s Snapshot) bool { return !s.Forgotten }), err
}

// RestoreForgotten brings a forgotten snapshot back. It is ErrCollected if something that it needs is gone, or about to go.
func (v *Volume) RestoreForgotten(ctx context.Context, name string) error {
	return v.editSnapshots(ctx, func(snaps map[string]*Snapshot) error {
		s := find(snaps, name)
		if s == nil || !s.Forgotten {
			return fmt.Errorf("%s: no snapshot of this name has been forgotten: %w", name, syscall.ENOENT)
		}
		if err := v.revivable(ctx, s.Root); err != nil {
			return fmt.Errorf("snapshot %s cannot be brought back: %w", name, err)
		}
		s.Forgotten = false
		return nil
	})
}

// HoldSnapshot makes a snapshot one that is never forgotten, or an ordinary one again.
func (v *Volume) HoldSnapshot(ctx context.Context, name string, hold bool) error {
	return v.changeSnapshot(ctx, name, func(s *Snapshot) { s.Hold = hold })
}

// TagSnapshot adds tags to a snapshot, and takes some away.
func (v *Volume) TagSnapshot(ctx context.Context, name string, add, remove []string) error {
	return v.changeSnapshot(ctx, name, func(s *Snapshot) {
		s.Tags = slices.DeleteFunc(s.Tags, func(tag string) bool { return slices.Contains(remove, tag) })
		for _, tag := range add {
			if !slices.Contains(s.Tags, tag) {
				s.Tags = append(s.Tags, tag)
			}
		}
	})
}

func (v *Volume) changeSnapshot(ctx context.Context, name string, change func(*Snapshot)) error {
	return v.editSnapshots(ctx, func(snaps map[string]*Snapshot) error {
		s := find(snaps, name)
		if s == nil || s.Forgotten {
			return fmt.Errorf("%s: %w", name, ErrNoSnapshot)
		}
		change(s)
		return checkSnapshotSize(s)
	})
}

// checkSnapshotSize refuses what does not fit into a record.
func checkSnapshotSize(s *Snapshot) error {
	if n := len(appendSnapshot(nil, s)) + rootSize; n > store.MaxValue {
		return fmt.Errorf("message and tags of snapshot %s take %d bytes too many; shorten them", s.Name, n-store.MaxValue)
	}
	return nil
}

// editSnapshots changes the map of snapshots as part of a local commit. change may alter the snapshots that it is given by their keys,
// and add some; an error of it leaves all as it was.
func (v *Volume) editSnapshots(ctx context.Context, change func(snaps map[string]*Snapshot) error) error {
	if v.opt.ReadOnly {
		return syscall.EROFS
	}
	// Where the root of a snapshot lies must be known before it is forgotten.
	if v.commits.unstable.Load() {
		if err := v.syncOwn(ctx, nil); err != nil {
			return err
		}
	}
	// What cannot be done is refused before anything is committed.
	if out, err := v.planSnapshots(ctx, v.snapshotMap(), change); err != nil || len(out) == 0 {
		return err
	}
	var names []string
	err := v.commits.commit(ctx, func(ctx context.Context, nodes tree.Store, root, _ store.Ref) (store.Ref, error) {
		t := tree.New(nodes, root, v.treeOptions())
		out, err := v.planSnapshots(ctx, t, change)
		if err != nil {
			return store.Ref{}, err
		}
		for _, e := range out {
			names = append(names, strings.TrimPrefix(string(e.Key), automaticMark))
		}
		return t.Apply(ctx, slices.Values(out))
	})
	v.snapshotsChanged(names...)
	return err
}

// planSnapshots returns the edits of a map that a change comes to.
func (v *Volume) planSnapshots(ctx context.Context, t *tree.Tree, change func(map[string]*Snapshot) error) ([]tree.Edit, error) {
	all, err := allSnapshots(ctx, t)
	if err != nil {
		return nil, err
	}
	before, after := map[string]*store.Entry{}, map[string]*Snapshot{}
	for _, s := range all {
		s.Root.Hint = v.ca.HintOf(s.Root)
		before[s.key()], after[s.key()] = s.entry(), &s
	}
	if err := change(after); err != nil {
		return nil, err
	}
	dropForgotten(after)
	return snapshotEdits(before, after), nil
}

// dropForgotten bounds the forgotten snapshots that are remembered.
func dropForgotten(snaps map[string]*Snapshot) {
	var forgotten []Snapshot
	for _, s := range snaps {
		if s.Forgotten {
			forgotten = append(forgotten, *s)
		}
	}
	slices.SortFunc(forgotten, compareAge)
	for _, s := range forgotten[:max(0, len(forgotten)-maxForgotten)] {
		delete(snaps, s.key())
	}
}

// snapshotEdits returns what leads from one map of snapshots to the other.
func snapshotEdits(before map[string]*store.Entry, after map[string]*Snapshot) []tree.Edit {
	out := edits{}
	for name, s := range after {
		if e := s.entry(); !sameRecord(before[name], e) {
			out[name] = e
		}
	}
	for name := range before {
		if after[name] == nil {
			out[name] = nil
		}
	}
	return out.sorted()
}
