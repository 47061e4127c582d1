package fusefs

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lookTimeout bounds the wait for a mount that may belong to a process that hangs.
const lookTimeout = 5 * time.Second

// mountPoint returns dir absolute and without symbolic links, ready to be mounted on: dead mounts of ours are cleared.
func mountPoint(ctx context.Context, dir string, log *slog.Logger) (string, error) {
	// Mounts may lie on top of each other, also dead ones.
	for range 16 {
		real, err := lookAt(ctx, dir)
		switch kind, mounted := topMount(real); {
		case errors.Is(err, syscall.ENOTCONN) && !ClearDead(real, log):
			return "", fmt.Errorf("%s is a mount of another program, whose process is gone; unmount it first: %w", dir, err)
		case errors.Is(err, syscall.ENOTCONN):
		case err != nil:
			return "", err
		case mounted && kind == "fuse."+fsType:
			return "", fmt.Errorf("%s has a dedupfs mounted already; unmount it first: %w", dir, syscall.EBUSY)
		default:
			return real, nil
		}
	}
	return "", fmt.Errorf("%s has too many dead mounts on it; unmount them first", dir)
}

// lookAt is look for a directory that may hang.
func lookAt(ctx context.Context, dir string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	type result struct {
		real string
		err  error
	}
	done := make(chan result, 1)
	go func() { // ends late if dir is a mount whose process hangs
		real, err := look(dir)
		done <- result{real, err}
	}()
	select {
	case r := <-done:
		return r.real, r.err
	case <-ctx.Done():
		return "", fmt.Errorf("mount point %s does not answer: %w", dir, ctx.Err())
	}
}

// look returns dir absolute and without symbolic links, and an error unless it is a directory. With ENOTCONN, which says that
// it is a dead mount, it returns both.
func look(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(abs)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("mount point %s does not exist; create it first: %w", dir, syscall.ENOENT)
	}
	if errors.Is(err, syscall.ENOTCONN) {
		parent, parentErr := filepath.EvalSymlinks(filepath.Dir(abs))
		return filepath.Join(parent, filepath.Base(abs)), cmp.Or(parentErr, err)
	}
	if err != nil {
		return "", err
	}
	info, err := os.Stat(real)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("mount point %s: %w", dir, syscall.ENOTDIR)
	}
	return real, cmp.Or(err, alive(real))
}

// alive returns ENOTCONN for a mount whose process is gone. It asks for what the kernel does not keep: attributes are
// answered from its cache long after.
func alive(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err == unix.ENOTCONN {
		return err
	}
	return nil
}

// ClearDead takes away the mount on top of dir if it is one of ours whose process is gone, and reports whether it has.
func ClearDead(dir string, log *slog.Logger) bool {
	if kind, mounted := topMount(dir); !mounted || kind != "fuse."+fsType || alive(dir) != unix.ENOTCONN {
		return false
	}
	if err := detach(dir); err != nil {
		log.Error("clear dead mount", "dir", dir, "error", err)
		return false
	}
	log.Info("cleared a dead mount", "dir", dir)
	return true
}

// topMount returns the type of the file system that is mounted last at dir.
func topMount(dir string) (kind string, mounted bool) {
	for at, k := range allMounts() {
		if at == dir {
			kind, mounted = k, true
		}
	}
	return kind, mounted
}

// MountPoints returns where file systems of ours are mounted, alive or dead.
func MountPoints() []string {
	var dirs []string
	for dir, kind := range allMounts() {
		if kind == "fuse."+fsType {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// allMounts yields directory and type of all mounts that this process sees, those on top last.
func allMounts() iter.Seq2[string, string] {
	return func(yield func(dir, kind string) bool) {
		f, err := os.Open("/proc/self/mountinfo")
		if err != nil {
			return
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if dir, kind, ok := parseMount(lines.Text()); ok && !yield(dir, kind) {
				return
			}
		}
	}
}

// parseMount takes a line of mountinfo apart: ID PARENT MAJ:MIN ROOT DIR OPTIONS [TAG...] - TYPE SOURCE OPTIONS.
func parseMount(line string) (dir, kind string, ok bool) {
	mount, system, found := strings.Cut(line, " - ")
	fields := strings.Fields(mount)
	if !found || len(fields) < 5 {
		return "", "", false
	}
	kind, _, _ = strings.Cut(system, " ")
	return unescape(fields[4]), kind, true
}

// unescape undoes how the kernel writes spaces and the like in paths: \ooo.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// unmount takes the mount on top of dir away.
func unmount(dir string) error { return umount(dir, 0, "-u") }

// detach does so too if the mount is in use; it goes when it is not any more.
func detach(dir string) error { return umount(dir, unix.MNT_DETACH, "-uz") }

func umount(dir string, flags int, helperFlags string) error {
	err := unix.Unmount(dir, flags|unix.UMOUNT_NOFOLLOW)
	if err != unix.EPERM {
		return err
	}
	helper, lookErr := exec.LookPath("fusermount3")
	if lookErr != nil {
		if helper, lookErr = exec.LookPath("fusermount"); lookErr != nil {
			return fmt.Errorf("%w (and there is no fusermount)", err)
		}
	}
	out, err := exec.Command(helper, helperFlags, "--", dir).CombinedOutput()
	if err != nil {
		text := strings.TrimSpace(string(out))
		if strings.Contains(text, "busy") {
			return fmt.Errorf("%s: %w", text, unix.EBUSY)
		}
		return fmt.Errorf("%s: %w", text, err)
	}
	return nil
}

// readAhead is how much the kernel reads ahead of a program that reads in order, in KiB. The protocol itself cannot ask for
// more than 128.
const readAhead = 1024

// tune sets what cannot be set by a mount option. Without the right to it the mount is slower, not broken.
func tune(dir string, log *slog.Logger) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return
	}
	path := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(st.Dev), unix.Minor(st.Dev))
	if err := os.WriteFile(path, []byte(strconv.Itoa(readAhead)), 0); err != nil {
		log.Debug("read-ahead stays at the system's default", "error", err)
	}
}
