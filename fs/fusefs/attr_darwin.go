package fusefs

import (
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dedupfs/dedupfs/fs"
)

// fillBirth writes the time of birth.
func fillBirth(out *fuse.Attr, t fs.Timespec) {
	out.Crtime_, out.Crtimensec_ = uint64(t.Sec), t.Nsec
}

// fillStatx does nothing: macOS has no STATX.
func fillStatx(*fuse.Statx, *fs.Attr) {}
