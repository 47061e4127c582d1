package fs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// snapshotsAt makes snapshots in this order, named 0, 1, ..., at times like "2026-01-02 15:04".
func snapshotsAt(t *testing.T, times ...string) []Snapshot {
	t.Helper()
	var snaps []Snapshot
	for i, text := range times {
		at, err := time.Parse("2006-01-02 15:04", text)
		if err != nil {
			t.Fatal(err)
		}
		snaps = append(snaps, Snapshot{Name: fmt.Sprint(i), Time: at, Host: "a", Order: uint64(i + 1)})
	}
	return snaps
}

// kept returns the names of what p keeps, in the order of age, one group after the other.
func kept(t *testing.T, p Policy, snaps []Snapshot) string {
	t.Helper()
	groups, err := p.Apply(snaps, time.UTC)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, g := range groups {
		var names []string
		for _, s := range slices.Backward(g.Keep) {
			names = append(names, s.Name)
		}
		all = append(all, strings.Join(names, " "))
	}
	return strings.Join(all, " | ")
}

func TestPolicy(t *testing.T) {
	snaps := snapshotsAt(t, "2024-06-01 12:00", "2025-12-28 10:00", "2025-12-29 09:00", "2026-01-01 08:00",
		"2026-01-01 08:30", "2026-01-01 09:00", "2026-01-05 23:59", "2026-01-06 00:00")
	snaps[1].Tags = []string{"release", "good"}
	snaps[2].Tags = []string{"good"}
	for _, c := range []struct {
		p    Policy
		want string
	}{
		{Policy{Last: 1}, "7"},
		{Policy{Last: 3}, "5 6 7"},
		{Policy{Last: AllOf}, "0 1 2 3 4 5 6 7"},
		{Policy{Hourly: 3}, "5 6 7"},
		{Policy{Hourly: 4}, "4 5 6 7"},
		{Policy{Daily: 3}, "5 6 7"},
		{Policy{Daily: 4}, "2 5 6 7"},
		{Policy{Weekly: 2}, "5 7"},   // the week of 29 December has New Year's Day
		{Policy{Weekly: 3}, "1 5 7"}, // 28 December is a Sunday
		{Policy{Monthly: 2}, "2 7"},  //
		{Policy{Yearly: 5}, "0 2 7"}, //
		{Policy{Yearly: AllOf}, "0 2 7"},
		{Policy{Within: 24 * time.Hour}, "6 7"},
		{Policy{Tags: [][]string{{"release", "good"}}}, "1"},
		{Policy{Tags: [][]string{{"release"}, {"good"}}}, "1 2"},
		{Policy{Last: 1, Monthly: 2, Tags: [][]string{{"release"}}}, "1 2 7"},
	} {
		if got := kept(t, c.p, snaps); got != c.want {
			t.Errorf("%+v keeps %q, want %q", c.p, got, c.want)
		}
	}
}

func TestPolicyGroups(t *testing.T) {
	snaps := snapshotsAt(t, "2026-01-01 08:00", "2026-01-01 09:00", "2026-01-01 10:00", "2026-01-01 11:00")
	snaps[1].Host, snaps[3].Host = "b", "b"
	snaps[0].Tags, snaps[1].Tags = []string{"x", "y"}, []string{"y", "x"}
	for _, c := range []struct {
		by   []string
		want string
	}{
		{nil, "3"},
		{[]string{GroupHost}, "2 | 3"},
		{[]string{GroupTag}, "3 | 1"},
		{[]string{GroupHost, GroupTag}, "2 | 0 | 3 | 1"},
	} {
		if got := kept(t, Policy{Last: 1, GroupBy: c.by}, snaps); got != c.want {
			t.Errorf("grouped by %v one of each is %q, want %q", c.by, got, c.want)
		}
	}
}

// What is held stays, and a group is emptied only when that is said.
func TestPolicyKeepsSome(t *testing.T) {
	snaps := snapshotsAt(t, "2026-01-01 08:00", "2026-01-01 09:00")
	nothing := Policy{Tags: [][]string{{"none"}}}
	if _, err := nothing.Apply(snaps, time.UTC); !errors.Is(err, ErrNothingKept) {
		t.Errorf("a policy that keeps nothing: %v, want ErrNothingKept", err)
	}
	nothing.All = true
	if got := kept(t, nothing, snaps); got != "" {
		t.Errorf("keeps %q, want nothing", got)
	}
	snaps[0].Hold = true
	if got := kept(t, Policy{Last: 1}, snaps); got != "0 1" {
		t.Errorf("with the first held, keeps %q, want both", got)
	}
}

// A clock that was wrong for a while must not make other snapshots look older or newer than they are.
func TestPolicyWithWrongClocks(t *testing.T) {
	good := []string{"2026-01-01 08:00", "2026-01-02 08:00", "2026-01-03 08:00", "2026-01-04 08:00", "2026-01-05 08:00"}
	for _, c := range []struct {
		wrong string
		at    int
	}{{"2106-02-07 06:28", 2}, {"1970-01-01 00:00", 2}, {"2106-02-07 06:28", 0}, {"1970-01-01 00:00", 4}, {"2038-01-19 03:14", 4}} {
		times := slices.Clone(good)
		times[c.at] = c.wrong
		snaps := snapshotsAt(t, times...)
		if got := kept(t, Policy{Last: 2}, snaps); got != "3 4" {
			t.Errorf("with %s at %d, the last two are %q, want 3 and 4", c.wrong, c.at, got)
		}
		got := strings.Fields(kept(t, Policy{Daily: 4}, snaps))
		if len(got) != 4 {
			t.Errorf("with %s at %d, of four days %q are kept, want four", c.wrong, c.at, got)
		}
		if got := kept(t, Policy{Within: 50 * time.Hour}, snaps); c.at < 4 && !strings.HasSuffix(got, "3 4") {
			t.Errorf("with %s at %d, of the last 50 hours %q are kept, want 3 and 4 at least", c.wrong, c.at, got)
		}
	}
}
