package fs

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/store"
)

func TestMergeSnapshots(t *testing.T) {
	s := newSim()
	at := time.Unix(1, 0).UTC()
	mk := func(snaps ...Snapshot) store.Ref {
		slices.SortFunc(snaps, func(a, b Snapshot) int { return strings.Compare(a.Name, b.Name) })
		root, err := s.tree(store.Ref{}).Build(ctx, func(yield func(store.Entry) bool) {
			for _, s := range snaps {
				if !yield(*s.entry()) {
					return
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return root
	}
	old := Snapshot{Name: "old", Time: at, Host: "H"}
	held := old
	held.Hold = true
	mine := Snapshot{Name: "new", Time: at, Host: "A", Client: "a"}
	theirs := Snapshot{Name: "new", Time: at, Host: "B", Client: "b"}
	other := theirs
	other.Name = "new (B)"
	for _, tc := range []struct {
		name                      string
		base, first, second, want []Snapshot
	}{
		{"both add", nil, []Snapshot{mine}, []Snapshot{old}, []Snapshot{mine, old}},
		{"one name", nil, []Snapshot{mine}, []Snapshot{theirs}, []Snapshot{mine, other}},
		{"one name again", nil, []Snapshot{mine, other}, []Snapshot{theirs}, []Snapshot{mine, other}},
		{"forget", []Snapshot{old}, nil, []Snapshot{old}, nil},
		{"forget against hold", []Snapshot{old}, nil, []Snapshot{held}, []Snapshot{held}},
		{"hold against forget", []Snapshot{old}, []Snapshot{held}, nil, []Snapshot{held}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := mergeSnapshots(ctx, s.tree(mk(tc.base...)), s.tree(mk(tc.first...)), s.tree(mk(tc.second...)))
			if err != nil {
				t.Fatal(err)
			}
			if got.ID != mk(tc.want...).ID {
				have, err := listSnapshots(ctx, s.tree(got))
				t.Errorf("got %v (%v), want %v", have, err, tc.want)
			}
		})
	}
}
