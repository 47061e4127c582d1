package fs

import (
	"context"
	"encoding/binary"
	"syscall"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/store"
)

// First byte of an extended attribute's record.
const (
	xattrInline = 0 // the value follows
	xattrChunks = 1 // the length follows; the value lies in chunks
)

// socketXattr names the control socket of the mount, on its root only.
const socketXattr = "user.dedupfs.socket"

// stateXattr says of a file where its newest content is safe. It is computed, and not listed, so that nobody copies it.
const stateXattr = "user.dedupfs.state"

// contentState returns "dirty" for a file that has changed since the last local commit, "local" while the newest local commit
// is on this machine only, and "remote" else.
func (v *Volume) contentState(ctx context.Context, ino Ino) (state []byte, err error) {
	err = v.view(ctx, func(r *layered) error {
		in := v.table[ino]
		if in != nil {
			in.mu.RLock()
			defer in.mu.RUnlock()
		}
		dirty := in != nil && len(in.layers()) > 0
		for _, o := range r.over {
			for _, k := range []string{inodeKey(ino), contentKey(ino)} {
				_, changed := o.get(k)
				dirty = dirty || changed
			}
		}
		switch {
		case dirty:
			state = []byte("dirty")
		case v.commits.unstable.Load():
			state = []byte("local")
			if early, err := v.wentEarly(ctx, r.base, ino); err != nil || early {
				state = []byte("remote")
				return err
			}
		default:
			state = []byte("remote")
		}
		return nil
	})
	return state, err
}

// xattrValue returns the value that a record stands for.
func (v *Volume) xattrValue(ctx context.Context, e *store.Entry) ([]byte, error) {
	if len(e.Value) == 0 {
		return nil, errRecord
	}
	if e.Value[0] == xattrInline {
		return e.Value[1:], nil
	}
	n, w := binary.Uvarint(e.Value[1:])
	if w <= 0 || n > xattrMax {
		return nil, errRecord
	}
	value := make([]byte, 0, n)
	for _, ref := range e.Refs {
		b, err := v.ca.Chunk(ctx, ref)
		if err != nil {
			return nil, err
		}
		value = append(value, b...)
	}
	if uint64(len(value)) != n {
		return nil, errRecord
	}
	return value, nil
}

// Getxattr returns an extended attribute.
func (v *Volume) Getxattr(ctx context.Context, ino Ino, name string) ([]byte, error) {
	if ino == Root && name == socketXattr && v.socket() != "" {
		return []byte(v.socket()), nil
	}
	if isSnapshotIno(ino) {
		return v.snapshots.getxattr(ctx, ino, name)
	}
	if name == stateXattr {
		return v.contentState(ctx, ino)
	}
	var e *store.Entry
	err := v.view(ctx, func(r *layered) (err error) {
		if e, err = r.get(ctx, xattrKey(ino, name)); err == nil && e == nil {
			err = errNoXattr
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return v.xattrValue(ctx, e)
}

// Listxattr returns the names of ino's extended attributes in order.
func (v *Volume) Listxattr(ctx context.Context, ino Ino) (names []string, err error) {
	if isSnapshotIno(ino) {
		return v.snapshots.listxattr(ctx, ino)
	}
	err = v.view(ctx, func(r *layered) error {
		names, err = listXattrs(ctx, r, ino)
		return err
	})
	return names, err
}

func listXattrs(ctx context.Context, r records, ino Ino) (names []string, err error) {
	err = r.scan(ctx, string(key(ino, keyXattr, 0)), prefixEnd(ino, keyXattr), func(k string, _ *store.Entry) bool {
		_, _, name, _ := splitKey(k)
		names = append(names, name)
		return true
	})
	return names, err
}

// Flags of Setxattr, as in setxattr(2).
const (
	xattrCreate  = 1
	xattrReplace = 2
)

// Setxattr sets an extended attribute.
func (v *Volume) Setxattr(ctx context.Context, ino Ino, name string, value []byte, flags uint32) error {
	switch {
	case isSnapshotIno(ino):
		return syscall.EROFS
	case ino == Root && name == socketXattr, name == stateXattr:
		return syscall.EPERM
	case name == "" || len(name) > NameMax:
		return syscall.ERANGE
	case len(value) > xattrMax:
		return syscall.E2BIG
	}
	e, err := v.xattrEntry(ctx, ino, name, value)
	if err != nil {
		return err
	}
	return v.editXattr(ctx, ino, name, func(t *tx, n *attrs, exists bool) error {
		switch {
		case exists && flags == xattrCreate:
			return syscall.EEXIST
		case !exists && flags == xattrReplace:
			return errNoXattr
		}
		if name == aclAccess || name == aclDefault {
			if drop, err := checkACL(name, value, n); err != nil {
				return err
			} else if drop {
				t.del(xattrKey(ino, name))
				return nil
			}
		}
		t.put(e)
		return nil
	})
}

// Removexattr removes an extended attribute.
func (v *Volume) Removexattr(ctx context.Context, ino Ino, name string) error {
	if isSnapshotIno(ino) {
		return syscall.EROFS
	}
	return v.editXattr(ctx, ino, name, func(t *tx, _ *attrs, exists bool) error {
		if !exists {
			return errNoXattr
		}
		t.del(xattrKey(ino, name))
		return nil
	})
}

// editXattr runs fn in a transaction that moves the ctime of ino.
func (v *Volume) editXattr(ctx context.Context, ino Ino, name string, fn func(t *tx, n *attrs, exists bool) error) error {
	return v.update(ctx, func(t *tx) error {
		n, err := t.attrs(ino)
		if err != nil {
			return err
		}
		if in := v.table[ino]; in != nil && in.cutOff {
			return syscall.ESTALE
		}
		e, err := t.get(t.ctx, xattrKey(ino, name))
		if err != nil {
			return err
		}
		if err := fn(t, n, e != nil); err != nil {
			return err
		}
		n.Ctime = t.now
		t.setAttrs(ino, n)
		return nil
	})
}

// xattrEntry makes the record of an attribute; a long value is stored as chunks first.
func (v *Volume) xattrEntry(ctx context.Context, ino Ino, name string, value []byte) (*store.Entry, error) {
	e := &store.Entry{Key: []byte(xattrKey(ino, name))}
	if len(value) < store.MaxValue {
		e.Value = append([]byte{xattrInline}, value...)
		return e, nil
	}
	e.Value = binary.AppendUvarint([]byte{xattrChunks}, uint64(len(value)))
	ref, err := v.storeChunk(ctx, value)
	if err != nil {
		return nil, err
	}
	e.Refs = []store.Ref{ref}
	return e, nil
}

// storeChunk stores data as one chunk; its bytes stand in the log until they are on the remote.
func (v *Volume) storeChunk(ctx context.Context, data []byte) (store.Ref, error) {
	id := v.repo.ChunkID(data)
	var pos cache.Pos
	err := v.ca.WithRoom(ctx, int64(len(data))+4096, func() (err error) {
		_, pos, err = v.log.Append(logChunk, nil, data)
		return err
	})
	if err != nil {
		return store.Ref{}, err
	}
	if _, err := v.ca.AddChunk(ctx, id, data, cache.Place{{Pos: pos, Len: uint32(len(data))}}); err != nil {
		return store.Ref{}, err
	}
	return store.Ref{ID: id, Kind: store.RefChunk, Hint: v.ca.Hint(id)}, nil
}
