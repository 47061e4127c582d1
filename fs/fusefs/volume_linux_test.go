package fusefs

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
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

// TestFollow checks that what another machine has changed is seen through the caches of the kernel.
func TestFollow(t *testing.T) {
	st, repo := newRepository(t)
	a, b := newMachine(t, repo), newMachine(t, storetest.Open(t, st))
	sync := func() {
		t.Helper()
		must(t, a.volume.Sync(t.Context(), nil))
		must(t, b.volume.Sync(t.Context(), nil))
	}
	for _, name := range []string{"changed", "removed", "renamed"} {
		must(t, os.WriteFile(filepath.Join(a.mnt, name), []byte("old"), 0o644))
	}
	must(t, os.Mkdir(filepath.Join(a.mnt, "dir"), 0o755))
	sync()
	for name, want := range map[string]string{"changed": "old", "removed": "old", "renamed": "old", "added": "", "dir/added": "", "moved": ""} {
		if got, _ := os.ReadFile(filepath.Join(b.mnt, name)); string(got) != want {
			t.Fatalf("before: %s is %q, want %q", name, got, want)
		}
	}
	before := stat(t, filepath.Join(b.mnt, "changed"))

	must(t, os.WriteFile(filepath.Join(a.mnt, "changed"), []byte("new"), 0o644))
	must(t, os.WriteFile(filepath.Join(a.mnt, "added"), []byte("new"), 0o644))
	must(t, os.WriteFile(filepath.Join(a.mnt, "dir/added"), []byte("new"), 0o644))
	must(t, os.Remove(filepath.Join(a.mnt, "removed")))
	must(t, os.Rename(filepath.Join(a.mnt, "renamed"), filepath.Join(a.mnt, "moved")))
	sync()
	for name, want := range map[string]string{"changed": "new", "removed": "", "renamed": "", "added": "new", "dir/added": "new", "moved": "old"} {
		if got, _ := os.ReadFile(filepath.Join(b.mnt, name)); string(got) != want {
			t.Errorf("after: %s is %q, want %q", name, got, want)
		}
	}
	if after := stat(t, filepath.Join(b.mnt, "changed")); after.Mtim == before.Mtim || after.Ino != before.Ino {
		t.Errorf("inode %d with mtime %v is now %d with %v; want the same one, changed", before.Ino, before.Mtim, after.Ino, after.Mtim)
	}
}

// TestSnapshotAppears checks that a snapshot can be seen at once where there was none a moment ago, and is gone at once.
func TestSnapshotAppears(t *testing.T) {
	_, repo := newRepository(t)
	m := newMachine(t, repo)
	file := filepath.Join(m.mnt, "f")
	seen := filepath.Join(m.mnt, ".snapshots", "s", "f")
	must(t, os.WriteFile(file, []byte("then"), 0o644))
	if _, err := os.Lstat(seen); !errors.Is(err, syscall.ENOENT) {
		t.Fatalf("before: %v, want ENOENT", err)
	}
	_, err := m.volume.CreateSnapshot(t.Context(), fs.Snapshot{Name: "s"})
	must(t, err)
	must(t, os.WriteFile(file, []byte("now"), 0o644))
	if got, err := os.ReadFile(seen); string(got) != "then" {
		t.Errorf("snapshot has %q, %v; want %q", got, err, "then")
	}
	if err := os.WriteFile(seen, nil, 0o644); !errors.Is(err, syscall.EROFS) {
		t.Errorf("writing into a snapshot = %v, want EROFS", err)
	}
	must(t, m.volume.ForgetSnapshot(t.Context(), "s"))
	if _, err := os.Lstat(seen); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("after it was forgotten: %v, want ENOENT", err)
	}
}
