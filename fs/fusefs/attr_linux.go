package fusefs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/dedupfs/dedupfs/fs"
)

// fillBirth does nothing: Linux asks for the time of birth by STATX.
func fillBirth(*fuse.Attr, fs.Timespec) {}

// fillStatx writes a as statx shows it.
func fillStatx(out *fuse.Statx, a *fs.Attr) {
	*out = fuse.Statx{
		Mask: unix.STATX_BASIC_STATS | unix.STATX_BTIME,
		Ino:  uint64(a.Ino), Size: a.Size, Blocks: a.Blocks, Blksize: blockSize,
		Nlink: a.Nlink, Uid: a.Uid, Gid: a.Gid, Mode: uint16(a.Mode),
		Atime: statxTime(a.Atime), Btime: statxTime(a.Btime), Ctime: statxTime(a.Ctime), Mtime: statxTime(a.Mtime),
		RdevMajor: unix.Major(uint64(a.Rdev)), RdevMinor: unix.Minor(uint64(a.Rdev)),
	}
}

func statxTime(t fs.Timespec) fuse.SxTime { return fuse.SxTime{Sec: uint64(t.Sec), Nsec: t.Nsec} }
