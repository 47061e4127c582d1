package cache

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// maxParts is below IOV_MAX of every Linux.
const maxParts = 64

func writeVec(f *os.File, off int64, parts [][]byte) (n int, err error) {
	for {
		n, err = unix.Pwritev(int(f.Fd()), parts[:min(len(parts), maxParts)], off)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func (f osFile) Sync() error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (f osFile) Allocate(off, n int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, off, n)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
			return errors.ErrUnsupported
		}
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (f osFile) WriteOut(off, n int64) {
	unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE) // advice: Sync reports errors
}

// ReadAhead asks for bytes that will be read soon.
func (f osFile) ReadAhead(off, n int64) {
	unix.Fadvise(int(f.Fd()), off, n, unix.FADV_WILLNEED) // advice
}

// ReadVec fills parts one behind the other from off on, in one system call, and reports how many bytes there were.
func (f osFile) ReadVec(off int64, parts [][]byte) (n int, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	connErr := conn.Control(func(fd uintptr) { n, err = unix.Preadv(int(fd), parts, off) })
	return max(n, 0), errors.Join(connErr, err)
}
