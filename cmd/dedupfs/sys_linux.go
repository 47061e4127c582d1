package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mountPoints returns where file systems of ours are mounted.
func mountPoints() []string {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer f.Close()
	var dirs []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if dir, ok := parseMountInfo(lines.Text()); ok {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// parseMountInfo returns the mount point in a line of mountinfo, if the file
// system is of our type. The fields are those of proc(5).
func parseMountInfo(line string) (string, bool) {
	before, after, ok := strings.Cut(line, " - ")
	fields := strings.Fields(before)
	if !ok || len(fields) < 5 || !strings.HasPrefix(after, "fuse.dedupfs ") {
		return "", false
	}
	return unescapeOctal(fields[4]), true
}

// unescapeOctal undoes the kernel's \040 for a space and the like.
func unescapeOctal(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
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

// syncMount makes the kernel hand over what it still holds of the file system
// at dir: pages written through mmap, which the daemon has not seen yet.
func syncMount(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Syncfs(fd)
}

// detach unmounts dir even while it is busy or its process is gone.
func detach(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != unix.EPERM {
		return err
	}
	return fusermount("-u", "-z", "--", dir)
}

// dup2 makes newfd a copy of oldfd.
func dup2(oldfd, newfd int) error { return unix.Dup3(oldfd, newfd, 0) }

// fusermount runs the helper that may unmount for users who are not root.
func fusermount(args ...string) error {
	name, err := exec.LookPath("fusermount3")
	if err != nil {
		if name, err = exec.LookPath("fusermount"); err != nil {
			return errors.New("fusermount3 is missing; install the package fuse3")
		}
	}
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %s", filepath.Base(name), strings.TrimSpace(string(out)))
	}
	return nil
}

func mtimeOf(st *unix.Stat_t) unix.Timespec { return st.Mtim }

func mknodat(dirfd int, name string, mode, rdev uint32) error {
	return unix.Mknodat(dirfd, name, mode&unix.S_IFMT|0o600, int(rdev))
}

// setxattr sets an extended attribute of name, which may be a symbolic link.
func (d *targetDir) setxattr(name, attr string, value []byte) error {
	return unix.Lsetxattr(fmt.Sprintf("/proc/self/fd/%d/%s", d.fd, name), attr, value, 0)
}
