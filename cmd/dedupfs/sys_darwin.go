package main

import (
	"errors"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// syncMount makes the kernel hand over what it still holds: pages written
// through mmap, which the daemon has not seen yet. There is no syncfs(2) here.
func syncMount(string) error { return unix.Sync() }

// dup2 makes newfd a copy of oldfd.
func dup2(oldfd, newfd int) error { return unix.Dup2(oldfd, newfd) }

// punch makes zeros of [off, end): holes can be made of whole blocks only.
func punch(f *os.File, off, end int64) error { return writeZeros(f, off, end) }

func mtimeOf(st *unix.Stat_t) unix.Timespec { return st.Mtim }

// mknodat makes FIFOs; devices and sockets cannot be made relative to a directory here.
func mknodat(dirfd int, name string, mode, _ uint32) error {
	if mode&unix.S_IFMT != unix.S_IFIFO {
		return unix.ENOTSUP
	}
	return inDir(dirfd, func() error { return unix.Mkfifo(name, 0o600) })
}

// setxattr sets an extended attribute of name, which may be a symbolic link.
func (d *targetDir) setxattr(name, attr string, value []byte) error {
	return inDir(d.fd, func() error { return unix.Lsetxattr(name, attr, value, 0) })
}

// inDir runs fn on a thread whose current directory is dirfd.
func inDir(dirfd int, fn func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.PthreadFchdir(dirfd); err != nil {
		return err
	}
	err := fn()
	return errors.Join(err, unix.PthreadFchdir(-1))
}
