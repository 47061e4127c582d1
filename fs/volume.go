package fs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// Options of a volume; nil is the defaults.
type Options struct {
	ReadOnly     bool
	Host         string        // name of this client for people; the host name by default
	CommitAfter  time.Duration // quiet time after the last change before a commit; 2 s by default
	CommitEvery  time.Duration // the longest time that changes stay without a commit; 30 s by default
	DirtyBytes   int64         // staged bytes that force a commit; 1 GiB by default, less for a small cache, and 64 MiB at most under a processor limit
	DirtyRecords int           // changed records that force a commit; 50,000 by default
	Poll         time.Duration // how often other clients are looked for; 10 s by default, negative never
	RemoteFsync  bool          // fsync returns when the data is on the remote
	SnapshotsDir string        // the virtual directory of snapshots; ".snapshots" by default, "-" for none
	Uid, Gid     *uint32       // owner shown for everything, and not changed
	InOrder      bool          // others see no change before all earlier ones are uploaded: no early commits
	AnyHistory   bool          // open even if the history on the remote is not what was seen before, to accept it
	Now          func() time.Time
	Logger       *slog.Logger

	// Space tells how many bytes the storage can hold, and how many more; nil, or an error, if it cannot tell.
	Space func(ctx context.Context) (total, free int64, err error)

	Automatic         Policy        // which of the states that commits take the place of are kept; none if it is empty
	SnapshotEvery     time.Duration // a snapshot for each such time in which something changed; 0 for none
	SnapshotsRootOnly bool          // the virtual directory is in the root alone, not in every directory
	Snapshot          string        // show this one, read-only, and nothing else; see FindSnapshot
}

func (o *Options) withDefaults(cacheSize int64) Options {
	var d Options
	if o != nil {
		d = *o
	}
	setDefault(&d.CommitAfter, 2*time.Second)
	setDefault(&d.CommitEvery, 30*time.Second)
	setDefault(&d.DirtyBytes, min(1<<30, cacheSize/16))
	setDefault(&d.DirtyRecords, 50_000)
	setDefault(&d.Poll, 10*time.Second)
	setDefault(&d.SnapshotsDir, ".snapshots")
	if d.Snapshot != "" {
		d.ReadOnly, d.Poll, d.SnapshotsDir = true, -1, "-"
	}
	if d.Host == "" {
		d.Host, _ = os.Hostname()
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Logger == nil {
		d.Logger = slog.Default()
	}
	return d
}

func setDefault[T comparable](p *T, d T) {
	var zero T
	if *p == zero {
		*p = d
	}
}

// Volume is a mounted file system without its FUSE side. It is safe for concurrent use.
type Volume struct {
	repo *store.Repository
	ca   *cache.Cache
	log  *cache.Log
	opt  Options
	me   store.ClientID

	opened stamp // of this mount

	cutMu cutLock // held shared from a change's log record to its change in memory, exclusively by a cut

	mu       sync.RWMutex // guards what follows; acquired after cutMu
	active   *overlay     // changes since the last cut
	frozen   *overlay     // changes of the cut that is being committed; nil if none is
	base     *tree.Tree   // state of the last local commit
	snapMap  store.Ref    // root of the map of snapshots that goes with base
	baseMade stamp        // of the base; zero if it is older than this mount
	table    map[Ino]*inode
	nextIno  Ino // INVARIANT: below inoLimit, up to which numbers are reserved in the cache's state
	limit    Ino
	unused   []Ino           // inodes without names that nobody uses any more: their records can go
	cutOffs  map[*inode]bool // inodes in use that another client's state has taken the place of

	orphansFound bool // those of the last mount are among unused; guarded by committer.mu

	dirtyMu sync.Mutex // guards dirty; acquired last
	dirty   map[*inode]struct{}

	lookups  lookupCounts
	staged   atomic.Int64 // bytes written since the last cut
	cutBytes atomic.Int64 // bytes read to be cut into chunks, ever
	notify   atomic.Pointer[Notifier]

	socketPath atomic.Pointer[string]

	commits   *committer
	snapshots *snapshotViews
	follower  *follower
	member    *member
	gc        gcer
	roots     *contentRoots
	learner   *learner
	space     *spaceTeller
	scheduler *scheduler
	pinner    *pinner
}

// State is what the cache keeps of this client.
type State = cache.State

// needNode says that a transaction met a node which is not on this machine.
type needNode struct{ ref store.Ref }

func (n *needNode) Error() string { return fmt.Sprintf("node %s is not on this machine", n.ref.ID) }

// localNodes loads nodes without ever calling the remote.
type localNodes struct{ ca *cache.Cache }

func (l localNodes) Load(_ context.Context, ref store.Ref) (*store.Node, error) {
	n, err := l.ca.LocalNode(ref)
	if errors.Is(err, cache.ErrNotLocal) {
		return nil, &needNode{ref}
	}
	return n, err
}

func (l localNodes) Save(context.Context, *store.Node) (store.Ref, error) {
	panic("fs: the live tree is changed by local commits only")
}

func (v *Volume) treeOptions() tree.Options { return tree.Options{Key: v.repo.TreeKey()} }

// treeOptionsPast are those of a tree that is only compared with: lost nodes of it count as having no records.
func (v *Volume) treeOptionsPast() tree.Options {
	o := v.treeOptions()
	o.Gone = store.IsLost
	return o
}

func (v *Volume) localTree(root store.Ref) *tree.Tree {
	return tree.New(localNodes{v.ca}, root, v.treeOptions())
}

// live returns the state that users see. v.mu must be held for as long as it is used.
func (v *Volume) live() *layered {
	over := make([]*overlay, 0, 2)
	over = append(over, v.active)
	if v.frozen != nil {
		over = append(over, v.frozen)
	}
	return &layered{over: over, base: v.base}
}

// maxTries bounds how often a transaction is begun again because a node was missing. One descent misses at most its
// depth, one transaction makes a handful of descents; a cache too small for them would go round for ever.
const maxTries = 10_000

// fetch brings the node that err asks for to this machine. ok says whether to try again.
func (v *Volume) fetch(ctx context.Context, err error) (ok bool, _ error) {
	var need *needNode
	if !errors.As(err, &need) {
		return false, err
	}
	if _, err := v.ca.Node(ctx, need.ref); err != nil {
		return false, err
	}
	return true, nil
}

// view runs fn on the live state under the shared lock, as often as nodes have to be fetched for it.
func (v *Volume) view(ctx context.Context, fn func(r *layered) error) error {
	for range maxTries {
		v.mu.RLock()
		err := fn(v.live())
		v.mu.RUnlock()
		if again, err := v.fetch(ctx, err); !again {
			return err
		}
	}
	return fmt.Errorf("the cache is too small for one look-up: %w", syscall.EIO)
}

// update runs fn as a transaction: what it stages is logged and applied as one, or not at all.
func (v *Volume) update(ctx context.Context, fn func(t *tx) error) error {
	if v.opt.ReadOnly {
		return syscall.EROFS
	}
	return v.ca.WithRoom(ctx, 0, func() error { return v.retryUpdate(ctx, fn) })
}

func (v *Volume) retryUpdate(ctx context.Context, fn func(t *tx) error) error {
	for range maxTries {
		err := v.tryUpdate(ctx, fn)
		if again, err := v.fetch(ctx, err); !again {
			return err
		}
	}
	return fmt.Errorf("the cache is too small for one transaction: %w", syscall.EIO)
}

func (v *Volume) tryUpdate(ctx context.Context, fn func(t *tx) error) error {
	v.cutMu.RLock()
	defer v.cutMu.RUnlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	t := &tx{ctx: ctx, v: v, layered: v.live(), now: timespec(v.opt.Now())}
	defer t.unlock()
	if err := fn(t); err != nil {
		return err
	}
	return t.commit()
}

// newIno draws an inode number that was never used. v.mu must be held.
func (v *Volume) newIno() (Ino, error) {
	if v.nextIno >= v.limit {
		if err := v.reserveInos(); err != nil {
			return 0, err
		}
	}
	v.nextIno++
	return v.nextIno - 1, nil
}

// inoStep is how many inode numbers are reserved with one write of the state.
const inoStep = 1 << 16

func (v *Volume) reserveInos() error {
	limit := v.nextIno + inoStep
	if err := v.ca.UpdateState(func(s *State) { s.NextInode = uint64(limit) }); err != nil {
		return fmt.Errorf("reserve inode numbers: %w", err)
	}
	v.limit = limit
	return nil
}

// SetNotify names who reaches the kernel's caches.
func (v *Volume) SetNotify(n Notifier) { v.notify.Store(&n) }

func (v *Volume) notifier() Notifier {
	if n := v.notify.Load(); n != nil {
		return *n
	}
	return nil
}
