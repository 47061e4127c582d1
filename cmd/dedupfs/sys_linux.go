package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

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

// dup2 makes newfd a copy of oldfd.
func dup2(oldfd, newfd int) error { return unix.Dup3(oldfd, newfd, 0) }

// punch makes a hole of [off, end), or zeros where the file system has no holes.
func punch(f *os.File, off, end int64) error {
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, end-off)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return writeZeros(f, off, end)
	}
	return err
}

func mtimeOf(st *unix.Stat_t) unix.Timespec { return st.Mtim }

func mknodat(dirfd int, name string, mode, rdev uint32) error {
	return unix.Mknodat(dirfd, name, mode&unix.S_IFMT|0o600, int(rdev))
}

// setxattr sets an extended attribute of name, which may be a symbolic link.
func (d *targetDir) setxattr(name, attr string, value []byte) error {
	return unix.Lsetxattr(fmt.Sprintf("/proc/self/fd/%d/%s", d.fd, name), attr, value, 0)
}
