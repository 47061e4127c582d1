package store

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"testing"
	"testing/cryptotest"
	"time"
)

// The explorer takes every order of a few steps of two writers, a collector and one that joins late, instead of random ones. What each
// draws depends on nothing but what it knows, so that orders that make no difference lead to one state, which is gone on from once.

// allOnes is a source for decisions that are steps of their own here: nothing is lost, nothing is regrouped.
type allOnes struct{}

func (allOnes) Uint64() uint64 { return ^uint64(0) }

// exploreStep is what one actor may do.
type exploreStep struct {
	name    string
	hurries bool                   // it may lead to a deletion sooner
	can     func(w *simWorld) bool // nil is always
	do      func(w *simWorld)
}

// The actors of an exploration.
const (
	writer0, writer1, joiner = 0, 1, 2
	exploreActors            = 3
)

// exploreLag is how far listings of the remote are behind in a step that says so.
const exploreLag = 3 * simSettle / 4

// exploreSteps are the steps. Listings of registrations are always behind, and all that the late one joins by.
func exploreSteps() []exploreStep {
	steps := []exploreStep{
		{name: "settle", hurries: true, do: func(w *simWorld) { w.wait(2) }},
		{name: "condemn", hurries: true, do: collecting(func(sc *simCollector) { sc.condemnAnd(nil) })},
		{name: "look", hurries: true, do: collecting((*simCollector).look)},
		{name: "find", hurries: true, can: hasLooked, do: collecting((*simCollector).find)},
		{name: "delete", hurries: true, can: hasFound, do: collecting((*simCollector).remove)},
		{name: "join", can: absent, do: acting(joiner, (*simClient).readNotices, (*simClient).poll, (*simClient).merge)},
		{name: "joiner writes", can: present(joiner), do: acting(joiner, (*simClient).learnAll, (*simClient).rewrite)},
	}
	for i, name := range []string{"writer 0 ", "writer 1 "} {
		steps = append(steps,
			exploreStep{name: name + "writes", do: acting(i, (*simClient).rewrite)},
			exploreStep{name: name + "syncs", do: acting(i, (*simClient).sync)})
	}
	return steps
}

func hasLooked(w *simWorld) bool {
	sc := w.collectors[0]
	return sc.c.looked != nil && sc.c.Ready() == 0
}
func hasFound(w *simWorld) bool { return w.collectors[0].victims != nil }
func absent(w *simWorld) bool   { return !w.clients[joiner].ready }

func present(i int) func(*simWorld) bool { return func(w *simWorld) bool { return w.clients[i].ready } }

func collecting(step func(*simCollector)) func(*simWorld) {
	return func(w *simWorld) {
		sc := w.collectors[0]
		sc.use(behind(w, clientsDir, exploreLag))
		step(sc)
	}
}

func acting(i int, steps ...func(*simClient) error) func(*simWorld) {
	return func(w *simWorld) {
		c, view := w.clients[i], quiet(w)
		if i == joiner {
			view.lags = map[string]time.Duration{noticesDir: exploreLag, commitsDir: exploreLag}
		}
		c.use(view)
		for _, step := range steps {
			c.judge(step(c))
		}
	}
}

// rewrite makes a file of content 1, which the collector is about to take, or of another one if it is that.
func (c *simClient) rewrite() error {
	name := fmt.Sprintf("a/%d", c.number)
	content := 1
	if is := c.files[name]; len(is) > 0 && is[0].ID == c.slot.repo.ChunkID(simContent(1)) {
		content = 2 + c.number
	}
	c.put(name, content)
	return nil
}

func (c *simClient) learnAll() error {
	c.learnFrom(nil)
	return nil
}

// exploreStarts are the states from which all orders are taken: something is garbage, and then it is condemned and both writers say so too.
var exploreStarts = []struct {
	name string
	make func(w *simWorld)
}{
	{"a chunk is removed", func(w *simWorld) { removedLately(w) }},
	{"it is condemned and both writers say so", func(w *simWorld) {
		c0, c1 := removedLately(w)
		w.collectors[0].condemnFor(c0)
		c1.do(quiet(w), c1.sync)
		w.remote.now += simSettle / 4
	}},
}

// removedLately is a chunk that has been there for long, and was removed so lately that a listing may not show it.
func removedLately(w *simWorld) (c0, c1 *simClient) {
	c0, c1 = w.clients[writer0], w.clients[writer1]
	c0.do(quiet(w), c0.readNotices)
	c0.put("a/0", 1)
	c0.do(quiet(w), c0.sync)
	c1.do(quiet(w), c1.sync, c1.learnAll)
	w.wait(2)
	for i, c := range []*simClient{c0, c1, c0, c1} { // until both say that they have seen that
		c.put(fmt.Sprintf("a/%d", c.number), 2+i)
		c.do(quiet(w), c.sync)
	}
	w.collectors[0].condemnFor(c0) // it condemns nothing, and asks how far they are
	c1.do(quiet(w), c1.sync)
	w.remote.now += simSettle / 4
	return c0, c1
}

// explorer goes through all orders of steps.
type explorer struct {
	t         *testing.T
	steps     []exploreStep
	notices   int  // that are there at the start
	condemned bool // something is, by one of these

	seen   map[[16]byte]int   // states, and with how many steps to go
	recent map[string]*Commit // that have been read in any state, by name
	known  map[Head]bool      // commits in recent
	trace  []string           // the steps that led to where it is

	taken     int // steps
	rested    int // states that were brought to rest
	deletions int // steps that deleted multichunks
}

// from takes every order of n steps from w. It returns the steps that break a rule, nil if none does.
func (x *explorer) from(w *simWorld, n int) []string {
	if n == 0 {
		return x.rest(w)
	}
	need := x.stepsToDelete(w)
	for _, s := range x.steps {
		if s.can != nil && !s.can(w) || need == n && !s.hurries {
			continue
		}
		next := w.clone()
		x.take(next, s)
		if next.violation != "" {
			return append(slices.Clone(x.trace), s.name, next.violation)
		}
		if x.stepsToDelete(next) > n-1 {
			continue
		}
		key := next.key()
		if x.seen[key] >= n {
			continue
		}
		x.seen[key] = n
		x.trace = append(x.trace, s.name)
		if bad := x.from(next, n-1); bad != nil {
			return bad
		}
		x.trace = x.trace[:len(x.trace)-1]
	}
	return nil
}

// stepsToDelete returns how many steps it takes at least until something is deleted, 0 if that has been. Orders in which nothing can be
// deleted any more need not be taken to their end: nothing can go wrong in them.
func (x *explorer) stepsToDelete(w *simWorld) int {
	sc := w.collectors[0]
	switch {
	case w.counts.deleted > 0:
		return 0
	case sc.victims != nil && slices.ContainsFunc(sc.victims.of, func(v victim) bool { return len(v.names) > 0 }), w.faults.deletesAtOnce:
		return 1
	case hasLooked(w):
		return 2
	case sc.c.looked != nil:
		return 3
	case x.condemned || len(w.remote.entries(noticesDir, w.remote.now)) > x.notices:
		return 4
	}
	return 5
}

// take takes one step.
func (x *explorer) take(w *simWorld, s exploreStep) {
	x.taken++
	w.step++
	repo := w.rig.slots[0].repo
	repo.recent.mu.Lock()
	repo.recent.order = nil
	repo.recent.commits = map[Head]*Commit{}
	w.remote.objects.Ascend(commitsDir, func(name string, o simObject) bool {
		if c := x.recent[name]; c != nil && o.deleted == 0 {
			repo.recent.commits[c.Head()] = c
		}
		return topDir(name) == commitsDir
	})
	repo.recent.mu.Unlock()
	cryptotest.SetGlobalRandom(x.t, w.local(s))
	deleted := w.counts.deleted
	s.do(w)
	for _, c := range w.clients {
		c.checkNeeds()
	}
	for h, c := range repo.recent.commits {
		if !x.known[h] {
			x.known[h], x.recent[repo.commitName(h)] = true, c
		}
	}
	if w.counts.deleted > deleted {
		x.deletions++
	}
}

// rest lets one in 256 states come to rest: what is not needed must go.
func (x *explorer) rest(w *simWorld) []string {
	if key := w.key(); key[0] != 0 {
		return nil
	}
	x.rested++
	end := w.clone()
	w.rig.forget()
	for _, c := range end.clients {
		if !c.registered {
			c.use(quiet(end))
			c.judge(c.readNotices())
		}
	}
	if end.settle(); end.violation != "" {
		return append(slices.Clone(x.trace), "rest", end.violation)
	}
	return nil
}

// clone returns a world in which steps can be taken that leave w as it is.
func (w *simWorld) clone() *simWorld {
	n := *w
	n.remote.objects = *w.remote.objects.Copy()
	n.remote.gone = n.gone
	n.trees, n.commits, n.contents = maps.Clone(w.trees), maps.Clone(w.commits), maps.Clone(w.contents)
	n.newest, n.evicted, n.moved = maps.Clone(w.newest), maps.Clone(w.evicted), slices.Clone(w.moved)
	n.clients, n.collectors = nil, nil
	for _, c := range w.clients {
		n.clients = append(n.clients, c.clone(&n))
	}
	for _, sc := range w.collectors {
		c := newSimCollector(&n, sc.slot)
		c.past, c.victims = sc.past.clone(), sc.victims
		c.c.looked, c.c.lookedAt = sc.c.looked, sc.c.lookedAt
		n.collectors = append(n.collectors, c)
	}
	return &n
}

func (c *simClient) clone(w *simWorld) *simClient {
	n := *c
	n.w = w
	n.trust = Trust{heads: maps.Clone(c.trust.heads), accepted: c.trust.accepted, ended: maps.Clone(c.trust.ended)}
	n.files, n.snaps, n.vv, n.all = map[string][]Ref{}, maps.Clone(c.snaps), maps.Clone(c.vv), maps.Clone(c.all)
	for name, refs := range c.files {
		n.files[name] = slices.Clone(refs)
	}
	n.known, n.staged, n.index, n.tables = maps.Clone(c.known), maps.Clone(c.staged), maps.Clone(c.index), maps.Clone(c.tables)
	n.nodeIndex, n.learned, n.added = maps.Clone(c.nodeIndex), maps.Clone(c.learned), slices.Clone(c.added)
	n.held, n.polled = slices.Clone(c.held), slices.Clone(c.polled)
	n.cond, n.past = c.cond.clone(), c.past.clone()
	return &n
}

func (c *Condemned) clone() *Condemned {
	return &Condemned{names: maps.Clone(c.names), notices: maps.Clone(c.notices), gone: maps.Clone(c.gone), evicted: maps.Clone(c.evicted),
		ended: maps.Clone(c.ended), ending: maps.Clone(c.ending), there: maps.Clone(c.there)}
}

func (p *past) clone() *past {
	return &past{contains: maps.Clone(p.contains), of: maps.Clone(p.of), inodes: maps.Clone(p.inodes)}
}

// key names all that can make a difference to what comes: two worlds of one key are one. Times count up to what listings may hide.
func (w *simWorld) key() [16]byte {
	h := sha256.New()
	for _, c := range w.clients {
		c.describeTo(h)
	}
	for _, sc := range w.collectors[:1] {
		fmt.Fprintln(h, sc.c.looked != nil, sc.c.Ready(), sc.victims != nil)
		if s := sc.c.looked; s != nil {
			sums(h, s.notices, s.heads)
		}
		if v := sc.victims; v != nil {
			sums(h, v.s.notices, v.s.heads)
			for _, victim := range v.of {
				fmt.Fprintln(h, victim.notice.ID, victim.names, victim.finished)
			}
		}
	}
	age := func(at time.Duration) time.Duration { return min(w.remote.now-at, simSettle) }
	w.remote.objects.Scan(func(name string, o simObject) bool {
		if o.deleted > 0 && age(o.deleted) == simSettle {
			return true
		}
		io.WriteString(h, name)
		fmt.Fprintln(h, age(o.put), o.deleted > 0, age(o.deleted))
		if topDir(name) != clientsDir { // a registration has the time in it
			binary.Write(h, binary.BigEndian, crc32.ChecksumIEEE(o.data))
		}
		return true
	})
	return [16]byte(h.Sum(nil))
}

func sums(h io.Writer, notices []*Notice, heads map[chain]*Commit) {
	for _, n := range notices {
		fmt.Fprintln(h, n.ID, n.Condemned)
	}
	for _, c := range slices.SortedFunc(maps.Keys(heads), compareChains) {
		fmt.Fprintln(h, heads[c].Head())
	}
}

// describeTo writes all that a client knows.
func (c *simClient) describeTo(h io.Writer) {
	fmt.Fprintln(h, c.registered, c.ready, c.retired, c.files, c.snaps, c.vv, c.known, c.index, c.tables, c.added, c.held)
	fmt.Fprintln(h, c.notices, c.polled, slices.Sorted(maps.Keys(c.stateFiles)), c.trust.heads, c.cond.names, c.cond.notices, c.past.of)
	fmt.Fprintln(h, slices.SortedFunc(maps.Keys(c.staged), compareIDs), slices.SortedFunc(maps.Keys(c.learned), compareNames))
	if c.head != nil {
		fmt.Fprintln(h, c.head.Head())
	}
	if c.intent != nil {
		fmt.Fprintln(h, c.intent.sealed.Head)
	}
}

// local returns the seed of what is drawn in a step: it follows from what the one who takes it knows.
func (w *simWorld) local(s exploreStep) uint64 {
	h := sha256.New()
	io.WriteString(h, s.name)
	switch {
	case len(s.name) > 8 && s.name[:8] == "writer 0":
		w.clients[writer0].describeTo(h)
	case len(s.name) > 8 && s.name[:8] == "writer 1":
		w.clients[writer1].describeTo(h)
	default:
		w.remote.objects.Scan(func(name string, _ simObject) bool {
			if topDir(name) == noticesDir {
				io.WriteString(h, name)
			}
			return true
		})
	}
	return binary.BigEndian.Uint64(h.Sum(nil))
}

// explore takes all orders of n steps from a start.
func explore(t *testing.T, rig *simRig, start func(*simWorld), n int, rules collectRules, faults simFaults) (*explorer, []string) {
	x := &explorer{t: t, steps: exploreSteps(), seen: map[[16]byte]int{}, recent: map[string]*Commit{}, known: map[Head]bool{}}
	cryptotest.SetGlobalRandom(t, 1)
	w := newSimWorld(rig, 1, rules, faults)
	w.rng = rand.New(allOnes{})
	w.clients = w.clients[:exploreActors]
	w.collectors = w.collectors[:1]
	start(w)
	if w.violation != "" {
		return x, []string{w.violation}
	}
	x.notices = len(w.remote.entries(noticesDir, w.remote.now))
	x.condemned = len(w.clients[writer0].cond.names) > 0
	return x, x.from(w, n)
}

// TestCollectExplored takes all orders of eight steps, or ten with DEDUPFS_LONG, and from the second start, which is three of them further, two less.
func TestCollectExplored(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(800))
	rig, err := newSimRig()
	if err != nil {
		t.Fatal(err)
	}
	steps := 8
	switch {
	case long:
		steps = 10
	case testing.Short():
		steps = 7
	}
	for i, start := range exploreStarts {
		x, bad := explore(t, rig, start.make, steps-2*i, collectRules{}, simFaults{})
		t.Logf("%s: %d states, %d steps, %d states brought to rest, %d steps that deleted multichunks", start.name, len(x.seen), x.taken, x.rested, x.deletions)
		if bad != nil {
			t.Errorf("%s: %q", start.name, bad)
		}
		if x.deletions == 0 {
			t.Error("nothing was at stake")
		}
	}
}

// exploreMutants are the broken rules that some order of so few steps shows: the others need open files, restarts, longer histories, or
// what is not explored, errors and regrouping. The steps are the fewest that do.
var exploreMutants = []struct {
	name   string
	start  int
	steps  int
	rules  collectRules
	faults simFaults
}{
	{name: "acknowledgements are not waited for", steps: 6, rules: collectRules{noAcks: true}},
	{name: "the second mark is skipped", steps: 8, rules: collectRules{noSecondMark: true}},
	{name: "the settle time is not waited for", start: 1, steps: 4, rules: collectRules{noSettling: true}},
	{name: "registrations are not listed again", start: 1, steps: 5, rules: collectRules{noSecondLook: true}},
	{name: "deleted before it is published", steps: 2, faults: simFaults{deletesAtOnce: true}},
	{name: "a condemned multichunk stays in the index", steps: 8, faults: simFaults{keepsIndex: true}},
	{name: "registered after deduplicating", start: 1, steps: 5, faults: simFaults{registersLate: true}},
}

// TestCollectExploredMutants breaks one rule at a time: some order of steps shows it.
func TestCollectExploredMutants(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(800))
	rig, err := newSimRig()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range exploreMutants {
		t.Run(m.name, func(t *testing.T) {
			if testing.Short() && m.steps > 6 {
				t.Skip("takes long")
			}
			x, bad := explore(t, rig, exploreStarts[m.start].make, m.steps, m.rules, m.faults)
			if bad == nil {
				t.Fatal("not noticed")
			}
			t.Logf("%d steps: %q", x.taken, bad)
		})
	}
}
