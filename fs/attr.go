package fs

import (
	"context"
	"syscall"

	"github.com/dedupfs/dedupfs/store"
)

// maxInlineTarget is the longest target of a symbolic link that stands in the inode record, in bytes.
const maxInlineTarget = 768

// stat makes what stat(2) shows.
func (v *Volume) stat(ino Ino, a *attrs, allocated uint64) Attr {
	st := Attr{Ino: ino, Mode: a.Mode, Nlink: a.Nlink, Uid: a.Uid, Gid: a.Gid, Rdev: a.Rdev, Size: a.Size,
		Blocks: (min(allocated, a.Size+4095) + 511) / 512,
		Atime:  a.Atime, Mtime: a.Mtime, Ctime: a.Ctime, Btime: a.Btime}
	if a.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		st.Size, st.Blocks = 4096, 8
	}
	if v.opt.Uid != nil {
		st.Uid = *v.opt.Uid
	}
	if v.opt.Gid != nil {
		st.Gid = *v.opt.Gid
	}
	return st
}

// attrOf returns what stat shows of a live inode. Volume.mu must be held, in either mode.
func (v *Volume) attrOf(ctx context.Context, r *layered, ino Ino) (Attr, error) {
	if in := v.table[ino]; in != nil {
		in.mu.RLock()
		defer in.mu.RUnlock()
		content := in.content
		if content == nil && in.attrs.Mode&syscall.S_IFMT == syscall.S_IFREG {
			m, err := loadExtentMap(ctx, r, ino)
			if err != nil {
				return Attr{}, err
			}
			content = m
		}
		return v.stat(ino, &in.attrs, in.allocated(content)), nil
	}
	return v.attrFrom(ctx, r, ino)
}

// attrFrom returns what stat shows of an inode that is records only.
func (v *Volume) attrFrom(ctx context.Context, r records, ino Ino) (Attr, error) {
	a, err := loadAttrs(ctx, r, ino)
	if err != nil {
		return Attr{}, err
	}
	allocated := uint64(len(a.Target))
	if a.Mode&syscall.S_IFMT == syscall.S_IFREG && a.Size > 0 {
		m, err := loadExtentMap(ctx, r, ino)
		if err != nil {
			return Attr{}, err
		}
		allocated = m.Allocated
	}
	return v.stat(ino, a, allocated), nil
}

// allocated estimates the bytes of a file that are not holes: exact when it is clean, an upper bound otherwise.
func (in *inode) allocated(content *extentMap) uint64 {
	var n int64
	if content != nil {
		n = int64(content.Allocated)
	}
	for _, l := range []*layer{in.frozen, in.active} {
		if l != nil {
			n = min(n, l.clip) + l.data
		}
	}
	return uint64(n)
}

// attrWithContent is attrOf for a transaction that has changed the attributes to n.
func (v *Volume) attrWithContent(t *tx, ino Ino, n *attrs) Attr {
	in := v.table[ino]
	if in == nil {
		m, err := loadExtentMap(t.ctx, t.layered, ino)
		if err != nil {
			m = &extentMap{}
		}
		return v.stat(ino, n, m.Allocated)
	}
	return v.stat(ino, n, in.allocated(in.content))
}

// Getattr returns what stat shows. h may be nil.
func (v *Volume) Getattr(ctx context.Context, ino Ino, h *Handle) (a Attr, err error) {
	if isSnapshotIno(ino) {
		return v.snapshots.getattr(ctx, ino)
	}
	err = v.view(ctx, func(r *layered) error {
		if h != nil && h.in != nil && v.table[ino] != h.in {
			h.in.mu.RLock()
			defer h.in.mu.RUnlock()
			a = v.stat(ino, &h.in.attrs, h.in.allocated(h.in.content))
			return nil
		}
		a, err = v.attrOf(ctx, r, ino)
		return err
	})
	return a, err
}

// Setattr changes attributes, and the size. h may be nil.
func (v *Volume) Setattr(ctx context.Context, ino Ino, h *Handle, s SetAttr, c Cred) (st Attr, err error) {
	if isSnapshotIno(ino) {
		return Attr{}, syscall.EROFS
	}
	if s.Size != nil && *s.Size > maxSize {
		return Attr{}, syscall.EFBIG
	}
	err = v.update(ctx, func(t *tx) error {
		n, err := t.attrs(ino)
		if err != nil {
			return err
		}
		if s.Size != nil {
			if err := t.truncate(ino, n, *s.Size); err != nil {
				return err
			}
		}
		t.v.applySetAttr(n, &s, t.now)
		if s.Mode != nil {
			if err := t.chmodACL(ino, n.Mode); err != nil {
				return err
			}
		}
		t.setAttrs(ino, n)
		t.after = append(t.after, func() { st = v.attrWithContent(t, ino, n) })
		return nil
	})
	return st, err
}

// maxSize is the largest file, in bytes: what a kernel's offset can say.
const maxSize = 1<<63 - 1

// applySetAttr changes n as s says; a change of anything moves ctime.
func (v *Volume) applySetAttr(n *attrs, s *SetAttr, now Timespec) {
	if s.Mode != nil {
		n.Mode = n.Mode&syscall.S_IFMT | *s.Mode&0o7777
	}
	if s.Uid != nil && v.opt.Uid == nil {
		n.Uid = *s.Uid
	}
	if s.Gid != nil && v.opt.Gid == nil {
		n.Gid = *s.Gid
	}
	if s.KillPriv {
		n.Mode = killPriv(n.Mode)
	}
	for _, t := range []struct {
		dst *Timespec
		val *Timespec
		now bool
	}{{&n.Atime, s.Atime, s.AtimeNow}, {&n.Mtime, s.Mtime, s.MtimeNow}} {
		if t.now {
			*t.dst = now
		} else if t.val != nil {
			*t.dst = *t.val
		}
	}
	n.Ctime = now
	if s.Ctime != nil {
		n.Ctime = *s.Ctime
	}
}

// killPriv returns mode without set-user-id, and without set-group-id where that is no mandatory locking mark.
func killPriv(mode uint32) uint32 {
	mode &^= syscall.S_ISUID
	if mode&0o010 != 0 {
		mode &^= syscall.S_ISGID
	}
	return mode
}

// truncate stages that the file ino gets a new size, and changes n accordingly.
func (t *tx) truncate(ino Ino, n *attrs, size uint64) error {
	switch n.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
	case syscall.S_IFDIR:
		return syscall.EISDIR
	default:
		return syscall.EINVAL
	}
	in, err := t.load(ino)
	if err != nil {
		return err
	}
	n.Mtime, n.Changed = t.now, t.v.me
	if size < n.Size {
		in.layer(t.v.log)
		t.ops = append(t.ops, contentOp{in: in, truncate: true, off: int64(size)})
	}
	n.Size = size
	return nil
}

// longTarget stages the target of a symbolic link that does not fit into its record, as the link's content.
func (t *tx) longTarget(ino Ino, n *attrs, target []byte) error {
	if len(target) <= maxInlineTarget {
		return nil
	}
	for i := 0; i*maxInlineTarget < len(target); i++ {
		part := target[i*maxInlineTarget : min((i+1)*maxInlineTarget, len(target))]
		t.put(&store.Entry{Key: []byte(targetKey(ino, i)), Value: part})
	}
	return nil
}

// targetKey is where part i of a long target stands.
func targetKey(ino Ino, i int) string { return string(append(key(ino, keyTarget, 1), byte(i))) }

// Readlink returns the target of a symbolic link.
func (v *Volume) Readlink(ctx context.Context, ino Ino) (target []byte, err error) {
	if isSnapshotIno(ino) {
		return v.snapshots.readlink(ctx, ino)
	}
	err = v.view(ctx, func(r *layered) error {
		target, err = readTarget(ctx, r, ino)
		return err
	})
	return target, err
}

func readTarget(ctx context.Context, r records, ino Ino) ([]byte, error) {
	a, err := loadAttrs(ctx, r, ino)
	if err != nil {
		return nil, err
	}
	if a.Mode&syscall.S_IFMT != syscall.S_IFLNK {
		return nil, syscall.EINVAL
	}
	if len(a.Target) > 0 {
		return a.Target, nil
	}
	var target []byte
	err = r.scan(ctx, string(key(ino, keyTarget, 0)), prefixEnd(ino, keyTarget), func(_ string, e *store.Entry) bool {
		target = append(target, e.Value...)
		return true
	})
	if err == nil && uint64(len(target)) != a.Size {
		err = errRecord
	}
	return target, err
}
