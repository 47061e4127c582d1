package fs

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Policy says which snapshots stay. A number is of minutes, hours, days, ... that have a snapshot, counted from the newest; of each the
// newest snapshot stays. Zero is no rule, AllOf is no bound. What any rule keeps stays, and what is held stays in any case.
type Policy struct {
	Last     int           `json:"last,omitempty"`
	Minutely int           `json:"minutely,omitempty"`
	Hourly   int           `json:"hourly,omitempty"`
	Daily    int           `json:"daily,omitempty"`
	Weekly   int           `json:"weekly,omitempty"`
	Monthly  int           `json:"monthly,omitempty"`
	Yearly   int           `json:"yearly,omitempty"`
	Within   time.Duration `json:"within,omitempty"`   // before the newest of the group
	Tags     [][]string    `json:"tags,omitempty"`     // snapshots that have all tags of one of these
	GroupBy  []string      `json:"group_by,omitempty"` // GroupHost, GroupTag: rules hold in each group by itself
	All      bool          `json:"all,omitempty"`      // a group, or everything, may be left empty

	Automatic *Policy `json:"automatic,omitempty"` // rules for automatic states; nil is the ones above
}

// AllOf as a number of a Policy is no bound.
const AllOf = -1

// What snapshots can be grouped by.
const (
	GroupHost = "host"
	GroupTag  = "tag"
)

// ErrNothingKept says that no snapshot would be left of a group.
var ErrNothingKept = errors.New("no snapshot would be left; add a rule that keeps some, or allow it with --unsafe-allow-remove-all")

// RetentionGroup is what a policy makes of one group of snapshots, the newest first.
type RetentionGroup struct {
	Host      string         `json:"host,omitempty"`
	Tags      []string       `json:"tags,omitempty"`
	Automatic bool           `json:"automatic,omitempty"` // the states that nobody has named
	Keep      []KeptSnapshot `json:"keep"`
	Forget    []Snapshot     `json:"forget"`
}

// KeptSnapshot is a snapshot that stays, and the rules that keep it.
type KeptSnapshot struct {
	Snapshot
	Reasons []string `json:"reasons"`
}

// Empty reports whether p has no rule.
func (p *Policy) Empty() bool {
	return p.Last == 0 && p.Minutely == 0 && p.Hourly == 0 && p.Daily == 0 && p.Weekly == 0 && p.Monthly == 0 && p.Yearly == 0 &&
		p.Within == 0 && len(p.Tags) == 0
}

// Apply sorts snapshots by group, and tells of each whether it stays. Days and hours are those of loc. It is ErrNothingKept if a
// group would be empty afterwards, unless the policy allows that.
func (p *Policy) Apply(snaps []Snapshot, loc *time.Location) ([]RetentionGroup, error) {
	groups := []RetentionGroup{}
	for _, members := range p.group(snaps) {
		g := p.applyTo(members, loc)
		if len(g.Keep) == 0 && !p.All {
			return nil, fmt.Errorf("forget %s: %w", g.describe(), ErrNothingKept)
		}
		groups = append(groups, g)
	}
	return groups, nil
}

func (g *RetentionGroup) describe() string {
	s := fmt.Sprintf("%d snapshots", len(g.Forget))
	if g.Host != "" {
		s += fmt.Sprintf(" of %q", g.Host)
	}
	if len(g.Tags) > 0 {
		s += " with the tags " + strings.Join(g.Tags, ",")
	}
	return s
}

// group returns the groups in the order of their names, each in the order in which its snapshots were made.
func (p *Policy) group(snaps []Snapshot) [][]Snapshot {
	byName := map[string][]Snapshot{}
	for _, s := range snaps {
		name := strings.Join(append([]string{p.hostOf(s)}, p.tagsOf(s)...), "\x00")
		byName[name] = append(byName[name], s)
	}
	var groups [][]Snapshot
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		slices.SortStableFunc(byName[name], compareAge)
		groups = append(groups, byName[name])
	}
	return groups
}

func (p *Policy) hostOf(s Snapshot) string {
	if slices.Contains(p.GroupBy, GroupHost) {
		return s.Host
	}
	return ""
}

func (p *Policy) tagsOf(s Snapshot) []string {
	if slices.Contains(p.GroupBy, GroupTag) {
		return slices.Sorted(slices.Values(s.Tags))
	}
	return nil
}

// compareAge orders snapshots as they were made: who makes one has seen all of lower order. Clocks decide only between those
// made without knowledge of each other.
func compareAge(a, b Snapshot) int {
	return cmp.Or(cmp.Compare(a.Order, b.Order), a.Time.Compare(b.Time), cmp.Compare(a.Name, b.Name))
}

// rule keeps the newest snapshot of each of a number of periods.
type rule struct {
	name   string
	left   int
	period func(time.Time) string
	last   string
}

// takes reports whether the rule keeps a snapshot of this time; it is asked for each, the newest first.
func (r *rule) takes(t time.Time, i int) bool {
	period := fmt.Sprint(i) // each by itself
	if r.period != nil {
		period = r.period(t)
	}
	if r.left == 0 || period == r.last {
		return false
	}
	r.last = period
	if r.left > 0 {
		r.left--
	}
	return true
}

func (p *Policy) rules() []*rule {
	format := func(layout string) func(time.Time) string {
		return func(t time.Time) string { return t.Format(layout) }
	}
	week := func(t time.Time) string {
		year, week := t.ISOWeek()
		return fmt.Sprint(year, week)
	}
	return []*rule{
		{name: "last", left: p.Last},
		{name: "minutely", left: p.Minutely, period: format("2006-01-02 15:04 -0700")},
		{name: "hourly", left: p.Hourly, period: format("2006-01-02 15 -0700")},
		{name: "daily", left: p.Daily, period: format("2006-01-02")},
		{name: "weekly", left: p.Weekly, period: week},
		{name: "monthly", left: p.Monthly, period: format("2006-01")},
		{name: "yearly", left: p.Yearly, period: format("2006")},
	}
}

// applyTo decides for one group, which is in the order of age.
func (p *Policy) applyTo(members []Snapshot, loc *time.Location) RetentionGroup {
	g := RetentionGroup{Host: p.hostOf(members[0]), Tags: p.tagsOf(members[0]), Keep: []KeptSnapshot{}, Forget: []Snapshot{}}
	rules, dates := p.rules(), datesOf(members)
	newest := dates[len(dates)-1]
	for i, s := range slices.Backward(members) {
		var reasons []string
		for _, r := range rules {
			if r.takes(dates[i].In(loc), i) {
				reasons = append(reasons, r.name)
			}
		}
		if p.Within > 0 && newest.Sub(dates[i]) <= p.Within {
			reasons = append(reasons, "within")
		}
		if slices.ContainsFunc(p.Tags, func(tags []string) bool { return hasAll(s.Tags, tags) }) {
			reasons = append(reasons, "tag")
		}
		if s.Hold {
			reasons = append(reasons, "hold")
		}
		if len(reasons) > 0 {
			g.Keep = append(g.Keep, KeptSnapshot{s, reasons})
		} else {
			g.Forget = append(g.Forget, s)
		}
	}
	return g
}

func hasAll(have, want []string) bool {
	return !slices.ContainsFunc(want, func(tag string) bool { return !slices.Contains(have, tag) })
}

// datesOf returns times for snapshots in the order of age that do not go backwards: those that the clocks gave, but for the
// fewest that contradict the order. These, made while a clock was wrong, get the time of the one before, so that a clock that was
// once set to 2106, or to 1970, does not make what came after it, or before, look as if it were from one hour.
func datesOf(snaps []Snapshot) []time.Time {
	dates := make([]time.Time, len(snaps))
	good := longestRising(snaps)
	if len(good) == 0 {
		return dates
	}
	last := snaps[good[0]].Time
	for i, s := range snaps {
		if len(good) > 0 && good[0] == i {
			last, good = s.Time, good[1:]
		}
		dates[i] = last
	}
	return dates
}

// longestRising returns the indices of the most snapshots whose times do not go backwards.
func longestRising(snaps []Snapshot) []int {
	var tails []int // of the best sequence of each length, where it ends
	before := make([]int, len(snaps))
	for i, s := range snaps {
		at, _ := slices.BinarySearchFunc(tails, s.Time, func(j int, t time.Time) int {
			if snaps[j].Time.After(t) {
				return 1
			}
			return -1
		})
		before[i] = -1
		if at > 0 {
			before[i] = tails[at-1]
		}
		if at == len(tails) {
			tails = append(tails, 0)
		}
		tails[at] = i
	}
	if len(tails) == 0 {
		return nil
	}
	var rising []int
	for i := tails[len(tails)-1]; i >= 0; i = before[i] {
		rising = append(rising, i)
	}
	slices.Reverse(rising)
	return rising
}
