package fs

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"syscall"

	"github.com/dedupfs/dedupfs/store"
)

// Handle is an open file.
type Handle struct {
	v      *Volume
	in     *inode         // nil for a file of a snapshot
	snap   *contentReader // of a file of a snapshot
	size   int64          // of a file of a snapshot
	append bool
	write  bool
	ahead  readAhead
}

func wantsWrite(flags uint32) bool { return flags&syscall.O_ACCMODE != syscall.O_RDONLY }

// Open opens a file. O_TRUNC truncates it as part of the same change.
func (v *Volume) Open(ctx context.Context, ino Ino, flags uint32, c Cred) (*Handle, error) {
	if isSnapshotIno(ino) {
		if wantsWrite(flags) || flags&syscall.O_TRUNC != 0 {
			return nil, syscall.EROFS
		}
		return v.snapshots.open(ctx, ino)
	}
	if v.opt.ReadOnly {
		if wantsWrite(flags) || flags&syscall.O_TRUNC != 0 {
			return nil, syscall.EROFS
		}
	}
	h := &Handle{v: v, append: flags&syscall.O_APPEND != 0, write: wantsWrite(flags)}
	err := v.openLive(ctx, h, ino, flags&syscall.O_TRUNC != 0)
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (v *Volume) openLive(ctx context.Context, h *Handle, ino Ino, trunc bool) error {
	open := func(t *tx) error {
		in, err := t.load(ino)
		if err != nil {
			return err
		}
		if in.isDir() {
			return syscall.EISDIR
		}
		if trunc && in.attrs.Size > 0 {
			n := in.attrs
			if err := t.truncate(ino, &n, 0); err != nil {
				return err
			}
			n.Ctime = t.now
			t.setAttrs(ino, &n)
		}
		t.after = append(t.after, func() {
			in.opens++
			if h.write {
				in.writers++
			}
			h.in = in
		})
		return nil
	}
	if trunc {
		return v.update(ctx, open)
	}
	return v.retryUpdate(ctx, open) // it changes nothing, so it needs no room, and works on a read-only volume
}

// Create makes a file and opens it; one that is there already is opened, unless flags has O_EXCL.
func (v *Volume) Create(ctx context.Context, parent Ino, name []byte, flags, mode uint32, c Cred) (Attr, *Handle, error) {
	for {
		op := makeOp{parent: parent, name: name, mode: syscall.S_IFREG | mode&0o7777, open: true, write: wantsWrite(flags), cred: c}
		a, in, err := v.makeNode(ctx, op)
		if err == nil {
			return a, v.newHandle(in, flags), nil
		}
		if err != syscall.EEXIST || flags&syscall.O_EXCL != 0 {
			return Attr{}, nil, err
		}
		a, err = v.Lookup(ctx, parent, name)
		if err == syscall.ENOENT {
			continue // it went away in between
		}
		if err != nil {
			return Attr{}, nil, err
		}
		h, err := v.Open(ctx, a.Ino, flags, c)
		if err != nil {
			v.Forget(a.Ino, 1)
			return Attr{}, nil, err
		}
		a, err = v.Getattr(ctx, a.Ino, h)
		return a, h, err
	}
}

// Tmpfile makes and opens a file without a name.
func (v *Volume) Tmpfile(ctx context.Context, parent Ino, flags, mode uint32, c Cred) (Attr, *Handle, error) {
	op := makeOp{parent: parent, mode: syscall.S_IFREG | mode&0o7777, open: true, write: true, cred: c}
	a, in, err := v.makeNode(ctx, op)
	if err != nil {
		return Attr{}, nil, err
	}
	return a, v.newHandle(in, flags), nil
}

func (v *Volume) newHandle(in *inode, flags uint32) *Handle {
	return &Handle{v: v, in: in, append: flags&syscall.O_APPEND != 0, write: wantsWrite(flags)}
}

// Read fills p from off on and returns how many bytes there were; fewer than len(p) only at the end of the file.
func (h *Handle) Read(ctx context.Context, p []byte, off int64) (int, error) {
	if h.in == nil {
		return h.readSnapshot(ctx, p, off)
	}
	v, in := h.v, h.in
	if err := v.repo.Pacer().Foreground(ctx); err != nil {
		return 0, err
	}
	if err := v.lockContent(ctx, in, in.mu.RLocker()); err != nil {
		return 0, err
	}
	size := int64(in.attrs.Size)
	if off >= size {
		in.mu.RUnlock()
		return 0, nil
	}
	p = p[:min(int64(len(p)), size-off)]
	view := fileView{log: v.log, layers: in.layers(), base: v.contentReader(*in.content), size: size}
	pieces := view.resolve(off, off+int64(len(p)))
	var err error
	for _, pc := range pieces { // bytes in the log stay only as long as the lock is held
		if !pc.stored() && err == nil {
			err = view.readPiece(ctx, p[pc.off-off:][:pc.n], pc)
		}
	}
	in.mu.RUnlock()
	for _, pc := range pieces {
		if pc.stored() && err == nil {
			err = view.readPiece(ctx, p[pc.off-off:][:pc.n], pc)
		}
	}
	if err != nil {
		return 0, v.readError(ctx, in.ino, err)
	}
	h.ahead.read(ctx, view.base, off, int64(len(p)))
	return len(p), nil
}

func (h *Handle) readSnapshot(ctx context.Context, p []byte, off int64) (int, error) {
	if off >= h.size {
		return 0, nil
	}
	p = p[:min(int64(len(p)), h.size-off)]
	if err := h.snap.readAt(ctx, p, off); err != nil {
		return 0, err
	}
	h.ahead.read(ctx, h.snap, off, int64(len(p)))
	return len(p), nil
}

// Write writes p at off, or at the end of a file opened with O_APPEND.
func (h *Handle) Write(ctx context.Context, p []byte, off int64) (int, error) {
	if h.in == nil || h.v.opt.ReadOnly {
		return 0, syscall.EROFS
	}
	if !h.write {
		return 0, syscall.EBADF
	}
	if len(p) == 0 {
		return 0, nil
	}
	if off > maxSize-int64(len(p)) {
		return 0, syscall.EFBIG
	}
	if err := h.v.repo.Pacer().Foreground(ctx); err != nil {
		return 0, err
	}
	err := h.v.ca.WithRoom(ctx, int64(len(p))+4096, func() error { return h.tryWrite(p, off) })
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func (h *Handle) tryWrite(p []byte, off int64) error {
	v, in := h.v, h.in
	v.cutMu.RLock()
	defer v.cutMu.RUnlock()
	in.mu.Lock()
	defer in.mu.Unlock()
	if h.append {
		if off = int64(in.attrs.Size); off > maxSize-int64(len(p)) {
			return syscall.EFBIG
		}
	}
	if err := v.logAttrs(in); err != nil {
		return err
	}
	w := writeRecord{ino: in.ino, off: off, now: timespec(v.opt.Now())}
	_, pos, err := v.log.Append(logWrite, appendWrite(nil, &w), p)
	if err != nil {
		return fmt.Errorf("write to the log: %w", err)
	}
	in.layer(v.log).put(extent{off: off, n: int64(len(p)), from: fromLog, pos: pos})
	in.wrote(&w, int64(len(p)), v.me)
	v.markDirty(in)
	v.staged.Add(int64(len(p)))
	v.changed()
	return nil
}

// wrote moves size and times after a write. in.mu must be held.
func (in *inode) wrote(w *writeRecord, n int64, by store.ClientID) {
	in.attrs.Size = max(in.attrs.Size, uint64(w.off+n))
	in.attrs.Mtime, in.attrs.Ctime, in.attrs.Changed = w.now, w.now, by
	in.stale = true
}

// logAttrs puts the inode record into the log before the first write after a cut, so that replaying needs no tree.
func (v *Volume) logAttrs(in *inode) error {
	if in.logged || in.cutOff {
		return nil
	}
	t := tx{edits: []change{{inodeKey(in.ino), &store.Entry{Value: appendAttrs(nil, &in.attrs)}}}}
	if _, _, err := v.log.Append(logChange, t.encode(), nil); err != nil {
		return fmt.Errorf("write to the log: %w", err)
	}
	in.logged = true
	return nil
}

// writeRecord is the body of a logWrite record; the bytes are its data.
type writeRecord struct {
	ino Ino
	off int64
	now Timespec
}

func appendWrite(b []byte, w *writeRecord) []byte {
	b = binary.AppendUvarint(b, uint64(w.ino))
	b = binary.AppendUvarint(b, uint64(w.off))
	b = binary.AppendVarint(b, w.now.Sec)
	return binary.AppendVarint(b, int64(w.now.Nsec))
}

func parseWrite(b []byte) (*writeRecord, error) {
	r := reader{b: b}
	w := &writeRecord{ino: Ino(r.uvarint()), off: int64(r.uvarint()), now: Timespec{r.varint(), r.nsec(0)}}
	if r.bad || len(r.b) != 0 || w.off < 0 {
		return nil, errLogRecord
	}
	return w, nil
}

// Flush is called for every close of the file; there is nothing that only now could fail.
func (h *Handle) Flush(context.Context) error { return nil }

// Fsync returns when all that was answered before is durable: on this machine, or with RemoteFsync on the remote.
func (h *Handle) Fsync(ctx context.Context, datasync bool) error {
	if h.in == nil {
		return nil
	}
	return h.v.fsync(ctx, h.in.ino)
}

// Fsyncdir does for directories what Fsync does for files.
func (v *Volume) Fsyncdir(ctx context.Context, ino Ino) error { return v.fsync(ctx, ino) }

func (v *Volume) fsync(ctx context.Context, ino Ino) error {
	if v.opt.RemoteFsync {
		return v.syncOwn(ctx, nil)
	}
	end := v.log.End()
	v.commits.early.synced(ino, end)
	return v.log.Sync(end)
}

// Release closes the file.
func (h *Handle) Release() {
	if h.in == nil {
		h.v.member.letGo(h)
		return
	}
	v, in := h.v, h.in
	v.mu.Lock()
	in.opens--
	if h.write {
		in.writers--
	}
	v.settle(in)
	v.mu.Unlock()
}

// Fallocate modes, as in fallocate(2).
const (
	fallocKeepSize  = 0x01
	fallocPunchHole = 0x02
	fallocZeroRange = 0x10
)

// Fallocate makes room, a hole, or zeros. Room is not reserved: what is written later may still meet a full disk.
func (h *Handle) Fallocate(ctx context.Context, mode uint32, off, n int64) error {
	if h.in == nil {
		return syscall.EROFS
	}
	if off < 0 || n <= 0 {
		return syscall.EINVAL
	}
	if off > maxSize-n {
		return syscall.EFBIG
	}
	zero := mode&(fallocPunchHole|fallocZeroRange) != 0
	switch mode {
	case 0, fallocKeepSize, fallocPunchHole | fallocKeepSize, fallocZeroRange, fallocZeroRange | fallocKeepSize:
	default:
		return syscall.EOPNOTSUPP
	}
	return h.v.update(ctx, func(t *tx) error {
		in := h.in
		t.lock(in)
		if in.isDir() {
			return syscall.EISDIR
		}
		a := in.attrs
		if mode&fallocKeepSize == 0 {
			a.Size = max(a.Size, uint64(off+n))
		}
		if end := min(off+n, int64(in.attrs.Size)); zero && off < end {
			in.layer(t.v.log)
			t.ops = append(t.ops, contentOp{in: in, off: off, n: end - off})
		}
		if zero || a.Size != in.attrs.Size {
			a.Mtime, a.Ctime, a.Changed = t.now, t.now, t.v.me
			t.setAttrs(in.ino, &a)
		}
		return nil
	})
}

// Lseek finds the next data (whence 3) or hole (whence 4) at or after off.
func (h *Handle) Lseek(ctx context.Context, off int64, whence int) (int64, error) {
	const seekData, seekHole = 3, 4
	if whence != seekData && whence != seekHole {
		return 0, syscall.EINVAL
	}
	view, err := h.shape(ctx)
	if err != nil {
		return 0, err
	}
	if off < 0 || off >= view.size {
		return 0, syscall.ENXIO
	}
	at, err := view.next(ctx, off, whence == seekData)
	if err == nil && whence == seekData && at >= view.size {
		err = syscall.ENXIO
	}
	return at, err
}

// shape returns where the file has data now. Its bytes must not be read through it: the log may let them go.
func (h *Handle) shape(ctx context.Context) (*fileView, error) {
	if h.in == nil {
		return &fileView{base: h.snap, size: h.size}, nil
	}
	in := h.in
	if err := h.v.lockContent(ctx, in, &in.mu); err != nil { // a copy changes the tree that it is taken of
		return nil, err
	}
	defer in.mu.Unlock()
	var layers []*layer
	for _, l := range in.layers() {
		layers = append(layers, &layer{ext: l.ext.Copy(), clip: l.clip})
	}
	return &fileView{layers: layers, base: h.v.contentReader(*in.content), size: int64(in.attrs.Size)}, nil
}

// readError adds the file's name to what a read met, and logs it: damage is never silent.
func (v *Volume) readError(ctx context.Context, ino Ino, err error) error {
	if ctx.Err() != nil {
		return err
	}
	path := v.pathOf(ctx, ino)
	v.opt.Logger.Error("read failed", "file", path, "err", err)
	return fmt.Errorf("read %q: %w", path, err)
}

// pathOf returns one path of ino for people; "?" where it has none.
func (v *Volume) pathOf(ctx context.Context, ino Ino) (path string) {
	err := v.view(ctx, func(r *layered) error {
		path = ""
		for at := ino; at != Root; {
			parent, name := Ino(0), ""
			err := r.scan(ctx, string(key(at, keyLink, 0)), prefixEnd(at, keyLink), func(k string, _ *store.Entry) bool {
				_, _, rest, _ := splitKey(k)
				if len(rest) > 8 {
					parent, name = Ino(binary.BigEndian.Uint64([]byte(rest))), rest[8:]
				}
				return false
			})
			if err != nil {
				return err
			}
			if parent == 0 {
				path = "?" + path
				return nil
			}
			path = "/" + name + path
			at = parent
		}
		return nil
	})
	if err != nil {
		return "?"
	}
	return string(bytes.ToValidUTF8([]byte(path), []byte("?")))
}
