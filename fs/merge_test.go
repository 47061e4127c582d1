package fs

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// memNodes is a tree.Store in memory.
type memNodes map[store.ID]*store.Node

func (m memNodes) Load(_ context.Context, ref store.Ref) (*store.Node, error) {
	if n := m[ref.ID]; n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("node %s: %w", ref.ID, store.ErrNotFound)
}

func (m memNodes) Save(_ context.Context, n *store.Node) (store.Ref, error) {
	id := store.ID(sha256.Sum256(store.AppendCanonical(nil, n)))
	m[id] = n
	return store.Ref{ID: id, Kind: store.RefNode}, nil
}

// sim is a volume as plain Go values: what a client shows, without a cache or a clock. Trees are made of it and read back.
type sim struct {
	nodes  memNodes
	inodes map[Ino]*simInode
	slots  map[nameIn]uint64 // cookies
	next   *Ino
	me     store.ClientID
	now    int64
	frozen bool // the clock stands still
}

type simInode struct {
	attrs  attrs
	data   string
	xattrs map[string]string
	links  map[nameIn]bool
}

// simCookie makes names collide often.
func simCookie(parent Ino, name []byte) uint64 {
	h := sha256.Sum256(binary.BigEndian.AppendUint64(append([]byte(nil), name...), uint64(parent)))
	return (uint64(h[0]&3) + 1) << 7
}

func simHost(c store.ClientID) (string, error) { return string('A' + rune(c[0])), nil }

func (s *sim) tree(root store.Ref) *tree.Tree { return tree.New(s.nodes, root, tree.Options{}) }

// fork returns a client that starts with root.
func (s *sim) fork(t testing.TB, root store.Ref, client byte) *sim {
	next := (Ino(client) + 1) << 32
	c := &sim{nodes: s.nodes, next: &next, me: store.ClientID{client}, now: s.now}
	c.checkout(t, root)
	return c
}

func newSim() *sim {
	next := Ino(99) << 32
	return &sim{nodes: memNodes{}, next: &next, inodes: map[Ino]*simInode{
		Root: {attrs: attrs{Mode: syscall.S_IFDIR | 0o755, Nlink: 2}, links: map[nameIn]bool{}}}}
}

// commit makes the tree of what is there.
func (s *sim) commit(t testing.TB) store.Ref {
	t.Helper()
	s.count()
	records := map[string]*store.Entry{}
	put := func(k string, v []byte, refs ...store.Ref) {
		records[k] = &store.Entry{Key: []byte(k), Value: v, Refs: refs}
	}
	owner := map[nameIn]Ino{}
	for ino, n := range s.inodes {
		put(inodeKey(ino), appendAttrs(nil, &n.attrs))
		if n.data != "" {
			m := extentMap{Length: int64(len(n.data)), Allocated: uint64(len(n.data)), Ref: dataRef(n.data)}
			e := m.entry(ino)
			records[string(e.Key)] = e
		}
		for name, value := range n.xattrs {
			put(xattrKey(ino, name), append([]byte{xattrInline}, value...))
		}
		for l := range n.links {
			put(linkKey(ino, l.parent, []byte(l.name)), nil)
			owner[l] = ino
		}
	}
	s.place(owner)
	for l, ino := range owner {
		put(entryKey(l.parent, s.slots[l], []byte(l.name)), entryValue(ino, s.inodes[ino].attrs.Mode))
	}
	keys := slices.Sorted(maps.Keys(records))
	root, err := s.tree(store.Ref{}).Build(ctx, func(yield func(store.Entry) bool) {
		for _, k := range keys {
			if !yield(*records[k]) {
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// place gives the names that have none a free cookie each.
func (s *sim) place(owner map[nameIn]Ino) {
	type place struct {
		dir    Ino
		cookie uint64
	}
	taken := map[place]bool{}
	slots := map[nameIn]uint64{}
	for l := range owner {
		if c, ok := s.slots[l]; ok {
			slots[l], taken[place{l.parent, c}] = c, true
		}
	}
	for _, l := range slices.SortedFunc(maps.Keys(owner), compareNames) {
		if _, ok := slots[l]; ok {
			continue
		}
		c := simCookie(l.parent, []byte(l.name))
		for taken[place{l.parent, c}] {
			c++
		}
		slots[l], taken[place{l.parent, c}] = c, true
	}
	s.slots = slots
}

// simData finds the bytes behind a reference: those of all contents ever made.
var simData = map[store.ID]string{}

func dataRef(data string) store.Ref {
	id := store.ID(sha256.Sum256([]byte(data)))
	simData[id] = data
	return store.Ref{ID: id, Kind: store.RefChunk}
}

// count sets all link counts.
func (s *sim) count() {
	for _, n := range s.inodes {
		n.attrs.Nlink = uint32(len(n.links))
		if n.isDir() {
			n.attrs.Nlink = 2
		}
	}
	for _, n := range s.inodes {
		for l := range n.links {
			if n.isDir() {
				s.inodes[l.parent].attrs.Nlink++
			}
		}
	}
}

func (n *simInode) isDir() bool { return n.attrs.Mode&syscall.S_IFMT == syscall.S_IFDIR }

// checkout reads a tree, and fails if it is not a file system: every entry has its reverse link and its inode, every
// inode a name, counts are right, and everything is below the root.
func (s *sim) checkout(t testing.TB, root store.Ref) {
	t.Helper()
	s.inodes, s.slots = map[Ino]*simInode{}, map[nameIn]uint64{}
	entries := map[nameIn]Ino{}
	cookies := map[string]bool{}
	it := s.tree(root).Seek(ctx, nil)
	for it.Next(ctx) {
		e := it.Entry()
		s.read(t, e, entries, cookies)
	}
	if it.Err() != nil {
		t.Fatal(it.Err())
	}
	s.check(t, entries)
}

func (s *sim) read(t testing.TB, e store.Entry, entries map[nameIn]Ino, cookies map[string]bool) {
	t.Helper()
	ino, kind, rest, _ := splitKey(string(e.Key))
	n := s.inodes[ino]
	if isConflictKey(string(e.Key)) {
		return
	}
	if kind == keyInode {
		a, err := parseAttrs(e.Value)
		if err != nil {
			t.Fatal(err)
		}
		s.inodes[ino] = &simInode{attrs: *a, xattrs: map[string]string{}, links: map[nameIn]bool{}}
		return
	}
	if n == nil {
		t.Fatalf("record %x of an inode that is not there", e.Key)
	}
	switch kind {
	case keyEntry:
		cookie, name, _ := splitEntry(rest)
		at := nameIn{ino, name}
		if _, twice := entries[at]; twice || cookies[string(e.Key[:17])] {
			t.Fatalf("%q is twice in directory %d, or its cookie", name, ino)
		}
		if base := simCookie(ino, []byte(name)); cookie < base || cookie >= base+128 {
			t.Fatalf("%q in directory %d has a cookie of another hash", name, ino)
		}
		child, _, err := parseEntryValue(e.Value)
		if err != nil {
			t.Fatal(err)
		}
		entries[at], cookies[string(e.Key[:17])], s.slots[at] = child, true, cookie
	case keyXattr:
		n.xattrs[rest] = string(e.Value[1:])
	case keyLink:
		n.links[nameIn{Ino(binary.BigEndian.Uint64([]byte(rest))), rest[8:]}] = true
	case keyContent:
		m, err := parseExtentMap(&e)
		if err != nil {
			t.Fatal(err)
		}
		n.data = simData[m.Ref.ID]
	}
}

func (s *sim) check(t testing.TB, entries map[nameIn]Ino) {
	t.Helper()
	names := 0
	for ino, n := range s.inodes {
		names += len(n.links)
		switch {
		case ino == Root:
		case len(n.links) == 0 || n.isDir() && len(n.links) != 1:
			t.Fatalf("inode %x has %d names", ino, len(n.links))
		}
		for l := range n.links {
			if entries[l] != ino || s.inodes[l.parent] == nil || !s.inodes[l.parent].isDir() {
				t.Fatalf("name %v of inode %x: the entry is %x", l, ino, entries[l])
			}
		}
		if !n.isDir() && int(n.attrs.Size) != len(n.data) {
			t.Fatalf("inode %x has %d bytes, and a content of %d", ino, n.attrs.Size, len(n.data))
		}
		s.path(t, ino)
	}
	if names != len(entries) {
		t.Fatalf("%d entries, %d names", len(entries), names)
	}
	have := map[Ino]uint32{}
	for ino, n := range s.inodes {
		have[ino] = n.attrs.Nlink
	}
	s.count()
	for ino, n := range s.inodes {
		if have[ino] != n.attrs.Nlink {
			t.Fatalf("inode %x has link count %d, want %d", ino, have[ino], n.attrs.Nlink)
		}
	}
}

// path returns one path of ino, and fails if it does not lead to the root.
func (s *sim) path(t testing.TB, ino Ino) string {
	t.Helper()
	path := ""
	for range 100 {
		if ino == Root {
			return path
		}
		l := slices.SortedFunc(maps.Keys(s.inodes[ino].links), compareNames)[0]
		ino, path = l.parent, "/"+l.name+path
	}
	t.Fatalf("a cycle at %s", path)
	return ""
}

// find returns the inode at a path; 0 if there is none.
func (s *sim) find(path string) Ino {
	at := Root
	for _, name := range strings.Split(strings.Trim(path, "/"), "/") {
		if name == "" {
			continue
		}
		if at = s.child(at, name); at == 0 {
			return 0
		}
	}
	return at
}

func (s *sim) child(dir Ino, name string) Ino {
	for ino, n := range s.inodes {
		if n.links[nameIn{dir, name}] {
			return ino
		}
	}
	return 0
}

// parent returns the directory of path, 0 if there is none, and the last name.
func (s *sim) parent(path string) (Ino, string) {
	i := strings.LastIndex(path, "/")
	dir := s.find(path[:i])
	if dir != 0 && !s.inodes[dir].isDir() {
		dir = 0
	}
	return dir, path[i+1:]
}

func (s *sim) stamp() Timespec {
	if !s.frozen {
		s.now++
	}
	return Timespec{Sec: s.now}
}

// make makes an inode, unless the name is taken.
func (s *sim) make(path string, mode uint32) *simInode {
	dir, name := s.parent(path)
	if dir == 0 || s.child(dir, name) != 0 {
		return nil
	}
	*s.next++
	n := &simInode{attrs: attrs{Mode: mode, Mtime: s.stamp(), Changed: s.me}, xattrs: map[string]string{}, links: map[nameIn]bool{{dir, name}: true}}
	s.inodes[*s.next-1] = n
	s.inodes[dir].attrs.Mtime = s.stamp()
	return n
}

func (s *sim) mkdir(path string) { s.make(path, syscall.S_IFDIR|0o755) }

// write gives a file a content, and makes it if there is nothing.
func (s *sim) write(path, data string) {
	n := s.inodes[s.find(path)]
	if n == nil {
		n = s.make(path, syscall.S_IFREG|0o644)
	}
	if n == nil || n.isDir() {
		return
	}
	n.data, n.attrs.Size, n.attrs.Mtime, n.attrs.Changed = data, uint64(len(data)), s.stamp(), s.me
}

// remove takes a name away, with all that is below it.
func (s *sim) remove(path string) {
	ino := s.find(path)
	if ino <= Root {
		return
	}
	dir, name := s.parent(path)
	s.unlink(ino, nameIn{dir, name})
}

func (s *sim) unlink(ino Ino, at nameIn) {
	n := s.inodes[ino]
	if n.isDir() {
		for child, c := range maps.Clone(s.inodes) {
			for l := range maps.Clone(c.links) {
				if l.parent == ino {
					s.unlink(child, l)
				}
			}
		}
	}
	delete(n.links, at)
	if len(n.links) == 0 {
		delete(s.inodes, ino)
	}
	s.inodes[at.parent].attrs.Mtime = s.stamp()
}

// rename moves a name over whatever is there, unless that makes a cycle.
func (s *sim) rename(from, to string) {
	ino := s.find(from)
	dir, name := s.parent(to)
	if ino <= Root || dir == 0 || strings.HasPrefix(to+"/", from+"/") {
		return
	}
	if there := s.child(dir, name); there == ino {
		return
	} else if there != 0 {
		if strings.HasPrefix(from+"/", to+"/") {
			return
		}
		s.unlink(there, nameIn{dir, name})
	}
	old, oldName := s.parent(from)
	delete(s.inodes[ino].links, nameIn{old, oldName})
	s.inodes[ino].links[nameIn{dir, name}] = true
}

func (s *sim) link(from, to string) {
	ino := s.find(from)
	dir, name := s.parent(to)
	if ino <= Root || dir == 0 || s.child(dir, name) != 0 || s.inodes[ino].isDir() {
		return
	}
	s.inodes[ino].links[nameIn{dir, name}] = true
}

// replace writes a file as editors do: a new one over the old.
func (s *sim) replace(path, data string) {
	tmp := path + "~"
	s.write(tmp, data)
	if n := s.inodes[s.find(path)]; n != nil && n.isDir() {
		return
	}
	s.rename(tmp, path)
}

func (s *sim) chmod(path string, mode uint32) {
	if n := s.inodes[s.find(path)]; n != nil {
		n.attrs.Mode = n.attrs.Mode&syscall.S_IFMT | mode
	}
}

func (s *sim) setxattr(path, name, value string) {
	if n := s.inodes[s.find(path)]; n != nil {
		n.xattrs[name] = value
	}
}

// show lists all paths with their contents, for comparison and for people.
func (s *sim) show(t testing.TB) map[string]string {
	t.Helper()
	out := map[string]string{}
	for ino, n := range s.inodes {
		for l := range n.links {
			what := fmt.Sprintf("%q %o %v", n.data, n.attrs.Mode&0o7777, n.xattrs)
			if n.isDir() {
				what = fmt.Sprintf("dir %o %v", n.attrs.Mode&0o7777, n.xattrs)
			}
			out[s.path(t, l.parent)+"/"+l.name] = what
		}
		_ = ino
	}
	return out
}

func (s *sim) list(t testing.TB) string {
	t.Helper()
	all := s.show(t)
	var b strings.Builder
	for _, p := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s %s\n", p, all[p])
	}
	return b.String()
}

// merge merges two trees both ways round as to which is edited, and wants one result.
func (s *sim) merge(t testing.TB, base, first, second store.Ref) store.Ref {
	t.Helper()
	sides := [3]*tree.Tree{s.tree(base), s.tree(first), s.tree(second)}
	a, err := mergeOnto(ctx, sides, mergeFirst, mergeSecond, simCookie, simHost)
	if err != nil {
		t.Fatal(err)
	}
	b, err := mergeOnto(ctx, sides, mergeSecond, mergeFirst, simCookie, simHost)
	if err != nil {
		t.Fatal(err)
	}
	s.fork(t, a, 90)
	if a.ID != b.ID {
		_ = tree.Diff(ctx, s.tree(a), s.tree(b), func(k []byte, ea, eb *store.Entry) error {
			t.Logf("%x: %v against %v", k, ea, eb)
			return nil
		})
		t.Fatalf("the result depends on which side is edited:\n%s\n%s", s.fork(t, a, 90).list(t), s.fork(t, b, 90).list(t))
	}
	return a
}

// simOps are the operations that are tried against each other. p is a path, c is below it, and q somewhere else.
var simOps = []struct {
	name string
	do   func(s *sim, p string)
}{
	{"write", func(s *sim, p string) { s.write(p, "written by "+s.me.String()) }},
	{"write the same", func(s *sim, p string) { s.write(p, "same") }},
	{"truncate", func(s *sim, p string) { s.write(p, "") }},
	{"replace", func(s *sim, p string) { s.replace(p, "replaced by "+s.me.String()) }},
	{"remove", func(s *sim, p string) { s.remove(p) }},
	{"remove and make a directory", func(s *sim, p string) { s.remove(p); s.mkdir(p); s.write(p+"/n", s.me.String()) }},
	{"make", func(s *sim, p string) { s.write(p+"2", "made by "+s.me.String()) }},
	{"mkdir", func(s *sim, p string) { s.mkdir(p + "3"); s.write(p+"3/"+s.me.String(), "in") }},
	{"move away", func(s *sim, p string) { s.rename(p, "/q/moved by "+s.me.String()) }},
	{"move to one name", func(s *sim, p string) { s.rename(p, "/q/one") }},
	{"move over another", func(s *sim, p string) { s.rename(p, "/other") }},
	{"move another over it", func(s *sim, p string) { s.rename("/other", p) }},
	{"move into a directory", func(s *sim, p string) { s.rename(p, "/d/in") }},
	{"move a directory into it", func(s *sim, p string) { s.rename("/q", p+"/into") }},
	{"link", func(s *sim, p string) { s.link(p, "/q/link by "+s.me.String()) }},
	{"chmod and setxattr", func(s *sim, p string) { s.chmod(p, 0o700|uint32(s.me[0])); s.setxattr(p, "user.x", s.me.String()) }},
}

// simStart is a small volume.
func simStart(t testing.TB) (*sim, store.Ref) {
	s := newSim()
	for _, d := range []string{"/d", "/d/e", "/q"} {
		s.mkdir(d)
	}
	for _, f := range []string{"/f", "/d/f", "/d/e/f", "/other", "/q/f"} {
		s.write(f, "base "+f)
	}
	s.link("/d/f", "/d/e/g")
	return s, s.commit(t)
}

// TestMergePairs does every operation against every other, on one path and on a directory and what is in it, in both
// orders.
func TestMergePairs(t *testing.T) {
	paths := [][2]string{{"/f", "/f"}, {"/d", "/d"}, {"/d", "/d/e"}, {"/d", "/d/e/f"}, {"/d/f", "/d/f"}}
	cases := 0
	for _, p := range paths {
		for _, x := range simOps {
			for _, y := range simOps {
				for _, swap := range []bool{false, true} {
					if swap && p[0] == p[1] {
						continue // the other pair of operations is the same case
					}
					cases++
					t.Run(fmt.Sprintf("%s %s against %s %s %v", x.name, p[0], y.name, p[1], swap), func(t *testing.T) {
						base, root := simStart(t)
						a, b := base.fork(t, root, 1), base.fork(t, root, 2)
						if swap {
							y.do(a, p[1])
							x.do(b, p[0])
						} else {
							x.do(a, p[0])
							y.do(b, p[1])
						}
						checkMerged(t, base, root, a, b)
					})
				}
			}
		}
	}
	if cases < 1024 {
		t.Errorf("%d cases, want 1024 at least", cases)
	}
}

// checkMerged merges two sides and checks that nothing newest is lost.
func checkMerged(t *testing.T, base *sim, root store.Ref, a, b *sim) {
	t.Helper()
	ra, rb := a.commit(t), b.commit(t)
	got := base.fork(t, base.merge(t, root, ra, rb), 80)
	have := map[string]bool{}
	for _, n := range got.inodes {
		have[n.data] = true
	}
	was := map[string]bool{}
	for _, n := range base.inodes {
		was[n.data] = true
	}
	for _, side := range []*sim{a, b} {
		for ino, n := range side.inodes {
			if !n.isDir() && !was[n.data] && !have[n.data] {
				t.Errorf("content %q of %s is lost\nfirst:\n%s\nsecond:\n%s\nmerged:\n%s", n.data, side.path(t, ino), a.list(t), b.list(t), got.list(t))
			}
		}
	}
	for p := range got.show(t) {
		if strings.Count(p[strings.LastIndex(p, "/"):], conflictMark) > 1 {
			t.Errorf("%s: a conflict of a conflict", p)
		}
	}
}

func TestMerge(t *testing.T) {
	date := func(n int64) string { return Timespec{Sec: n}.Time().UTC().Format("2006-01-02 15.04.05") }
	for _, tc := range []struct {
		name string
		a, b func(s *sim)
		want map[string]string // path: data, "-" for nothing, "/" for a directory
	}{
		{"both write", func(s *sim) { s.write("/f", "a") }, func(s *sim) { s.now = 999; s.write("/f", "b") },
			map[string]string{"/f": "a", "/f (conflict C " + date(1000) + ")": "b"}},
		{"both write the same", func(s *sim) { s.write("/f", "x") }, func(s *sim) { s.write("/f", "x") },
			map[string]string{"/f": "x"}},
		{"both make the same", func(s *sim) { s.write("/n", "x") }, func(s *sim) { s.write("/n", "x") },
			map[string]string{"/n": "x"}},
		{"both make", func(s *sim) { s.write("/n.txt", "a") }, func(s *sim) { s.now = 999; s.write("/n.txt", "b") },
			map[string]string{"/n.txt": "a", "/n (conflict C " + date(1002) + ").txt": "b"}},
		{"edit against delete", func(s *sim) { s.write("/d/f", "a") }, func(s *sim) { s.remove("/d") },
			map[string]string{"/d/f": "a", "/d/e/g": "a", "/d/e/f": "-"}},
		{"delete against a new file in it", func(s *sim) { s.remove("/d") }, func(s *sim) { s.write("/d/e/new", "b") },
			map[string]string{"/d/e/new": "b", "/d/f": "-"}},
		{"directories of one name", func(s *sim) { s.mkdir("/n"); s.write("/n/a", "a"); s.write("/n/x", "same") },
			func(s *sim) { s.mkdir("/n"); s.write("/n/b", "b"); s.write("/n/x", "same") },
			map[string]string{"/n/a": "a", "/n/b": "b", "/n/x": "same"}},
		{"moves into each other", func(s *sim) { s.rename("/d", "/q/d") }, func(s *sim) { s.rename("/q", "/d/e/q") },
			map[string]string{"/q/d/e/f": "base /d/e/f", "/q/f": "base /q/f", "/d": "-"}},
		{"both move", func(s *sim) { s.rename("/f", "/a") }, func(s *sim) { s.rename("/f", "/b") },
			map[string]string{"/a": "base /f", "/b": "-", "/f": "-"}},
		{"move against write", func(s *sim) { s.rename("/d", "/z") }, func(s *sim) { s.write("/d/f", "b") },
			map[string]string{"/z/f": "b", "/d": "-"}},
		{"file against directory", func(s *sim) { s.write("/n", "a") }, func(s *sim) { s.mkdir("/n"); s.write("/n/b", "b") },
			map[string]string{"/n": "a"}},
		{"save as editors do against write", func(s *sim) { s.replace("/f", "a") }, func(s *sim) { s.now = 999; s.write("/f", "b") },
			map[string]string{"/f": "a", "/f (conflict C " + date(1000) + ")": "b"}},
		{"save as editors do against chmod", func(s *sim) { s.replace("/f", "a") }, func(s *sim) { s.chmod("/f", 0o600) },
			map[string]string{"/f": "a"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			base, root := simStart(t)
			a, b := base.fork(t, root, 1), base.fork(t, root, 2)
			tc.a(a)
			tc.b(b)
			got := base.fork(t, base.merge(t, root, a.commit(t), b.commit(t)), 80)
			for p, want := range tc.want {
				have := "-"
				if n := got.inodes[got.find(p)]; n != nil {
					have = n.data
				}
				if have != want {
					t.Errorf("%s: %q, want %q\n%s", p, have, want, got.list(t))
				}
			}
		})
	}
}

// TestMergeCookies lets one side move a name to another cookie, for a file that in the end is somewhere else.
func TestMergeCookies(t *testing.T) {
	base, root := simStart(t)
	a, b := base.fork(t, root, 1), base.fork(t, root, 2)
	a.replace("/other", "a")
	a.rename("/f", "/q/moved")

	at := nameIn{Root, "other"}
	b.remove("/other")
	taker := sameHash(at)
	b.write("/"+taker, "takes its cookie")
	b.commit(t)
	b.rename("/f", "/other")
	b.commit(t)
	b.remove("/" + taker)

	ra, rb := a.commit(t), b.commit(t)
	if a.slots[at] == b.slots[at] || base.slots[at] != a.slots[at] {
		t.Fatalf("cookies %x, %x and %x: this shows nothing", base.slots[at], a.slots[at], b.slots[at])
	}
	got := base.fork(t, base.merge(t, root, ra, rb), 80)
	for path, want := range map[string]string{"/other": "a", "/q/moved": "base /f"} {
		if n := got.inodes[got.find(path)]; n == nil || n.data != want {
			t.Errorf("%s is not %q:\n%s", path, want, got.list(t))
		}
	}
}

// sameHash returns a name that has the hash of another in its directory.
func sameHash(at nameIn) string {
	for i := 0; ; i++ {
		if name := fmt.Sprint("a", i); simCookie(at.parent, []byte(name)) == simCookie(at.parent, []byte(at.name)) {
			return name
		}
	}
}

func TestConflictName(t *testing.T) {
	long := strings.Repeat("ä", 120) + ".jpeg"
	for _, tc := range []struct{ name, host, want string }{
		{"a.txt", "H", "a (conflict H 1970-01-01 00.00.01).txt"},
		{".profile", "H", ".profile (conflict H 1970-01-01 00.00.01)"},
		{"a", "x/y (z)", "a (conflict x-y -z- 1970-01-01 00.00.01)"},
		{"a (conflict G 2001-01-01 00.00.00 7).txt", "H", "a (conflict H 1970-01-01 00.00.01).txt"},
		{long, "H", strings.Repeat("ä", 108) + " (conflict H 1970-01-01 00.00.01).jpeg"},
	} {
		got := conflictName(tc.name, tc.host, Timespec{Sec: 1}, 1)
		if got != tc.want || len(got) > NameMax {
			t.Errorf("conflictName(%q) = %q (%d bytes), want %q", tc.name, got, len(got), tc.want)
		}
	}
}
