package remote_test

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/dedupfs/dedupfs/remote"
)

// TestLocalNoSpace fills a small disk.
func TestLocalNoSpace(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err) // something was left open
		}
	})
	r := open(t, dir, nil)
	if err := r.Put(t.Context(), "a/big", make([]byte, 2<<20)); !errors.Is(err, remote.ErrNoSpace) {
		t.Errorf("Put = %v, want ErrNoSpace", err)
	}
	if entries, err := os.ReadDir(dir + "/a"); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if err := r.Put(t.Context(), "a/small", make([]byte, 1<<10)); err != nil {
		t.Errorf("Put of a small one: %v", err)
	}
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := r.Put(t.Context(), "a/more", nil); !errors.Is(err, remote.ErrAuth) {
		t.Errorf("Put on a read-only disk = %v, want ErrAuth", err)
	}
	if stats := r.Stats(); stats.Retries != 0 {
		t.Errorf("tried again %d times", stats.Retries)
	}
}
