package fs

import (
	"time"
)

// Ino is an inode number: 63 bits, stable across remounts and clients, never reused.
type Ino uint64

// Root is the inode number of the root directory, as FUSE wants it.
const Root Ino = 1

// Timespec is a point in time as inodes keep it: any second in 64 bits, before 1970 too.
type Timespec struct {
	Sec  int64
	Nsec uint32 // 0..999,999,999
}

// timespec converts t.
func timespec(t time.Time) Timespec { return Timespec{t.Unix(), uint32(t.Nanosecond())} }

// Time converts ts.
func (ts Timespec) Time() time.Time { return time.Unix(ts.Sec, int64(ts.Nsec)) }

// Less reports whether ts lies before o.
func (ts Timespec) Less(o Timespec) bool {
	return ts.Sec < o.Sec || ts.Sec == o.Sec && ts.Nsec < o.Nsec
}

// Attr is what stat shows.
type Attr struct {
	Ino    Ino
	Mode   uint32 // type and 07777 bits, as in st_mode
	Nlink  uint32
	Uid    uint32
	Gid    uint32
	Rdev   uint32 // as the kernel encodes it
	Size   uint64 // bytes
	Blocks uint64 // of 512 bytes, holes not counted
	Atime  Timespec
	Mtime  Timespec
	Ctime  Timespec
	Btime  Timespec
}

// Cred is who asks.
type Cred struct {
	Uid, Gid uint32
	Umask    uint32
	Pid      uint32
}

// SetAttr says what Setattr changes; nil fields stay as they are.
type SetAttr struct {
	Mode         *uint32 // 07777 bits
	Uid, Gid     *uint32
	Size         *uint64
	Atime, Mtime *Timespec
	AtimeNow     bool // take the time of this machine
	MtimeNow     bool
	Ctime        *Timespec
	KillPriv     bool // clear set-user-id and set-group-id, as writes by non-owners do
}

// DirEntry is one entry of a directory listing.
type DirEntry struct {
	Name   []byte
	Ino    Ino
	Type   uint32 // S_IFMT bits of the mode
	Cookie uint64 // pass it to Readdir to go on behind this entry
	Attr   *Attr  // only if asked for; nil for "." and ".."
}

// Statfs is what statfs shows.
type Statfs struct {
	Blocks, Bfree, Bavail uint64 // of Bsize bytes
	Files, Ffree          uint64
	Bsize, NameLen        uint32
}

// Notifier reaches the kernel's caches. It is called without any lock of the volume.
type Notifier interface {
	InvalInode(ino Ino, off, n int64) // n < 0: to the end; off < 0: attributes only
	InvalEntry(parent Ino, name []byte)
}

// Limits of names and the like, as Linux has them.
const (
	NameMax  = 255
	xattrMax = 64 << 10
)
