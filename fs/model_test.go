package fs

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand"
	"os"
	"slices"
	"syscall"
	"testing"
)

// modelNode is an inode of the reference file system: plain Go values.
type modelNode struct {
	dir    map[string]*modelNode // nil unless it is a directory
	data   []byte
	target string
	mode   uint32
	xattrs map[string]string
	nlink  int
}

// model does to a tree in memory and to a volume the same, and compares.
type model struct {
	t    *testing.T
	e    *env
	r    *rand.Rand
	root *modelNode
	log  []string

	halfway func() // called between the two changes that one step may make
}

func newDirNode() *modelNode {
	return &modelNode{dir: map[string]*modelNode{}, mode: 0o755, xattrs: map[string]string{}, nlink: 2}
}

func (m *model) fatalf(format string, args ...any) {
	m.t.Helper()
	for _, l := range m.log[max(0, len(m.log)-40):] {
		m.t.Log(l)
	}
	m.t.Fatalf(format, args...)
}

func (m *model) note(format string, args ...any) { m.log = append(m.log, fmt.Sprintf(format, args...)) }

// check compares what the volume answered with what it must answer.
func (m *model) check(op string, got, want error) bool {
	m.t.Helper()
	if got != want {
		m.fatalf("%s: got %v, want %v", op, got, want)
	}
	return want == nil
}

// anyDir picks a directory and finds its inode by walking.
func (m *model) anyDir() (*modelNode, Ino, string) {
	n, path := m.root, ""
	names := []string{}
	for m.r.Intn(3) > 0 {
		var subs []string
		for name, c := range n.dir {
			if c.dir != nil {
				subs = append(subs, name)
			}
		}
		if len(subs) == 0 {
			break
		}
		slices.Sort(subs)
		name := subs[m.r.Intn(len(subs))]
		names, path, n = append(names, name), path+"/"+name, n.dir[name]
	}
	return n, m.e.walk(names...), path
}

func (m *model) name() string { return string(rune('a' + m.r.Intn(6))) }

func kindErr(n *modelNode, wantDir bool) error {
	switch {
	case n == nil:
		return syscall.ENOENT
	case wantDir && n.dir == nil:
		return syscall.ENOTDIR
	case !wantDir && n.dir != nil:
		return syscall.EISDIR
	case wantDir && len(n.dir) > 0:
		return syscall.ENOTEMPTY
	}
	return nil
}

func (m *model) step() {
	d, ino, path := m.anyDir()
	name := m.name()
	old := d.dir[name]
	v := m.e.v
	at := path + "/" + name
	switch op := m.r.Intn(17); op {
	case 0, 1:
		m.note("mkdir %s", at)
		_, err := v.Mkdir(ctx, ino, []byte(name), 0o755, Cred{})
		if m.check("mkdir", err, exists(old)) {
			d.dir[name] = newDirNode()
			d.dir[name].mode |= d.mode & 0o2000 // inherited
			d.nlink++
		}
	case 2:
		m.note("symlink %s", at)
		target := string(bytes.Repeat([]byte("t"), 1+m.r.Intn(1500)))
		_, err := v.Symlink(ctx, ino, []byte(name), []byte(target), Cred{})
		if m.check("symlink", err, exists(old)) {
			d.dir[name] = &modelNode{target: target, mode: 0o777, nlink: 1, xattrs: map[string]string{}}
		}
	case 3:
		m.note("unlink %s", at)
		if m.check("unlink", v.Unlink(ctx, ino, []byte(name)), kindErr(old, false)) {
			delete(d.dir, name)
			old.nlink--
		}
	case 4:
		m.note("rmdir %s", at)
		if m.check("rmdir", v.Rmdir(ctx, ino, []byte(name)), kindErr(old, true)) {
			delete(d.dir, name)
			d.nlink--
		}
	case 5, 6:
		m.rename(d, ino, name, path)
	case 7:
		m.link(d, ino, name, at)
	case 8:
		if old == nil {
			return
		}
		mode := uint32(m.r.Intn(0o10000))
		m.note("chmod %s %o", at, mode)
		_, err := v.Setattr(ctx, m.lookup(ino, name), nil, SetAttr{Mode: &mode}, Cred{})
		m.check("chmod", err, nil)
		old.mode = mode
	case 9:
		if old == nil {
			return
		}
		value := make([]byte, m.r.Intn(3000))
		m.r.Read(value)
		key := "user." + m.name()
		m.note("setxattr %s %s %d", at, key, len(value))
		m.check("setxattr", v.Setxattr(ctx, m.lookup(ino, name), key, value, 0), nil)
		old.xattrs[key] = string(value)
	default:
		m.file(d, ino, name, at, old)
	}
}

func exists(n *modelNode) error {
	if n != nil {
		return syscall.EEXIST
	}
	return nil
}

func (m *model) lookup(dir Ino, name string) Ino {
	a, err := m.e.v.Lookup(ctx, dir, []byte(name))
	if err != nil {
		m.fatalf("look up %s: %v", name, err)
	}
	return a.Ino
}

func (m *model) rename(d *modelNode, ino Ino, name, path string) {
	d2, ino2, path2 := m.anyDir()
	name2 := m.name()
	src, dst := d.dir[name], d2.dir[name2]
	m.note("rename %s/%s %s/%s", path, name, path2, name2)
	err := m.e.v.Rename(ctx, ino, []byte(name), ino2, []byte(name2), 0)
	var want error
	switch {
	case src == nil:
		want = syscall.ENOENT
	case src == dst:
	case src.dir != nil && inside(src, d2):
		want = syscall.EINVAL
	case dst != nil:
		want = kindErr(dst, src.dir != nil)
	}
	if !m.check("rename", err, want) || src == dst {
		return
	}
	delete(d.dir, name)
	if dst != nil {
		if dst.dir != nil {
			d2.nlink--
		} else {
			dst.nlink--
		}
	}
	d2.dir[name2] = src
	if src.dir != nil {
		d.nlink--
		d2.nlink++
	}
}

func inside(root, n *modelNode) bool {
	if root == n {
		return true
	}
	for _, c := range root.dir {
		if c.dir != nil && inside(c, n) {
			return true
		}
	}
	return false
}

func (m *model) link(d *modelNode, ino Ino, name, at string) {
	d2, ino2, path2 := m.anyDir()
	name2 := m.name()
	src := d2.dir[name2]
	if src == nil || src.dir != nil {
		return
	}
	m.note("link %s/%s %s", path2, name2, at)
	_, err := m.e.v.Link(ctx, m.lookup(ino2, name2), ino, []byte(name))
	if m.check("link", err, exists(d.dir[name])) {
		d.dir[name] = src
		src.nlink++
	}
}

// file writes, truncates, punches or copies.
func (m *model) file(d *modelNode, ino Ino, name, at string, old *modelNode) {
	if old != nil && (old.dir != nil || old.target != "") {
		return
	}
	_, h, err := m.e.v.Create(ctx, ino, []byte(name), syscall.O_RDWR, 0o644, Cred{})
	m.check("create "+at, err, nil)
	defer h.Release()
	if old == nil {
		old = &modelNode{mode: 0o644, nlink: 1, xattrs: map[string]string{}}
		d.dir[name] = old
		if m.halfway != nil {
			m.halfway()
		}
	}
	off := m.r.Intn(300_000)
	n := m.r.Intn(60_000)
	switch m.r.Intn(7) {
	case 0:
		m.note("truncate %s %d", at, off)
		size := uint64(off)
		_, err := m.e.v.Setattr(ctx, h.in.ino, h, SetAttr{Size: &size}, Cred{})
		m.check("truncate", err, nil)
		old.resize(off)
	case 1:
		m.note("punch %s %d %d", at, off, n+1)
		m.check("punch", h.Fallocate(ctx, fallocPunchHole|fallocKeepSize, int64(off), int64(n+1)), nil)
		if end := min(off+n+1, len(old.data)); off < end {
			clear(old.data[off:end])
		}
	case 2:
		if len(old.data) == 0 {
			return
		}
		from := m.r.Intn(len(old.data))
		n = min(m.r.Intn(200_000), len(old.data)-from)
		to := len(old.data) + m.r.Intn(1000)
		m.note("copy %s %d %d %d", at, from, to, n)
		m.copy(h, from, bytes.Clone(old.data[from:from+n]), h, old, to)
	case 3:
		m.copyFrom(h, at, old, off)
	default:
		data := m.bytes(n)
		if m.r.Intn(3) == 0 {
			off = len(old.data)
		}
		m.note("write %s %d %d", at, off, n)
		got, err := h.Write(ctx, data, int64(off))
		if err != nil || got != n {
			m.fatalf("write: %d, %v", got, err)
		}
		old.write(off, data)
	}
}

// copyFrom copies from another file to off of the one that h has open: mostly all of it, or to its beginning.
func (m *model) copyFrom(h *Handle, at string, to *modelNode, off int) {
	dir, ino, path := m.anyDir()
	name := m.name()
	src := dir.dir[name]
	if src == nil || src.dir != nil || src.target != "" || len(src.data) == 0 || src == to {
		return
	}
	hin, err := m.e.v.Open(ctx, m.lookup(ino, name), syscall.O_RDONLY, Cred{})
	m.check("open", err, nil)
	defer hin.Release()
	from := 0
	if m.r.Intn(2) == 0 {
		from = m.r.Intn(len(src.data))
	}
	if m.r.Intn(3) == 0 {
		off = 0
	}
	n := len(src.data) - from
	m.note("copy %s/%s %d to %s %d %d", path, name, from, at, off, n)
	m.copy(hin, from, bytes.Clone(src.data[from:]), h, to, off)
}

// copy copies data, which is what hin has at from, to off of node. A crash can come between any two changes that this takes.
func (m *model) copy(hin *Handle, from int, data []byte, hout *Handle, node *modelNode, off int) {
	for len(data) > 0 {
		n, err := m.e.v.copySome(ctx, hin, int64(from), hout, int64(off), int64(len(data)))
		if err != nil || n <= 0 {
			m.fatalf("copy: %d, %v", n, err)
		}
		node.write(off, data[:n])
		from, off, data = from+int(n), off+int(n), data[n:]
		if len(data) > 0 && m.halfway != nil {
			m.halfway()
		}
	}
}

// bytes returns bytes as files have them: random, text, zeros.
func (m *model) bytes(n int) []byte {
	b := make([]byte, n)
	switch m.r.Intn(4) {
	case 0:
	case 1:
		for i := range b {
			b[i] = "the quick brown fox"[i%19]
		}
	default:
		m.r.Read(b)
	}
	return b
}

func (n *modelNode) resize(size int) {
	if size <= len(n.data) {
		n.data = n.data[:size]
		return
	}
	n.data = append(n.data, make([]byte, size-len(n.data))...)
}

func (n *modelNode) write(off int, data []byte) {
	if len(data) == 0 {
		return
	}
	if off+len(data) > len(n.data) {
		n.resize(off + len(data))
	}
	copy(n.data[off:], data)
}

// clone copies a tree; hard links stay hard links.
func (n *modelNode) clone(seen map[*modelNode]*modelNode) *modelNode {
	if c := seen[n]; c != nil {
		return c
	}
	c := *n
	seen[n] = &c
	c.data, c.xattrs = bytes.Clone(n.data), maps.Clone(n.xattrs)
	if n.dir != nil {
		c.dir = map[string]*modelNode{}
		for name, child := range n.dir {
			c.dir[name] = child.clone(seen)
		}
	}
	return &c
}

// compare walks the volume from ino and the model from n.
func (m *model) compare(ino Ino, n *modelNode, path string) {
	m.t.Helper()
	if err := m.diff(ino, n, path); err != nil {
		m.fatalf("%v", err)
	}
}

// diff returns the first difference between the volume from ino on and the model from n on.
func (m *model) diff(ino Ino, n *modelNode, path string) error {
	v := m.e.v
	a, err := v.Getattr(ctx, ino, nil)
	if err != nil {
		return fmt.Errorf("%s: getattr: %v", path, err)
	}
	if a.Mode&0o7777 != n.mode || int(a.Nlink) != n.nlink {
		return fmt.Errorf("%s: mode %o nlink %d, want %o %d", path, a.Mode&0o7777, a.Nlink, n.mode, n.nlink)
	}
	if err := m.diffXattrs(ino, n, path); err != nil {
		return err
	}
	switch {
	case n.target != "":
		if target, err := v.Readlink(ctx, ino); err != nil || string(target) != n.target {
			return fmt.Errorf("%s: link to %d bytes, %v, want %d", path, len(target), err, len(n.target))
		}
	case n.dir != nil:
		return m.diffDir(ino, n, path)
	case a.Mode&syscall.S_IFMT != syscall.S_IFREG:
		return fmt.Errorf("%s: mode %o, want a file", path, a.Mode)
	default:
		if got := readIno(m.t, v, ino); !bytes.Equal(got, n.data) {
			return fmt.Errorf("%s: %d bytes differ from the model's %d at %d", path, len(got), len(n.data), firstDiff(got, n.data))
		}
	}
	return nil
}

func firstDiff(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func (m *model) diffXattrs(ino Ino, n *modelNode, path string) error {
	names, err := m.e.v.Listxattr(ctx, ino)
	if err != nil || !slices.Equal(names, slices.Sorted(maps.Keys(n.xattrs))) {
		return fmt.Errorf("%s: xattrs %q, %v, want %q", path, names, err, slices.Sorted(maps.Keys(n.xattrs)))
	}
	for _, name := range names {
		if value, err := m.e.v.Getxattr(ctx, ino, name); err != nil || string(value) != n.xattrs[name] {
			return fmt.Errorf("%s: xattr %s: %d bytes, %v, want %d", path, name, len(value), err, len(n.xattrs[name]))
		}
	}
	return nil
}

func (m *model) diffDir(ino Ino, n *modelNode, path string) error {
	found := map[string]Ino{}
	var cookie uint64
	for more := true; more; { // a few entries at a time, as the kernel may ask
		more = false
		var twice error
		err := m.e.v.Readdir(ctx, ino, cookie, m.r.Intn(2) == 0, func(d DirEntry) bool {
			if _, ok := found[string(d.Name)]; ok {
				twice = fmt.Errorf("%s: %q is listed twice", path, d.Name)
			}
			found[string(d.Name)] = d.Ino
			cookie, more = d.Cookie, true
			return m.r.Intn(3) > 0
		})
		if err := errors.Join(err, twice); err != nil {
			return fmt.Errorf("%s: readdir: %v", path, err)
		}
	}
	if len(found) != len(n.dir)+2 {
		return fmt.Errorf("%s: %d entries, want %d: %q", path, len(found)-2, len(n.dir), slices.Sorted(maps.Keys(found)))
	}
	for name, child := range n.dir {
		if _, ok := found[name]; !ok {
			return fmt.Errorf("%s/%s is missing", path, name)
		}
		if err := m.diff(m.lookup(ino, name), child, path+"/"+name); err != nil {
			return err
		}
	}
	return nil
}

// TestModel does random operations on a volume and on a reference in memory, with commits, publications, remounts,
// other machines and snapshots in between: guarantee G5.
func TestModel(t *testing.T) {
	runs, steps := 200, 100
	if os.Getenv("DEDUPFS_LONG") != "" {
		runs, steps = 1000, 500
	}
	r := newRand(t)
	for run := range runs {
		seed := r.Int63()
		t.Run(fmt.Sprintf("%d", run), func(t *testing.T) {
			m := &model{t: t, e: newEnv(t), r: rand.New(rand.NewSource(seed)), root: newDirNode()}
			snaps := map[string]*modelNode{}
			for i := range steps {
				m.between(i, snaps)
				m.step()
			}
			m.compare(Root, m.root, "")
			m.e.wipe()
			m.compare(Root, m.root, "")
			m.compareSnapshots(snaps)
		})
	}
}

// between does now and then what must change nothing that can be seen.
func (m *model) between(i int, snaps map[string]*modelNode) {
	switch m.r.Intn(30) {
	case 0:
		m.note("reopen")
		m.e.reopen()
	case 1, 2:
		m.note("commit")
		m.e.commit()
	case 3:
		m.note("sync")
		m.e.sync()
	case 4:
		m.note("compare")
		m.compare(Root, m.root, "")
	case 5:
		m.note("wipe")
		m.e.wipe()
	case 6:
		s, err := m.e.v.CreateSnapshot(ctx, Snapshot{Name: fmt.Sprintf("s%d", i)})
		m.note("snapshot %s", s.Name)
		m.check("snapshot", err, nil)
		snaps[s.Name] = m.root.clone(map[*modelNode]*modelNode{})
	}
}

func (m *model) compareSnapshots(snaps map[string]*modelNode) {
	for name, root := range snaps {
		m.compare(m.e.walk(".snapshots", name), root, ".snapshots/"+name)
	}
}
