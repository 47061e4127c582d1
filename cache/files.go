package cache

import (
	"errors"
	"io"
	"time"
)

// Files is the local disk as this package sees it: a tree of directories under
// the cache directory. Names are relative and slash-separated. Errors are those
// of package os: fs.ErrNotExist, and a syscall.Errno below an fs.PathError.
// Tests put a disk in its place that loses power or fails.
type Files interface {
	// Create makes an empty file for reading and writing; a file that is there
	// is emptied. It is as lasting as the directory: see SyncDir.
	Create(name string) (File, error)
	// Open opens a file that is there for reading and writing.
	Open(name string) (File, error)
	// Rename moves a file over whatever stands at its new name.
	Rename(from, to string) error
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// Mkdir makes a directory; one that is there is no error.
	Mkdir(name string) error
	// List returns what stands directly in a directory, sorted by name.
	List(dir string) ([]FileInfo, error)
	// SyncDir makes creations, renames and removals in dir last.
	SyncDir(dir string) error
}

// A spaceTeller is Files that can tell how much space there is.
type spaceTeller interface {
	space() (diskSpace, error)
}

// A File is an open file of Files. Reads and writes may run side by side.
type File interface {
	io.ReaderAt
	io.Closer
	// WriteAt writes the parts one behind the other at off, in one system call
	// where there is one. After an error any piece of them may have been written.
	WriteAt(off int64, parts ...[]byte) error
	// Sync makes the content last.
	Sync() error
	// Truncate cuts or extends the file to n bytes; blocks beyond are released.
	Truncate(n int64) error
	// Allocate reserves disk space for n bytes from off and leaves the size as
	// it is. It answers errors.ErrUnsupported where that cannot be done.
	Allocate(off, n int64) error
	// WriteOut starts to write n bytes from off to the disk and does not wait.
	WriteOut(off, n int64)
	// Size returns the length of the file in bytes.
	Size() (int64, error)
}

// FileInfo is one line of a listing.
type FileInfo struct {
	Name    string // last element
	Size    int64  // bytes
	ModTime time.Time
	Dir     bool
}

// readFile returns the whole of a file of at most limit bytes.
func readFile(fsys Files, name string, limit int64) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	n, err := f.Size()
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, corruptf("%s is %d bytes long, at most %d were expected", name, n, limit)
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b, nil
}

// writeFile replaces the file name by one with content b, as one step that
// lasts: after a crash the old or the new content is there, and after it has
// returned the new.
func writeFile(fsys Files, name string, parts ...[]byte) error {
	tmp := name + tmpSuffix
	if err := writeSynced(fsys, tmp, parts...); err != nil {
		fsys.Remove(tmp) // best effort: Open removes what is left
		return err
	}
	if err := fsys.Rename(tmp, name); err != nil {
		return err
	}
	return fsys.SyncDir(dirOf(name))
}

func writeSynced(fsys Files, name string, parts ...[]byte) error {
	f, err := fsys.Create(name)
	if err != nil {
		return err
	}
	err = f.WriteAt(0, parts...)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// tmpSuffix marks files that are not finished. They mean nothing after a crash.
const tmpSuffix = ".tmp"
