package fs

import (
	"context"
	"errors"
	"fmt"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
)

// Open opens the volume of a repository for one client, whose state is in ca. It brings back what was answered before a
// crash. Without network it shows what this machine knows, if it has opened the repository before.
func Open(ctx context.Context, ca *cache.Cache, repo *store.Repository, o *Options) (*Volume, error) {
	v := newVolume(ca, repo, o)
	if err := v.identify(ctx); err != nil {
		return nil, err
	}
	if err := v.openBase(ctx); err != nil {
		return nil, err
	}
	if v.opt.Snapshot != "" {
		if err := v.pin(ctx, v.opt.Snapshot); err != nil {
			return nil, err
		}
	}
	v.opened = v.stampNow()
	v.start()
	return v, nil
}

// newVolume returns a volume that has looked at nothing yet.
func newVolume(ca *cache.Cache, repo *store.Repository, o *Options) *Volume {
	v := &Volume{repo: repo, ca: ca, log: ca.Log(), opt: o.withDefaults(ca.Size()),
		active: newOverlay(), table: map[Ino]*inode{}, dirty: map[*inode]struct{}{}, cutOffs: map[*inode]bool{}}
	v.base = v.localTree(store.Ref{})
	v.snapshots = newSnapshotViews(v)
	v.commits = newCommitter(v)
	v.roots = &contentRoots{v}
	v.follower = newFollower(v)
	v.member = newMember(v)
	v.learner = newLearner(v)
	v.space = newSpaceTeller(v.opt.Space)
	v.scheduler = &scheduler{v: v}
	v.pinner = &pinner{v: v}
	if repo.ReadOnly() != nil {
		v.opt.ReadOnly = true
	}
	if !v.opt.ReadOnly {
		ca.SetPressure(v.pressure)
	}
	return v
}

// identify registers this client, unless it goes on with the incarnation that it had. Without network that is done later.
func (v *Volume) identify(ctx context.Context) error {
	st := v.ca.State()
	v.me = st.Client
	if v.opt.ReadOnly {
		return nil
	}
	if st.Incarnation == (store.Incarnation{}) {
		if err := v.member.prepare(ctx, v.position()); err != nil {
			return err
		}
		st = v.ca.State()
	} else if v.ca.Copied() {
		if err := v.reincarnate(ctx, nil); err != nil {
			return fmt.Errorf("this cache directory is a copy, and needs the remote to become a client of its own: %w", err)
		}
		st = v.ca.State()
	} else if err := v.ca.BeginIncarnation(st.Incarnation); err != nil {
		return err
	}
	v.me = st.Client
	v.nextIno, v.limit = Ino(st.NextInode), Ino(st.NextInode)
	if !st.Pending() {
		return nil
	}
	v.ca.HoldUploads()
	err := v.member.register(ctx)
	if _, _, _, _, _, _, known := v.ca.LastCommit(); known && offline(err) {
		return nil
	}
	return err
}

// openBase finds the state to start from: the last local commit, or what the heads on the remote say.
func (v *Volume) openBase(ctx context.Context) error {
	root, snaps, from, meta, _, published, ok := v.ca.LastCommit()
	if ok {
		v.base, v.snapMap = v.localTree(root), snaps
		v.commits.unstable.Store(!published)
		v.commits.early.waits = !published
		if !published {
			if err := v.recoverSeen(meta); err != nil {
				return err
			}
		}
	}
	if v.log != nil {
		if err := v.replay(ctx, from); err != nil {
			return err
		}
	}
	err := v.follower.poll(ctx, onlyClean)
	if ok && (errors.Is(err, remote.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded)) {
		v.opt.Logger.Warn("working off line", "err", err)
		return nil
	}
	if v.opt.AnyHistory && (errors.Is(err, store.ErrRollback) || errors.Is(err, ErrEvicted)) {
		return nil
	}
	if err == nil && !ok {
		return v.follower.damage()
	}
	return err
}

// start begins the background work.
func (v *Volume) start() {
	if !v.opt.ReadOnly {
		if v.active.len() > 0 || len(v.dirty) > 0 {
			v.changed()
		}
		v.learner.start() // before anything is stored that others have
		v.commits.start()
		signal(v.commits.publish)
		v.scheduler.start()
	}
	v.follower.start()
	if v.log != nil {
		v.pinner.start()
	}
}

// Close stops the background work. What has been answered stays in the cache for the next mount; Sync before it brings
// everything to the remote. It does not close the cache.
func (v *Volume) Close(ctx context.Context) error {
	v.scheduler.close()
	v.space.close()
	v.pinner.close()
	v.learner.close()
	v.follower.close()
	v.commits.close()
	if v.opt.ReadOnly || v.log == nil {
		return nil
	}
	if err := v.member.retire(ctx); err != nil {
		v.opt.Logger.Warn("this machine could not say that it needs nothing any more; garbage collection waits for it until its next mount", "err", err)
	}
	return v.log.Sync(v.log.End())
}

func (v *Volume) socket() string {
	if s := v.socketPath.Load(); s != nil {
		return *s
	}
	return ""
}

// SetSocket says where the control socket of this mount is; the root shows it as an extended attribute.
func (v *Volume) SetSocket(path string) { v.socketPath.Store(&path) }
