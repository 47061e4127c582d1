package fs

import (
	"context"
	"fmt"
	"maps"
	"math/rand"
	"os"
	"slices"
	"testing"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
)

// simGraph is all commits of all clients.
type simGraph struct {
	t       testing.TB
	s       *sim // has the nodes
	commits map[store.Head]*store.Commit
	newest  map[store.ClientID]store.Seq
	merges  int

	ever    map[string]bool // contents that were the newest on a client
	removed map[string]bool // those that a client has replaced or taken a name from, having seen them

	crissCross int // pairs of heads with several newest commits in common, of different states
}

func (g *simGraph) GetCommit(_ context.Context, h store.Head) (*store.Commit, error) {
	if c := g.commits[h]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("%s: %w", h, remote.ErrNotExist)
}

// merge merges two states, and checks that nothing that is new on one side is missing.
func (g *simGraph) merge(_ context.Context, base, first, second volumeState, _ func(store.ClientID) (string, error)) (volumeState, error) {
	g.t.Helper()
	root := g.s.merge(g.t, base.root, first.root, second.root)
	have, was := g.contents(root), g.contents(base.root)
	for _, side := range []volumeState{first, second} {
		for data := range g.contents(side.root) {
			if !was[data] && !have[data] {
				g.t.Fatalf("content %q is lost", data)
			}
		}
	}
	return volumeState{root: root}, nil
}

func (g *simGraph) contents(root store.Ref) map[string]bool {
	all := map[string]bool{"": true}
	for _, n := range g.s.fork(g.t, root, 91).inodes {
		all[n.data] = true
	}
	return all
}

// names returns how many names each content has.
func (g *simGraph) names(root store.Ref) map[string]int {
	all := map[string]int{}
	for _, n := range g.s.fork(g.t, root, 91).inodes {
		if !n.isDir() {
			all[n.data] += len(n.links)
		}
	}
	return all
}

// simClient is one client: where it stands, and what it shows.
type simClient struct {
	*sim
	g        *simGraph
	position history
	state    volumeState
}

func (c *simClient) publish(state volumeState) {
	c.g.newest[c.me]++
	commit := &store.Commit{Client: c.me, Seq: c.g.newest[c.me], Root: state.root}
	for _, h := range c.position.heads() {
		if h.Client != c.me {
			commit.Seen = append(commit.Seen, h)
		}
	}
	c.g.commits[commit.Head()] = commit
	c.position.add(commit.Head())
	c.state = state
}

// edit does a few operations and publishes them.
func (c *simClient) edit(r *rand.Rand) {
	for range 1 + r.Intn(3) {
		c.randomOp(r)
	}
	switch r.Intn(10) {
	case 0:
		c.now = r.Int63n(1 << 33) // the clock jumps
	case 1:
		c.now += r.Int63n(2*twentyYears) - twentyYears
	case 2:
		c.frozen = !c.frozen
	}
	root := c.commit(c.g.t)
	if root.ID == c.state.root.ID {
		return
	}
	before, after := c.g.names(c.state.root), c.g.names(root)
	for data := range after {
		c.g.ever[data] = true
	}
	for data, n := range before { // of a file with two names each of two clients may take one
		c.g.removed[data] = c.g.removed[data] || after[data] < n
	}
	c.publish(volumeState{root: root})
}

const twentyYears = 20 * 365 * 24 * 3600 // seconds

// checkKept wants each content that was ever the newest on a client in the state that all have come to, unless a client has taken it
// away; and everything that was ever published in the history of that state.
func (g *simGraph) checkKept(c *simClient) {
	g.t.Helper()
	have := g.names(c.state.root)
	for data := range g.ever {
		if have[data] == 0 && !g.removed[data] {
			g.t.Errorf("content %q is lost: nobody has taken it away, and it is not in\n%s", data, c.list(g.t))
		}
	}
	for h := range g.commits {
		if !c.position.contains(h) {
			g.t.Errorf("commit %s is not in the history of the newest state", h)
		}
	}
}

// poll sees the newest commits of others, or with stale older ones and not of all. It reports whether anything was new.
func (c *simClient) poll(r *rand.Rand, stale bool) bool {
	var heads []store.Head
	for _, client := range slices.SortedFunc(maps.Keys(c.g.newest), func(a, b store.ClientID) int { return slices.Compare(a[:], b[:]) }) {
		newest := c.g.newest[client]
		seq := newest
		if stale {
			seq = store.Seq(r.Int63n(int64(newest) + 1))
		}
		if seq > 0 {
			heads = append(heads, store.Head{Client: client, Seq: seq})
		}
	}
	red := reducer{c.g, c.g.merge}
	out, err := red.follow(ctx, c.position, heads)
	if err != nil {
		c.g.t.Fatal(err)
	}
	if out == nil {
		return false
	}
	c.position = maps.Clone(out.history)
	c.state = out.state
	c.checkout(c.g.t, c.state.root)
	if out.head == nil {
		c.g.merges++
		c.publish(out.state)
	}
	return true
}

// TestMergeHistories lets three clients edit, publish and follow each other in random order. In the end all show the same,
// after few rounds and few commits.
func TestMergeHistories(t *testing.T) {
	n := 2000
	if os.Getenv("DEDUPFS_LONG") != "" {
		n = 10_000
	}
	r := newRand(t)
	maxRounds, maxCommits, merges, crissCross := 0, 0, 0, 0
	for i := range n {
		rounds, commits, g := mergeHistory(t, r, 3)
		maxRounds, maxCommits, merges = max(maxRounds, rounds), max(maxCommits, commits), merges+g.merges
		crissCross += g.crissCross
		if t.Failed() {
			t.Fatalf("history %d", i)
		}
	}
	t.Logf("%d histories, %d merges, %d criss-cross; at most %d rounds and %d commits after the last edit", n, merges, crissCross, maxRounds, maxCommits)
	if crissCross < n/400 {
		t.Errorf("%d criss-cross pairs in %d histories: too few to show anything", crissCross, n)
	}
	if merges < n {
		t.Errorf("%d merges in %d histories: too few to show anything", merges, n)
	}
}

// mergeHistory runs one history. In each of the rounds at its end every client looks once; the last one changes nothing.
func mergeHistory(t *testing.T, r *rand.Rand, clients int) (rounds, commits int, g *simGraph) {
	base, root := simStart(t)
	g = &simGraph{t: t, s: base, commits: map[store.Head]*store.Commit{}, newest: map[store.ClientID]store.Seq{},
		ever: map[string]bool{}, removed: map[string]bool{}}
	var all []*simClient
	for i := range clients {
		c := &simClient{sim: base.fork(t, store.Ref{}, byte(i+1)), g: g, position: history{}}
		c.inodes = newSim().inodes
		c.now = []int64{0, 1 << 31, 1 << 32, -1 << 31}[r.Intn(4)] // 1970, 2038, 2106, 1901
		all = append(all, c)
	}
	all[0].checkout(t, root)
	all[0].publish(volumeState{root: root})
	for range 4 + r.Intn(12) {
		c := all[r.Intn(clients)]
		if r.Intn(2) == 0 {
			c.edit(r)
		} else {
			c.poll(r, r.Intn(2) == 0)
		}
	}
	if longRun || r.Intn(3) == 0 {
		g.checkPure(r)
	}
	before := len(g.commits)
	for again := true; again; rounds++ {
		again = false
		// All look before any of them publishes, which is the worst case, or one after the other.
		if r.Intn(2) == 0 {
			again = pollAtOnce(all, r)
			continue
		}
		for _, i := range r.Perm(clients) {
			again = all[i].poll(r, false) || again
		}
	}
	for _, c := range all[1:] {
		if !c.state.same(all[0].state) {
			t.Errorf("two clients differ:\n%s\n%s", all[0].list(t), c.list(t))
		}
	}
	g.checkKept(all[0])
	checkBound(t, clients, rounds, len(g.commits)-before)
	return rounds, len(g.commits) - before, g
}

// checkPure wants one state of a set of heads, in whatever order they are seen, with older ones among them, and from wherever a client
// comes that has some of them.
func (g *simGraph) checkPure(r *rand.Rand) {
	g.t.Helper()
	var heads, older []store.Head
	for _, client := range slices.SortedFunc(maps.Keys(g.newest), func(a, b store.ClientID) int { return slices.Compare(a[:], b[:]) }) {
		if newest := int64(g.newest[client]); newest > 0 {
			seq := 1 + r.Int63n(newest)
			heads = append(heads, store.Head{Client: client, Seq: store.Seq(seq)})
			older = append(older, store.Head{Client: client, Seq: store.Seq(1 + r.Int63n(seq))})
		}
	}
	red := reducer{g, g.merge}
	state := func(from history, heads []store.Head) volumeState {
		out, err := red.follow(ctx, from, heads)
		if err != nil {
			g.t.Fatal(err)
		}
		if out == nil {
			g.t.Fatal("nothing new in heads that are all new")
		}
		return out.state
	}
	want := state(history{}, heads)
	mixed := slices.Concat(older, heads, heads)
	r.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
	if got := state(history{}, mixed); !got.same(want) {
		g.t.Errorf("the state depends on the order of heads, or on older ones among them: %v", heads)
	}
	for _, h := range heads {
		from := historyOf(g.commits[h])
		if !slices.ContainsFunc(heads, func(h store.Head) bool { return !from.contains(h) }) {
			continue // it has all of them
		}
		// What this client has beyond the heads belongs to the set.
		all := maps.Clone(from)
		all.add(heads...)
		if got, want := state(from, heads), state(history{}, all.heads()); !got.same(want) {
			g.t.Errorf("the state depends on where a client comes from: %s of %v", h, heads)
		}
	}
	g.countCrissCross(&red, heads)
}

// countCrissCross counts the pairs of heads whose base is a merge itself.
func (g *simGraph) countCrissCross(red *reducer, heads []store.Head) {
	for i, x := range heads {
		for _, y := range heads[:i] {
			a, b, common := historyOf(g.commits[x]), historyOf(g.commits[y]), history{}
			for _, h := range a {
				if other := b[chainOf(h)]; other.Seq < h.Seq {
					h = other
				}
				common.add(h)
			}
			bases, err := red.maximal(ctx, common.heads())
			if err != nil {
				g.t.Fatal(err)
			}
			if slices.ContainsFunc(bases, func(c *store.Commit) bool { return !stateOf(c).same(stateOf(bases[0])) }) {
				g.crissCross++
			}
		}
	}
}

// checkBound fails if agreeing took more than it may: one round in which everybody merges what all have published, one in
// which everybody sees that all have come to the same, and one in which nothing is new.
func checkBound(t *testing.T, clients, rounds, commits int) {
	t.Helper()
	if rounds > 3 || commits > clients {
		t.Errorf("%d clients took %d rounds and %d commits to agree", clients, rounds, commits)
	}
}

// pollAtOnce lets all clients see the same.
func pollAtOnce(all []*simClient, r *rand.Rand) (any bool) {
	g := all[0].g
	seen := maps.Clone(g.newest)
	for _, c := range all {
		now := g.newest
		g.newest = maps.Clone(seen)
		any = c.poll(r, false) || any
		for client, seq := range now {
			g.newest[client] = max(g.newest[client], seq)
		}
	}
	return any
}

// randomOp does one random operation.
func (s *sim) randomOp(r *rand.Rand) {
	paths := []string{"/f", "/d", "/d/f", "/d/e", "/d/e/f", "/q", "/q/f", "/other", "/q/one", "/d/in", "/f2", "/d3", "/q/x"}
	p := paths[r.Intn(len(paths))]
	switch r.Intn(4) {
	case 0:
		s.rename(p, paths[r.Intn(len(paths))])
	case 1:
		s.write(p, fmt.Sprintf("%s %d", s.me, r.Int()))
	default:
		simOps[r.Intn(len(simOps))].do(s, p)
	}
}
