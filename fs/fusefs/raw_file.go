package fusefs

import (
	"context"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/dedupfs/dedupfs/fs"
)

// openFlags are the answer to every open: what the kernel has cached of the file stays, because the volume announces every
// change that does not pass through the kernel.
const openFlags = fuse.FOPEN_KEEP_CACHE

// readFlags are the answer to an open for reading: closing has nothing to report, and need not ask.
const readFlags = openFlags | fuse.FOPEN_NOFLUSH

func (r *raw[H]) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	c := r.begin("open", &in.InHeader, cancel)
	defer c.end()
	h, err := r.volume.Open(c, c.ino, in.Flags, cred(&in.InHeader, 0))
	if err != nil {
		return r.answer(c, err)
	}
	if in.Mode&fuse.OPEN_KILL_SUIDGID != 0 {
		if err := r.killPriv(c, c.ino, h, &in.InHeader); err != nil {
			h.Release()
			return r.answer(c, err)
		}
	}
	*out = fuse.OpenOut{Fh: r.handles.add(h), OpenFlags: openFlags}
	if in.Flags&unix.O_ACCMODE == unix.O_RDONLY {
		out.OpenFlags = readFlags
	}
	return fuse.OK
}

// killPriv clears set-user-id and set-group-id for a change of content by someone who may not keep them. The kernel leaves
// this to us (HANDLE_KILLPRIV_V2) and in return does not ask for security.capability before every write. Nearly always there
// is nothing to clear, so we look first.
func (r *raw[H]) killPriv(ctx context.Context, ino fs.Ino, h H, in *fuse.InHeader) error {
	a, err := r.volume.Getattr(ctx, ino, h)
	if err != nil || a.Mode&(unix.S_ISUID|unix.S_ISGID) == 0 {
		return err
	}
	_, err = r.volume.Setattr(ctx, ino, h, fs.SetAttr{KillPriv: true}, cred(in, 0))
	return err
}

func (r *raw[H]) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	c := r.begin("create", &in.InHeader, cancel)
	defer c.end()
	a, h, err := r.volume.Create(c, c.ino, []byte(name), in.Flags, in.Mode, cred(&in.InHeader, in.Umask))
	return r.created(c, out, &a, h, err)
}

func (r *raw[H]) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	c := r.begin("tmpfile", &in.InHeader, cancel)
	defer c.end()
	a, h, err := r.volume.Tmpfile(c, c.ino, in.Flags, in.Mode, cred(&in.InHeader, in.Umask))
	return r.created(c, out, &a, h, err)
}

// created answers a request that makes a file and opens it.
func (r *raw[H]) created(c *call, out *fuse.CreateOut, a *fs.Attr, h H, err error) fuse.Status {
	if err != nil {
		return r.answer(c, err)
	}
	r.fillEntry(&out.EntryOut, a)
	out.OpenOut = fuse.OpenOut{Fh: r.handles.add(h), OpenFlags: openFlags}
	return fuse.OK
}

// Read has the volume fill the buffer that goes to the kernel.
func (r *raw[H]) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	c := r.begin("read", &in.InHeader, cancel)
	defer c.end()
	h, status := r.handle(in.Fh)
	if !status.Ok() {
		return nil, status
	}
	n, err := h.Read(c, buf[:min(int(in.Size), len(buf))], int64(in.Offset))
	if err != nil {
		return nil, r.answer(c, err)
	}
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

func (r *raw[H]) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	c := r.begin("write", &in.InHeader, cancel)
	defer c.end()
	h, status := r.handle(in.Fh)
	if !status.Ok() {
		return 0, status
	}
	if in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0 {
		if err := r.killPriv(c, c.ino, h, &in.InHeader); err != nil {
			return 0, r.answer(c, err)
		}
	}
	n, err := h.Write(c, data, int64(in.Offset))
	return uint32(n), r.answer(c, err)
}

// handle returns the open file numbered fh, or EBADF.
func (r *raw[H]) handle(fh uint64) (H, fuse.Status) {
	var none H
	h := r.handles.get(fh)
	if h == none {
		return none, fuse.EBADF
	}
	return h, fuse.OK
}

// on answers a request that is one call on an open file.
func (r *raw[H]) on(op string, in *fuse.InHeader, fh uint64, cancel <-chan struct{}, do func(context.Context, H) error) fuse.Status {
	c := r.begin(op, in, cancel)
	defer c.end()
	h, status := r.handle(fh)
	if !status.Ok() {
		return status
	}
	return r.answer(c, do(c, h))
}

func (r *raw[H]) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	return r.on("flush", &in.InHeader, in.Fh, cancel, func(ctx context.Context, h H) error { return h.Flush(ctx) })
}

// fsyncData is the flag of FSYNC for fdatasync.
const fsyncData = 1 << 0

func (r *raw[H]) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return r.on("fsync", &in.InHeader, in.Fh, cancel, func(ctx context.Context, h H) error {
		return h.Fsync(ctx, in.FsyncFlags&fsyncData != 0)
	})
}

func (r *raw[H]) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	return r.on("fallocate", &in.InHeader, in.Fh, cancel, func(ctx context.Context, h H) error {
		return h.Fallocate(ctx, in.Mode, int64(in.Offset), int64(in.Length))
	})
}

func (r *raw[H]) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	return r.on("lseek", &in.InHeader, in.Fh, cancel, func(ctx context.Context, h H) error {
		off, err := h.Lseek(ctx, int64(in.Offset), int(in.Whence))
		out.Offset = uint64(off)
		return err
	})
}

func (r *raw[H]) Release(cancel <-chan struct{}, in *fuse.ReleaseIn) {
	c := r.begin("release", &in.InHeader, cancel)
	defer c.end()
	var none H
	if h := r.handles.remove(in.Fh); h != none {
		h.Release()
	}
}
