package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/fs"
	"github.com/dedupfs/dedupfs/fs/fusefs"
	"github.com/dedupfs/dedupfs/remote"
)

// session is a mount and all that it stands on.
//
// It ends in one of three ways: `dedupfs umount` asks for it over the control
// socket, somebody else unmounts, or a signal comes. In the first case what is
// dirty is uploaded while the mount is still there and can be used; in all of
// them what is left is uploaded when it has gone.
type session struct {
	*app
	storage *remote.Remote
	cache   *cache.Cache
	volume  *fs.Volume
	server  *fusefs.Server

	id    string // of the repository
	dir   string // of the cache
	since time.Time

	control *controlListener
	drained func() // returns when the last answer over the control socket is out

	umounts chan umountRequest
}

// umountRequest asks the session to end. What becomes of it is sent to done.
type umountRequest struct {
	wait   bool           // until all is on the remote
	report func(progress) // how far that is
	done   chan error
}

// openSession opens all that lies below the mount.
func (a *app) openSession(ctx context.Context, url string, password []byte, o *mountOptions) (*session, error) {
	repo, err := a.openRepository(ctx, url, password)
	if err != nil {
		return nil, err
	}
	s := &session{
		app: a, storage: repo.storage, umounts: make(chan umountRequest),
		id: repo.Config().Repository.String(), since: time.Now(),
	}
	root, err := a.cacheRoot()
	if err != nil {
		return nil, err
	}
	err = s.openState(ctx, root, repo, o)
	if errors.Is(err, fs.ErrCopied) { // the cache knows that now, and becomes a client of its own
		err = s.openState(ctx, root, repo, o)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *session) openState(ctx context.Context, root string, repo *repository, o *mountOptions) error {
	if err := s.openCache(ctx, root, repo, o); err != nil {
		return err
	}
	if err := s.openVolume(ctx, repo, o); err != nil {
		return errors.Join(err, s.cache.Close())
	}
	return nil
}

// maxSnapshotMounts bounds how many snapshots of one repository can be mounted at the same time.
const maxSnapshotMounts = 100

// openCache opens the local state of the repository. Mounts of snapshots leave that to the mount of the volume: each has a
// directory of its own, which the next such mount finds.
func (s *session) openCache(ctx context.Context, root string, repo *repository, o *mountOptions) (err error) {
	opt := &cache.Options{Size: int64(o.cacheSize), Memory: int64(s.g.memory) / 5, IndexMemory: int64(o.indexMem), Resident: int64(s.g.memory),
		Offline: o.offlineWait}
	if o.snapshot == "" {
		s.dir = filepath.Join(root, s.id)
		s.cache, err = cache.Open(ctx, s.dir, repo.Repository, opt)
		return err
	}
	for i := range maxSnapshotMounts {
		s.dir = filepath.Join(root, fmt.Sprintf("%s-snapshot-%d", s.id, i+1))
		s.cache, err = cache.Open(ctx, s.dir, repo.Repository, opt)
		if inUse := (cache.ErrInUse{}); !errors.As(err, &inUse) {
			break
		}
	}
	return err
}

func (s *session) openVolume(ctx context.Context, repo *repository, o *mountOptions) (err error) {
	wait := openWait
	if repo.offline {
		wait = offlineWait
	}
	openCtx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	s.volume, err = fs.Open(openCtx, s.cache, repo.Repository, &fs.Options{
		ReadOnly: o.readOnly, Poll: o.pollInterval(), RemoteFsync: o.fsync == "remote",
		SnapshotsDir: o.snapshots, SnapshotsRootOnly: o.rootOnly, Snapshot: o.snapshot, SnapshotEvery: time.Duration(o.snapEvery),
		Automatic: fs.Policy(o.automatic),
		InOrder:   o.inOrder, AnyHistory: o.anyHistory, Logger: s.log, Space: s.space,
	})
	if err != nil {
		return err
	}
	if s.control, err = listenControl(s.dir); err != nil {
		return errors.Join(err, s.volume.Close(ctx))
	}
	s.volume.SetSocket(s.control.path)
	s.drained = serveControl(s.control, s.handler(), s.log)
	return nil
}

// space tells how much the storage can hold, for df.
func (s *session) space(ctx context.Context) (total, free int64, err error) {
	sp, err := s.storage.Space(ctx)
	return sp.Total, sp.Free, err
}

// mountAt makes the volume visible at dir.
func (s *session) mountAt(ctx context.Context, dir string, o *mountOptions) (err error) {
	s.server, err = fusefs.Mount(ctx, s.volume, dir, &fusefs.Options{
		Mount: o.fuse, AllowOther: o.allowOther, ReadOnly: o.readOnly, Source: s.storage.String(), Log: s.log,
	})
	return err
}

// serve lets a waiting parent go, and returns when the session is over.
func (s *session) serve(ctx context.Context) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	if err := s.announce(); err != nil {
		return errors.Join(err, s.server.Detach(), s.end(ctx, nil))
	}
	// From here on a signal ends the session in good order, not the context.
	ctx = context.WithoutCancel(ctx)
	for {
		select {
		case r := <-s.umounts:
			if over, err := s.unmount(ctx, r); over {
				return err
			}
		case <-s.server.Done():
			s.say("unmounted; uploading what is left")
			return s.drainAndEnd(ctx, signals)
		case sig := <-signals:
			s.say("%s: unmounting, then uploading what is left; once more stops at once", sig)
			if err := s.leave(); err != nil {
				s.log.Error("unmount", "err", err)
			}
			return s.drainAndEnd(ctx, signals)
		}
	}
}

// announce says that the mount can be used.
func (s *session) announce() error {
	if !isDaemon() {
		s.say("mounted at %s; unmount with `dedupfs umount %s` or Ctrl-C", escape(s.server.Dir()), escape(s.server.Dir()))
		return nil
	}
	log, err := s.daemonLog()
	if err != nil {
		return err
	}
	return announceReady(log)
}

// daemonLog returns the file that a daemon logs to: that of --log-file, else
// one in the cache directory.
func (s *session) daemonLog() (*os.File, error) {
	if s.logFile == nil {
		s.g.logFile = filepath.Join(s.dir, "daemon.log")
		if err := s.openLog(); err != nil {
			return nil, err
		}
	}
	return s.logFile, nil
}

// leave takes the mount away, busy or not.
func (s *session) leave() error {
	err := s.server.Unmount()
	if errors.Is(err, syscall.EBUSY) {
		s.say("it is in use; programs in it will get errors")
		return s.server.Detach()
	}
	return err
}

// unmount serves a request to end the session, which is not over if the mount
// is in use.
func (s *session) unmount(ctx context.Context, r umountRequest) (over bool, _ error) {
	err := s.server.Unmount()
	if errors.Is(err, syscall.EBUSY) {
		err = fmt.Errorf("%s is in use: %w; `fuser -vm %s` shows by whom", s.server.Dir(), syscall.EBUSY, s.server.Dir())
	}
	if err != nil {
		r.done <- err
		return false, nil
	}
	if r.wait {
		err = s.upload(ctx, r.report)
	}
	return true, s.end(ctx, func(closed error) { r.done <- errors.Join(err, closed) })
}

// drainAndEnd uploads what is left, with a bar, until a signal comes, and ends
// the session.
func (s *session) drainAndEnd(ctx context.Context, signals <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-signals:
			cancel()
		case <-ended:
		}
	}()
	bar := s.newBar("uploading")
	err := s.upload(ctx, func(p progress) { bar.set(p.Done, p.Total) })
	bar.done()
	if ctx.Err() != nil {
		err = fmt.Errorf("stopped before all was on the remote, the next mount goes on: %w", context.Canceled)
	}
	return errors.Join(err, s.end(context.WithoutCancel(ctx), nil))
}

// upload returns when all that was written is on the remote. How far it is shows
// in what is left, as the background uploads too.
func (s *session) upload(ctx context.Context, report func(progress)) error {
	done := make(chan error, 1)
	go func() { done <- s.volume.Sync(ctx, nil) }()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var total int64
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			st := s.volume.Status(ctx)
			left := st.StagedBytes + st.PendingBytes
			total = max(total, left)
			report(progress{"uploading", total - left, total})
		}
	}
}

// end closes everything, then calls answer, if there is one, with what came of
// it, and returns when the last answer is out.
func (s *session) end(ctx context.Context, answer func(error)) error {
	err := errors.Join(s.volume.Close(ctx), s.cache.Close())
	if answer != nil {
		answer(err)
	}
	s.drained()
	return err
}

// handler serves the control socket.
func (s *session) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /status", answer(s.serveStatus))
	mux.Handle("POST /sync", answer(s.serveSync))
	mux.Handle("POST /limits", answer(s.serveLimits))
	mux.Handle("POST /umount", answer(s.serveUmount))
	mux.Handle("POST /spare", answer(s.serveSpare))
	mux.Handle("POST /health", answer(s.serveHealth))
	mux.Handle("GET /conflicts", answer(s.serveConflicts))
	mux.Handle("POST /snapshots", answer(s.serveCreateSnapshot))
	s.handleCache(mux)
	listQuery.serve(mux, s)
	changeQuery.serve(mux, s)
	forgetQuery.serve(mux, s)
	usageQuery.serve(mux, s)
	duQuery.serve(mux, s)
	diffQuery.serve(mux, s)
	historyQuery.serve(mux, s)
	findQuery.serve(mux, s)
	clientsQuery.serve(mux, s)
	renameQuery.serve(mux, s)
	evictQuery.serve(mux, s)
	acceptQuery.serve(mux, s)
	gcQuery.serve(mux, s)
	replaceQuery.serve(mux, s)
	return mux
}

// How long sync waits for a storage that does not answer, or is full. The mount goes on trying.
const (
	syncPatience     = 15 * time.Second
	syncPatienceFull = 2 * time.Second
)

func (s *session) serveSync(ctx context.Context, _ *http.Request, report func(progress)) (any, error) {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	began := time.Now()
	err := s.upload(ctx, func(p progress) {
		report(p)
		trouble, since := s.volume.UploadTrouble()
		patience := syncPatience
		if errors.Is(trouble, remote.ErrNoSpace) {
			patience = syncPatienceFull
		}
		if trouble != nil && time.Since(began) > patience && time.Since(since) > patience {
			giveUp(fmt.Errorf("not all is on the remote yet, the mount goes on trying: %w", trouble))
		}
	})
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, err
}

// umountOptions are the body of POST /umount.
type umountOptions struct {
	NoWait  bool          `json:"no_wait"`
	Timeout time.Duration `json:"timeout"` // nanoseconds; 0 waits for ever
}

// serveUmount uploads what is dirty, and then has the session end. When the
// client goes away, or the time is up, before that, the mount stays.
func (s *session) serveUmount(ctx context.Context, r *http.Request, report func(progress)) (any, error) {
	var o umountOptions
	if err := readJSON(r, &o); err != nil {
		return nil, err
	}
	if !o.NoWait {
		if err := s.uploadWithin(ctx, o.Timeout, report); err != nil {
			return nil, err
		}
	}
	request := umountRequest{wait: !o.NoWait, report: report, done: make(chan error, 1)}
	select {
	case s.umounts <- request:
		return nil, <-request.done
	case <-s.server.Done():
		return nil, errors.New("unmounted by somebody else meanwhile; what is left is being uploaded")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// uploadWithin is upload that gives up after d, unless d is 0.
func (s *session) uploadWithin(ctx context.Context, d time.Duration, report func(progress)) error {
	if d == 0 {
		return s.upload(ctx, report)
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	err := s.upload(ctx, report)
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) && err != nil {
		return fmt.Errorf("%w after %s; the mount stays and goes on uploading", errNotRemote, humanDuration(d))
	}
	return err
}
