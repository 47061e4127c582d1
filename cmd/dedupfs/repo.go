package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/fs"
	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
)

const passwordVariable = "DEDUPFS_PASSWORD"

// password returns the password of the repository.
func (a *app) password(ctx context.Context, confirm bool) ([]byte, error) {
	if isDaemon() {
		return daemonPassword()
	}
	source := passwordSource{
		file: a.g.passwordFile, command: a.g.passwordCommand,
		variable: passwordVariable, prompt: "Password: ",
	}
	return source.read(ctx, a, confirm)
}

// repoURL returns the place of the repository: the argument if there is one,
// else the flag.
func (a *app) repoURL(args []string) (string, error) {
	switch {
	case len(args) > 0:
		return args[0], nil
	case a.g.repo != "":
		return a.g.repo, nil
	}
	return "", usageError("which repository? name it with -r/--repo, or set DEDUPFS_REPOSITORY")
}

func (a *app) openRemote(ctx context.Context, url string, create, deferred bool) (*remote.Remote, error) {
	now := time.Now()
	o := &remote.Options{
		Create: create, Deferred: deferred,
		LimitUpload: a.g.limitUpload.At(now), LimitDownload: a.g.limitDownload.At(now),
		OnRetry: func(op, name string, err error, d time.Duration) {
			a.log.Info("trying again", "op", op, "object", name, "after", d, "err", err)
		},
	}
	if !a.mounts {
		o.Pace = a.pace.Background // what a mount reads somebody may wait for
	}
	r, err := remote.Open(ctx, url, o)
	if err != nil {
		return nil, err
	}
	a.keeper = newKeeper(r.SetLimits, a.g.limitUpload.Timetable, a.g.limitDownload.Timetable)
	return r, nil
}

// How long a storage may take to show the few small objects that a repository is
// opened with, before it counts as one that does not answer.
const (
	openWait      = 30 * time.Second
	openWaitKnown = 10 * time.Second // of a repository that can be opened without it
	offlineWait   = 3 * time.Second  // when it has just been found not to answer
)

// repository is an open repository and its storage.
type repository struct {
	*store.Repository
	storage *remote.Remote
	offline bool // the storage did not answer: opened from what is on this machine
}

// openRepository opens the repository at url. If the storage does not answer,
// and this machine has opened it before, it is opened from what is kept of it.
func (a *app) openRepository(ctx context.Context, url string, password []byte) (*repository, error) {
	st, err := a.openRemote(ctx, url, false, true)
	if err != nil {
		return nil, err
	}
	root, err := a.cacheRoot()
	if err != nil {
		return nil, err
	}
	known := knownFile(root, url)
	state, unknown := os.ReadFile(known)
	wait := openWaitKnown
	if unknown != nil {
		wait = openWait
	}
	keep := func(state []byte) error { return keepKnown(known, state) }
	r, err := openWithin(ctx, wait, st, password, &store.OpenOptions{Known: state, KeepKeys: keep})
	if err == nil {
		r.SetPacer(&a.pace)
		return &repository{r, st, false}, keepKnown(known, r.ExportState())
	}
	if !errors.Is(err, remote.ErrUnreachable) || unknown != nil {
		return nil, err
	}
	a.say("the storage does not answer; going on with what is on this machine")
	r, err = store.Open(ctx, st, password, &store.OpenOptions{State: state, KeepKeys: keep})
	if err == nil {
		r.SetPacer(&a.pace)
	}
	return &repository{r, st, true}, err
}

// openWithin opens the repository on st, which may take as long as wait.
func openWithin(ctx context.Context, wait time.Duration, st *remote.Remote, password []byte, o *store.OpenOptions) (*store.Repository, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return store.Open(ctx, st, password, o)
}

// cacheRoot returns the directory that holds the local state of all repositories.
func (a *app) cacheRoot() (string, error) {
	dir := a.g.cacheDir
	if dir == "" {
		if dir = defaultCacheDir(); dir == "" {
			return "", usageError("no home directory; name one for local state with --cache-dir")
		}
	}
	return filepath.Abs(dir)
}

// defaultCacheDir returns where the system wants caches, or "" if it does not say.
func defaultCacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "dedupfs")
}

// knownFile is where the keys of the repository at url are kept, sealed as on
// the remote, for times without network. The name gives nothing of the URL away.
func knownFile(root, url string) string {
	return filepath.Join(root, "known", fmt.Sprintf("%x", sha256.Sum256([]byte(url)))[:32])
}

// keepKnown writes state for knownFile.
func keepKnown(name string, state []byte) error {
	if old, err := os.ReadFile(name); err == nil && string(old) == string(state) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return fmt.Errorf("keep repository for use without network: %w", err)
	}
	temp := name + ".new"
	err := os.WriteFile(temp, state, 0o600)
	if err == nil {
		err = os.Rename(temp, name)
	}
	if err != nil {
		return fmt.Errorf("keep repository for use without network: %w", err)
	}
	return nil
}

// withRepository opens the repository of the flags for fn.
func (a *app) withRepository(ctx context.Context, fn func(*store.Repository) error) error {
	url, err := a.repoURL(nil)
	if err != nil {
		return err
	}
	password, err := a.password(ctx, false)
	if err != nil {
		return err
	}
	r, err := a.openRepository(ctx, url, password)
	if err != nil {
		return err
	}
	return fn(r.Repository)
}

// withVolume opens the volume in the repository of the flags for reading.
func (a *app) withVolume(ctx context.Context, fn func(*fs.Volume) error) error {
	return a.withRepository(ctx, func(r *store.Repository) error {
		ca, err := cache.OpenReader(ctx, r, &cache.Options{Memory: int64(a.g.memory) / 2})
		if err != nil {
			return err
		}
		v, err := fs.Open(ctx, ca, r, &fs.Options{ReadOnly: true, SnapshotsDir: snapshotsDir, Logger: a.log})
		if err != nil {
			return errors.Join(err, ca.Close())
		}
		return errors.Join(fn(v), v.Close(ctx), ca.Close())
	})
}
