package fs

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// mergeSnapshots merges three maps of snapshots of one store and returns the root of the result. A snapshot that one side
// has forgotten and the other changed is kept; of two different ones of one name the second gets another, unless both were made by a
// schedule or are automatic, of which one is enough.
func mergeSnapshots(ctx context.Context, base, first, second *tree.Tree) (store.Ref, error) {
	taken := map[string]*Snapshot{} // of names that both sides have given
	root, err := tree.Merge3(ctx, base, first, second, func(k []byte, eb, e1, e2 *store.Entry) (*store.Entry, error) {
		if e1 == nil {
			return e2, nil
		}
		if e2 == nil {
			return e1, nil
		}
		s1, err := parseSnapshot(e1)
		if err != nil {
			return nil, fmt.Errorf("snapshot %q: %w", k, err)
		}
		s2, err := parseSnapshot(e2)
		if err != nil {
			return nil, fmt.Errorf("snapshot %q: %w", k, err)
		}
		same := s1.Root.ID == s2.Root.ID && s1.Time.Equal(s2.Time) && s1.Client == s2.Client
		if !same && (s1.scheduled() && s2.scheduled() || s1.Automatic && s2.Automatic) {
			return scheduledOnce(s1, s2).entry(), nil
		}
		if !same {
			taken[string(k)] = s2
			return e1, nil
		}
		s1.Hold, s1.Forgotten, s1.Order = s1.Hold || s2.Hold, s1.Forgotten && s2.Forgotten, max(s1.Order, s2.Order)
		return s1.entry(), nil
	})
	if err != nil || len(taken) == 0 {
		return root, err
	}
	return addRenamed(ctx, first.At(root), taken)
}

// scheduledOnce returns the one of two snapshots for one time that stays: the first, but one that is held or not
// forgotten rather than another.
func scheduledOnce(s1, s2 *Snapshot) *Snapshot {
	if s2.Hold && !s1.Hold || s1.Forgotten && !s2.Forgotten && !s1.Hold {
		s1, s2 = s2, s1
	}
	s1.Order = max(s1.Order, s2.Order)
	return s1
}

// addRenamed adds snapshots whose names are taken, as "NAME (CLIENT)".
func addRenamed(ctx context.Context, t *tree.Tree, snaps map[string]*Snapshot) (store.Ref, error) {
	out := edits{}
	for _, name := range slices.Sorted(maps.Keys(snaps)) {
		s := snaps[name]
		for i := 1; ; i++ {
			s.Name = otherSnapshotName(name, s.Host, i)
			e, used, err := t.Get(ctx, []byte(s.Name))
			if err != nil {
				return store.Ref{}, err
			}
			if used && sameRecord(&e, s.entry()) {
				break // from the same merge made elsewhere
			}
			if !used && out[s.Name] == nil {
				out[s.Name] = s.entry()
				break
			}
		}
	}
	return t.Apply(ctx, slices.Values(out.sorted()))
}

func otherSnapshotName(name, client string, i int) string {
	mark := " (" + plainHost(client)
	if i > 1 {
		mark += fmt.Sprintf(" %d", i)
	}
	mark += ")"
	return cutName(name, NameMax-len(mark)) + mark
}
