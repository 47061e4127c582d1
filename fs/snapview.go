package fs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
	"golang.org/x/sync/errgroup"
)

// Inode numbers of snapshot views have bit 62 set. The virtual directory of snapshots in the root is the first of them.
const (
	snapshotClass   Ino = 1 << 62
	snapshotsDirIno     = snapshotClass | 1
)

func isSnapshotIno(ino Ino) bool { return ino&snapshotClass != 0 }

// snapshotViews shows the snapshots as read-only directories: all of them in the root, and in every other directory what
// that directory was. No lock is held over a look-up: snapshots do not change.
type snapshotViews struct {
	v *Volume

	mu    sync.Mutex // guards what follows
	nodes map[Ino]viewNode
	list  *snapshotList // of the map of snapshots that was read last
}

// viewNode is what a number of a view stands for, while the kernel knows it.
type viewNode struct {
	place Ino       // the live directory that the view is of
	snap  *snapTree // nil for the virtual directory itself
	ino   Ino
}

// snapTree is the state that a snapshot names, as it is seen from one directory.
type snapTree struct {
	name  string
	place Ino // the live directory that the view is of
	top   Ino // what stands for it in the snapshot
	t     *tree.Tree
	root  store.Ref
}

func (s *snapTree) get(ctx context.Context, k string) (*store.Entry, error) {
	return (&layered{base: s.t}).get(ctx, k)
}

func (s *snapTree) scan(ctx context.Context, from, to string, fn func(string, *store.Entry) bool) error {
	return (&layered{base: s.t}).scan(ctx, from, to, fn)
}

// ino returns the number of an inode in this view: a hash, so that it is the same after every remount. The kernel wants
// each directory in one place only, so each name of a snapshot, and each place that it is seen from, has numbers of its own.
func (s *snapTree) ino(ino Ino) Ino {
	h := sha256.New()
	h.Write([]byte(s.name))
	h.Write([]byte{0})
	h.Write(s.root.ID[:])
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(ino)))
	if s.place != Root {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(s.place)))
	}
	return snapshotInoOf(h)
}

// snapshotTimeName is how a time is written as the name of a snapshot, in UTC.
const snapshotTimeName = "2006-01-02T15-04-05Z"

func snapshotInoOf(h hash.Hash) Ino {
	n := Ino(binary.BigEndian.Uint64(h.Sum(nil)))&(snapshotClass-1) | snapshotClass
	if n == snapshotsDirIno {
		n++
	}
	return n
}

// snapshotsIno returns the number of the virtual directory in place.
func snapshotsIno(place Ino) Ino {
	if place == Root {
		return snapshotsDirIno
	}
	h := sha256.New()
	h.Write([]byte("snapshots of"))
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(place)))
	return snapshotInoOf(h)
}

func newSnapshotViews(v *Volume) *snapshotViews {
	return &snapshotViews{v: v, nodes: map[Ino]viewNode{snapshotsDirIno: {place: Root}}}
}

// know remembers what a number stands for and returns it.
func (s *snapshotViews) know(t *snapTree, ino Ino) Ino {
	n := t.ino(ino)
	s.mu.Lock()
	s.nodes[n] = viewNode{t.place, t, ino}
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
	defer s.mu.Unlock()
	if ino != snapshotsDirIno {
		delete(s.nodes, ino)
	}
}

// tell makes the kernel look again at names of snapshots, and at what it knows under others that have come to mean something
// else. What has not changed is left alone: programs may have their working directory there.
func (s *snapshotViews) tell(n Notifier, names []string) {
	l, err := s.snapshots(context.Background())
	if err != nil {
		l = &snapshotList{}
	}
	for _, at := range s.told(names, l) {
		n.InvalEntry(at.parent, []byte(at.name))
	}
}

// told returns those entries of virtual directories that the kernel may know and that may have changed.
func (s *snapshotViews) told(names []string, l *snapshotList) (all []nameIn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	latest := map[Ino]bool{} // virtual directories that have one, as far as the kernel knows
	for _, n := range s.nodes {
		if n.snap == nil || n.ino != n.snap.top {
			continue
		}
		dir := snapshotsIno(n.place)
		latest[dir] = latest[dir] || n.snap.name == latestName
		if now := l.find(n.snap.name); now == nil || now.Root.ID != n.snap.root.ID {
			all = append(all, nameIn{dir, n.snap.name})
		}
	}
	for ino, n := range s.nodes {
		if n.snap != nil || s.v.lookups.get(ino) == 0 {
			continue
		}
		for _, name := range names {
			all = append(all, nameIn{ino, name})
		}
		if !latest[ino] {
			all = append(all, nameIn{ino, latestName}) // there may be one now
		}
	}
	return all
}

// enter returns the virtual directory in place. It counts one look-up.
func (s *snapshotViews) enter(ctx context.Context, place Ino) Attr {
	ino := snapshotsIno(place)
	s.mu.Lock()
	s.nodes[ino] = viewNode{place: place}
	s.mu.Unlock()
	s.v.lookups.add(ino)
	return s.dirAttr(ctx, ino)
}

// dirAttr returns what stat shows of a virtual directory: it is as old as the newest snapshot.
func (s *snapshotViews) dirAttr(ctx context.Context, ino Ino) Attr {
	a := Attr{Ino: ino, Mode: syscall.S_IFDIR | 0o555, Nlink: 2, Size: 4096, Blocks: 8}
	if l, err := s.snapshots(ctx); err == nil && len(l.snaps) > 0 {
		t := timespec(l.snaps[len(l.snaps)-1].Time)
		a.Atime, a.Mtime, a.Ctime, a.Btime = t, t, t, t
	}
	return a
}

// see returns the view of a snapshot from place. It returns ENOENT if the directory was not there then. The directory is
// looked for by its number, wherever it was, and if it was made anew since, by its path.
func (s *snapshotViews) see(ctx context.Context, snap *Snapshot, name string, place Ino) (*snapTree, error) {
	t := s.v.snapTree(name, snap.Root)
	t.place = place
	if place == Root {
		return t, nil
	}
	switch is, err := isDirIn(ctx, t, place); {
	case err != nil:
		return nil, err
	case is:
		t.top = place
		return t, nil
	}
	path, err := s.v.namesTo(ctx, place)
	if err != nil {
		return nil, err
	}
	for _, name := range path {
		f, _, err := s.v.find(ctx, t, t.top, []byte(name))
		if err != nil {
			return nil, err
		}
		if f == nil || !f.isDir() {
			return nil, syscall.ENOENT
		}
		t.top = f.ino
	}
	return t, nil
}

// isDirIn reports whether a state has a directory of this number.
func isDirIn(ctx context.Context, r records, ino Ino) (bool, error) {
	a, err := loadAttrs(ctx, r, ino)
	if errors.Is(err, syscall.ENOENT) {
		return false, nil
	}
	return err == nil && a.Nlink > 0 && a.Mode&syscall.S_IFMT == syscall.S_IFDIR, err
}

// namesTo returns the names that lead from the root to a directory.
func (v *Volume) namesTo(ctx context.Context, dir Ino) (names []string, err error) {
	err = v.view(ctx, func(r *layered) error {
		names = nil
		for at := dir; at != Root; {
			links, err := loadLinks(ctx, r, at)
			if err != nil {
				return err
			}
			if len(links) != 1 {
				return syscall.ENOENT // it has been removed
			}
			names = append(names, links[0].name)
			at = links[0].parent
		}
		return nil
	})
	slices.Reverse(names)
	return names, err
}

// loadLinks returns the names of an inode.
func loadLinks(ctx context.Context, r records, ino Ino) (links []nameIn, err error) {
	err = r.scan(ctx, string(key(ino, keyLink, 0)), prefixEnd(ino, keyLink), func(k string, _ *store.Entry) bool {
		if _, _, rest, _ := splitKey(k); len(rest) > 8 {
			links = append(links, nameIn{Ino(binary.BigEndian.Uint64([]byte(rest))), rest[8:]})
		}
		return true
	})
	return links, err
}

func (v *Volume) snapTree(name string, root store.Ref) *snapTree {
	return &snapTree{name: name, place: Root, top: Root, root: root, t: tree.New(remoteNodes{v.ca}, root, v.treeOptions())}
}

func (s *snapshotViews) attr(ctx context.Context, t *snapTree, ino Ino) (Attr, error) {
	a, err := s.v.attrFrom(ctx, t, ino)
	if err == nil {
		a.Ino = t.ino(ino)
	}
	return a, err
}

func (s *snapshotViews) lookup(ctx context.Context, parent Ino, name []byte) (Attr, error) {
	n, err := s.node(parent)
	if err != nil {
		return Attr{}, err
	}
	t, child := n.snap, Ino(0)
	if t == nil {
		l, err := s.snapshots(ctx)
		if err != nil {
			return Attr{}, err
		}
		snap := l.find(string(name))
		if snap == nil {
			return Attr{}, syscall.ENOENT
		}
		if t, err = s.see(ctx, snap, string(name), n.place); err != nil {
			return Attr{}, err
		}
		child = t.top
	} else {
		f, _, err := s.v.findFolded(ctx, t, n.ino, name)
		if err != nil {
			return Attr{}, err
		}
		if f == nil {
			return Attr{}, syscall.ENOENT
		}
		child = f.ino
	}
	a, err := s.attr(ctx, t, child)
	if err != nil {
		return Attr{}, err
	}
	s.v.lookups.add(s.know(t, child))
	return a, nil
}

func (s *snapshotViews) getattr(ctx context.Context, ino Ino) (Attr, error) {
	n, err := s.node(ino)
	if err != nil {
		return Attr{}, err
	}
	if n.snap == nil {
		return s.dirAttr(ctx, ino), nil
	}
	return s.attr(ctx, n.snap, n.ino)
}

func (s *snapshotViews) readlink(ctx context.Context, ino Ino) ([]byte, error) {
	n, err := s.node(ino)
	if err != nil {
		return nil, err
	}
	if n.snap == nil {
		return nil, syscall.EINVAL
	}
	return readTarget(ctx, n.snap, n.ino)
}

func (s *snapshotViews) getxattr(ctx context.Context, ino Ino, name string) ([]byte, error) {
	n, err := s.node(ino)
	if err != nil {
		return nil, err
	}
	if n.snap == nil {
		return nil, errNoXattr
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
	n, err := s.node(ino)
	if err != nil || n.snap == nil {
		return nil, err
	}
	return listXattrs(ctx, n.snap, n.ino)
}

func (s *snapshotViews) open(ctx context.Context, ino Ino) (*Handle, error) {
	n, err := s.node(ino)
	if err != nil {
		return nil, err
	}
	if n.snap == nil {
		return nil, syscall.EISDIR
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
	h := &Handle{v: v, snap: v.contentReader(*m), size: int64(a.Size)}
	v.member.hold(h)
	return h, nil
}

func (s *snapshotViews) readdir(ctx context.Context, ino Ino, cookie uint64, plus bool, fn func(DirEntry) bool) error {
	n, err := s.node(ino)
	if err != nil {
		return err
	}
	if n.snap == nil {
		return s.listSnapshots(ctx, ino, n.place, cookie, fn)
	}
	parent := func() (Ino, error) {
		if n.ino == n.snap.top {
			return snapshotsIno(n.place), nil
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

// seeWorkers is how many snapshots are looked into at the same time.
const seeWorkers = 8

// listSnapshots lists a virtual directory. The entries carry no attributes, whoever asks for them: each would cost the
// fetching of nodes. Cookies belong to names, so that a listing misses nothing when snapshots come and go meanwhile.
func (s *snapshotViews) listSnapshots(ctx context.Context, ino, place Ino, cookie uint64, fn func(DirEntry) bool) error {
	l, err := s.snapshots(ctx)
	if err != nil {
		return err
	}
	batch := func(from uint64) ([]DirEntry, error) {
		var es []DirEntry
		for i := l.from(from); i < len(l.byCookie) && len(es) < readdirBatch; {
			names := l.byCookie[i:min(len(l.byCookie), i+readdirBatch-len(es))]
			more, err := s.entries(ctx, place, names)
			if err != nil {
				return nil, err
			}
			es, i = append(es, more...), i+len(names)
		}
		return es, nil
	}
	return s.v.list(ino, cookie, func() (Ino, error) { return place, nil }, batch, fn)
}

// entries returns the entries of those snapshots that have the directory.
func (s *snapshotViews) entries(ctx context.Context, place Ino, names []snapshotName) ([]DirEntry, error) {
	seen := make([]*snapTree, len(names))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(seeWorkers)
	for i, n := range names {
		g.Go(func() (err error) {
			seen[i], err = s.see(ctx, n.snap, n.name, place)
			if errors.Is(err, syscall.ENOENT) {
				err = nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var es []DirEntry
	for i, t := range seen {
		if t != nil {
			es = append(es, DirEntry{Name: []byte(names[i].name), Ino: t.ino(t.top), Type: syscall.S_IFDIR, Cookie: names[i].cookie})
		}
	}
	return es, nil
}

// snapshotName is an entry of the virtual directory.
type snapshotName struct {
	name   string
	cookie uint64
	snap   *Snapshot
}

// snapshotList is a map of snapshots as the virtual directory shows it.
type snapshotList struct {
	root     store.ID
	snaps    []Snapshot // that are not forgotten, automatic states too, the oldest first
	byName   map[string]*Snapshot
	byCookie []snapshotName
}

// snapshots returns the list as it is now.
func (s *snapshotViews) snapshots(ctx context.Context) (*snapshotList, error) {
	t := s.v.snapshotMap()
	s.mu.Lock()
	l := s.list
	s.mu.Unlock()
	if l != nil && l.root == t.Root().ID {
		return l, nil
	}
	snaps, err := listSnapshots(ctx, t)
	if err != nil {
		return nil, err
	}
	l = &snapshotList{root: t.Root().ID, snaps: snaps}
	l.enterAll(func(name string) uint64 { return s.v.cookieBase(snapshotsDirIno, []byte(name)) })
	s.mu.Lock()
	s.list = l
	s.mu.Unlock()
	return l, nil
}

// enterAll gives each snapshot its names: its own, and its time. The newest that somebody has named is the latest too.
func (l *snapshotList) enterAll(cookie func(string) uint64) {
	l.byName = map[string]*Snapshot{}
	var latest *Snapshot
	for i := range l.snaps {
		if !l.snaps[i].Automatic {
			latest = &l.snaps[i]
			l.byName[latest.Name] = latest
		}
	}
	for i := range l.snaps {
		for _, name := range timeNames(l.snaps[i].Time) {
			if there := l.byName[name]; there == nil {
				l.byName[name] = &l.snaps[i]
				break
			} else if there == &l.snaps[i] {
				break
			}
		}
	}
	if latest != nil {
		l.byName[latestName] = latest
	}
	for name, snap := range l.byName {
		l.byCookie = append(l.byCookie, snapshotName{name, cookie(name), snap})
	}
	slices.SortFunc(l.byCookie, func(a, b snapshotName) int {
		return cmp.Or(cmp.Compare(a.cookie, b.cookie), cmp.Compare(a.name, b.name))
	})
	for i := 1; i < len(l.byCookie); i++ {
		l.byCookie[i].cookie = max(l.byCookie[i].cookie, l.byCookie[i-1].cookie+1)
	}
}

// timeNames returns the names that a snapshot of this time may have in the virtual directory. The second one is for two
// of one second.
func timeNames(t time.Time) []string {
	return []string{t.UTC().Format(snapshotTimeName), t.UTC().Format("2006-01-02T15-04-05.000000000Z")}
}

// from returns where to go on from a cookie.
func (l *snapshotList) from(cookie uint64) int {
	i, _ := slices.BinarySearchFunc(l.byCookie, cookie, func(n snapshotName, c uint64) int { return cmp.Compare(n.cookie, c) })
	return i
}

// find returns the snapshot of an entry; nil if there is none.
func (l *snapshotList) find(name string) *Snapshot { return l.byName[name] }

// FindSnapshot returns the snapshot that a person means: by a name that the virtual directory shows, or by a time, which is that
// of the newest snapshot not after it. Times without a zone are of this machine.
func (v *Volume) FindSnapshot(ctx context.Context, spec string) (Snapshot, error) {
	l, err := v.snapshots.snapshots(ctx)
	if err != nil {
		return Snapshot{}, err
	}
	if s := l.find(spec); s != nil {
		return *s, nil
	}
	end, ok := parseSnapshotTime(spec)
	if !ok {
		return Snapshot{}, ErrNoSnapshot
	}
	var newest *Snapshot
	for i := range l.snaps {
		if s := &l.snaps[i]; s.Time.Before(end) && (newest == nil || !s.Time.Before(newest.Time)) {
			newest = s
		}
	}
	if newest == nil {
		return Snapshot{}, fmt.Errorf("no snapshot is as old as %s: %w", spec, ErrNoSnapshot)
	}
	return *newest, nil
}

// parseSnapshotTime returns the end of the second, minute or day that s names.
func parseSnapshotTime(s string) (end time.Time, ok bool) {
	for _, f := range []struct {
		layout string
		last   func(time.Time) time.Time
	}{
		{time.RFC3339, func(t time.Time) time.Time { return t.Add(time.Second) }},
		{snapshotTimeName, func(t time.Time) time.Time { return t.Add(time.Second) }},
		{time.DateTime, func(t time.Time) time.Time { return t.Add(time.Second) }},
		{"2006-01-02T15:04:05", func(t time.Time) time.Time { return t.Add(time.Second) }},
		{"2006-01-02 15:04", func(t time.Time) time.Time { return t.Add(time.Minute) }},
		{time.DateOnly, func(t time.Time) time.Time { return t.AddDate(0, 0, 1) }},
	} {
		zone := time.Local
		if strings.HasSuffix(f.layout, "Z") {
			zone = time.UTC
		}
		if t, err := time.ParseInLocation(f.layout, s, zone); err == nil {
			return f.last(t), true
		}
	}
	return time.Time{}, false
}

// pin makes a snapshot all that the volume shows, for as long as it is open.
func (v *Volume) pin(ctx context.Context, spec string) error {
	s, err := v.FindSnapshot(ctx, spec)
	if err != nil {
		return fmt.Errorf("%s: %w", spec, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.base = v.localTree(s.Root)
	return nil
}
