package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dedupfs/dedupfs/remote"
)

// ErrTooMuch says that garbage collection would delete more than half of a repository.
var ErrTooMuch = errors.New("more than half of the repository would be deleted; if that is right, run `dedupfs gc --unsafe-allow-delete-most`")

// CollectOptions are options of NewCollector. Nil is the defaults.
type CollectOptions struct {
	// Running is how long this process has run, by a clock that nobody sets and that does not go on while it is suspended with the
	// machine: too slow is safe. Default: the runtime's monotonic clock.
	Running func() time.Duration

	// AllowMost lets more than half of the repository be condemned. Default false.
	AllowMost bool

	// Progress is told how many of the multichunks have been looked at. Default: nobody.
	Progress func(done, total int64, stage string)

	worthTelling int // so many old commits and registrations are worth a notice of their own; default 16
	idsRoom      int // fingerprints of what was reached that are kept in memory; default idsHeld
	worthUniting int // so many moves are worth to be united; default 4
	rules        collectRules
}

// collectRules are the rules of collecting; each is broken in a test to see that it is needed. The zero value keeps all.
type collectRules struct {
	noAcks, noSecondMark, noSettling, noSecondLook, noUnseen, noBases, noHeld, noSnapshots, ignoreErrors, condemnedCovers bool

	endsBases, passesUnheard, passesUnseen, pastUnsaid, forgetsMoves bool
}

// A Collector collects garbage: it condemns multichunks that nobody needs, and deletes what was condemned once every client goes by
// that. docs/gc.md says why that is safe. All that must be remembered lies on the remote: a Collector may be given up at any time,
// and several may be at work at once. A Collector is not safe for concurrent use.
type Collector struct {
	r *Repository
	o CollectOptions

	looked   *survey       // by Look; nil before, and after what it found has been used up
	lookedAt time.Duration // running time at its end
	sizes    map[Name]int64
	packed   func(*Sealed) // told of what regrouping stores, by tests
}

// NewCollector returns a Collector that has not looked yet.
func (r *Repository) NewCollector(o *CollectOptions) *Collector {
	if o == nil {
		o = new(CollectOptions)
	}
	c := &Collector{r: r, o: *o}
	if c.o.worthTelling == 0 {
		c.o.worthTelling, c.o.worthUniting = 16, 4
	}
	if c.o.Running == nil {
		began := time.Now()
		c.o.Running = func() time.Duration { return time.Since(began) }
	}
	return c
}

// A Condemnation is what Condemn has found, and done.
type Condemnation struct {
	Multichunks int  // listed
	Needed      int  // by what is kept
	Condemned   int  // before, by notices that are still there
	Behind      bool // older states are kept only because some client has not said that it has seen newer ones
	Unreadable  int  // with a table that cannot be read; they are left alone
	Garbage     []Name

	Bytes          int64 // on the remote, of all multichunks that are listed
	CondemnedBytes int64 // of those that were condemned before and that nothing needs
	Regrouped      Regrouped
	Spared         int // of those that were condemned before and are needed even so
	GarbageBytes   int64
	Old            int     // commits and registrations that nobody needs any more
	Notice         *Notice // nil if there was nothing to tell, or it was not wanted
}

// IsMost reports whether more than half of the repository's bytes are garbage.
func (f *Condemnation) IsMost() bool { return 2*f.GarbageBytes > f.Bytes }

// SetProgress says whom to tell how far it is.
func (c *Collector) SetProgress(fn func(done, total int64, stage string)) { c.o.Progress = fn }

// AllowMost sets CollectOptions.AllowMost.
func (c *Collector) AllowMost(allow bool) { c.o.AllowMost = allow }

// HasLooked reports whether Look was called.
func (c *Collector) HasLooked() bool { return c.looked != nil }

// Plan finds what Condemn would condemn, and changes nothing.
func (c *Collector) Plan(ctx context.Context) (*Condemnation, error) { return c.PlanRegroup(ctx, nil) }

// PlanRegroup finds what CondemnAndRegroup would condemn and regroup, and changes nothing.
func (c *Collector) PlanRegroup(ctx context.Context, o *RegroupOptions) (*Condemnation, error) {
	p, err := c.plan(ctx, o != nil)
	if err != nil {
		return nil, fmt.Errorf("collect garbage: %w", err)
	}
	defer p.m.close()
	p.found.Behind = p.s.needsCall(p.m)
	if _, p.found.Old, err = c.r.passing(ctx, p.s); err != nil {
		return nil, fmt.Errorf("collect garbage: %w", err)
	}
	if o != nil {
		if err := c.findOld(ctx, p, o); err != nil {
			return nil, fmt.Errorf("collect garbage: %w", err)
		}
		for _, q := range c.r.choose(p.partial, o) {
			p.found.Regrouped.From++
			p.found.Regrouped.FromBytes += q.size
			p.found.Regrouped.Live += q.needed()
		}
	}
	return p.found, nil
}

// Condemn publishes a notice that condemns all multichunks of which nothing is needed, and evicts the given clients. It publishes
// one without any if clients keep states alive only by not having heard of newer ones: answering it, they say that they have.
// An error of any kind means that nothing was condemned, or that a notice may have been published; neither does harm.
func (c *Collector) Condemn(ctx context.Context, evict ...Incarnation) (*Condemnation, error) {
	return c.CondemnAndRegroup(ctx, nil, evict...)
}

// CondemnAndRegroup is Condemn, and before that stores anew what is needed of multichunks that are mostly unused, or small, unless o is
// nil: then these are garbage too. That they have moved is published; no tree is changed.
func (c *Collector) CondemnAndRegroup(ctx context.Context, o *RegroupOptions, evict ...Incarnation) (*Condemnation, error) {
	p, err := c.plan(ctx, o != nil)
	if err != nil {
		return nil, fmt.Errorf("collect garbage: %w", err)
	}
	defer p.m.close()
	found := p.found
	if err := c.tooMuch(found); err != nil {
		return found, err
	}
	if o != nil {
		if err := c.findOld(ctx, p, o); err != nil {
			return nil, fmt.Errorf("collect garbage: %w", err)
		}
		free, err := c.regroup(ctx, p.m, c.r.choose(p.partial, o), o, &found.Regrouped)
		if err != nil {
			return nil, fmt.Errorf("collect garbage: %w", err)
		}
		for _, q := range free {
			if !q.spared { // it is condemned already
				found.Garbage = append(found.Garbage, q.name)
				found.GarbageBytes += q.size
			}
		}
		slices.SortFunc(found.Garbage, compareNames)
	}
	n := &Notice{Condemned: found.Garbage[:min(len(found.Garbage), maxCondemned)]}
	if n.Passing, found.Old, err = c.r.passing(ctx, p.s); err != nil {
		return nil, fmt.Errorf("collect garbage: %w", err)
	}
	if n.Evicted, err = p.s.evictions(evict); err != nil {
		return nil, fmt.Errorf("collect garbage: %w", err)
	}
	if len(n.Condemned) == 0 && len(n.Evicted) == 0 && found.Old < c.o.worthTelling && !p.s.needsCall(p.m) {
		return found, nil
	}
	if err := c.publish(ctx, n); err != nil {
		return nil, fmt.Errorf("collect garbage: publish notice: %w", err)
	}
	found.Notice = n
	return found, nil
}

// condemnedInFull is how many multichunks a notice condemns at most where there is no room for more.
const condemnedInFull = 512

// publish puts a notice. On a storage that is full it may be shorter: the rest comes with the next.
func (c *Collector) publish(ctx context.Context, n *Notice) error {
	err := c.r.putInFull(ctx, func() error { return c.r.putNotice(ctx, n) })
	if errors.Is(err, remote.ErrNoSpace) && len(n.Condemned) > condemnedInFull {
		n.Condemned = n.Condemned[:condemnedInFull]
		err = c.r.putNotice(ctx, n)
	}
	return err
}

// tooMuch returns an error if more than half of the repository's bytes are garbage and that was not allowed.
func (c *Collector) tooMuch(found *Condemnation) error {
	if c.o.AllowMost || !found.IsMost() {
		return nil
	}
	return fmt.Errorf("%d of %d multichunks: %w", len(found.Garbage), found.Multichunks, ErrTooMuch)
}

// evictions returns the last commits that count of the incarnations to be evicted.
func (s *survey) evictions(evict []Incarnation) ([]Head, error) {
	var last []Head
	for _, i := range evict {
		known := false
		for c := range s.active {
			if c.incarnation != i {
				continue
			}
			known = true
			h := Head{Client: c.client, Incarnation: c.incarnation}
			if head := s.heads[c]; head != nil {
				h = head.Head()
			}
			last = append(last, h)
		}
		if !known {
			return nil, fmt.Errorf("evict incarnation %s: %w", i, ErrNotFound)
		}
	}
	return last, nil
}

// needsCall reports whether an answer to a notice would let older states go: one is kept that is nobody's newest, and no notice waits
// for answers yet.
func (s *survey) needsCall(m *marks) bool {
	for _, n := range s.notices {
		if len(s.missing(n)) > 0 {
			return false
		}
	}
	newest := map[[2]ID]bool{}
	for _, head := range s.counted() {
		newest[[2]ID{head.Root.ID, head.Snapshots.ID}] = true
	}
	for state := range m.states {
		if !newest[state] {
			return true
		}
	}
	return len(newest) > 1
}

func (c *Collector) survey(ctx context.Context) (*survey, error) {
	s, err := c.r.survey(ctx)
	if err == nil {
		s.rules, s.idsRoom = c.o.rules, c.o.idsRoom
	}
	return s, err
}

// A plan is what Condemn goes by.
type plan struct {
	found   *Condemnation
	s       *survey
	m       *marks
	partial []partial // of which something is needed
}

func (c *Collector) plan(ctx context.Context, tables bool) (*plan, error) {
	s, err := c.survey(ctx)
	if err != nil {
		return nil, err
	}
	m, err := c.r.mark(ctx, s)
	if err != nil && !c.o.rules.ignoreErrors {
		m.close()
		return nil, err
	}
	found := &Condemnation{}
	p := &plan{found: found, s: s, m: m}
	err = c.r.showMultichunks(ctx, c.o.Progress, func(n Name, size int64) error {
		found.Multichunks++
		found.Bytes += max(size, 0)
		condemned := s.condemns(n)
		needed, err := c.look(ctx, p, n, size, tables)
		if condemned {
			found.Condemned++
		}
		switch {
		case condemned && (needed || err != nil):
			found.Spared++
			if err != nil && !aboutObject(err) {
				return err
			}
		case condemned:
			found.CondemnedBytes += max(size, 0)
		case aboutObject(err):
			found.Unreadable++
		case err != nil:
			return err
		case needed:
			found.Needed++
		default:
			found.Garbage = append(found.Garbage, n)
			found.GarbageBytes += max(size, 0)
		}
		return nil
	})
	if err != nil {
		m.close()
		return nil, err
	}
	slices.SortFunc(found.Garbage, compareNames)
	return p, nil
}

// look is marks.needs. With tables it also notes how much of the multichunk is needed.
func (c *Collector) look(ctx context.Context, p *plan, n Name, size int64, tables bool) (bool, error) {
	if !tables {
		return p.m.needs(ctx, n, size)
	}
	kind, table, err := c.r.ReadTable(c.r.RemoteReader(ctx, n), size, n)
	if errors.Is(err, remote.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	lacking, err := p.m.lacking(ctx, n, table)
	if err != nil {
		return false, err
	}
	_, hinted := p.m.hinted[n]
	if len(lacking) == 0 && hinted && len(c.r.MovedTo(n)) == 0 {
		return true, nil // for no good reason, but so it is said
	}
	if len(lacking) == 0 {
		return false, nil
	}
	q := partial{name: n, kind: kind, size: size, spared: p.s.condemns(n)}
	for _, e := range table {
		q.total += int64(e.Len)
	}
	for _, e := range lacking {
		q.live += int64(e.Len)
	}
	p.partial = append(p.partial, q)
	return true, nil
}

// eachMultichunk lists all multichunks and calls fn with each once.
func (r *Repository) eachMultichunk(ctx context.Context, fn func(n Name, size int64) error) error {
	return r.showMultichunks(ctx, nil, fn)
}

// showMultichunks is eachMultichunk, and tells how far it is.
func (r *Repository) showMultichunks(ctx context.Context, progress func(done, total int64, stage string), fn func(n Name, size int64) error) error {
	dirs := map[string]bool{}
	err := r.st.List(ctx, dataDir, func(e remote.Entry) error {
		if _, ok := parseNumber(e.Name, 2); ok && e.Dir {
			dirs[dataDir+"/"+e.Name] = true
		}
		return nil
	})
	if err != nil && !errors.Is(err, remote.ErrNotExist) {
		return fmt.Errorf("list %s: %w", dataDir, err)
	}
	for i, dir := range slices.Sorted(maps.Keys(dirs)) {
		if progress != nil {
			progress(int64(i), int64(len(dirs)), "multichunks")
		}
		sizes := map[Name]int64{}
		err := r.st.List(ctx, dir, func(e remote.Entry) error {
			if n, ok := parseObjectName(dir + "/" + e.Name); ok && !e.Dir {
				sizes[n] = e.Size
			}
			return nil
		})
		if err != nil && !errors.Is(err, remote.ErrNotExist) {
			return fmt.Errorf("list %s: %w", dir, err)
		}
		for _, n := range slices.SortedFunc(maps.Keys(sizes), compareNames) {
			if err := fn(n, sizes[n]); err != nil {
				return err
			}
		}
	}
	return nil
}

// A Waiting client has not acknowledged a notice.
type Waiting struct {
	Client      ClientID
	Incarnation Incarnation
	Last        Head // its newest commit that is known; zero if none
	Host        string
	Seen        time.Time // when it was last heard of, by its own clock
}

// Look begins the second phase: it reads the notices and how far every client is. It returns who has to acknowledge yet before all
// that is condemned now can be deleted. What Look saw stays good for Delete, however much happens meanwhile.
func (c *Collector) Look(ctx context.Context) ([]Waiting, error) {
	s, err := c.survey(ctx)
	if err != nil {
		return nil, fmt.Errorf("collect garbage: %w", err)
	}
	if s.moves, err = c.r.listedMoves(ctx); err != nil {
		return nil, fmt.Errorf("collect garbage: %w", err)
	}
	c.looked, c.lookedAt = s, c.o.Running()
	missing := map[chain]bool{}
	for _, n := range s.notices {
		for _, m := range s.missing(n) {
			missing[m] = true
		}
	}
	var waiting []Waiting
	for _, m := range slices.SortedFunc(maps.Keys(missing), compareChains) {
		w := Waiting{Client: m.client, Incarnation: m.incarnation}
		if g := s.registered[m]; g != nil {
			w.Host, w.Seen = g.Host, g.Time
		}
		if head := s.heads[m]; head != nil {
			w.Last, w.Host, w.Seen = head.Head(), head.Host, head.Time
		}
		waiting = append(waiting, w)
	}
	return waiting, nil
}

// Ready returns how long this process must run on before Delete may do anything.
func (c *Collector) Ready() time.Duration {
	if c.looked == nil || c.o.rules.noSettling {
		return 0
	}
	return max(0, c.lookedAt+2*c.r.cfg.SettleTime-c.o.Running())
}

// A Deletion is what Delete has done.
type Deletion struct {
	Deleted    int   // multichunks
	Bytes      int64 // of these, as far as they were listed
	Needed     int   // that are needed after all, and stay
	Unreadable int
	Waiting    int // notices that not everybody goes by yet
	Finished   int // notices of which nothing is left
	Commits    int
	Moves      int
	Told       bool // there are commits that can go the next time
}

// Delete ends the second phase: it deletes what the notices condemn that every client goes by and nothing needs. Look must have
// been called, and Ready be zero. It returns an error before it deletes anything if anything cannot be read.
func (c *Collector) Delete(ctx context.Context) (*Deletion, error) {
	if c.looked == nil || c.Ready() > 0 {
		panic("store: Delete before Look, or too early after it")
	}
	d := &Deletion{}
	victims, err := c.victims(ctx, c.looked, d)
	if err == nil && len(victims.of) > 0 {
		c.sizes = map[Name]int64{}
		err = c.r.eachMultichunk(ctx, func(n Name, size int64) error {
			c.sizes[n] = max(size, 0)
			return nil
		})
	}
	if err == nil {
		err = c.delete(ctx, victims, d)
	}
	if err == nil || errors.Is(err, remote.ErrNotExist) { // another collector has gone on from a newer look
		c.looked = nil
	}
	if err != nil {
		return d, fmt.Errorf("collect garbage: %w", err)
	}
	return d, nil
}

// delete deletes victims. However long it takes to come to it, they are still what nobody can need.
func (c *Collector) delete(ctx context.Context, v *victims, d *Deletion) error {
	if err := c.deleteMultichunks(ctx, v, d); err != nil {
		return err
	}
	if err := c.deleteHistories(ctx, v, d); err != nil {
		return err
	}
	if err := c.deleteMoves(ctx, v, d); err != nil {
		return err
	}
	for _, victim := range v.of {
		n := victim.notice
		if !victim.finished || len(n.Evicted) > 0 || !v.s.isPast(n) {
			continue // an eviction holds for ever
		}
		// The notice goes last: while anything that it condemns is there, nobody may deduplicate against it.
		if err := c.r.st.Delete(ctx, noticeName(n.ID)); err != nil {
			return fmt.Errorf("delete %s: %w", noticeName(n.ID), err)
		}
		d.Finished++
	}
	return nil
}

func (c *Collector) deleteMultichunks(ctx context.Context, v *victims, d *Deletion) error {
	total := 0
	for _, victim := range v.of {
		total += len(victim.names)
	}
	for _, victim := range v.of {
		for _, n := range victim.names {
			if _, there := c.sizes[n]; c.sizes != nil && !there {
				continue // it went before
			}
			if err := c.r.deleteMultichunk(ctx, n); err != nil {
				return fmt.Errorf("delete %s: %w", ObjectName(n), err)
			}
			d.Deleted++
			d.Bytes += c.sizes[n]
			if c.o.Progress != nil {
				c.o.Progress(int64(d.Deleted), int64(total), "deleting")
			}
		}
	}
	return nil
}

// victims is what can go.
type victims struct {
	s  *survey
	of []victim
}

// victim is what can go of one notice.
type victim struct {
	notice   *Notice
	names    []Name
	finished bool // all that the notice condemns can go
}

// victims finds what can be deleted.
func (c *Collector) victims(ctx context.Context, s *survey, d *Deletion) (*victims, error) {
	due, err := c.due(ctx, s)
	if err != nil {
		return nil, err
	}
	all := &victims{s: s}
	d.Waiting = len(s.notices) - len(due)
	if len(due) == 0 {
		return all, nil
	}
	m, err := c.r.mark(ctx, s)
	defer m.close()
	if err != nil && !c.o.rules.ignoreErrors {
		return nil, err
	}
	// What is condemned by now, by anybody, may go as well: nothing else may go because of it.
	notices, err := c.r.Notices(ctx, nil)
	if err != nil {
		return nil, err
	}
	m.condemned = (&survey{notices: append(notices, s.notices...)}).condemns
	if c.o.rules.condemnedCovers {
		m.condemned = func(Name) bool { return false }
	}
	for _, n := range due {
		v := victim{notice: n, finished: true}
		for _, name := range n.Condemned {
			needed, err := m.needs(ctx, name, -1)
			needed = needed && !c.o.rules.noSecondMark
			switch {
			case aboutObject(err):
				d.Unreadable++
				v.finished = false
			case err != nil:
				return nil, err
			case needed:
				d.Needed++
				v.finished = false
			default:
				v.names = append(v.names, name)
			}
		}
		all.of = append(all.of, v)
	}
	return all, nil
}

// due returns the notices that everybody has acknowledged: all who were active when c looked, and nobody has been registered since
// who did not know them. Who registers later reads the notices, and heads no older than those that c goes by.
func (c *Collector) due(ctx context.Context, s *survey) ([]*Notice, error) {
	now := *s
	if !c.o.rules.noSecondLook {
		registrations, err := c.r.Registrations(ctx)
		if err != nil && !c.o.rules.ignoreErrors {
			return nil, err
		}
		now.active = maps.Clone(s.active)
		for _, g := range registrations {
			ch := chain{g.Client, g.Incarnation}
			if _, known := s.heads[ch]; !known && !s.ended[g.Incarnation] {
				if _, evicted := s.evicted[ch]; !evicted {
					now.active[ch] = true
				}
			}
		}
	}
	var due []*Notice
	for _, n := range s.notices {
		if c.o.rules.noAcks || len(now.missing(n)) == 0 {
			due = append(due, n)
		}
	}
	return due, nil
}
