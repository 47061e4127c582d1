package fusefs

import (
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dedupfs/dedupfs/fs"
)

// OpenDir has nothing to remember: a listing is a sequence of requests that each begin at a cookie, and cookies hold for
// ever.
func (r *raw[H]) OpenDir(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.OK }

func (r *raw[H]) ReleaseDir(*fuse.ReleaseIn) {}

func (r *raw[H]) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	c := r.begin("fsyncdir", &in.InHeader, cancel)
	defer c.end()
	return r.answer(c, r.volume.Fsyncdir(c, c.ino))
}

func (r *raw[H]) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	c := r.begin("readdir", &in.InHeader, cancel)
	defer c.end()
	n := 0
	err := r.volume.Readdir(c, c.ino, in.Offset, false, func(e fs.DirEntry) bool {
		fits := out.AddDirEntry(dirEntry(&e))
		if fits {
			n++
		}
		return fits
	})
	return r.listed(c, n, err)
}

func (r *raw[H]) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	c := r.begin("readdirplus", &in.InHeader, cancel)
	defer c.end()
	n := 0
	err := r.volume.Readdir(c, c.ino, in.Offset, true, func(e fs.DirEntry) bool {
		entry := out.AddDirLookupEntry(dirEntry(&e))
		if entry == nil {
			return false
		}
		n++
		if e.Attr != nil { // "." and ".." are not looked up: node 0
			r.fillEntry(entry, e.Attr)
		}
		return true
	})
	return r.listed(c, n, err)
}

// listed answers a request for entries of which n have been written. An error behind the first of them waits for the next
// request: those have been counted as looked up, and only an answer makes them known to the kernel.
func (r *raw[H]) listed(c *call, n int, err error) fuse.Status {
	if n > 0 {
		return fuse.OK
	}
	return r.answer(c, err)
}

func dirEntry(e *fs.DirEntry) fuse.DirEntry {
	return fuse.DirEntry{Name: string(e.Name), Ino: uint64(e.Ino), Mode: e.Type, Off: e.Cookie}
}
