package cache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// osFiles is a directory of the operating system. Modes are given in full,
// because the umask of a daemon may be anything.
type osFiles struct{ dir string }

// OSFiles returns the files below dir, which must be there.
func OSFiles(dir string) Files { return osFiles{dir} }

func (o osFiles) path(name string) string { return filepath.Join(o.dir, filepath.FromSlash(name)) }

func (o osFiles) open(name string, flags int) (File, error) {
	f, err := os.OpenFile(o.path(name), flags, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (o osFiles) Create(name string) (File, error) {
	return o.open(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
}

func (o osFiles) Open(name string) (File, error) { return o.open(name, os.O_RDWR) }

func (o osFiles) Rename(from, to string) error { return os.Rename(o.path(from), o.path(to)) }

func (o osFiles) Remove(name string) error { return os.Remove(o.path(name)) }

func (o osFiles) Mkdir(name string) error {
	err := os.Mkdir(o.path(name), 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

func (o osFiles) List(dir string) ([]FileInfo, error) {
	entries, err := os.ReadDir(o.path(dir))
	if err != nil {
		return nil, err
	}
	var list []FileInfo
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		list = append(list, FileInfo{Name: e.Name(), Size: info.Size(), ModTime: info.ModTime(), Dir: e.IsDir()})
	}
	return list, nil
}

func (o osFiles) SyncDir(dir string) error {
	d, err := os.Open(o.path(dir))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (o osFiles) space() (diskSpace, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(o.dir, &st); err != nil {
		return diskSpace{}, err
	}
	block := int64(st.Bsize)
	return diskSpace{free: int64(st.Bavail) * block, total: int64(st.Blocks) * block}, nil
}

type osFile struct{ *os.File }

func (f osFile) WriteAt(off int64, parts ...[]byte) error {
	total := 0
	for _, p := range parts {
		total += len(p)
	}
	n, err := writeVec(f.File, off, parts)
	if err != nil {
		return fmt.Errorf("write %s: %w", f.Name(), err)
	}
	if n < total {
		// The kernel stops early when the disk is full: the rest tells why.
		return f.writeRest(off+int64(n), parts, n)
	}
	return nil
}

// writeRest writes what is left of parts after their first skip bytes.
func (f osFile) writeRest(off int64, parts [][]byte, skip int) error {
	for _, p := range parts {
		if skip >= len(p) {
			skip -= len(p)
			continue
		}
		n, err := f.File.WriteAt(p[skip:], off)
		if err != nil {
			return err
		}
		off += int64(n)
		skip = 0
	}
	return nil
}

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// isNoSpace reports whether err says that the disk is full.
func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

func dirOf(name string) string { return path.Dir(name) }
