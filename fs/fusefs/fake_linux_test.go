package fusefs

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dedupfs/dedupfs/fs"
)

// memVolume is a volume in memory, under one lock. It keeps count of look-ups, and of what it is told to do wrong.
type memVolume struct {
	// fail, if not nil, is asked before each operation.
	fail func(ctx context.Context, op string, ino fs.Ino) error

	mu       sync.Mutex
	notifier fs.Notifier
	inodes   map[fs.Ino]*memInode
	last     fs.Ino
	cookie   uint64
	open     int // handles that are not released
}

type memInode struct {
	fs.Attr
	lookups uint64
	data    []byte // content, or target of a symbolic link
	xattrs  map[string][]byte
	entries []memEntry // of a directory, by cookie
	parent  fs.Ino     // of a directory
}

type memEntry struct {
	name   string
	ino    fs.Ino
	cookie uint64
}

// memHandle is an open file of a memVolume.
type memHandle struct {
	v     *memVolume
	i     *memInode
	flags uint32
}

var (
	_ Volume[*memHandle] = (*memVolume)(nil)
)

func newMemVolume() *memVolume {
	v := &memVolume{inodes: map[fs.Ino]*memInode{}, last: fs.Root, cookie: 2}
	v.inodes[fs.Root] = &memInode{
		Attr:   fs.Attr{Ino: fs.Root, Mode: unix.S_IFDIR | 0o755, Nlink: 2},
		parent: fs.Root,
	}
	touch(v.inodes[fs.Root])
	return v
}

func touch(i *memInode) {
	now := time.Now()
	i.Mtime = fs.Timespec{Sec: now.Unix(), Nsec: uint32(now.Nanosecond())}
	i.Ctime = i.Mtime
}

// begin locks v and returns inode ino; the caller unlocks if there is no error.
func (v *memVolume) begin(ctx context.Context, op string, ino fs.Ino) (*memInode, error) {
	if v.fail != nil {
		if err := v.fail(ctx, op, ino); err != nil {
			return nil, err
		}
	}
	v.mu.Lock()
	i := v.inodes[ino]
	if i == nil {
		v.mu.Unlock()
		return nil, fmt.Errorf("inode %d: %w", ino, syscall.ESTALE)
	}
	return i, nil
}

func (i *memInode) find(name []byte) int {
	return slices.IndexFunc(i.entries, func(e memEntry) bool { return e.name == string(name) })
}

// child returns the inode that name stands for, or nil.
func (v *memVolume) child(dir *memInode, name []byte) *memInode {
	if at := dir.find(name); at >= 0 {
		return v.inodes[dir.entries[at].ino]
	}
	return nil
}

func (v *memVolume) SetNotify(n fs.Notifier) { v.notifier = n }

func (v *memVolume) Lookup(ctx context.Context, parent fs.Ino, name []byte) (fs.Attr, error) {
	dir, err := v.begin(ctx, "lookup", parent)
	if err != nil {
		return fs.Attr{}, err
	}
	defer v.mu.Unlock()
	if len(name) > fs.NameMax {
		return fs.Attr{}, syscall.ENAMETOOLONG
	}
	i := v.child(dir, name)
	if i == nil {
		return fs.Attr{}, syscall.ENOENT
	}
	i.lookups++
	return i.Attr, nil
}

func (v *memVolume) Forget(ino fs.Ino, n uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if i := v.inodes[ino]; i != nil {
		i.lookups -= n
		v.collect(i)
	}
}

// collect removes i if neither a name nor the kernel knows it.
func (v *memVolume) collect(i *memInode) {
	if i.Nlink == 0 && i.lookups == 0 {
		delete(v.inodes, i.Ino)
	}
}

// newInode makes an inode in dir, which may already have the name.
func (v *memVolume) newInode(dir *memInode, name []byte, mode uint32, c fs.Cred) (*memInode, error) {
	switch {
	case len(name) > fs.NameMax:
		return nil, syscall.ENAMETOOLONG
	case dir.Nlink == 0:
		return nil, syscall.ENOENT
	case name != nil && dir.find(name) >= 0:
		return nil, syscall.EEXIST
	}
	v.last++
	i := &memInode{Attr: fs.Attr{Ino: v.last, Mode: mode, Nlink: 1, Uid: c.Uid, Gid: c.Gid}, lookups: 1, parent: dir.Ino}
	if dir.Mode&unix.S_ISGID != 0 {
		i.Gid = dir.Gid
		if mode&unix.S_IFMT == unix.S_IFDIR {
			i.Mode |= unix.S_ISGID
		}
	}
	touch(i)
	i.Atime, i.Btime = i.Mtime, i.Mtime
	v.inodes[i.Ino] = i
	if name != nil {
		v.enter(dir, name, i)
	} else {
		i.Nlink = 0
	}
	return i, nil
}

func (v *memVolume) enter(dir *memInode, name []byte, i *memInode) {
	v.cookie++
	dir.entries = append(dir.entries, memEntry{string(name), i.Ino, v.cookie})
	if i.Mode&unix.S_IFMT == unix.S_IFDIR {
		dir.Nlink++
		i.parent = dir.Ino
	}
	touch(dir)
}

func (v *memVolume) leave(dir *memInode, at int) {
	i := v.inodes[dir.entries[at].ino]
	dir.entries = slices.Delete(dir.entries, at, at+1)
	if i.Mode&unix.S_IFMT == unix.S_IFDIR {
		dir.Nlink--
	}
	touch(dir)
}

func (v *memVolume) Mknod(ctx context.Context, parent fs.Ino, name []byte, mode, rdev uint32, c fs.Cred) (fs.Attr, error) {
	dir, err := v.begin(ctx, "mknod", parent)
	if err != nil {
		return fs.Attr{}, err
	}
	defer v.mu.Unlock()
	i, err := v.newInode(dir, name, mode, c)
	if err != nil {
		return fs.Attr{}, err
	}
	i.Rdev = rdev
	return i.Attr, nil
}

func (v *memVolume) Mkdir(ctx context.Context, parent fs.Ino, name []byte, mode uint32, c fs.Cred) (fs.Attr, error) {
	dir, err := v.begin(ctx, "mkdir", parent)
	if err != nil {
		return fs.Attr{}, err
	}
	defer v.mu.Unlock()
	i, err := v.newInode(dir, name, unix.S_IFDIR|mode&0o7777, c)
	if err != nil {
		return fs.Attr{}, err
	}
	i.Nlink = 2
	return i.Attr, nil
}

func (v *memVolume) Symlink(ctx context.Context, parent fs.Ino, name, target []byte, c fs.Cred) (fs.Attr, error) {
	dir, err := v.begin(ctx, "symlink", parent)
	if err != nil {
		return fs.Attr{}, err
	}
	defer v.mu.Unlock()
	i, err := v.newInode(dir, name, unix.S_IFLNK|0o777, c)
	if err != nil {
		return fs.Attr{}, err
	}
	i.data, i.Size = bytes.Clone(target), uint64(len(target))
	return i.Attr, nil
}

func (v *memVolume) Link(ctx context.Context, ino, parent fs.Ino, name []byte) (fs.Attr, error) {
	dir, err := v.begin(ctx, "link", parent)
	if err != nil {
		return fs.Attr{}, err
	}
	defer v.mu.Unlock()
	i := v.inodes[ino]
	switch {
	case len(name) > fs.NameMax:
		return fs.Attr{}, syscall.ENAMETOOLONG
	case dir.find(name) >= 0:
		return fs.Attr{}, syscall.EEXIST
	case i == nil:
		return fs.Attr{}, syscall.ESTALE
	}
	i.Nlink++
	i.lookups++
	v.enter(dir, name, i)
	i.Ctime = dir.Ctime
	return i.Attr, nil
}

func (v *memVolume) Unlink(ctx context.Context, parent fs.Ino, name []byte) error {
	return v.remove(ctx, "unlink", parent, name)
}

func (v *memVolume) Rmdir(ctx context.Context, parent fs.Ino, name []byte) error {
	return v.remove(ctx, "rmdir", parent, name)
}

func (v *memVolume) remove(ctx context.Context, op string, parent fs.Ino, name []byte) error {
	dir, err := v.begin(ctx, op, parent)
	if err != nil {
		return err
	}
	defer v.mu.Unlock()
	i := v.child(dir, name)
	if i == nil {
		return syscall.ENOENT
	}
	return v.unlinkAt(dir, dir.find(name), i)
}

func (v *memVolume) unlinkAt(dir *memInode, at int, i *memInode) error {
	if i.Mode&unix.S_IFMT == unix.S_IFDIR {
		if len(i.entries) > 0 {
			return syscall.ENOTEMPTY
		}
		i.Nlink = 1
	}
	v.leave(dir, at)
	i.Nlink--
	i.Ctime = dir.Ctime
	v.collect(i)
	return nil
}

func (v *memVolume) Rename(ctx context.Context, p1 fs.Ino, n1 []byte, p2 fs.Ino, n2 []byte, flags uint32) error {
	from, err := v.begin(ctx, "rename", p1)
	if err != nil {
		return err
	}
	defer v.mu.Unlock()
	to := v.inodes[p2]
	i, old := v.child(from, n1), v.child(to, n2)
	switch {
	case len(n2) > fs.NameMax:
		return syscall.ENAMETOOLONG
	case i == nil, flags&unix.RENAME_EXCHANGE != 0 && old == nil:
		return syscall.ENOENT
	case flags&unix.RENAME_NOREPLACE != 0 && old != nil:
		return syscall.EEXIST
	case old == i:
		return nil
	case flags&unix.RENAME_EXCHANGE != 0:
		v.leave(from, from.find(n1))
		v.leave(to, to.find(n2))
		v.enter(from, n1, old)
		v.enter(to, n2, i)
		i.Ctime, old.Ctime = to.Ctime, to.Ctime
		return nil
	}
	if old != nil {
		if err := v.unlinkAt(to, to.find(n2), old); err != nil {
			return err
		}
	}
	v.leave(from, from.find(n1))
	v.enter(to, n2, i)
	i.Ctime = to.Ctime
	return nil
}

func (v *memVolume) Readdir(ctx context.Context, ino fs.Ino, cookie uint64, plus bool, fn func(fs.DirEntry) bool) error {
	dir, err := v.begin(ctx, "readdir", ino)
	if err != nil {
		return err
	}
	defer v.mu.Unlock()
	dots := []fs.DirEntry{
		{Name: []byte("."), Ino: ino, Type: unix.S_IFDIR, Cookie: 1},
		{Name: []byte(".."), Ino: dir.parent, Type: unix.S_IFDIR, Cookie: 2},
	}
	for _, e := range dots {
		if e.Cookie > cookie && !fn(e) {
			return nil
		}
	}
	for _, e := range dir.entries {
		if e.cookie <= cookie {
			continue
		}
		i := v.inodes[e.ino]
		out := fs.DirEntry{Name: []byte(e.name), Ino: e.ino, Type: i.Mode & unix.S_IFMT, Cookie: e.cookie}
		if plus {
			out.Attr = &i.Attr
		}
		if !fn(out) {
			return nil
		}
		if plus {
			i.lookups++
		}
	}
	return nil
}

func (v *memVolume) Fsyncdir(ctx context.Context, ino fs.Ino) error {
	return v.check(ctx, "fsyncdir", ino)
}

// check only fails where it is told to, and on inodes that are not there.
func (v *memVolume) check(ctx context.Context, op string, ino fs.Ino) error {
	_, err := v.begin(ctx, op, ino)
	if err == nil {
		v.mu.Unlock()
	}
	return err
}

func (v *memVolume) Getattr(ctx context.Context, ino fs.Ino, h *memHandle) (fs.Attr, error) {
	i, err := v.begin(ctx, "getattr", ino)
	if err != nil {
		return fs.Attr{}, err
	}
	defer v.mu.Unlock()
	return i.Attr, nil
}

func (v *memVolume) Setattr(ctx context.Context, ino fs.Ino, h *memHandle, s fs.SetAttr, c fs.Cred) (fs.Attr, error) {
	i, err := v.begin(ctx, "setattr", ino)
	if err != nil {
		return fs.Attr{}, err
	}
	defer v.mu.Unlock()
	if s.KillPriv {
		i.killPriv()
	}
	if s == (fs.SetAttr{KillPriv: s.KillPriv}) {
		return i.Attr, nil
	}
	before := *i
	touch(i)
	i.Mtime = before.Mtime
	set(&i.Uid, s.Uid)
	set(&i.Gid, s.Gid)
	set(&i.Atime, s.Atime)
	set(&i.Mtime, s.Mtime)
	if s.Mode != nil {
		i.Mode = i.Mode&unix.S_IFMT | *s.Mode
	}
	if s.AtimeNow {
		i.Atime = i.Ctime
	}
	if s.Size != nil {
		i.resize(*s.Size)
	}
	if s.MtimeNow {
		i.Mtime = i.Ctime
	}
	return i.Attr, nil
}

func set[T any](dst *T, src *T) {
	if src != nil {
		*dst = *src
	}
}

func (i *memInode) killPriv() {
	i.Mode &^= unix.S_ISUID
	if i.Mode&unix.S_IXGRP != 0 {
		i.Mode &^= unix.S_ISGID
	}
}

func (i *memInode) resize(n uint64) {
	if n > uint64(len(i.data)) {
		i.data = append(i.data, make([]byte, n-uint64(len(i.data)))...)
	}
	i.data = i.data[:n]
	i.Size, i.Blocks = n, (n+511)/512
	touch(i)
}

func (v *memVolume) Readlink(ctx context.Context, ino fs.Ino) ([]byte, error) {
	i, err := v.begin(ctx, "readlink", ino)
	if err != nil {
		return nil, err
	}
	defer v.mu.Unlock()
	return i.data, nil
}

func (v *memVolume) Statfs(ctx context.Context) (fs.Statfs, error) {
	return fs.Statfs{Blocks: 1 << 20, Bfree: 1 << 19, Bavail: 1 << 19, Files: 1 << 20, Ffree: 1 << 19, Bsize: 4096, NameLen: 255},
		v.check(ctx, "statfs", fs.Root)
}

func (v *memVolume) Open(ctx context.Context, ino fs.Ino, flags uint32, c fs.Cred) (*memHandle, error) {
	i, err := v.begin(ctx, "open", ino)
	if err != nil {
		return nil, err
	}
	defer v.mu.Unlock()
	if flags&unix.O_TRUNC != 0 {
		i.resize(0)
	}
	v.open++
	return &memHandle{v, i, flags}, nil
}

func (v *memVolume) Create(ctx context.Context, parent fs.Ino, name []byte, flags, mode uint32, c fs.Cred) (fs.Attr, *memHandle, error) {
	dir, err := v.begin(ctx, "create", parent)
	if err != nil {
		return fs.Attr{}, nil, err
	}
	defer v.mu.Unlock()
	i, err := v.newInode(dir, name, unix.S_IFREG|mode&0o7777, c)
	if err != nil {
		return fs.Attr{}, nil, err
	}
	v.open++
	return i.Attr, &memHandle{v, i, flags}, nil
}

func (v *memVolume) Tmpfile(ctx context.Context, parent fs.Ino, flags, mode uint32, c fs.Cred) (fs.Attr, *memHandle, error) {
	return v.Create(ctx, parent, nil, flags, mode, c)
}

func (v *memVolume) CopyFileRange(ctx context.Context, in *memHandle, offIn int64, out *memHandle, offOut, n int64, flags uint64) (int64, error) {
	if err := v.check(ctx, "copy_file_range", in.i.Ino); err != nil {
		return 0, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if offIn >= int64(len(in.i.data)) {
		return 0, nil
	}
	return int64(out.i.write(bytes.Clone(in.i.data[offIn:min(offIn+n, int64(len(in.i.data)))]), offOut)), nil
}

func (i *memInode) write(p []byte, off int64) int {
	end := uint64(off) + uint64(len(p))
	i.resize(max(end, i.Size))
	return copy(i.data[off:end], p)
}

func (v *memVolume) Getxattr(ctx context.Context, ino fs.Ino, name string) ([]byte, error) {
	i, err := v.begin(ctx, "getxattr", ino)
	if err != nil {
		return nil, err
	}
	defer v.mu.Unlock()
	value, ok := i.xattrs[name]
	if !ok {
		return nil, syscall.ENODATA
	}
	return value, nil
}

func (v *memVolume) Setxattr(ctx context.Context, ino fs.Ino, name string, value []byte, flags uint32) error {
	i, err := v.begin(ctx, "setxattr", ino)
	if err != nil {
		return err
	}
	defer v.mu.Unlock()
	_, ok := i.xattrs[name]
	switch {
	case flags&unix.XATTR_CREATE != 0 && ok:
		return syscall.EEXIST
	case flags&unix.XATTR_REPLACE != 0 && !ok:
		return syscall.ENODATA
	case i.xattrs == nil:
		i.xattrs = map[string][]byte{}
	}
	i.xattrs[name] = bytes.Clone(value)
	return nil
}

func (v *memVolume) Listxattr(ctx context.Context, ino fs.Ino) ([]string, error) {
	i, err := v.begin(ctx, "listxattr", ino)
	if err != nil {
		return nil, err
	}
	defer v.mu.Unlock()
	return slices.Sorted(maps.Keys(i.xattrs)), nil
}

func (v *memVolume) Removexattr(ctx context.Context, ino fs.Ino, name string) error {
	i, err := v.begin(ctx, "removexattr", ino)
	if err != nil {
		return err
	}
	defer v.mu.Unlock()
	if _, ok := i.xattrs[name]; !ok {
		return syscall.ENODATA
	}
	delete(i.xattrs, name)
	return nil
}

func (h *memHandle) Read(ctx context.Context, p []byte, off int64) (int, error) {
	if err := h.v.check(ctx, "read", h.i.Ino); err != nil {
		return 0, err
	}
	h.v.mu.Lock()
	defer h.v.mu.Unlock()
	if off >= int64(len(h.i.data)) {
		return 0, nil
	}
	return copy(p, h.i.data[off:]), nil
}

func (h *memHandle) Write(ctx context.Context, p []byte, off int64) (int, error) {
	if err := h.v.check(ctx, "write", h.i.Ino); err != nil {
		return 0, err
	}
	h.v.mu.Lock()
	defer h.v.mu.Unlock()
	if h.flags&unix.O_APPEND != 0 {
		off = int64(h.i.Size)
	}
	return h.i.write(p, off), nil
}

func (h *memHandle) Flush(ctx context.Context) error { return h.v.check(ctx, "flush", h.i.Ino) }

func (h *memHandle) Fsync(ctx context.Context, _ bool) error {
	return h.v.check(ctx, "fsync", h.i.Ino)
}

func (h *memHandle) Fallocate(ctx context.Context, mode uint32, off, n int64) error {
	if err := h.v.check(ctx, "fallocate", h.i.Ino); err != nil {
		return err
	}
	h.v.mu.Lock()
	defer h.v.mu.Unlock()
	if mode&^unix.FALLOC_FL_KEEP_SIZE != 0 {
		return syscall.EOPNOTSUPP
	}
	if mode == 0 {
		h.i.resize(max(h.i.Size, uint64(off+n)))
	}
	return nil
}

func (h *memHandle) Lseek(ctx context.Context, off int64, whence int) (int64, error) {
	if err := h.v.check(ctx, "lseek", h.i.Ino); err != nil {
		return 0, err
	}
	h.v.mu.Lock()
	defer h.v.mu.Unlock()
	switch size := int64(h.i.Size); {
	case off >= size:
		return 0, syscall.ENXIO
	case whence == unix.SEEK_HOLE:
		return size, nil
	default:
		return off, nil
	}
}

func (h *memHandle) Release() {
	h.v.mu.Lock()
	defer h.v.mu.Unlock()
	h.v.open--
}
