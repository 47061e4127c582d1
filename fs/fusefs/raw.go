package fusefs

import (
	"log/slog"
	"math"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/dedupfs/dedupfs/fs"
)

// raw answers the kernel's requests from a volume.
type raw[H Handle] struct {
	fuse.RawFileSystem // answers ENOSYS to what is not here: locks and ioctl; the kernel then does without us
	volume             Volume[H]
	log                *slog.Logger
	ioErrors           *limitedLog

	timeout time.Duration // how long the kernel may keep entries and attributes

	calls   *calls
	handles handles[H]
}

func (r *raw[H]) String() string { return "dedupfs" }

// begin notes a request. What it returns is the context of the request; the caller ends it.
func (r *raw[H]) begin(op string, h *fuse.InHeader, cancel <-chan struct{}) *call {
	return r.calls.begin(op, h, cancel)
}

func cred(h *fuse.InHeader, umask uint32) fs.Cred {
	return fs.Cred{Uid: h.Uid, Gid: h.Gid, Pid: h.Pid, Umask: umask}
}

// entry answers a request that makes an inode known to the kernel.
func (r *raw[H]) entry(c *call, out *fuse.EntryOut, a *fs.Attr, err error) fuse.Status {
	if err != nil {
		return r.answer(c, err)
	}
	r.fillEntry(out, a)
	return fuse.OK
}

func (r *raw[H]) fillEntry(out *fuse.EntryOut, a *fs.Attr) {
	out.NodeId = uint64(a.Ino) // never used again for another file, hence no generation
	out.SetEntryTimeout(r.timeout)
	out.SetAttrTimeout(r.timeout)
	fillAttr(&out.Attr, a)
}

// attr answers a request for attributes.
func (r *raw[H]) attr(c *call, out *fuse.AttrOut, a *fs.Attr, err error) fuse.Status {
	if err != nil {
		return r.answer(c, err)
	}
	out.SetTimeout(r.timeout)
	fillAttr(&out.Attr, a)
	return fuse.OK
}

func (r *raw[H]) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	c := r.begin("lookup", h, cancel)
	defer c.end()
	a, err := r.volume.Lookup(c, c.ino, []byte(name))
	status := r.entry(c, out, &a, err)
	if status == fuse.ENOENT {
		// Node 0 with a lifetime: the kernel remembers that there is no such name.
		out.SetEntryTimeout(r.timeout)
		return fuse.OK
	}
	return status
}

func (r *raw[H]) Forget(node, n uint64) { r.volume.Forget(fs.Ino(node), n) }

func (r *raw[H]) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	c := r.begin("getattr", &in.InHeader, cancel)
	defer c.end()
	var h H
	if in.Flags()&fuse.FUSE_GETATTR_FH != 0 {
		h = r.handles.get(in.Fh())
	}
	a, err := r.volume.Getattr(c, c.ino, h)
	return r.attr(c, out, &a, err)
}

func (r *raw[H]) Statx(cancel <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	c := r.begin("statx", &in.InHeader, cancel)
	defer c.end()
	var h H
	if in.GetattrFlags&fuse.FUSE_GETATTR_FH != 0 {
		h = r.handles.get(in.Fh)
	}
	a, err := r.volume.Getattr(c, c.ino, h)
	if err != nil {
		return r.answer(c, err)
	}
	out.SetTimeout(r.timeout)
	fillStatx(&out.Statx, &a)
	return fuse.OK
}

func (r *raw[H]) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	c := r.begin("setattr", &in.InHeader, cancel)
	defer c.end()
	var h H
	if fh, ok := in.GetFh(); ok {
		h = r.handles.get(fh)
	}
	a, err := r.volume.Setattr(c, c.ino, h, setAttr(in), cred(&in.InHeader, 0))
	return r.attr(c, out, &a, err)
}

func (r *raw[H]) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	c := r.begin("mknod", &in.InHeader, cancel)
	defer c.end()
	a, err := r.volume.Mknod(c, c.ino, []byte(name), in.Mode, in.Rdev, cred(&in.InHeader, in.Umask))
	return r.entry(c, out, &a, err)
}

func (r *raw[H]) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	c := r.begin("mkdir", &in.InHeader, cancel)
	defer c.end()
	a, err := r.volume.Mkdir(c, c.ino, []byte(name), in.Mode, cred(&in.InHeader, in.Umask))
	return r.entry(c, out, &a, err)
}

func (r *raw[H]) Symlink(cancel <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	c := r.begin("symlink", h, cancel)
	defer c.end()
	a, err := r.volume.Symlink(c, c.ino, []byte(name), []byte(target), cred(h, 0))
	return r.entry(c, out, &a, err)
}

func (r *raw[H]) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	c := r.begin("link", &in.InHeader, cancel)
	defer c.end()
	a, err := r.volume.Link(c, fs.Ino(in.Oldnodeid), c.ino, []byte(name))
	return r.entry(c, out, &a, err)
}

func (r *raw[H]) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	c := r.begin("unlink", h, cancel)
	defer c.end()
	return r.answer(c, r.volume.Unlink(c, c.ino, []byte(name)))
}

func (r *raw[H]) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	c := r.begin("rmdir", h, cancel)
	defer c.end()
	return r.answer(c, r.volume.Rmdir(c, c.ino, []byte(name)))
}

func (r *raw[H]) Rename(cancel <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	c := r.begin("rename", &in.InHeader, cancel)
	defer c.end()
	return r.answer(c, r.volume.Rename(c, c.ino, []byte(from), fs.Ino(in.Newdir), []byte(to), renameFlags(in.Flags)))
}

func (r *raw[H]) Readlink(cancel <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	c := r.begin("readlink", h, cancel)
	defer c.end()
	target, err := r.volume.Readlink(c, c.ino)
	return target, r.answer(c, err)
}

func (r *raw[H]) StatFs(cancel <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	c := r.begin("statfs", h, cancel)
	defer c.end()
	s, err := r.volume.Statfs(c)
	if err != nil {
		return r.answer(c, err)
	}
	*out = fuse.StatfsOut{
		Blocks: s.Blocks, Bfree: s.Bfree, Bavail: s.Bavail, Files: s.Files, Ffree: s.Ffree,
		Bsize: s.Bsize, Frsize: s.Bsize, NameLen: s.NameLen,
	}
	return fuse.OK
}

// maxCopy is the most that one answer to COPY_FILE_RANGE can report, in whole pages.
const maxCopy = math.MaxUint32 &^ 4095

func (r *raw[H]) CopyFileRange(cancel <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	c := r.begin("copy_file_range", &in.InHeader, cancel)
	defer c.end()
	var none H
	from, to := r.handles.get(in.FhIn), r.handles.get(in.FhOut)
	if from == none || to == none {
		return 0, fuse.EBADF
	}
	n, err := r.volume.CopyFileRange(c, from, int64(in.OffIn), to, int64(in.OffOut), int64(min(in.Len, maxCopy)), in.Flags)
	return uint32(n), r.answer(c, err)
}

// Init and OnUnmount frame the life of a mount.

func (r *raw[H]) Init(*fuse.Server) {}

// OnUnmount releases what is still open: a mount that is torn down by force sends no RELEASE.
func (r *raw[H]) OnUnmount() {
	for _, h := range r.handles.drain() {
		h.Release()
	}
}
