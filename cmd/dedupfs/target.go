package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/dedupfs/dedupfs/fs"
)

// targetDir is an open directory that files are restored into. All its methods
// work relative to the descriptor and follow no symbolic link, so that nothing
// can lead them elsewhere.
type targetDir struct {
	fd    int
	path  string // for messages and for hard links
	fresh bool   // it was just made: nothing can be in it
}

const dirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC

// openTarget opens the directory at path, which the user has named: links on
// the way to it are followed.
func openTarget(path string) (*targetDir, error) {
	fd, err := unix.Open(path, dirFlags, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return &targetDir{fd: fd, path: filepath.Clean(path)}, nil
}

func (d *targetDir) close() { unix.Close(d.fd) }

// makeDir opens the directory name, and makes it if it is not there. A symbolic
// link in its place is replaced; anything else there is an error.
func (d *targetDir) makeDir(name string) (*targetDir, error) {
	err := unix.Mkdirat(d.fd, name, 0o700)
	if errors.Is(err, unix.EEXIST) && d.isSymlink(name) {
		if err := unix.Unlinkat(d.fd, name, 0); err != nil {
			return nil, fmt.Errorf("remove symbolic link: %w", err)
		}
		err = unix.Mkdirat(d.fd, name, 0o700)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	fresh := err == nil
	sub, err := d.openDir(name)
	if err != nil {
		return nil, fmt.Errorf("open directory: %w", err)
	}
	sub.fresh = fresh
	// One that was restored before may forbid its owner to write.
	if os.Geteuid() != 0 {
		if err := unix.Fchmod(sub.fd, 0o700); err != nil {
			sub.close()
			return nil, fmt.Errorf("make directory writable: %w", err)
		}
	}
	return sub, nil
}

// openDir opens the directory name, which must be one and no link to one.
func (d *targetDir) openDir(name string) (*targetDir, error) {
	fd, err := unix.Openat(d.fd, name, dirFlags|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return &targetDir{fd: fd, path: filepath.Join(d.path, name)}, nil
}

// openFile opens the regular file name for reading.
func (d *targetDir) openFile(name string) (*os.File, error) {
	fd, err := unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(d.path, name)), nil
}

// list returns the names in the directory.
func (d *targetDir) list() ([]string, error) {
	fd, err := unix.Openat(d.fd, ".", dirFlags, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close()
	return f.Readdirnames(-1)
}

// isOther reports whether name is there, and a directory where want is not, or
// the other way round.
func (d *targetDir) isOther(name string, want uint32) bool {
	st, err := d.lstat(name)
	return err == nil && (uint32(st.Mode)&unix.S_IFMT == unix.S_IFDIR) != (want == unix.S_IFDIR)
}

// removeAll removes name, and if it is a directory all that is in it.
func (d *targetDir) removeAll(name string) error {
	err := unix.Unlinkat(d.fd, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) || !d.isOther(name, unix.S_IFREG) {
		return ignoreMissing(err)
	}
	sub, err := d.openDir(name)
	if err != nil {
		return err
	}
	defer sub.close()
	names, err := sub.list()
	for _, below := range names {
		err = errors.Join(err, sub.removeAll(below))
	}
	if err != nil {
		return err
	}
	return ignoreMissing(unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR))
}

func ignoreMissing(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func (d *targetDir) lstat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, err
}

func (d *targetDir) isSymlink(name string) bool {
	st, err := d.lstat(name)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
}

// holds reports whether name is a regular file with size and time of at. Times
// are set when all bytes are there, so it was restored by an earlier run.
func (d *targetDir) holds(name string, at fs.Attr) bool {
	st, err := d.lstat(name)
	if err != nil || at.Mode&unix.S_IFMT != unix.S_IFREG || uint32(st.Mode)&unix.S_IFMT != unix.S_IFREG {
		return false
	}
	mtime := mtimeOf(&st)
	return uint64(st.Size) == at.Size && int64(mtime.Sec) == at.Mtime.Sec && uint32(mtime.Nsec) == at.Mtime.Nsec
}

// tempName returns the name that an entry has until it is complete. It is the
// same in every run, so that what a killed run left behind is used up.
func tempName(name string) string {
	return fmt.Sprintf(".dedupfs-restore-%x", sha256.Sum256([]byte(name)))[:48]
}

// begin opens the file name for writing: what an interrupted run has left under this name, or a new one.
func (d *targetDir) begin(name string) (f *os.File, begun bool, err error) {
	if !d.fresh {
		if f := d.openBegun(name); f != nil {
			return f, true, nil
		}
		d.remove(name)
	}
	fd, err := unix.Openat(d.fd, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, false, fmt.Errorf("create: %w", err)
	}
	return os.NewFile(uintptr(fd), filepath.Join(d.path, name)), false, nil
}

// openBegun opens a file that an interrupted run has left; nil if there is none, or if it may belong to somebody else: others could
// read it, or it has a second name, elsewhere.
func (d *targetDir) openBegun(name string) *os.File {
	fd, err := unix.Openat(d.fd, name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || uint32(st.Mode) != unix.S_IFREG|0o600 || st.Nlink != 1 || int(st.Uid) != os.Geteuid() || st.Size == 0 {
		unix.Close(fd)
		return nil
	}
	return os.NewFile(uintptr(fd), filepath.Join(d.path, name))
}

// clearRange makes a hole of whatever there is in [off, end) of a file, which does not become longer.
func clearRange(f *os.File, off, end int64) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	for end = min(end, fi.Size()); off < end; {
		from, to, err := dataIn(f, off, end)
		if err != nil {
			return err
		}
		if from < to {
			err = punch(f, from, to)
		}
		if err != nil {
			return fmt.Errorf("clear what an earlier run has left: %w", err)
		}
		off = to
	}
	return nil
}

// dataIn returns the first run of [off, end) that is not a hole; an empty one at end if there is none.
func dataIn(f *os.File, off, end int64) (from, to int64, err error) {
	from, err = f.Seek(off, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return end, end, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOTSUP): // the file system does not tell
		return off, end, nil
	case err != nil:
		return 0, 0, err
	case from >= end:
		return end, end, nil
	}
	to, err = f.Seek(from, unix.SEEK_HOLE)
	return from, min(to, end), err
}

// writeZeros writes zeros over [off, end).
func writeZeros(f *os.File, off, end int64) error {
	zeros := make([]byte, min(end-off, 1<<20))
	for off < end {
		n, err := f.WriteAt(zeros[:min(int64(len(zeros)), end-off)], off)
		if err != nil {
			return err
		}
		off += int64(n)
	}
	return nil
}

func (d *targetDir) symlink(target, name string) error {
	if err := unix.Symlinkat(target, d.fd, name); err != nil {
		return fmt.Errorf("make symbolic link: %w", err)
	}
	return nil
}

func (d *targetDir) mknod(name string, at fs.Attr) error {
	if err := mknodat(d.fd, name, at.Mode, at.Rdev); err != nil {
		return fmt.Errorf("make %s: %w", typeName(at.Mode), err)
	}
	return nil
}

// link makes name one more name of a file restored before.
func (d *targetDir) link(first link, name string) error {
	temp := tempName(name)
	d.remove(temp)
	defer d.remove(temp)
	from, err := openTarget(first.dir)
	if err != nil {
		return err
	}
	defer from.close()
	if err := unix.Linkat(from.fd, first.name, d.fd, temp, 0); err != nil {
		return fmt.Errorf("make hard link: %w", err)
	}
	return d.rename(temp, name)
}

func (d *targetDir) rename(from, to string) error {
	if err := unix.Renameat(d.fd, from, d.fd, to); err != nil {
		return fmt.Errorf("put in place: %w", err)
	}
	return nil
}

// remove removes name if it is still there.
func (d *targetDir) remove(name string) { _ = unix.Unlinkat(d.fd, name, 0) }

// chown sets the owner. Only root can give files away; others keep them.
func (d *targetDir) chown(name string, at fs.Attr) error {
	if os.Geteuid() != 0 {
		return nil
	}
	if err := unix.Fchownat(d.fd, name, int(at.Uid), int(at.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set owner: %w", err)
	}
	return nil
}

// chmod sets the mode. Symbolic links have none.
func (d *targetDir) chmod(name string, at fs.Attr) error {
	if at.Mode&syscall.S_IFMT == syscall.S_IFLNK {
		return nil
	}
	if err := unix.Fchmodat(d.fd, name, at.Mode&0o7777, 0); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	return nil
}

func (d *targetDir) utimes(name string, at fs.Attr) error {
	ts := []unix.Timespec{
		{Sec: at.Atime.Sec, Nsec: int64(at.Atime.Nsec)},
		{Sec: at.Mtime.Sec, Nsec: int64(at.Mtime.Nsec)},
	}
	if err := unix.UtimesNanoAt(d.fd, name, ts, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set times: %w", err)
	}
	return nil
}
