package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/fs"
)

// question is what a command asks of a volume, or wants changed in it, be it
// mounted or not: by a running mount over its control socket, or by this process
// with the repository. An answer is any number of items.
type question[In, Out any] struct {
	path       string // on the control socket
	writes     bool   // the volume is changed; what has been done is on the remote in the end
	anyHistory bool   // it is asked although the history on the remote is not what was seen before
	answer     func(ctx context.Context, v *fs.Volume, in In, item func(Out) error, report func(progress)) error
}

// serve answers over the control socket.
func (q question[In, Out]) serve(mux *http.ServeMux, s *session) {
	mux.Handle("POST "+q.path, series(func(ctx context.Context, r *http.Request, item func(any) error, report func(progress)) (any, error) {
		var in In
		if err := readJSON(r, &in); err != nil {
			return nil, err
		}
		err := q.answer(ctx, s.volume, in, func(out Out) error { return item(out) }, report)
		if err == nil && q.writes {
			err = s.upload(ctx, report)
		}
		return nil, err
	}))
}

// ask puts a question to the volume that args mean: of the mount that holds the
// directory there, of the repository there, or, without args, of the repository
// of the flags, or the only mount.
func ask[In, Out any](ctx context.Context, a *app, args []string, q question[In, Out], in In, item func(Out) error) error {
	m, err := a.volumeOf(ctx, args)
	if err != nil {
		return err
	}
	bar := a.newBar("")
	defer bar.done()
	report := func(p progress) {
		bar.describe("%s", p.What)
		bar.set(p.Done, p.Total)
	}
	answer := func(v *fs.Volume) error { return q.answer(ctx, v, in, item, report) }
	if m == nil && q.writes {
		m, err = a.withWriter(ctx, q.anyHistory, report, answer)
	} else if m == nil {
		return a.withVolume(ctx, answer)
	}
	if m == nil || err != nil {
		return err
	}
	each := func(text json.RawMessage) error {
		var out Out
		if err := json.Unmarshal(text, &out); err != nil {
			return fmt.Errorf("read answer of the mount: %w", err)
		}
		return item(out)
	}
	return m.list(ctx, "POST", q.path, in, each, nil, report)
}

// volumeOf returns the mount that args mean; nil for a repository, which is
// noted in the flags.
func (a *app) volumeOf(ctx context.Context, args []string) (*mounted, error) {
	if len(args) == 0 {
		if a.g.repo != "" {
			return nil, nil
		}
		return a.theMount(ctx, nil)
	}
	m, err := mountOf(args[0])
	if err == nil || errors.Is(err, errDeadMount) {
		return m, err
	}
	a.g.repo = args[0]
	return nil, nil
}

// withWriter opens the volume of the repository of the flags, as a client like a
// mount of this machine, and calls fn. What that has changed is on the remote
// when it returns. If a mount has this machine's local state open it returns that
// mount, which has to be asked instead.
func (a *app) withWriter(ctx context.Context, anyHistory bool, report func(progress), fn func(*fs.Volume) error) (*mounted, error) {
	url, err := a.repoURL(nil)
	if err != nil {
		return nil, err
	}
	password, err := a.password(ctx, false)
	if err != nil {
		return nil, err
	}
	s, err := a.openSession(ctx, url, password, &mountOptions{
		snapshots: snapshotsDir, fsync: "local", cacheSize: defaultCacheSize, offlineWait: 30 * time.Second, anyHistory: anyHistory,
	})
	if inUse := (cache.ErrInUse{}); errors.As(err, &inUse) {
		if m := a.mountIn(ctx, inUse.Dir); m != nil {
			return m, nil
		}
	}
	if err != nil {
		return nil, err
	}
	err = fn(s.volume)
	if err == nil {
		err = s.upload(ctx, report)
	}
	return nil, errors.Join(err, s.end(context.WithoutCancel(ctx), nil))
}

// mountIn returns the mount whose local state is in the directory dir, or nil.
func (a *app) mountIn(ctx context.Context, dir string) *mounted {
	socket := filepath.Join(dir, "control")
	if conn, err := net.Dial("unix", socket); err == nil {
		conn.Close()
		return newMounted(dir, socket)
	}
	return mountOfID(ctx, allMounts(), filepath.Base(dir))
}
