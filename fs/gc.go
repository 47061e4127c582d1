package fs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/dedupfs/dedupfs/store"
)

// CollectOptions say how garbage is collected.
type CollectOptions struct {
	DryRun    bool          `json:"dry_run"`
	Wait      bool          `json:"wait"`       // until all is deleted that can be
	MaxTime   time.Duration `json:"max_time"`   // 0 is no bound
	MaxBytes  int64         `json:"max_bytes"`  // of live data that are stored anew; 0 is no bound
	MaxUnused float64       `json:"max_unused"` // share of the live data that may stay unused in multichunks; negative regroups nothing
	Reseal    bool          `json:"reseal"`     // what is sealed under older keys is stored anew
	AllowMost bool          `json:"allow_most"` // more than half of the repository may be deleted
}

// Collected is what a collection has found and done.
type Collected struct {
	DryRun      bool            `json:"dry_run"`
	Multichunks int             `json:"multichunks"`       // that were there
	Bytes       int64           `json:"bytes"`             // of them
	Garbage     int             `json:"garbage"`           // multichunks condemned now, or that would be
	GarbageSize int64           `json:"garbage_bytes"`     //
	Most        bool            `json:"most"`              // of a dry run: that is more than half, and AllowMost is needed
	Behind      bool            `json:"behind"`            // of a dry run: more may go when all clients have seen the newest state
	Pending     int             `json:"condemned"`         // that had been condemned before and were still there
	PendingSize int64           `json:"condemned_bytes"`   // of those that nothing needs
	Unreadable  int             `json:"unreadable"`        // multichunks whose tables cannot be read; they stay
	Deleted     int             `json:"deleted"`           //
	DeletedSize int64           `json:"deleted_bytes"`     //
	Needed      int             `json:"needed"`            // of what was condemned: needed after all
	Regrouped   store.Regrouped `json:"regrouped"`         //
	Old         int             `json:"old"`               // commits and registrations that nobody needs any more, found now
	Commits     int             `json:"deleted_commits"`   //
	Moves       int             `json:"deleted_moves"`     //
	Waiting     []WaitingClient `json:"waiting"`           // clients that have to answer before the rest goes
	ReadyIn     time.Duration   `json:"ready_in"`          // how long a process has to run on before the rest can go, in ns; 0 if it need not
	Left        int             `json:"notices_left"`      // notices that are not finished
	Automatic   int             `json:"automatic_states"`  // states without a name that are kept
	TimeUp      bool            `json:"time_up,omitempty"` // --max-time has ended it
	Full        bool            `json:"full,omitempty"`    // the remote was full
}

// WaitingClient is one that has not said yet that it goes by what is condemned.
type WaitingClient struct {
	Client      string     `json:"client"`
	Incarnation string     `json:"incarnation"`
	Host        string     `json:"host"`
	Seen        *time.Time `json:"last_seen,omitempty"`
}

// gcer remembers between two collections of one mount when it last looked at all clients: what was acknowledged then can be deleted once
// this process has run for long enough.
type gcer struct {
	mu sync.Mutex // held by who collects
	c  *store.Collector
}

// collectPoll is how often a collection that waits looks for answers.
const collectPoll = 2 * time.Second

// patience is how long a collection waits for the storage to settle unasked.
const patience = 30 * time.Second

// Collect removes what nobody needs any more, as far as that can be done now. Report is told how far it is.
func (v *Volume) Collect(ctx context.Context, o CollectOptions, report func(what string, done, total int64)) (*Collected, error) {
	g := &v.gc
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := v.repo.ReadOnly(); err != nil {
		return nil, err
	}
	if o.Reseal {
		if err := v.repo.ReloadKeys(ctx); err != nil {
			return nil, err
		}
	}
	if report == nil {
		report = func(string, int64, int64) {}
	}
	end := time.Time{}
	if o.MaxTime > 0 {
		end = time.Now().Add(o.MaxTime)
	}
	progress := func(done, total int64, stage string) { report(stage, done, total) }
	if g.c == nil {
		g.c = v.repo.NewCollector(nil)
	}
	g.c.SetProgress(progress)
	g.c.AllowMost(o.AllowMost)
	run := &collection{v: v, c: g.c, o: o, end: end, report: report, out: &Collected{DryRun: o.DryRun, Waiting: []WaitingClient{}}}
	if states, err := automaticStates(ctx, v.snapshotMap()); err == nil {
		run.out.Automatic = len(slices.DeleteFunc(states, func(s Snapshot) bool { return s.Forgotten }))
	}
	if o.DryRun {
		return run.out, run.dry(ctx)
	}
	err := run.all(ctx)
	if ctx.Err() == nil {
		run.restore(ctx)
	}
	if errors.Is(err, errTimeUp) {
		run.out.TimeUp, err = true, nil
	}
	if err == nil && run.out.Deleted == 0 && len(run.out.Waiting) == 0 && run.out.ReadyIn == 0 {
		err = run.short // nothing could be done for it
	}
	return run.out, err
}

var errTimeUp = errors.New("time is up")

// collection is one run of Collect.
type collection struct {
	v      *Volume
	c      *store.Collector
	o      CollectOptions
	end    time.Time // zero is no bound
	report func(what string, done, total int64)
	out    *Collected
	rounds int   // that have found something out
	full   bool  // the remote was full
	short  error // what could not be uploaded for that; nil if all was, when it was last tried
	told   bool  // the last deletion has said what can go after the next wait
}

func (r *collection) timeUp() error {
	if !r.end.IsZero() && time.Now().After(r.end) {
		return errTimeUp
	}
	return nil
}

// dry tells what all would do.
func (r *collection) dry(ctx context.Context) error {
	found, err := r.c.PlanRegroup(ctx, r.regroup())
	if err != nil {
		return err
	}
	r.found(found)
	r.out.Most, r.out.Behind = found.IsMost(), found.Behind
	waiting, err := r.v.repo.NewCollector(nil).Look(ctx)
	if err != nil {
		return err
	}
	r.waiting(waiting)
	if r.out.Garbage > 0 || r.out.Regrouped.From > 0 || r.out.Behind { // everybody has to be asked
		members, err := r.v.repo.Members(ctx)
		if err != nil {
			return err
		}
		r.out.Waiting = r.out.Waiting[:0]
		for _, m := range members {
			if m.State == store.MemberActive && m.Incarnation != r.v.ca.State().Incarnation {
				r.addWaiting(m.Client, m.Incarnation, m.Host, m.Seen())
			}
		}
	}
	r.out.ReadyIn = 2 * r.v.repo.Config().SettleTime
	return nil
}

// all condemns, waits as long as that is wanted, and deletes.
func (r *collection) all(ctx context.Context) error {
	if r.c.HasLooked() && r.c.Ready() == 0 { // by an earlier run, long ago
		if err := r.delete(ctx); err != nil {
			return err
		}
	}
	for range waitRounds {
		deleted := r.out.Deleted
		waited, err := r.round(ctx)
		if err != nil {
			return err
		}
		if r.full && r.out.Deleted > deleted { // there is room for what did not fit
			r.restore(ctx)
			continue
		}
		if !waited {
			return nil
		}
	}
	return nil
}

// waitRounds is how many times a collection that waits begins anew. What was needed only because a client had not seen newer states is
// garbage once it has answered; with clients that go on writing that has no end.
const waitRounds = 3

// round condemns, and deletes what it can. It reports whether it has waited for somebody's answer.
func (r *collection) round(ctx context.Context) (waited bool, err error) {
	r.report("uploading", 0, 0)
	if err := r.sync(ctx); err != nil {
		return false, err
	}
	if err := r.condemn(ctx); err != nil {
		return false, err
	}
	if err := r.sync(ctx); err != nil { // answers
		return false, err
	}
	for again := false; ; {
		waiting, err := r.c.Look(ctx)
		if err != nil {
			return false, err
		}
		r.waiting(waiting)
		if err := r.settle(ctx); err != nil {
			return false, err
		}
		if r.c.Ready() > 0 {
			return false, nil
		}
		if err := r.delete(ctx); err != nil {
			return false, err
		}
		if r.told && !again { // with a volume that is written to that would have no end
			again = true
			continue
		}
		if len(waiting) == 0 || !r.o.Wait {
			return waited, nil
		}
		waited = true
		r.report(fmt.Sprintf("waiting for %d clients", len(waiting)), 0, 0)
		if err := r.sleep(ctx, collectPoll); err != nil {
			return false, err
		}
		if err := r.v.follower.poll(ctx, afterUploads); err != nil { // others' notices are answered too
			return false, err
		}
	}
}

// sync brings all to the remote. If that is full, the ballast makes room for what is most needed, and data stays here.
func (r *collection) sync(ctx context.Context) error {
	v := r.v
	r.short = nil
	err := v.Sync(ctx, nil)
	if !isFull(err) {
		return err
	}
	r.report("the storage is full: making room", 0, 0)
	r.full, r.out.Full = true, true
	if _, err := v.repo.DropBallast(ctx); err != nil {
		return err
	}
	if err := v.commits.publishAll(ctx, nil); err != nil && !isFull(err) { // it registers first
		return err
	}
	if err := v.follower.readNotices(ctx); err != nil {
		return err
	}
	if r.short = v.commits.publishAll(ctx, nil); r.short != nil && !isFull(r.short) {
		return r.short
	}
	return nil
}

// restore puts the ballast back, if there is room again, and has everything uploaded that waits for that.
func (r *collection) restore(ctx context.Context) {
	if err := r.v.repo.PutBallast(ctx); err != nil {
		r.v.opt.Logger.Warn("the ballast of the repository is not there; the next `dedupfs gc` puts it back if there is room", "err", err)
		return
	}
	if r.full {
		r.v.tryAgain()
	}
}

func (r *collection) regroup() *store.RegroupOptions {
	if r.full { // first there has to be room
		return nil
	}
	if r.o.MaxUnused < 0 && !r.o.Reseal {
		return nil
	}
	left := r.o.MaxBytes - r.out.Regrouped.Live // by earlier rounds
	if r.o.MaxBytes > 0 && left <= 0 {
		return nil
	}
	unused := r.o.MaxUnused
	if unused < 0 {
		unused = math.Inf(1)
	}
	return &store.RegroupOptions{Reseal: r.o.Reseal, MaxUnused: unused, MaxBytes: max(left, 0), End: r.end}
}

func (r *collection) condemn(ctx context.Context) error {
	if err := r.timeUp(); err != nil {
		return err
	}
	found, err := r.c.CondemnAndRegroup(ctx, r.regroup())
	if found != nil {
		r.found(found)
	}
	return err
}

// found adds what one round has found. What was there is what the first one has seen.
func (r *collection) found(f *store.Condemnation) {
	if r.rounds++; r.rounds == 1 {
		r.out.Multichunks, r.out.Bytes = f.Multichunks, f.Bytes
		r.out.Pending, r.out.PendingSize = f.Condemned, f.CondemnedBytes
	}
	r.out.Unreadable = f.Unreadable
	r.out.Old += f.Old
	r.out.Garbage += len(f.Garbage)
	r.out.GarbageSize += f.GarbageBytes
	r.out.Regrouped.Add(&f.Regrouped)
}

// settle waits until what was looked at can be deleted, if that is wanted or does not take long.
func (r *collection) settle(ctx context.Context) error {
	ready := r.c.Ready()
	r.out.ReadyIn = ready
	if ready == 0 || !r.o.Wait && ready > patience {
		return nil
	}
	r.report("waiting for the storage to settle", 0, 0)
	for r.c.Ready() > 0 {
		if err := r.sleep(ctx, min(r.c.Ready(), time.Second)); err != nil {
			return err
		}
	}
	r.out.ReadyIn = 0
	return nil
}

func (r *collection) sleep(ctx context.Context, d time.Duration) error {
	sleep(ctx, d)
	if err := ctx.Err(); err != nil {
		return err
	}
	return r.timeUp()
}

func (r *collection) delete(ctx context.Context) error {
	d, err := r.c.Delete(ctx)
	if d != nil {
		r.out.Deleted += d.Deleted
		r.out.DeletedSize += d.Bytes
		r.out.Needed, r.out.Left = d.Needed, d.Waiting
		r.out.Commits += d.Commits
		r.out.Moves += d.Moves
		r.told = d.Told
	}
	return err
}

func (r *collection) waiting(waiting []store.Waiting) {
	r.out.Waiting = r.out.Waiting[:0]
	for _, w := range waiting {
		r.addWaiting(w.Client, w.Incarnation, w.Host, w.Seen)
	}
}

func (r *collection) addWaiting(c store.ClientID, i store.Incarnation, host string, seen time.Time) {
	w := WaitingClient{Client: c.String(), Incarnation: i.String(), Host: host}
	if !seen.IsZero() {
		w.Seen = &seen
	}
	r.out.Waiting = append(r.out.Waiting, w)
}
