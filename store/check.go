package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
	"golang.org/x/sync/errgroup"
)

// CheckOptions are options of Check. Nil is the defaults.
type CheckOptions struct {
	// ReadData reads every byte of all multichunks instead of their tables only. Default false.
	ReadData bool

	// Subset limits what ReadData reads. The zero value is all.
	Subset Subset

	// Known reports whether a multichunk was read and found intact so lately that ReadData reads its table only, and Intact is told
	// of each that it has read now. Several goroutines call them. With both a check that was interrupted goes on. Default: none.
	Known  func(Name) bool
	Intact func(Name)

	// Spare has copies on this machine, from which damage can be repaired. Default: none.
	Spare Spare

	mending bool // parity is put where it is damaged or missing
	parity  int  // that is wanted, thousandths

	// Progress, unless nil, is told how much of a stage is done, in units of that stage; total is 0 where it is not known.
	// It is called by one goroutine at a time.
	Progress func(done, total int64, stage string)
}

// Subset is a share of all multichunks: part number Part of Parts, counted from 1. Multichunks go to parts by their random
// names, so that all parts together are all multichunks. The zero Subset is all of them.
type Subset struct{ Part, Parts int }

// has reports whether multichunk n is in s.
func (s Subset) has(n Name) bool {
	return s.Parts < 2 || (int(n[0])<<16|int(n[1])<<8|int(n[2]))%s.Parts == s.Part-1
}

// Damage is what is wrong with one object.
type Damage struct {
	Object     string // name on the remote
	Multichunk Name   // zero if it is none
	Err        error
	IDs        []ID // of chunks and nodes that heads and snapshots need and that cannot be read from this object
	Repairable bool // whether Repair can bring all of IDs back; always false for what is no multichunk
}

// CheckReport is what Check has found.
type CheckReport struct {
	Objects int64 // looked at
	Bytes   int64 // of them on the remote, as far as the storage tells
	Nodes   int64 // walked
	Chunks  int64 // referred to, each counted once
	Known   int64 // multichunks that were not read again, because of CheckOptions.Known
	Damages []Damage
	Healed  []Damage // multichunks that are damaged, but all that is needed of them lies intact elsewhere too

	Foreign     []string // names that are none of ours and are left alone, at most maxForeign
	HalfWritten []string // multichunks that nothing needs and that a put which broke off has left
}

// maxForeign bounds CheckReport.Foreign.
const maxForeign = 1000

// Check looks for damage: it lists everything, opens key slots, keyrings, registrations and all commits, reads the table of
// every multichunk or, with ReadData, all of it, and walks from every head and its snapshots through all nodes to see
// that what they refer to is there. It changes nothing. Damage is in the report and no error; an error is one of the storage
// or of ctx, and means that the check is not complete.
//
// Memory: nine bytes for every chunk in the repository and about sixty for every node and multichunk, and a few multichunks.
func (r *Repository) Check(ctx context.Context, o *CheckOptions) (*CheckReport, error) {
	c, err := r.check(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("check: %w", err)
	}
	return &c.report, nil
}

func (r *Repository) check(ctx context.Context, o *CheckOptions) (*checker, error) {
	if o == nil {
		o = new(CheckOptions)
	}
	c := &checker{r: r, o: *o, sizes: map[Name]int64{}, half: map[Name]bool{}, commits: map[chain]map[Seq][]string{},
		broken: map[Name]*brokenMultichunk{}, nodes: map[fingerprint]Hint{}}
	c.mending, c.share = o.mending, o.parity
	c.spares, c.hooksOf, c.parity = spares{c: c}, map[Name][]fingerprint{}, map[Name]bool{}
	if c.o.Spare != nil {
		c.copies = c.o.Spare.SpareObjects()
		slices.Sort(c.copies)
	}
	for _, stage := range []func(context.Context) error{
		c.listAll, c.checkKeys, c.checkSmall, c.checkCommits, c.checkLost, c.checkMultichunks, c.checkTrees,
	} {
		if err := stage(ctx); err != nil {
			return nil, err
		}
	}
	return c, c.conclude(ctx)
}

// checker is one run of Check.
type checker struct {
	r *Repository
	o CheckOptions

	// What has been listed.
	keys, keyrings, repositories, registrations, notices, hooks, moves, settings, past, ballast []string
	commits                                                                                     map[chain]map[Seq][]string
	sizes                                                                                       map[Name]int64 // of all multichunks, -1 where the storage does not tell

	copies  []string // of small objects that this machine has, sorted
	survey  *survey  // as far as nothing in it is damaged
	roots   []Ref    // of all heads
	spares  spares
	parity  map[Name]bool // multichunks that have parity, as listed
	mending bool          // parity is put where it is damaged or missing
	share   int           // that is wanted of parity, thousandths

	unhooked bool                   // a list of hooks has been given up
	hooksOf  map[Name][]fingerprint // hooks of data multichunks, as commits announce them

	mu       sync.Mutex // guards all below
	report   CheckReport
	done     int64 // of this stage
	known    idSet // all ids that stand in an intact table, and in an intact group if that was looked at
	nodes    map[fingerprint]Hint
	paritied int           // parity objects that have been put
	half     map[Name]bool // multichunks whose length is none of ours, but for those that a commit announces
	broken   map[Name]*brokenMultichunk
}

// brokenMultichunk collects what is wrong with one multichunk.
type brokenMultichunk struct {
	errs    []error
	noTable bool  // what it held is not known
	kind    Kind  // of what it holds; 0 if that is not known
	held    []ID  // listed in its table, but not to be read
	lost    []Ref // referred to, and nowhere else
	dup     []ID  // referred to, and intact elsewhere
}

// damaged notes what is wrong with an object that is no multichunk.
func (c *checker) damaged(object string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var about *ObjectError
	if errors.As(err, &about) {
		object, err = about.Object, about.Err
	}
	for _, d := range c.report.Damages {
		if d.Object == object && d.Err.Error() == err.Error() {
			return
		}
	}
	c.report.Damages = append(c.report.Damages, Damage{Object: object, Err: err})
}

// breakMultichunk notes what is wrong with multichunk n and returns what is known of it. c.mu is held.
func (c *checker) breakMultichunk(n Name, err error) *brokenMultichunk {
	b := c.broken[n]
	if b == nil {
		b = new(brokenMultichunk)
		c.broken[n] = b
	}
	same := func(e error) bool { return e.Error() == err.Error() }
	if !slices.ContainsFunc(b.errs, same) {
		b.errs = append(b.errs, err)
	}
	return b
}

// step counts one more thing done in a stage.
func (c *checker) step(total int64, stage string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done++
	if c.o.Progress != nil {
		c.o.Progress(c.done, total, stage)
	}
}

// each runs fn for all items of a stage, several at a time, and stops at the first error.
func each[T any](ctx context.Context, c *checker, stage string, workers int, items []T, fn func(context.Context, T) error) error {
	c.done = 0
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for _, item := range items {
		if groupCtx.Err() != nil {
			break
		}
		group.Go(func() error {
			if err := fn(groupCtx, item); err != nil {
				return err
			}
			c.step(int64(len(items)), stage)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// checkKeys opens what opens the repository. Slots cannot be opened without their passwords, but carry a hash.
func (c *checker) checkKeys(ctx context.Context) error {
	// Another repository object is what an init that stopped half-way has left, for Open refuses two whole ones.
	own := objectName(repositoryDir, seal.ID(c.r.cfg.Repository))
	for _, name := range c.repositories {
		if name != own {
			c.report.Foreign = append(c.report.Foreign, name)
		}
	}
	if err := each(ctx, c, "keys", parallel, append(slices.Concat(c.keys, c.keyrings), own), c.small); err != nil {
		return err
	}
	return c.checkOpened(ctx)
}

// checkSmall opens the other objects that are no multichunks, but for commits.
func (c *checker) checkSmall(ctx context.Context) error {
	for _, stage := range []struct {
		name  string
		items []string
	}{
		{"clients", c.registrations}, {"notices", c.notices}, {"hooks", c.hooks}, {"moves", c.moves}, {"settings", c.settings},
		{"past", c.past}, {"ballast", c.ballast},
	} {
		if err := each(ctx, c, stage.name, parallel, stage.items, c.small); err != nil {
			return err
		}
	}
	if err := c.checkPast(ctx); err != nil {
		return err
	}
	_, err := c.r.ReadMoves(ctx)
	return err
}

// checkCommits opens all commits, sees that each follows the one before it, and takes the roots of all states that are kept.
func (c *checker) checkCommits(ctx context.Context) error {
	var chains []chain
	for ch := range c.commits {
		chains = append(chains, ch)
	}
	err := each(ctx, c, "commits", parallel, chains, c.checkChain)
	if err != nil {
		return err
	}
	heads, err := c.r.Poll(ctx, new(Trust))
	if errors.Is(err, ErrRollback) {
		notices, nerr := c.r.Notices(ctx, nil)
		if nerr != nil && !aboutObject(nerr) {
			return nerr
		}
		err = Unaccepted(err, notices)
	}
	for _, e := range flatten(err) {
		var forked *ForkError
		var gone *RollbackError
		var about *ObjectError
		switch {
		case errors.As(e, &about):
			c.damaged("", e)
		case errors.As(e, &forked):
			c.damaged(c.r.commitName(forked.A), e)
		case errors.As(e, &gone):
			c.damaged(c.r.commitName(gone.Accepted), e)
		default:
			return e
		}
	}
	return c.takeRoots(ctx, heads)
}

// takeRoots takes the roots of all states that garbage collection keeps: those of other heads may have been collected.
func (c *checker) takeRoots(ctx context.Context, heads []Head) error {
	s := newSurvey()
	c.survey = s
	var err error
	if s.notices, err = c.r.Notices(ctx, nil); err != nil && !aboutObject(err) {
		return err // one that is damaged has been reported, and counts for nothing
	}
	if err := s.take(ctx, c.r, heads); err != nil {
		return err
	}
	err = c.r.kept(ctx, s, func(commit *Commit) error {
		c.roots = append(c.roots, commit.Root, commit.Snapshots)
		return nil
	})
	if err == nil || !lostObject(err) {
		return err
	}
	c.damaged("", err)
	for _, head := range s.heads {
		c.roots = append(c.roots, head.Root, head.Snapshots)
	}
	return nil
}

// flatten returns the errors that err joins.
func flatten(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range joined.Unwrap() {
			all = append(all, flatten(e)...)
		}
		return all
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// checkChain opens the commits of one incarnation in their order.
func (c *checker) checkChain(ctx context.Context, ch chain) error {
	listed := c.commits[ch]
	seqs := sortedDown(listed)
	slices.Reverse(seqs)
	passed := c.r.past.get(ch.incarnation).seq // what is older may be gone, and something of it put back
	before := map[CommitHash]bool{}
	for i, seq := range seqs {
		if i > 0 && seq != seqs[i-1]+1 {
			clear(before)
		}
		if i > 0 && seq != seqs[i-1]+1 && seq > passed {
			c.damaged(c.nameOfCommit(fmt.Sprintf("%s/%s-", groupDir(ch, (seq-1).group()), (seq-1).digits())), errLost)
		}
		these := map[CommitHash]bool{}
		for _, name := range listed[seq] {
			commit, err := c.r.fetchCommit(ctx, name)
			switch {
			case errors.Is(err, remote.ErrNotExist):
				continue // deleted since it was listed
			case err != nil && aboutObject(err):
				c.damaged(name, err)
				continue
			case err != nil:
				return err
			}
			these[commit.hash] = true
			c.announced(commit)
			if len(before) > 0 && !before[commit.Prev] {
				c.damaged(name, corruptf("commit does not follow the one before it"))
			}
		}
		before = these
	}
	return nil
}

// announced notes which multichunks a commit says are whole.
func (c *checker) announced(commit *Commit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range commit.Multichunks {
		m := &commit.Multichunks[i]
		delete(c.half, m.Name)
		for _, id := range m.Hooks {
			c.hooksOf[m.Name] = append(c.hooksOf[m.Name], fingerprintOf(id))
		}
	}
}

// storedAgain reports whether what b has lost lies intact elsewhere, as far as is known what that was. Nothing that is needed
// is lost.
func (c *checker) storedAgain(n Name, b *brokenMultichunk) bool {
	if len(b.dup) > 0 {
		return true
	}
	var was []fingerprint
	for _, id := range b.held {
		was = append(was, fingerprintOf(id))
	}
	if b.noTable {
		was = c.hooksOf[n]
	}
	gone := func(f fingerprint) bool { _, found := slices.BinarySearch(c.known.all, f); return !found }
	return len(was) > 0 && !slices.ContainsFunc(was, gone)
}

// conclude turns broken multichunks into damages, and sorts these by object.
func (c *checker) conclude(ctx context.Context) error {
	for n, b := range c.broken {
		if c.half[n] && len(b.lost)+len(b.dup) == 0 {
			c.report.HalfWritten = append(c.report.HalfWritten, ObjectName(n))
			continue
		}
		for _, id := range b.held {
			if c.known.marked(id) {
				b.dup = append(b.dup, id)
			}
		}
		d := Damage{Object: ObjectName(n), Multichunk: n, Err: errors.Join(b.errs...), IDs: slices.Clone(b.dup)}
		for _, ref := range b.lost {
			d.IDs = append(d.IDs, ref.ID)
		}
		d.IDs = uniqueIDs(d.IDs)
		if len(b.lost) == 0 && c.storedAgain(n, b) {
			d.Repairable = true
			c.report.Healed = append(c.report.Healed, d)
			continue
		}
		whole, err := c.spares.haveAll(ctx, n, b.lost)
		if err != nil {
			return err
		}
		d.Repairable = whole
		c.report.Damages = append(c.report.Damages, d)
	}
	for i := range c.report.Damages {
		d := &c.report.Damages[i]
		if n, ok := parseParityName(d.Object); ok {
			d.Repairable = c.broken[n] == nil
		}
		if d.Multichunk.IsZero() && c.isRepairable(d.Object) {
			d.Repairable = true
		}
	}
	byObject := func(a, b Damage) int { return strings.Compare(a.Object, b.Object) }
	slices.SortFunc(c.report.Damages, byObject)
	slices.SortFunc(c.report.Healed, byObject)
	slices.Sort(c.report.Foreign)
	slices.Sort(c.report.HalfWritten)
	return nil
}
