package experiment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// walkBatch is how many names of a directory are held at a time.
const walkBatch = 256

// A walker goes through all that lies below a directory, on one file system, and holds a batch of names for each level: a
// directory may have a million entries.
type walker struct {
	ctx    context.Context
	dev    uint64
	entry  func(path string, st *syscall.Stat_t) error
	failed func(path string, err error) // what cannot be read is left out
}

// walk calls entry for everything below dir, in the order that directories give, following no symbolic links.
func (w *walker) walk(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &os.PathError{Op: "analyze", Path: dir, Err: syscall.ENOTDIR}
	}
	w.dev = uint64(info.Sys().(*syscall.Stat_t).Dev)
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return w.list(f)
}

// below walks a directory that has been found on the way.
func (w *walker) below(dir string) error {
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		w.failed(dir, err)
		return nil
	}
	defer f.Close()
	return w.list(f)
}

func (w *walker) list(dir *os.File) error {
	for {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		entries, err := dir.ReadDir(walkBatch)
		for _, e := range entries {
			if err := w.visit(filepath.Join(dir.Name(), e.Name()), e); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			w.failed(dir.Name(), err)
			return nil
		}
	}
}

func (w *walker) visit(path string, e fs.DirEntry) error {
	info, err := e.Info()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // gone meanwhile
	}
	if err != nil {
		w.failed(path, err)
		return nil
	}
	st := info.Sys().(*syscall.Stat_t)
	if uint64(st.Dev) != w.dev {
		return nil
	}
	if err := w.entry(path, st); err != nil || !e.IsDir() {
		return err
	}
	return w.below(path)
}

// isRegular reports whether st is that of a regular file.
func isRegular(st *syscall.Stat_t) bool { return st.Mode&syscall.S_IFMT == syscall.S_IFREG }

// readBlock is how much of a file is read at a time, in bytes.
const readBlock = 1 << 20

// readFile calls data for every block of the file at path, in order, and hole for what is not there between them. It reads
// what the file had when it was opened, and no more.
func readFile(ctx context.Context, path string, buf []byte, data func(block []byte) error, hole func() error) error {
	// A file may have become a FIFO meanwhile, which must not be waited for.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("read %s: no regular file any more", path)
	}
	for off := int64(0); off < info.Size(); {
		start, end := nextData(f, off, info.Size())
		if start > off {
			if err := hole(); err != nil {
				return err
			}
		}
		if err := readRange(ctx, f, start, end, buf, data); err != nil {
			return err
		}
		off = end
	}
	return nil
}

func readRange(ctx context.Context, f *os.File, start, end int64, buf []byte, data func(block []byte) error) error {
	for off := start; off < end; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := f.ReadAt(buf[:min(int64(len(buf)), end-off)], off)
		if n > 0 {
			if err := data(buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil // it has become shorter
		}
		if err != nil {
			return err
		}
		off += int64(n)
	}
	return nil
}

// nextData returns the next run of data at or after off: all that is left where the file system cannot tell.
func nextData(f *os.File, off, size int64) (start, end int64) {
	start, err := unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return size, size
	}
	if err != nil {
		return off, size
	}
	end, err = unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
	if err != nil || end > size {
		end = size
	}
	return min(start, size), end
}
