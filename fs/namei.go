package fs

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"syscall"

	"github.com/dedupfs/dedupfs/store"
)

// found is a directory entry that was looked up.
type found struct {
	key  string
	ino  Ino
	mode uint32 // type bits only
}

func (f *found) isDir() bool { return f.mode == syscall.S_IFDIR }

// cookieBase is the first cookie of a name: cookies of equal hashes differ in their lowest seven bits. 0, 1 and 2 are
// never cookies of names: they are the start, "." and "..".
func (v *Volume) cookieBase(parent Ino, name []byte) uint64 {
	return max(v.repo.NameHash(uint64(parent), name), 1) << 7
}

// find looks a name up; nil if it is not there. free is a cookie for it in that case.
func (v *Volume) find(ctx context.Context, r records, parent Ino, name []byte) (f *found, free uint64, err error) {
	base := v.cookieBase(parent, name)
	free = base
	var bad error
	err = r.scan(ctx, entryKey(parent, base, nil), entryKey(parent, base+128, nil), func(k string, e *store.Entry) bool {
		_, _, rest, _ := splitKey(k)
		cookie, n, ok := splitEntry(rest)
		if !ok {
			bad = fmt.Errorf("entry in directory %d: %w", parent, errRecord)
			return false
		}
		if n == string(name) {
			ino, mode, err := parseEntryValue(e.Value)
			if err != nil {
				bad = fmt.Errorf("entry %q in directory %d: %w", n, parent, err)
			}
			f = &found{k, ino, mode}
			return false
		}
		if cookie == free {
			free++
		}
		return true
	})
	if err == nil {
		err = bad
	}
	if f == nil && free >= base+128 {
		return nil, 0, fmt.Errorf("128 names of one hash in directory %d: %w", parent, syscall.ENOSPC)
	}
	return f, free, err
}

func checkName(name []byte) error {
	switch {
	case len(name) > NameMax:
		return syscall.ENAMETOOLONG
	case len(name) == 0 || bytes.ContainsAny(name, "/\x00"):
		return syscall.EINVAL
	case string(name) == "." || string(name) == "..":
		return syscall.EEXIST
	}
	return nil
}

// reserved reports whether name is the virtual snapshots directory.
func (v *Volume) reserved(parent Ino, name []byte) bool {
	return parent == Root && v.opt.SnapshotsDir != "-" && string(name) == v.opt.SnapshotsDir
}

// Lookup finds name in parent. It counts one look-up of what it returns.
func (v *Volume) Lookup(ctx context.Context, parent Ino, name []byte) (Attr, error) {
	if len(name) > NameMax {
		return Attr{}, syscall.ENAMETOOLONG
	}
	if isSnapshotIno(parent) {
		return v.snapshots.lookup(ctx, parent, name)
	}
	if v.reserved(parent, name) {
		return v.snapshots.enter(ctx, Root), nil
	}
	var a Attr
	virtual := false
	err := v.view(ctx, func(r *layered) error {
		dir, err := v.attrOf(ctx, r, parent)
		if err != nil {
			return err
		}
		if dir.Mode&syscall.S_IFMT != syscall.S_IFDIR {
			return syscall.ENOTDIR
		}
		f, _, err := v.findFolded(ctx, r, parent, name)
		if err != nil {
			return err
		}
		if f == nil && v.snapshotsIn(parent, name) {
			virtual = true
			return nil
		}
		if f == nil {
			return syscall.ENOENT
		}
		a, err = v.attrOf(ctx, r, f.ino)
		if err == nil {
			v.lookups.add(f.ino)
		}
		return err
	})
	if virtual {
		return v.snapshots.enter(ctx, parent), nil
	}
	return a, err
}

// snapshotsIn reports whether name is the virtual snapshots directory in a directory below the root, unless something real has
// that name there.
func (v *Volume) snapshotsIn(parent Ino, name []byte) bool {
	return parent != Root && !v.opt.SnapshotsRootOnly && v.opt.SnapshotsDir != "-" && string(name) == v.opt.SnapshotsDir
}

// makeOp is what Mknod, Mkdir, Symlink, Create and Tmpfile have in common.
type makeOp struct {
	parent Ino
	name   []byte // nil for Tmpfile
	mode   uint32 // type and permissions
	rdev   uint32
	target []byte // of a symbolic link
	open   bool   // keep the inode in the table, open
	write  bool   // open for writing
	cred   Cred
}

func (v *Volume) makeNode(ctx context.Context, op makeOp) (a Attr, in *inode, err error) {
	op.name = v.newName(op.name)
	if op.name != nil {
		if err := checkName(op.name); err != nil {
			return Attr{}, nil, err
		}
	}
	if isSnapshotIno(op.parent) {
		return Attr{}, nil, syscall.EROFS
	}
	if v.reserved(op.parent, op.name) {
		return Attr{}, nil, syscall.EEXIST
	}
	err = v.update(ctx, func(t *tx) error {
		in = nil
		dir, err := t.dir(op.parent)
		if err != nil {
			return err
		}
		var cookie uint64
		if op.name != nil {
			f, free, err := v.find(ctx, t, op.parent, op.name)
			if err != nil {
				return err
			}
			if f != nil {
				return syscall.EEXIST
			}
			cookie = free
		}
		ino, err := v.newIno()
		if err != nil {
			return err
		}
		n, err := t.newAttrs(dir, ino, &op)
		if err != nil {
			return err
		}
		if op.name != nil {
			t.enter(op.parent, cookie, op.name, ino, n.Mode)
			if n.Mode&syscall.S_IFMT == syscall.S_IFDIR {
				dir.Nlink++
			}
			dir.Mtime, dir.Ctime = t.now, t.now
			t.setAttrs(op.parent, dir)
		} else {
			t.orphan(ino, n)
		}
		if op.open {
			in = &inode{ino: ino, attrs: *n, content: &extentMap{}, logged: true, orphan: op.name == nil, opens: 1}
			if op.write {
				in.writers = 1
			}
			t.after = append(t.after, func() { v.table[ino] = in })
		}
		t.setAttrs(ino, n)
		a = v.stat(ino, n, uint64(len(n.Target)))
		t.after = append(t.after, func() { v.lookups.add(ino) })
		return t.longTarget(ino, n, op.target)
	})
	return a, in, err
}

// newAttrs makes the attributes of a new inode in dir.
func (t *tx) newAttrs(dir *attrs, ino Ino, op *makeOp) (*attrs, error) {
	n := &attrs{Mode: op.mode, Nlink: 1, Uid: op.cred.Uid, Gid: op.cred.Gid, Rdev: op.rdev,
		Mtime: t.now, Ctime: t.now, Atime: t.now, Btime: t.now, Changed: t.v.me}
	if dir.Mode&syscall.S_ISGID != 0 {
		n.Gid = dir.Gid
		if op.mode&syscall.S_IFMT == syscall.S_IFDIR {
			n.Mode |= syscall.S_ISGID
		}
	}
	if op.mode&syscall.S_IFMT == syscall.S_IFDIR {
		n.Nlink = 2
	}
	if op.target != nil {
		n.Size = uint64(len(op.target))
		if len(op.target) <= maxInlineTarget {
			n.Target = op.target
		}
		return n, nil
	}
	inherited, err := t.inheritACL(op.parent, ino, n)
	if err != nil {
		return nil, err
	}
	if !inherited {
		n.Mode &^= op.cred.Umask & 0o777
	}
	return n, nil
}

// enter stages a name: the entry and its reverse link.
func (t *tx) enter(parent Ino, cookie uint64, name []byte, ino Ino, mode uint32) {
	t.put(&store.Entry{Key: []byte(entryKey(parent, cookie, name)), Value: entryValue(ino, mode)})
	t.put(&store.Entry{Key: []byte(linkKey(ino, parent, name))})
}

// leave stages the removal of a name.
func (t *tx) leave(parent Ino, f *found, name []byte) {
	t.del(f.key)
	t.del(linkKey(f.ino, parent, name))
}

// Mknod makes a file, FIFO, socket or device. Like all that make something it counts one look-up of it.
func (v *Volume) Mknod(ctx context.Context, parent Ino, name []byte, mode, rdev uint32, c Cred) (Attr, error) {
	if mode&syscall.S_IFMT == 0 {
		mode |= syscall.S_IFREG
	}
	a, _, err := v.makeNode(ctx, makeOp{parent: parent, name: name, mode: mode, rdev: rdev, cred: c})
	return a, err
}

// Mkdir makes a directory.
func (v *Volume) Mkdir(ctx context.Context, parent Ino, name []byte, mode uint32, c Cred) (Attr, error) {
	mode = syscall.S_IFDIR | mode&0o7777
	a, _, err := v.makeNode(ctx, makeOp{parent: parent, name: name, mode: mode, cred: c})
	return a, err
}

// Symlink makes a symbolic link to target.
func (v *Volume) Symlink(ctx context.Context, parent Ino, name, target []byte, c Cred) (Attr, error) {
	if len(target) == 0 {
		return Attr{}, syscall.ENOENT
	}
	if len(target) > 4095 {
		return Attr{}, syscall.ENAMETOOLONG
	}
	mode := uint32(syscall.S_IFLNK | 0o777)
	a, _, err := v.makeNode(ctx, makeOp{parent: parent, name: name, mode: mode, target: bytes.Clone(target), cred: c})
	return a, err
}

// Link gives ino another name.
func (v *Volume) Link(ctx context.Context, ino, parent Ino, name []byte) (a Attr, err error) {
	name = v.newName(name)
	if err := checkName(name); err != nil {
		return Attr{}, err
	}
	if isSnapshotIno(ino) || isSnapshotIno(parent) {
		return Attr{}, syscall.EROFS
	}
	if v.reserved(parent, name) {
		return Attr{}, syscall.EEXIST
	}
	err = v.update(ctx, func(t *tx) error {
		dir, err := t.dir(parent)
		if err != nil {
			return err
		}
		n, err := t.attrs(ino)
		if err != nil {
			return err
		}
		if n.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			return syscall.EPERM
		}
		f, cookie, err := v.find(ctx, t, parent, name)
		if err != nil {
			return err
		}
		if f != nil {
			return syscall.EEXIST
		}
		if n.Nlink == 1<<32-1 {
			return syscall.EMLINK
		}
		if err := t.adoptOrphan(ino, n); err != nil {
			return err
		}
		n.Nlink++
		n.Ctime = t.now
		dir.Mtime, dir.Ctime = t.now, t.now
		t.enter(parent, cookie, name, ino, n.Mode)
		t.setAttrs(ino, n)
		t.setAttrs(parent, dir)
		a = v.attrWithContent(t, ino, n)
		t.after = append(t.after, func() { v.lookups.add(ino) })
		return nil
	})
	return a, err
}

// Unlink removes a name that is not a directory's.
func (v *Volume) Unlink(ctx context.Context, parent Ino, name []byte) error {
	return v.removeName(ctx, parent, name, false)
}

// Rmdir removes an empty directory.
func (v *Volume) Rmdir(ctx context.Context, parent Ino, name []byte) error {
	if string(name) == "." {
		return syscall.EINVAL
	}
	if string(name) == ".." {
		return syscall.ENOTEMPTY
	}
	return v.removeName(ctx, parent, name, true)
}

func (v *Volume) removeName(ctx context.Context, parent Ino, name []byte, wantDir bool) error {
	if isSnapshotIno(parent) {
		return syscall.EROFS
	}
	if v.reserved(parent, name) {
		return syscall.EPERM
	}
	var gone *inode
	err := v.update(ctx, func(t *tx) error {
		dir, err := t.dir(parent)
		if err != nil {
			return err
		}
		f, _, err := v.findFolded(ctx, t, parent, name)
		if err != nil {
			return err
		}
		if f == nil {
			return syscall.ENOENT
		}
		if wantDir && !f.isDir() {
			return syscall.ENOTDIR
		}
		if !wantDir && f.isDir() {
			return syscall.EISDIR
		}
		if gone, err = t.dropLink(parent, dir, f, storedName(f)); err != nil {
			return err
		}
		dir.Mtime, dir.Ctime = t.now, t.now
		t.setAttrs(parent, dir)
		return nil
	})
	v.settleLater(gone, err)
	return err
}

// storedName returns the name as it stands in the directory.
func storedName(f *found) []byte {
	_, _, rest, _ := splitKey(f.key)
	_, name, _ := splitEntry(rest)
	return []byte(name)
}

// settleLater lets an inode go that lost its last name, once the transaction is over.
func (v *Volume) settleLater(in *inode, err error) {
	if in == nil || err != nil {
		return
	}
	v.mu.Lock()
	v.settle(in)
	v.mu.Unlock()
}

// dropLink stages that the entry f of dir goes, and with its last name the inode. It changes dir's link count, which the
// caller stages. It returns the inode in the table that has to be settled afterwards, if any.
func (t *tx) dropLink(parent Ino, dir *attrs, f *found, name []byte) (*inode, error) {
	n, err := t.attrs(f.ino)
	if err != nil {
		return nil, err
	}
	t.leave(parent, f, name)
	n.Ctime = t.now
	if f.isDir() {
		empty, err := t.emptyDir(f.ino)
		if err != nil {
			return nil, err
		}
		if !empty {
			return nil, syscall.ENOTEMPTY
		}
		dir.Nlink--
		n.Nlink = 0
	} else if n.Nlink > 0 {
		n.Nlink--
	}
	if n.Nlink > 0 {
		t.setAttrs(f.ino, n)
		return nil, nil
	}
	return t.dropInode(f.ino, n)
}

// dropInode stages that ino, which has lost its last name, goes: at once, or when nobody uses it any more. It returns the inode
// in the table that has to be settled afterwards, if any.
func (t *tx) dropInode(ino Ino, n *attrs) (*inode, error) {
	in := t.v.table[ino]
	if in == nil && t.v.lookups.get(ino) == 0 {
		return nil, t.dropRecords(ino)
	}
	if in != nil && in.cutOff {
		return in, nil
	}
	t.orphan(ino, n)
	t.setAttrs(ino, n)
	if in == nil {
		in = &inode{ino: ino, attrs: *n, logged: true}
		t.lock(in)
	}
	t.after = append(t.after, func() {
		in.orphan = true
		t.v.table[ino] = in
	})
	return in, nil
}

func (t *tx) emptyDir(ino Ino) (bool, error) {
	empty := true
	err := t.scan(t.ctx, string(key(ino, keyEntry, 0)), prefixEnd(ino, keyEntry), func(string, *store.Entry) bool {
		empty = false
		return false
	})
	return empty, err
}

// Flags of Rename, as in renameat2(2).
const (
	RenameNoReplace = 1
	RenameExchange  = 2
)

// Rename gives what n1 names in p1 the name n2 in p2.
func (v *Volume) Rename(ctx context.Context, p1 Ino, n1 []byte, p2 Ino, n2 []byte, flags uint32) error {
	n2 = v.newName(n2)
	if err := checkName(n2); err != nil {
		return err
	}
	if isSnapshotIno(p1) || isSnapshotIno(p2) {
		return syscall.EROFS
	}
	if v.reserved(p1, n1) || v.reserved(p2, n2) {
		return syscall.EPERM
	}
	if flags&^(RenameNoReplace|RenameExchange) != 0 || flags == RenameNoReplace|RenameExchange {
		return syscall.EINVAL
	}
	var gone *inode
	err := v.update(ctx, func(t *tx) (err error) {
		gone, err = t.rename(p1, n1, p2, n2, flags)
		return err
	})
	v.settleLater(gone, err)
	return err
}

func (t *tx) rename(p1 Ino, n1 []byte, p2 Ino, n2 []byte, flags uint32) (gone *inode, err error) {
	d1, err := t.dir(p1)
	if err != nil {
		return nil, err
	}
	d2 := d1
	if p2 != p1 {
		if d2, err = t.dir(p2); err != nil {
			return nil, err
		}
	}
	src, _, err := t.v.findFolded(t.ctx, t, p1, n1)
	if err != nil {
		return nil, err
	}
	if src == nil {
		return nil, syscall.ENOENT
	}
	dst, cookie, err := t.v.find(t.ctx, t, p2, n2)
	if err != nil {
		return nil, err
	}
	switch {
	case dst != nil && flags == RenameNoReplace:
		return nil, syscall.EEXIST
	case dst == nil && flags == RenameExchange:
		return nil, syscall.ENOENT
	case dst != nil && dst.ino == src.ino:
		return nil, nil // two names of one file, or one name: nothing to do
	}
	if err := t.checkMove(src, p2); err != nil {
		return nil, err
	}
	if flags == RenameExchange {
		if err := t.checkMove(dst, p1); err != nil {
			return nil, err
		}
		return nil, t.exchange(p1, d1, src, p2, d2, dst)
	}
	if dst != nil {
		if src.isDir() && !dst.isDir() {
			return nil, syscall.ENOTDIR
		}
		if !src.isDir() && dst.isDir() {
			return nil, syscall.EISDIR
		}
		if gone, err = t.dropLink(p2, d2, dst, n2); err != nil {
			return nil, err
		}
		cookie = entryCookie(dst)
	}
	t.leave(p1, src, storedName(src))
	if err := t.moveTo(src, p2, cookie, n2); err != nil {
		return nil, err
	}
	if src.isDir() {
		d1.Nlink--
		d2.Nlink++
	}
	t.touchDirs(p1, d1, p2, d2)
	return gone, nil
}

func entryCookie(f *found) uint64 {
	_, _, rest, _ := splitKey(f.key)
	cookie, _, _ := splitEntry(rest)
	return cookie
}

// moveTo stages that what f names stands under a new name.
func (t *tx) moveTo(f *found, parent Ino, cookie uint64, name []byte) error {
	n, err := t.attrs(f.ino)
	if err != nil {
		return err
	}
	n.Ctime = t.now
	t.enter(parent, cookie, name, f.ino, f.mode)
	t.setAttrs(f.ino, n)
	return nil
}

func (t *tx) exchange(p1 Ino, d1 *attrs, a *found, p2 Ino, d2 *attrs, b *found) error {
	na, nb := storedName(a), storedName(b)
	t.leave(p1, a, na)
	t.leave(p2, b, nb)
	if err := t.moveTo(a, p2, entryCookie(b), nb); err != nil {
		return err
	}
	if err := t.moveTo(b, p1, entryCookie(a), na); err != nil {
		return err
	}
	if a.isDir() {
		d1.Nlink--
		d2.Nlink++
	}
	if b.isDir() {
		d2.Nlink--
		d1.Nlink++
	}
	t.touchDirs(p1, d1, p2, d2)
	return nil
}

func (t *tx) touchDirs(p1 Ino, d1 *attrs, p2 Ino, d2 *attrs) {
	for _, d := range []*attrs{d1, d2} {
		d.Mtime, d.Ctime = t.now, t.now
	}
	t.setAttrs(p1, d1)
	if p2 != p1 {
		t.setAttrs(p2, d2)
	}
}

// checkMove refuses to move a directory below itself.
func (t *tx) checkMove(f *found, to Ino) error {
	if !f.isDir() {
		return nil
	}
	for ino := to; ino != Root; {
		if ino == f.ino {
			return syscall.EINVAL
		}
		parent, err := parentOf(t.ctx, t.layered, ino)
		if err != nil {
			return err
		}
		ino = parent
	}
	return nil
}

// parentOf returns the directory in which the directory ino stands; the root is its own.
func parentOf(ctx context.Context, r records, ino Ino) (Ino, error) {
	if ino == Root {
		return Root, nil
	}
	var parent Ino
	err := r.scan(ctx, string(key(ino, keyLink, 0)), prefixEnd(ino, keyLink), func(k string, _ *store.Entry) bool {
		_, _, rest, _ := splitKey(k)
		if len(rest) > 8 {
			parent = Ino(binary.BigEndian.Uint64([]byte(rest)))
		}
		return false
	})
	if err == nil && parent == 0 {
		err = syscall.ENOENT
	}
	return parent, err
}
