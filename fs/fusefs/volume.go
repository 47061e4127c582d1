package fusefs

import (
	"context"

	"github.com/dedupfs/dedupfs/fs"
)

// Volume is what is mounted: fs.Volume, or a fake in tests. H is its type of open file, whose zero value means "none".
//
// Names are bytes without "/" and NUL, at most fs.NameMax long; they belong to the call. Errors are turned into errno values
// by the table of this package.
type Volume[H Handle] interface {
	names
	attributes[H]
	files[H]
	xattrs
	// SetNotify gives the volume the way to the kernel's caches. See fs.Notifier and the deadlock rule of this package.
	SetNotify(fs.Notifier)
}

// names is the part of a volume about directories. Methods that return attributes count one look-up on that inode.
type names interface {
	Lookup(ctx context.Context, parent fs.Ino, name []byte) (fs.Attr, error)
	// Forget takes n look-ups back. It does no I/O and takes the same time for every n.
	Forget(ino fs.Ino, n uint64)
	Mknod(ctx context.Context, parent fs.Ino, name []byte, mode, rdev uint32, c fs.Cred) (fs.Attr, error)
	Mkdir(ctx context.Context, parent fs.Ino, name []byte, mode uint32, c fs.Cred) (fs.Attr, error)
	Symlink(ctx context.Context, parent fs.Ino, name, target []byte, c fs.Cred) (fs.Attr, error)
	Link(ctx context.Context, ino, parent fs.Ino, name []byte) (fs.Attr, error)
	Unlink(ctx context.Context, parent fs.Ino, name []byte) error
	Rmdir(ctx context.Context, parent fs.Ino, name []byte) error
	Rename(ctx context.Context, p1 fs.Ino, n1 []byte, p2 fs.Ino, n2 []byte, flags uint32) error
	// Readdir calls fn for the entries behind cookie (0: from the start) until fn returns false, "." and ".." first. With
	// plus, entries carry attributes, and each that fn accepted counts one look-up.
	Readdir(ctx context.Context, ino fs.Ino, cookie uint64, plus bool, fn func(fs.DirEntry) bool) error
	Fsyncdir(ctx context.Context, ino fs.Ino) error
}

// attributes is the part of a volume about what stat shows.
type attributes[H Handle] interface {
	Getattr(ctx context.Context, ino fs.Ino, h H) (fs.Attr, error)
	Setattr(ctx context.Context, ino fs.Ino, h H, s fs.SetAttr, c fs.Cred) (fs.Attr, error)
	Readlink(ctx context.Context, ino fs.Ino) ([]byte, error)
	Statfs(ctx context.Context) (fs.Statfs, error)
}

// files is the part of a volume that opens files. Create and Tmpfile count one look-up.
type files[H Handle] interface {
	Open(ctx context.Context, ino fs.Ino, flags uint32, c fs.Cred) (H, error)
	Create(ctx context.Context, parent fs.Ino, name []byte, flags, mode uint32, c fs.Cred) (fs.Attr, H, error)
	Tmpfile(ctx context.Context, parent fs.Ino, flags, mode uint32, c fs.Cred) (fs.Attr, H, error)
	CopyFileRange(ctx context.Context, in H, offIn int64, out H, offOut, n int64, flags uint64) (int64, error)
}

// xattrs is the part of a volume about extended attributes.
type xattrs interface {
	Getxattr(ctx context.Context, ino fs.Ino, name string) ([]byte, error)
	Setxattr(ctx context.Context, ino fs.Ino, name string, value []byte, flags uint32) error
	Listxattr(ctx context.Context, ino fs.Ino) (names []string, err error)
	Removexattr(ctx context.Context, ino fs.Ino, name string) error
}

// Handle is an open file.
type Handle interface {
	comparable
	// Read fills p from off and returns less only at the end of the file.
	Read(ctx context.Context, p []byte, off int64) (int, error)
	// Write takes all of p or fails. Under O_APPEND off does not count.
	Write(ctx context.Context, p []byte, off int64) (int, error)
	Flush(ctx context.Context) error
	Fsync(ctx context.Context, datasync bool) error
	Fallocate(ctx context.Context, mode uint32, off, n int64) error
	Lseek(ctx context.Context, off int64, whence int) (int64, error)
	// Release is called once, after which the handle is not used again. Errors have been reported by Flush.
	Release()
}
