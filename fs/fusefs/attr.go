package fusefs

import (
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dedupfs/dedupfs/fs"
)

// blockSize is what programs are told to read and write at a time, as on most local file systems: some allocate a buffer of
// this size per open file.
const blockSize = 4096

// fillAttr writes a as the kernel wants it.
func fillAttr(out *fuse.Attr, a *fs.Attr) {
	*out = fuse.Attr{
		Ino: uint64(a.Ino), Size: a.Size, Blocks: a.Blocks, Blksize: blockSize,
		Atime: uint64(a.Atime.Sec), Atimensec: a.Atime.Nsec,
		Mtime: uint64(a.Mtime.Sec), Mtimensec: a.Mtime.Nsec,
		Ctime: uint64(a.Ctime.Sec), Ctimensec: a.Ctime.Nsec,
		Mode: a.Mode, Nlink: a.Nlink, Rdev: a.Rdev,
		Owner: fuse.Owner{Uid: a.Uid, Gid: a.Gid},
	}
	fillBirth(out, a.Btime)
}

// setAttr reads what a SETATTR request wants changed.
func setAttr(in *fuse.SetAttrIn) (s fs.SetAttr) {
	valid := func(bit uint32) bool { return in.Valid&bit != 0 }
	if valid(fuse.FATTR_MODE) {
		mode := in.Mode & 07777
		s.Mode = &mode
	}
	if valid(fuse.FATTR_UID) {
		s.Uid = &in.Uid
	}
	if valid(fuse.FATTR_GID) {
		s.Gid = &in.Gid
	}
	if valid(fuse.FATTR_SIZE) {
		s.Size = &in.Size
	}
	s.AtimeNow, s.MtimeNow = valid(fuse.FATTR_ATIME_NOW), valid(fuse.FATTR_MTIME_NOW)
	if valid(fuse.FATTR_ATIME) && !s.AtimeNow {
		s.Atime = &fs.Timespec{Sec: int64(in.Atime), Nsec: in.Atimensec}
	}
	if valid(fuse.FATTR_MTIME) && !s.MtimeNow {
		s.Mtime = &fs.Timespec{Sec: int64(in.Mtime), Nsec: in.Mtimensec}
	}
	if valid(fuse.FATTR_CTIME) {
		s.Ctime = &fs.Timespec{Sec: int64(in.Ctime), Nsec: in.Ctimensec}
	}
	s.KillPriv = valid(fuse.FATTR_KILL_SUIDGID)
	return s
}
