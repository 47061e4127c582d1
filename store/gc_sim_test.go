package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
	"github.com/tidwall/btree"
)

// The simulator runs collectors and clients over one remote, a step of one of them at a time, in virtual time. What it runs is the real
// code: notices, survey, mark, deletion; registrations, polls, commits, packers and nodes. The clients themselves are models: a
// volume of a few files, an index in a map. Before and after every step an oracle that sees everything says what may still be needed.

// simSettle is the settle time of simulated repositories.
const simSettle = time.Hour

var errInjected = errors.New("injected")

// simRemote is a remote in virtual time.
type simRemote struct {
	now     time.Duration
	objects btree.Map[string, simObject]
	gone    func(name string) // called when an object is deleted
}

type simObject struct {
	data    []byte
	put     time.Duration
	deleted time.Duration // zero is never
}

// simView is a remote as one actor sees it during one step.
type simView struct {
	r *simRemote

	lags    map[string]time.Duration // of listings, by the first element of the directory
	fail    string                   // "get commits", "list data", "put gc", ...: all of these fail; "" is none
	worked  bool                     // what fails has worked even so
	doubled bool

	mu    sync.Mutex // guards what follows
	after int        // puts and deletes that work before the rest of the step fails; -1 is all
	gets  int        // of multichunks that fail before the others work
	calls int        // of any kind that work before all others fail; 0 is all
	done  int        // calls
}

func topDir(name string) string {
	top, _, _ := strings.Cut(name, "/")
	return top
}

// broken returns an error if an operation is to fail.
func (v *simView) broken(op, name string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.done++
	mutation := op == "put" || op == "delete"
	fails := v.fail == op+" "+topDir(name) || mutation && v.after == 0 || v.calls > 0 && v.done > v.calls
	if mutation && v.after > 0 {
		v.after--
	}
	if op == "get" && topDir(name) == dataDir && v.gets > 0 {
		v.gets--
		fails = true
	}
	if fails {
		return fmt.Errorf("%s %s: %w", op, name, errInjected)
	}
	return nil
}

func (v *simView) Put(_ context.Context, name string, data []byte) error {
	err := v.broken("put", name)
	if err != nil && !v.worked {
		return err
	}
	if old, ok := v.r.objects.Get(name); !ok || old.deleted > 0 {
		v.r.objects.Set(name, simObject{data: slices.Clone(data), put: v.r.now})
	}
	return err
}

func (v *simView) Get(_ context.Context, name string, off, n int64) ([]byte, error) {
	if err := v.broken("get", name); err != nil {
		return nil, err
	}
	o, ok := v.r.objects.Get(name)
	if !ok || o.deleted > 0 {
		return nil, fmt.Errorf("get %s: %w", name, remote.ErrNotExist)
	}
	size := int64(len(o.data))
	if off > size || n >= 0 && off+n > size {
		return nil, io.ErrUnexpectedEOF
	}
	if n < 0 {
		n = size - off
	}
	return append([]byte(nil), o.data[off:off+n]...), nil
}

func (v *simView) Delete(_ context.Context, name string) error {
	err := v.broken("delete", name)
	if err != nil && !v.worked {
		return err
	}
	if o, ok := v.r.objects.Get(name); ok && o.deleted == 0 {
		o.deleted = v.r.now
		o.data = nil
		v.r.objects.Set(name, o)
		v.r.gone(name)
	}
	return err
}

func (v *simView) List(_ context.Context, dir string, fn func(remote.Entry) error) error {
	if err := v.broken("list", dir); err != nil {
		return err
	}
	entries := v.r.entries(dir, v.r.now-v.lags[topDir(dir)])
	if v.doubled {
		entries = append(entries, entries...)
	}
	for _, e := range entries {
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// entries returns the listing of dir as it was at a time.
func (r *simRemote) entries(dir string, at time.Duration) []remote.Entry {
	prefix := dir + "/"
	if dir == "" {
		prefix = ""
	}
	var entries []remote.Entry
	it := r.objects.Iter()
	for ok := it.Seek(prefix); ok && strings.HasPrefix(it.Key(), prefix); {
		o := it.Value()
		if o.put > at || o.deleted > 0 && o.deleted <= at {
			ok = it.Next()
			continue
		}
		name, _, sub := strings.Cut(it.Key()[len(prefix):], "/")
		if sub {
			entries = append(entries, remote.Entry{Name: name, Size: -1, Dir: true})
			ok = it.Seek(prefix + name + "0")
			continue
		}
		entries = append(entries, remote.Entry{Name: name, Size: int64(len(o.data))})
		ok = it.Next()
	}
	return entries
}

func (r *simRemote) has(n Name) bool {
	o, ok := r.objects.Get(ObjectName(n))
	return ok && o.deleted == 0
}

// newSimKeys returns what all actors of all simulations share: making it takes long.
func newSimKeys() (*seal.Keyring, Config) {
	cfg := Config{MultichunkSize: MinMultichunk, GroupSize: MinGroup, Compression: "none", SettleTime: simSettle}.withDefaults()
	cfg.SettleTime = simSettle
	copy(cfg.Repository[:], "simulated")
	return seal.NewKeyring(cfg.Repository), cfg
}

// A simSlot is the Repository of one actor, used in one simulation after the other.
type simSlot struct {
	repo *Repository
	view *simView
}

func (s *simSlot) Put(ctx context.Context, name string, data []byte) error {
	return s.view.Put(ctx, name, data)
}
func (s *simSlot) Get(ctx context.Context, name string, off, n int64) ([]byte, error) {
	return s.view.Get(ctx, name, off, n)
}
func (s *simSlot) List(ctx context.Context, dir string, fn func(remote.Entry) error) error {
	return s.view.List(ctx, dir, fn)
}
func (s *simSlot) Delete(ctx context.Context, name string) error { return s.view.Delete(ctx, name) }

const (
	simClients    = 4
	simCollectors = 2
)

// simRig is what one simulation after the other is run in.
type simRig struct {
	slots [simClients + simCollectors]*simSlot
}

// newSimRig makes one Repository that stands for those of all actors: they act one at a time.
func newSimRig() (*simRig, error) {
	keys, cfg := newSimKeys()
	s := new(simSlot)
	var err error
	if s.repo, err = newRepository(s, keys, cfg); err != nil {
		return nil, err
	}
	s.repo.askAgain = 0
	rig := new(simRig)
	for i := range rig.slots {
		rig.slots[i] = s
	}
	return rig, nil
}

// forget makes the rig as new, so that a seed says all.
func (rig *simRig) forget() {
	repo := rig.slots[0].repo
	repo.recent.mu.Lock()
	defer repo.recent.mu.Unlock()
	repo.recent.commits, repo.recent.order = nil, nil
	repo.registrations.Clear()
	repo.moves.known, repo.moves.to = nil, nil
	repo.past = new(past)
}

// use lets an actor take a step: it sees the remote by view, and knows of the past what it has read itself.
func (s *simSlot) use(view *simView, known *past) {
	s.view = view
	s.repo.past = known
}

// simFaults are rules that clients break in a simulation. The zero value keeps all.
type simFaults struct {
	prunesEarly, mergesEnded, keepsPolled, answersBare bool

	keepsIndex, acksEarly, registersLate, forgetsAcks, nodesByIndex, mergesEvicted, hidesHeld, revives, deletesAtOnce, mergesMerged bool
}

// simWorld is one simulation.
type simWorld struct {
	ctx    context.Context
	rng    *rand.Rand
	rig    *simRig
	remote simRemote
	calm   bool // nothing fails any more
	small  bool // what marking reaches does not fit into memory
	faults simFaults
	rules  collectRules

	clients    []*simClient
	collectors []*simCollector

	trees    map[simTree]map[simNeed]bool // what a tree needs
	commits  map[Head]*simCommit
	contents map[Name][]ID // of all multichunks
	moved    []Name        // made by regrouping
	newest   map[chain]Head
	evicted  map[chain]Head // by any notice that has been published

	step      int
	counts    simCounts
	violation string
}

// simCounts say whether anything was at stake.
type simCounts struct {
	deleted   int // multichunks
	early     int // of these, before all came to rest
	evictions int
	spared    int // condemned multichunks that were needed after all
	moved     int // multichunks made by regrouping
	commits   int // deleted
	moves     int // deleted
	answers   int // without what had changed
}

func (c *simCounts) add(d simCounts) {
	c.deleted += d.deleted
	c.early += d.early
	c.evictions += d.evictions
	c.spared += d.spared
	c.moved += d.moved
	c.commits += d.commits
	c.moves += d.moves
	c.answers += d.answers
}

// simNeed is a chunk or node, and where a reference says it lies.
type simNeed struct {
	at Name
	id ID
}

func needOf(ref Ref) simNeed { return simNeed{ref.Hint.Multichunk, ref.ID} }

// readable reports whether what is needed is there: where the reference says, or where a move leads to.
func (w *simWorld) readable(n simNeed) bool {
	if w.remote.has(n.at) {
		return true
	}
	return slices.ContainsFunc(w.rig.slots[0].repo.MovedTo(n.at), func(to Name) bool {
		return w.remote.has(to) && slices.Contains(w.contents[to], n.id)
	})
}

// simTree names a root as it was stored once.
type simTree struct {
	id ID
	at Name
}

func treeOf(ref Ref) simTree { return simTree{ref.ID, ref.Hint.Multichunk} }

// simCommit is what the oracle knows of a commit.
type simCommit struct {
	head  Head
	vv    map[chain]Head // what it has seen, itself included
	needs map[simNeed]bool
}

func newSimWorld(rig *simRig, seed uint64, rules collectRules, faults simFaults) *simWorld {
	w := &simWorld{
		ctx: context.Background(), rng: rand.New(rand.NewPCG(seed, 10)), rig: rig, rules: rules, faults: faults,
		trees: map[simTree]map[simNeed]bool{}, commits: map[Head]*simCommit{}, contents: map[Name][]ID{}, newest: map[chain]Head{}, evicted: map[chain]Head{},
	}
	w.small = seed%16 == 3
	rig.forget()
	w.remote.now = 10 * simSettle
	w.remote.gone = w.gone
	for i := range 2 + seed%(simClients-1) {
		w.clients = append(w.clients, newSimClient(w, rig.slots[i], int(i)))
	}
	for i := range simCollectors {
		w.collectors = append(w.collectors, newSimCollector(w, rig.slots[simClients+i]))
	}
	return w
}

func (w *simWorld) fail(format string, args ...any) {
	if w.violation == "" {
		w.violation = fmt.Sprintf("step %d: ", w.step) + fmt.Sprintf(format, args...)
	}
}

// view draws how an actor sees the remote during one step.
func (w *simWorld) view() *simView {
	v := &simView{r: &w.remote, after: -1, lags: map[string]time.Duration{}}
	if w.calm {
		return v
	}
	for _, top := range simDirs {
		if w.rng.IntN(2) == 0 {
			v.lags[top] = time.Duration(w.rng.Int64N(int64(simSettle)))
		}
	}
	v.doubled = w.rng.IntN(8) == 0
	if w.rng.IntN(10) == 0 {
		ops, tops := []string{"get", "list", "put", "delete"}, simDirs
		v.fail = ops[w.rng.IntN(len(ops))] + " " + tops[w.rng.IntN(len(tops))]
		v.worked = w.rng.IntN(2) == 0
	}
	if w.rng.IntN(10) == 0 {
		v.after = w.rng.IntN(6)
		v.worked = w.rng.IntN(2) == 0
	}
	return v
}

// simDirs are the directories whose listings may be behind or fail.
var simDirs = []string{clientsDir, commitsDir, noticesDir, dataDir, pastDir}

// pass lets time pass: mostly little, sometimes weeks.
func (w *simWorld) pass() {
	switch w.rng.IntN(12) {
	case 0:
		w.remote.now += time.Duration(w.rng.Int64N(int64(3 * simSettle)))
	case 1:
		w.remote.now += simSettle
	default:
		w.remote.now += time.Duration(w.rng.Int64N(int64(simSettle) / 8))
	}
}

// run takes steps, and then lets everything come to rest.
func (w *simWorld) run(steps int) string {
	for w.step = 1; w.step <= steps && w.violation == ""; w.step++ {
		w.pass()
		if w.rng.IntN(3) == 0 {
			w.collectors[w.rng.IntN(len(w.collectors))].act()
			continue
		}
		w.clients[w.rng.IntN(len(w.clients))].act()
	}
	w.counts.early = w.counts.deleted
	if w.violation == "" {
		w.settle()
	}
	return w.violation
}

// settle ends all faults. Whoever is there goes on, whoever is not is evicted; then what is not needed must go.
func (w *simWorld) settle() {
	w.calm = true
	for _, c := range w.clients {
		c.asleep = 0
		c.held = nil
	}
	collector := newSimCollector(w, w.collectors[0].slot)
	for range 7 {
		w.remote.now += 3 * simSettle
		for range 2 {
			for _, c := range w.clients {
				c.rest()
			}
			w.remote.now += 2 * simSettle
		}
		collector.round()
		if w.violation != "" {
			return
		}
	}
	w.checkEmpty()
}

// checkEmpty sees that of everything left something is needed, or is a copy of what is: which of two copies is the good one is
// not for marking to say.
func (w *simWorld) checkEmpty() {
	needed := w.neededBy(nil)
	live, named := map[ID]bool{}, map[Name]bool{}
	for n := range needed {
		live[n.id], named[n.at] = true, true
		for _, id := range w.contents[n.at] {
			live[id] = true
		}
	}
	w.remote.objects.Scan(func(name string, o simObject) bool {
		n, ok := parseObjectName(name)
		isLive := func(id ID) bool { return live[id] }
		if ok && o.deleted == 0 && !named[n] && !slices.ContainsFunc(w.contents[n], isLive) {
			w.fail("multichunk %v is garbage and stays", n)
		}
		return true
	})
	w.checkBounded()
}

// checkBounded sees that nothing is left of the mounts that were.
func (w *simWorld) checkBounded() {
	living := map[string]bool{}
	for _, c := range w.clients {
		if c.registered {
			living[c.reg.Incarnation.String()] = true
		}
	}
	for c := range w.evicted {
		living[c.incarnation.String()] = true
	}
	counts := map[string]int{}
	w.remote.objects.Scan(func(name string, o simObject) bool {
		if o.deleted > 0 {
			return true
		}
		parts := strings.Split(name, "/")
		switch parts[0] {
		case commitsDir, clientsDir:
			i, _, _ := strings.Cut(parts[2], "-")
			if !living[i] && !w.isUnseen(i) {
				w.fail("%s is of a mount that has ended, and stays", name)
			}
			counts[parts[0]+"/"+i]++
		case pastDir, movedDir:
			counts[parts[0]]++
		}
		return true
	})
	regrouped := 0
	for _, n := range w.moved {
		if w.remote.has(n) {
			regrouped++
		}
	}
	for what, n := range counts {
		if n > 12 && (what != movedDir || n > 3*regrouped) {
			w.fail("%d objects of %s are left", n, what)
		}
	}
}

// isUnseen reports whether somebody who is there has not said that it has seen the last commit of an incarnation that has ended. It has if
// it has published anything since; when all trees are equal nobody does, and no collection asks for it.
func (w *simWorld) isUnseen(incarnation string) bool {
	for of, last := range w.newest {
		if of.incarnation.String() != incarnation {
			continue
		}
		for _, c := range w.clients {
			head := w.commits[w.newest[chain{c.id, c.reg.Incarnation}]]
			if c.registered && head != nil && head.vv[of].Seq < last.Seq {
				return true
			}
		}
	}
	return false
}

// gone is called when an object is deleted.
func (w *simWorld) gone(name string) {
	switch topDir(name) {
	case dataDir:
		w.counts.deleted++
	case commitsDir:
		w.counts.commits++
		w.forgetCommit(name)
		return
	case movedDir:
		w.counts.moves++
		w.forgetMove(name)
	default:
		return
	}
	for need, who := range w.neededBy(nil) {
		if !w.readable(need) {
			w.fail("%s is deleted, and %s needs %v of %v", name, who, need.id, need.at)
		}
	}
}

// forgetCommit lets nobody have a commit in memory that is deleted.
func (w *simWorld) forgetCommit(name string) {
	repo := w.rig.slots[0].repo
	repo.recent.mu.Lock()
	defer repo.recent.mu.Unlock()
	maps.DeleteFunc(repo.recent.commits, func(h Head, _ *Commit) bool { return repo.commitName(h) == name })
}

// forgetMove lets nobody have a move in memory that is deleted.
func (w *simWorld) forgetMove(name string) {
	moves := &w.rig.slots[0].repo.moves
	known := moves.all()
	maps.DeleteFunc(known, func(id [16]byte, _ *move) bool { return moveName(id) == name })
	moves.mu.Lock()
	moves.known, moves.to = nil, nil
	moves.mu.Unlock()
	for id, m := range known {
		moves.add(id, m)
	}
}

// packed notes what a multichunk holds that is going to be put.
func (w *simWorld) packed(s *Sealed) {
	for _, e := range s.Table {
		w.contents[s.Name] = append(w.contents[s.Name], e.ID)
	}
}

// neededBy returns which multichunks are needed, and by whom: by newest commits that count, and by clients, or by one of them alone.
func (w *simWorld) neededBy(one *simClient) map[simNeed]string {
	needed := map[simNeed]string{}
	if one == nil {
		for c, h := range w.newest {
			h = w.counting(c, h)
			if commit := w.commits[h]; commit != nil && w.isMaximal(commit) {
				for n := range commit.needs {
					needed[n] = "commit " + h.String()
				}
			}
		}
	}
	for _, c := range w.clients {
		if one == nil || c == one {
			c.needs(func(n simNeed) { needed[n] = fmt.Sprintf("client %d", c.number) })
		}
	}
	return needed
}

func (w *simWorld) counting(c chain, h Head) Head {
	if last, ok := w.evicted[c]; ok && h.Seq > last.Seq {
		return last
	}
	return h
}

func (w *simWorld) isMaximal(commit *simCommit) bool {
	c := commit.head.chain()
	for other, h := range w.newest {
		if o := w.commits[w.counting(other, h)]; o != nil && o != commit && o.vv[c].Seq >= commit.head.Seq {
			return false
		}
	}
	return true
}

// simCollector is one process that collects, again and again.
type simCollector struct {
	w    *simWorld
	slot *simSlot

	past    *past
	c       *Collector
	victims *victims // found, and not deleted yet
}

func newSimCollector(w *simWorld, slot *simSlot) *simCollector {
	sc := &simCollector{w: w, slot: slot}
	sc.restart()
	return sc
}

func (sc *simCollector) restart() {
	sc.victims, sc.past = nil, new(past)
	sc.c = sc.slot.repo.NewCollector(&CollectOptions{
		AllowMost:    true,
		worthTelling: 1, worthUniting: 1,
		Running: func() time.Duration { return sc.w.remote.now },
		rules:   sc.w.rules,
	})
	if sc.w.small {
		sc.c.o.idsRoom = 4
	}
	sc.c.packed = func(s *Sealed) {
		sc.w.packed(s)
		sc.w.moved = append(sc.w.moved, s.Name)
		sc.w.counts.moved++
	}
}

// act takes one step.
func (sc *simCollector) act() {
	w := sc.w
	sc.use(w.view())
	switch n := w.rng.IntN(40); {
	case n == 0:
		sc.restart()
	case n < 2:
		sc.look() // too early, or again
	case sc.victims != nil:
		if n < 20 {
			sc.remove()
		}
	case sc.c.looked != nil && sc.c.Ready() == 0:
		sc.find()
	case n < 12:
		sc.condemn()
	case sc.c.looked == nil:
		sc.look()
	}
}

func (sc *simCollector) use(v *simView) { sc.slot.use(v, sc.past) }

func (sc *simCollector) look() {
	_, err := sc.c.Look(sc.w.ctx)
	sc.judge(err)
}

// condemn also evicts, sometimes, a client that has not been heard of for long.
func (sc *simCollector) condemn() {
	w := sc.w
	var evict []Incarnation
	if w.rng.IntN(4) == 0 {
		for _, c := range w.clients {
			if c.asleep > w.remote.now+24*simSettle && c.registered && len(evict) == 0 {
				evict = append(evict, c.reg.Incarnation)
			}
		}
	}
	sc.condemnAnd(evict)
}

func (sc *simCollector) condemnAnd(evict []Incarnation) {
	w := sc.w
	p, err := sc.c.plan(w.ctx, false)
	if err != nil {
		sc.judge(err)
		return
	}
	if w.faults.deletesAtOnce {
		for _, n := range p.found.Garbage {
			sc.judge(sc.slot.Delete(w.ctx, ObjectName(n)))
		}
		return
	}
	if _, err := p.s.evictions(evict); err != nil {
		evict = nil
	}
	var o *RegroupOptions
	if w.rng.IntN(3) == 0 {
		o = &RegroupOptions{MaxUnused: w.rng.Float64() / 4}
	}
	_, err = sc.c.CondemnAndRegroup(w.ctx, o, evict...)
	w.noteEvictions()
	sc.judge(err)
}

// noteEvictions takes in what notices say that are there, also those whose put has answered an error.
func (w *simWorld) noteEvictions() {
	w.remote.objects.Ascend(noticesDir+"/", func(name string, o simObject) bool {
		if topDir(name) != noticesDir {
			return false
		}
		if o.deleted > 0 || len(o.data) == 0 {
			return true
		}
		n, err := w.rig.slots[0].repo.openNotice(name, o.data)
		if err != nil {
			w.fail("%s: %v", name, err)
			return false
		}
		for _, h := range n.Evicted {
			if known, ok := w.evicted[h.chain()]; !ok || h.Seq < known.Seq {
				w.evicted[h.chain()] = h
				w.counts.evictions++
			}
		}
		return true
	})
}

// find looks for what can be deleted.
func (sc *simCollector) find() {
	if sc.c.looked == nil || sc.c.Ready() > 0 {
		return
	}
	var d Deletion
	victims, err := sc.c.victims(sc.w.ctx, sc.c.looked, &d)
	sc.w.counts.spared += d.Needed
	sc.judge(err)
	if sc.w.rng.IntN(2) == 0 {
		sc.c.looked = nil // what it saw stays good, but is not news
	}
	if err == nil {
		sc.victims = victims
	}
}

// remove deletes what was found, perhaps long ago.
func (sc *simCollector) remove() {
	if sc.victims == nil {
		return
	}
	sc.judge(sc.c.delete(sc.w.ctx, sc.victims, new(Deletion)))
	sc.victims = nil
}

// judge lets through what comes of injected errors, and of listings so old that what they show has been collected by another.
func (sc *simCollector) judge(err error) {
	if err != nil && !errors.Is(err, errInjected) && (sc.w.calm || !errors.Is(err, remote.ErrNotExist)) {
		sc.w.fail("collector: %v", err)
	}
}

// nobodys returns the incarnations that were registered and never came to life, because the answer got lost. Somebody evicts them.
func (sc *simCollector) nobodys() []Incarnation {
	s, err := sc.slot.repo.survey(sc.w.ctx)
	if err != nil {
		sc.judge(err)
		return nil
	}
	var nobodys []Incarnation
	for ch := range s.active {
		alive := func(c *simClient) bool { return c.registered && c.chain() == ch }
		if _, evicted := s.evicted[ch]; !evicted && !slices.ContainsFunc(sc.w.clients, alive) {
			nobodys = append(nobodys, ch.incarnation)
		}
	}
	return nobodys
}

// round collects once, with nothing failing.
func (sc *simCollector) round() {
	w := sc.w
	sc.use(w.view())
	sc.condemnAnd(sc.nobodys())
	w.remote.now += 3 * simSettle
	for _, c := range w.clients {
		c.rest()
	}
	w.remote.now += 3 * simSettle
	sc.use(w.view())
	if _, err := sc.c.Look(w.ctx); err != nil {
		sc.judge(err)
		return
	}
	w.remote.now += 2 * simSettle
	sc.find()
	sc.remove()
}
