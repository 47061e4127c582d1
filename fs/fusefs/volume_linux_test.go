package fusefs

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/fs"
	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/storetest"
)

var _ Volume[*fs.Handle] = (*fs.Volume)(nil)

// machine is a client of a repository with its volume mounted.
type machine struct {
	mnt    string
	volume *fs.Volume
	server *Server
}

// newRepository returns an empty repository in memory.
func newRepository(t *testing.T) (remote.Storage, *store.Repository) {
	st := remotetest.NewMem()
	return st, storetest.New(t, st)
}

// newMachine mounts the volume of a repository until the test ends. It commits often, so that tests run across commits.
func newMachine(t *testing.T, repo *store.Repository) *machine {
	t.Helper()
	ctx := context.Background()
	ca, err := cache.Open(ctx, t.TempDir(), repo, nil)
	must(t, err)
	t.Cleanup(func() {
		if err := ca.Close(); err != nil {
			t.Error(err)
		}
	})
	v, err := fs.Open(ctx, ca, repo, &fs.Options{
		CommitAfter: 20 * time.Millisecond, CommitEvery: 100 * time.Millisecond, Poll: -1, Host: "test",
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	must(t, err)
	t.Cleanup(func() {
		if err := v.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	m := &machine{mnt: t.TempDir(), volume: v}
	m.server = mount(t, v, m.mnt, nil)
	return m
}
