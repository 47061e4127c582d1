package fs

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"syscall"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// Inode numbers of snapshot views have bit 62 set. The virtual directory that holds the snapshots is the first of them.
const (
	snapshotClass   Ino = 1 << 62
	snapshotsDirIno     = snapshotClass | 1
)

func isSnapshotIno(ino Ino) bool { return ino&snapshotClass != 0 }

// snapshotViews shows the snapshots as read-only directories. No lock is held over a look-up: snapshots do not change.
type snapshotViews struct {
	v *Volume

	mu    sync.Mutex // guards nodes
	nodes map[Ino]viewNode
}

// viewNode is what a number of a view stands for, while the kernel knows it.
type viewNode struct {
	snap *snapTree
	ino  Ino
}

// snapTree is the state that a snapshot names.
type snapTree struct {
	name string
	key  [16]byte // what its inode numbers are derived from: the root
	t    *tree.Tree
	root store.Ref
}

func (s *snapTree) get(ctx context.Context, k string) (*store.Entry, error) {
	return (&layered{base: s.t}).get(ctx, k)
}

func (s *snapTree) scan(ctx context.Context, from, to string, fn func(string, *store.Entry) bool) error {
	return (&layered{base: s.t}).scan(ctx, from, to, fn)
}

// ino returns the number of an inode in this snapshot: a hash, so that it is the same after every remount.
func (s *snapTree) ino(ino Ino) Ino {
	h := sha256.New()
	h.Write([]byte(s.name))
	h.Write([]byte{0})
	h.Write(s.root.ID[:])
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(ino)))
	n := Ino(binary.BigEndian.Uint64(h.Sum(nil)))&(snapshotClass-1) | snapshotClass
	if n == snapshotsDirIno {
		n++
	}
	return n
}

func newSnapshotViews(v *Volume) *snapshotViews {
	return &snapshotViews{v: v, nodes: map[Ino]viewNode{}}
}

// know remembers what a number stands for and returns it.
func (s *snapshotViews) know(t *snapTree, ino Ino) Ino {
	n := t.ino(ino)
	s.mu.Lock()
	s.nodes[n] = viewNode{t, ino}
	s.mu.Unlock()
	return n
}

func (s *snapshotViews) node(ino Ino) (viewNode, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.nodes[ino]
	if !ok {
		return viewNode{}, syscall.ESTALE
	}
	return n, nil
}

func (s *snapshotViews) forget(ino Ino) {
	s.mu.Lock()
	delete(s.nodes, ino)
	s.mu.Unlock()
}

func (s *snapshotViews) dirAttr() Attr {
	return Attr{Ino: snapshotsDirIno, Mode: syscall.S_IFDIR | 0o555, Nlink: 2, Size: 4096, Blocks: 8}
}

// byName gives the tree of a snapshot. The newest has other inode numbers as latest than by its name: a directory has
// one place only.
func (s *snapshotViews) byName(ctx context.Context, name string) (*snapTree, error) {
	snap, err := s.v.snapshot(ctx, name)
	if err != nil {
		return nil, err
	}
	return s.v.snapTree(name, snap.Root), nil
}

func (v *Volume) snapTree(name string, root store.Ref) *snapTree {
	return &snapTree{name: name, root: root, t: tree.New(remoteNodes{v.ca}, root, v.treeOptions())}
}

func (s *snapshotViews) attr(ctx context.Context, t *snapTree, ino Ino) (Attr, error) {
	a, err := s.v.attrFrom(ctx, t, ino)
	if err == nil {
		a.Ino = t.ino(ino)
	}
	return a, err
}

func (s *snapshotViews) lookup(ctx context.Context, parent Ino, name []byte) (Attr, error) {
	var t *snapTree
	child := Root
	if parent == snapshotsDirIno {
		var err error
		if t, err = s.byName(ctx, string(name)); err != nil {
			return Attr{}, err
		}
	} else {
		n, err := s.node(parent)
		if err != nil {
			return Attr{}, err
		}
		f, _, err := s.v.findFolded(ctx, n.snap, n.ino, name)
		if err != nil {
			return Attr{}, err
		}
		if f == nil {
			return Attr{}, syscall.ENOENT
		}
		t, child = n.snap, f.ino
	}
	a, err := s.attr(ctx, t, child)
	if err != nil {
		return Attr{}, err
	}
	s.v.lookups.add(s.know(t, child))
	return a, nil
}

func (s *snapshotViews) getattr(ctx context.Context, ino Ino) (Attr, error) {
	if ino == snapshotsDirIno {
		return s.dirAttr(), nil
	}
	n, err := s.node(ino)
	if err != nil {
		return Attr{}, err
	}
	return s.attr(ctx, n.snap, n.ino)
}

func (s *snapshotViews) readlink(ctx context.Context, ino Ino) ([]byte, error) {
	n, err := s.node(ino)
	if err != nil {
		return nil, err
	}
	return readTarget(ctx, n.snap, n.ino)
}

func (s *snapshotViews) getxattr(ctx context.Context, ino Ino, name string) ([]byte, error) {
	if ino == snapshotsDirIno {
		return nil, errNoXattr
	}
	n, err := s.node(ino)
	if err != nil {
		return nil, err
	}
	e, err := n.snap.get(ctx, xattrKey(n.ino, name))
	if err != nil {
		return nil, err
	}
	if e == nil {
		return nil, errNoXattr
	}
	return s.v.xattrValue(ctx, e)
}

func (s *snapshotViews) listxattr(ctx context.Context, ino Ino) ([]string, error) {
	if ino == snapshotsDirIno {
		return nil, nil
	}
	n, err := s.node(ino)
	if err != nil {
		return nil, err
	}
	return listXattrs(ctx, n.snap, n.ino)
}

func (s *snapshotViews) open(ctx context.Context, ino Ino) (*Handle, error) {
	if ino == snapshotsDirIno {
		return nil, syscall.EISDIR
	}
	n, err := s.node(ino)
	if err != nil {
		return nil, err
	}
	return s.v.openIn(ctx, n.snap, n.ino)
}

// openIn opens a file of a snapshot.
func (v *Volume) openIn(ctx context.Context, t *snapTree, ino Ino) (*Handle, error) {
	a, err := loadAttrs(ctx, t, ino)
	if err != nil {
		return nil, err
	}
	switch a.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		return nil, syscall.EISDIR
	case syscall.S_IFREG:
	default:
		return nil, syscall.EINVAL
	}
	m, err := loadExtentMap(ctx, t, ino)
	if err != nil {
		return nil, err
	}
	return &Handle{v: v, snap: v.contentReader(*m), size: int64(a.Size)}, nil
}

func (s *snapshotViews) readdir(ctx context.Context, ino Ino, cookie uint64, plus bool, fn func(DirEntry) bool) error {
	if ino == snapshotsDirIno {
		return s.listSnapshots(ctx, cookie, plus, fn)
	}
	n, err := s.node(ino)
	if err != nil {
		return err
	}
	parent := func() (Ino, error) {
		if n.ino == Root {
			return snapshotsDirIno, nil
		}
		p, err := parentOf(ctx, n.snap, n.ino)
		return n.snap.ino(p), err
	}
	batch := func(from uint64) ([]DirEntry, error) {
		es, err := s.v.listBatch(ctx, n.snap, n.ino, from, plus, func(child Ino) (Attr, error) { return s.attr(ctx, n.snap, child) })
		for i := range es {
			if plus {
				s.know(n.snap, es[i].Ino)
			}
			es[i].Ino = n.snap.ino(es[i].Ino)
		}
		return es, err
	}
	return s.v.list(ino, cookie, parent, batch, fn)
}

// listSnapshots lists the virtual directory. Cookies are places in the order of names: a listing that a new snapshot
// meets half-way may show one twice, never miss one that was there before.
func (s *snapshotViews) listSnapshots(ctx context.Context, cookie uint64, plus bool, fn func(DirEntry) bool) error {
	snaps, err := s.v.Snapshots(ctx)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(snaps)+1)
	if len(snaps) > 0 {
		names = append(names, latestName)
	}
	for _, snap := range snaps {
		names = append(names, snap.Name)
	}
	batch := func(from uint64) ([]DirEntry, error) {
		var es []DirEntry
		for i := int(from) - 3; i < len(names) && len(es) < readdirBatch; i++ {
			t, err := s.byName(ctx, names[i])
			if err != nil {
				return nil, err
			}
			e := DirEntry{Name: []byte(names[i]), Ino: t.ino(Root), Type: syscall.S_IFDIR, Cookie: uint64(i) + 3}
			if plus {
				a, err := s.attr(ctx, t, Root)
				if err != nil {
					return nil, err
				}
				s.know(t, Root)
				e.Attr = &a
			}
			es = append(es, e)
		}
		return es, nil
	}
	return s.v.list(snapshotsDirIno, cookie, func() (Ino, error) { return Root, nil }, batch, fn)
}
