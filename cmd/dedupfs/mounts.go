package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/dedupfs/dedupfs/fs/fusefs"
)

// socketXattr of the root of a mount holds the path of its control socket.
const socketXattr = "user.dedupfs.socket"

// errDeadMount says that the process behind a mount has gone.
var errDeadMount = errors.New("the process of this mount has died; `dedupfs umount` clears it, and so does mounting there again")

// mountRoot returns the root of the mount that holds path.
func mountRoot(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	dev, err := deviceOf(path)
	if err != nil {
		return path, err
	}
	for path != "/" {
		up := filepath.Dir(path)
		if d, err := deviceOf(up); err != nil || d != dev {
			break
		}
		path = up
	}
	return path, nil
}

func deviceOf(path string) (uint64, error) {
	fi, err := os.Stat(path)
	if errors.Is(err, syscall.ENOTCONN) || errors.Is(err, syscall.ENXIO) {
		return 0, fmt.Errorf("%s: %w", path, errDeadMount)
	}
	if err != nil {
		return 0, err
	}
	return uint64(fi.Sys().(*syscall.Stat_t).Dev), nil
}

// socketOf returns the control socket of the mount whose root is root, or an
// error if it is not one of ours.
func socketOf(root string) (string, error) {
	buf := make([]byte, 4096)
	n, err := unix.Getxattr(root, socketXattr, buf)
	switch {
	case errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ENXIO):
		return "", fmt.Errorf("%s: %w", root, errDeadMount)
	case err != nil || n == 0:
		return "", fmt.Errorf("%s is not in a dedupfs mount; `dedupfs status` lists them", root)
	}
	return string(buf[:n]), nil
}

// mountOf returns the running mount that holds path.
func mountOf(path string) (*mounted, error) {
	root, err := mountRoot(path)
	if err != nil {
		return nil, err
	}
	socket, err := socketOf(root)
	if err != nil {
		return nil, err
	}
	return newMounted(root, socket), nil
}

// theMount returns the mount that a command means: of the directory in args, of
// the current directory, of the repository of the flags, or the only one there is.
func (a *app) theMount(ctx context.Context, args []string) (*mounted, error) {
	if len(args) > 0 {
		return mountOf(args[0])
	}
	if m, err := mountOf("."); err == nil {
		return m, nil
	}
	all := allMounts()
	if len(all) > 0 && a.g.repo != "" {
		var err error
		if all, err = a.mountsOfRepo(ctx, all); err != nil {
			return nil, err
		}
	}
	switch len(all) {
	case 0:
		return nil, errors.New("nothing is mounted; `dedupfs mount REPO DIR` does")
	case 1:
		return all[0], nil
	default:
		return nil, usageError("%d file systems are mounted; name the directory of one", len(all))
	}
}

// mountsOfRepo returns those that are mounts of the repository of the flags.
func (a *app) mountsOfRepo(ctx context.Context, all []*mounted) ([]*mounted, error) {
	storage, err := a.openRemote(ctx, a.g.repo, false, true)
	if err != nil {
		return nil, err
	}
	where := storage.String()
	of := slices.Collect(mountsWhere(ctx, all, func(s *mountStatus) bool { return s.Repository == where }))
	if len(of) == 0 {
		return nil, fmt.Errorf("%s is not mounted; `dedupfs mount REPO DIR` does", escape(where))
	}
	return of, nil
}

// mountsWhere yields those of all that answer with a status which is as wanted.
func mountsWhere(ctx context.Context, all []*mounted, wanted func(*mountStatus) bool) iter.Seq[*mounted] {
	return func(yield func(*mounted) bool) {
		for _, m := range all {
			var s mountStatus
			if m.call(ctx, http.MethodGet, "/status", nil, &s, nil) == nil && wanted(&s) && !yield(m) {
				return
			}
		}
	}
}

// mountOfID returns the first of all that is a mount of the repository with that id, nil if none is.
func mountOfID(ctx context.Context, all []*mounted, id string) *mounted {
	for m := range mountsWhere(ctx, all, func(s *mountStatus) bool { return s.ID == id }) {
		return m
	}
	return nil
}

// allMounts returns the running mounts on this machine that this user can talk to.
func allMounts() []*mounted {
	var all []*mounted
	for _, dir := range fusefs.MountPoints() {
		if socket, err := socketOf(dir); err == nil {
			all = append(all, newMounted(dir, socket))
		}
	}
	return all
}
