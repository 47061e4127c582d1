package fusefs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// mountPoint returns dir absolute and without symbolic links. macFUSE clears dead mounts by itself.
func mountPoint(_ context.Context, dir string, _ *slog.Logger) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(abs)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("mount point %s does not exist; create it first: %w", dir, syscall.ENOENT)
	}
	if err != nil {
		return "", err
	}
	info, err := os.Stat(real)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("mount point %s: %w", dir, syscall.ENOTDIR)
	}
	return real, err
}

// ClearDead has nothing to do: see mountPoint.
func ClearDead(string, *slog.Logger) bool { return false }

// MountPoints returns where FUSE file systems are mounted; which of them are ours shows when they are asked.
func MountPoints() []string {
	n, err := unix.Getfsstat(nil, unix.MNT_NOWAIT)
	if err != nil {
		return nil
	}
	stats := make([]unix.Statfs_t, n+8) // room for what is mounted meanwhile
	if n, err = unix.Getfsstat(stats, unix.MNT_NOWAIT); err != nil {
		return nil
	}
	var dirs []string
	for _, st := range stats[:n] {
		if strings.Contains(unix.ByteSliceToString(st.Fstypename[:]), "fuse") {
			dirs = append(dirs, unix.ByteSliceToString(st.Mntonname[:]))
		}
	}
	return dirs
}

// unmount takes the mount on top of dir away.
func unmount(dir string) error { return unix.Unmount(dir, 0) }

// detach does so too if the mount is in use; macOS has no lazy way, so programs that use it get errors.
func detach(dir string) error { return unix.Unmount(dir, unix.MNT_FORCE) }

// tune has nothing to do.
func tune(string, *slog.Logger) {}
