package fusefs

import (
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dedupfs/dedupfs/fs"
)

// notifier reaches the caches of the kernel. See the deadlock rule of this package. Whatever it answers is right: that
// something is not cached, that it does not know the notice, or that the mount is gone.
type notifier struct{ server *fuse.Server }

var _ fs.Notifier = notifier{}

// InvalInode drops cached attributes of ino, and its cached bytes from off on, n of them or all if n < 0; none if off < 0.
// It returns when reads under way have ended and their pages are gone too.
func (n notifier) InvalInode(ino fs.Ino, off, length int64) {
	if length < 0 {
		length = 0 // to the kernel: to the end
	}
	n.server.InodeNotify(uint64(ino), off, length)
}

// InvalEntry drops a cached name of the directory parent, or that it did not exist, and the attributes of parent.
func (n notifier) InvalEntry(parent fs.Ino, name []byte) {
	n.server.EntryNotify(uint64(parent), string(name))
}
