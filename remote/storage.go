package remote

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
)

// Storage keeps immutable objects under slash-separated names. Every name is
// written with one content for ever, so a put may be repeated at will.
// Implementations are safe for concurrent use.
type Storage interface {
	// Put stores data under name, which it does not keep after it has returned.
	// A put that answered nil is visible to Get at once, and to List within the
	// settle time. It may answer an error after it has worked. Every attempt
	// for a name puts the same bytes. Put never creates the root of the
	// repository on a local path: if that is gone it returns ErrNotExist.
	Put(ctx context.Context, name string, data []byte) error

	// Get returns n bytes of name from off, or all from off if n < 0. The slice
	// is the caller's. An object that ends before off+n gives an error that
	// wraps io.ErrUnexpectedEOF; one that is not there gives ErrNotExist.
	Get(ctx context.Context, name string, off, n int64) ([]byte, error)

	// List calls fn for each entry directly in dir ("" is the root), in no
	// order, perhaps for one entry twice. A directory that is not there is
	// empty, but a root that is not there is ErrNotExist. A listing is complete
	// or an error. An error of fn stops it and is returned as it is.
	List(ctx context.Context, dir string, fn func(Entry) error) error

	// Delete removes an object. One that is not there is no error.
	Delete(ctx context.Context, name string) error
}

// A Syncer is a Storage whose acknowledged puts may still be lost with the
// power of this machine. After Sync has returned nil they are not.
type Syncer interface {
	Sync(ctx context.Context) error
}

// A DirRemover is a Storage that may keep directories which hold nothing.
type DirRemover interface {
	// RemoveDir removes a directory if it is there and empty. Where there are no
	// directories, and where it is not empty, it does nothing and returns nil.
	// Nobody may be putting anything into it.
	RemoveDir(ctx context.Context, name string) error
}

// An Entry is one line of a listing.
type Entry struct {
	Name string // last element of the name
	Size int64  // bytes; -1 for directories, and where a backend does not tell
	Dir  bool
}

// The kinds of failure that callers tell apart, found with errors.Is. An error
// that is none of them is one of a backend having a bad day: trying again later
// may help.
var (
	ErrNotExist    = errors.New("not found")
	ErrAuth        = errors.New("access refused")      // credentials or permissions; waiting does not help
	ErrUnreachable = errors.New("storage unreachable") // no route, dead host, timeout
	ErrNoSpace     = errors.New("no space on storage") // full disk, or quota
)

// ErrRootGone is the ErrNotExist of a root that is not there: a disk that was
// unplugged, say, and no object that was lost.
var ErrRootGone = fmt.Errorf("root of the repository %w", ErrNotExist)

// CheckName returns an error unless name is fit for an object: slash-separated
// elements, none of them empty, "." or "..".
func CheckName(name string) error {
	if name == "." || !fs.ValidPath(name) {
		return fmt.Errorf("%q is not an object name", name)
	}
	return nil
}

// CheckRange returns an error unless Get can be asked for n bytes from off.
func CheckRange(off, n int64) error {
	if off < 0 || off+max(n, 0) < 0 {
		return fmt.Errorf("range of %d bytes from %d", n, off)
	}
	return nil
}
