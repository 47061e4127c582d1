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

	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// merger makes one state of the volume out of two that have a base in common. It is a pure function of the three: no
// clock, no randomness, one goroutine, no I/O but the loading of nodes. What it decides it decides inode by inode:
//
//   - What one side has changed is taken, equal changes are one.
//   - Where both have changed the same in different ways, the first side wins. If that was a file's content, the other
//     content gets a name beside it (conflictName), as an inode of its own whose number follows from what it is made of.
//   - Edit beats delete: an inode that one side has changed, and each directory above one that is there, stays.
//   - Two directories of one name become one; of two other inodes of one name the second side's gets another name, unless
//     they are equal.
//   - Of moves that together make a cycle the second side's are undone.
//
// The result is a list of edits of one of the two sides, onto. Which one it is makes no difference to the result, only to
// the cost: the cost is that of what the other side has changed, times the depth.
type merger struct {
	states [3]records // base, first, second
	onto   int        // the side that is edited: first or second
	cookie func(parent Ino, name []byte) uint64
	host   func(store.ClientID) (string, error) // name of a client for people

	marks  edits // of conflicts, which the other side has made or unmade
	nodes  map[Ino]*merged
	names  map[Ino]map[string][]*merged // who has which name in a directory, as far as nodes are here
	groups map[groupOf]*nameGroup       // those in which the other side has changed an entry; in the end all that are looked at
}

// The states of a merger.
const (
	mergeBase = iota
	mergeFirst
	mergeSecond
)

// version is an inode as one state has it.
type version struct {
	attrs   *attrs // nil: the state has no such inode
	links   []nameIn
	content *store.Entry            // nil: no content
	extra   map[string]*store.Entry // extended attributes and parts of a long target, by what follows the number in their keys
	records map[string]*store.Entry // all of it but links
	root    bool
}

// exists reports whether the inode has a place in the tree of directories. One that has records and no name is only kept for
// who has it open: it counts as removed.
func (n *version) exists() bool { return n.attrs != nil && (len(n.links) > 0 || n.root) }

func (n *version) isDir() bool { return n.exists() && n.attrs.Mode&syscall.S_IFMT == syscall.S_IFDIR }

// merged is an inode on its way to its merged state.
type merged struct {
	ino Ino
	was [3]version

	links   []link // none: the inode goes, unless it is the root
	made    bool   // by this merge
	lost    bool   // a name or a content against another one, in this merge
	attrs   attrs
	content *store.Entry
	extra   map[string]*store.Entry
	subdirs int       // how many more directories are in it than in the state onto
	twins   []*merged // that had the same name and were the same, and have lost it
}

// link is a name of an inode in the merged state.
type link struct {
	nameIn
	was nameIn // in the state that it comes from
}

func (n *merged) alive() bool { return len(n.links) > 0 || n.ino == Root }

func (n *merged) isDir() bool {
	return slices.ContainsFunc(n.was[:], func(w version) bool { return w.isDir() })
}

// mergeClass marks numbers of inodes that a merge has made.
const mergeClass = Ino(1) << 61

// mergeTrees returns the root of the tree that has the changes of first and of second against base. The three have one
// store, which gets the nodes of the result.
func mergeTrees(ctx context.Context, base, first, second *tree.Tree, cookie func(Ino, []byte) uint64, host func(store.ClientID) (string, error)) (store.Ref, error) {
	sides := [3]*tree.Tree{base, first, second}
	onto, from := mergeFirst, mergeSecond
	less, err := tree.Fewer(ctx, base, first, second)
	if err != nil {
		return store.Ref{}, err
	}
	if less {
		onto, from = from, onto
	}
	root, err := mergeOnto(ctx, sides, onto, from, cookie, host)
	if store.IsLost(err) { // of the side that is edited; the other may have gone on without
		return mergeOnto(ctx, sides, from, onto, cookie, host)
	}
	return root, err
}

func mergeOnto(ctx context.Context, sides [3]*tree.Tree, onto, from int, cookie func(Ino, []byte) uint64, host func(store.ClientID) (string, error)) (store.Ref, error) {
	m := &merger{onto: onto, cookie: cookie, host: host, marks: edits{},
		nodes: map[Ino]*merged{}, names: map[Ino]map[string][]*merged{}, groups: map[groupOf]*nameGroup{}}
	for i, t := range sides {
		m.states[i] = &layered{base: t}
	}
	touched := map[Ino]bool{}
	err := tree.Diff(ctx, sides[mergeBase], sides[from], func(k []byte, before, after *store.Entry) error {
		if isConflictKey(string(k)) {
			m.marks[string(k)] = after
			return nil
		}
		m.touchGroup(string(k))
		return touch(touched, string(k), before, after)
	})
	if err != nil {
		return store.Ref{}, err
	}
	edits, err := m.run(ctx, touched)
	if err != nil {
		return store.Ref{}, err
	}
	return sides[onto].Apply(ctx, slices.Values(edits))
}

// touch notes which inodes a changed record is about: its own, or for a directory entry those that it names.
func touch(touched map[Ino]bool, k string, before, after *store.Entry) error {
	ino, kind, rest, ok := splitKey(k)
	switch {
	case ok && kind == keyOrphan && len(rest) == 8:
		touched[Ino(binary.BigEndian.Uint64([]byte(rest)))] = true
		return nil
	case ok && kind != keyEntry:
		touched[ino] = true
		return nil
	}
	for _, e := range []*store.Entry{before, after} {
		if !ok || e == nil {
			continue
		}
		ino, _, err := parseEntryValue(e.Value)
		if err != nil {
			return fmt.Errorf("entry %x: %w", k, err)
		}
		touched[ino] = true
	}
	return nil
}

// touchGroup notes that the other side has changed a directory entry. The inode of the entry may end up elsewhere, and the cookie that
// another one has under this name still depends on the change.
func (m *merger) touchGroup(k string) {
	dir, kind, rest, ok := splitKey(k)
	if !ok || kind != keyEntry {
		return
	}
	if _, name, ok := splitEntry(rest); ok {
		m.groupFor(nameIn{dir, name})
	}
}

// run merges what the side that is not edited has changed: the inodes touched.
func (m *merger) run(ctx context.Context, touched map[Ino]bool) ([]tree.Edit, error) {
	for ino := range touched {
		if _, err := m.node(ctx, ino); err != nil {
			return nil, err
		}
	}
	steps := []func(context.Context) error{m.settle, m.enterNames, m.makeCopies, m.resolveNames, m.mergeAttrs, m.countLinks}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return m.edits(ctx)
}

// node returns what becomes of ino.
func (m *merger) node(ctx context.Context, ino Ino) (*merged, error) {
	if n := m.nodes[ino]; n != nil {
		return n, nil
	}
	n := &merged{ino: ino}
	for i, r := range m.states {
		var err error
		if n.was[i], err = loadVersion(ctx, r, ino); err != nil {
			return nil, err
		}
	}
	n.setLinks(n.decideLinks())
	m.nodes[ino] = n
	return n, nil
}

// sorted returns the nodes that are here in the order of their numbers, so that all who merge do the same.
func (m *merger) sorted() []*merged {
	nodes := make([]*merged, 0, len(m.nodes))
	for _, ino := range slices.Sorted(maps.Keys(m.nodes)) {
		nodes = append(nodes, m.nodes[ino])
	}
	return nodes
}

func loadVersion(ctx context.Context, r records, ino Ino) (version, error) {
	w := version{extra: map[string]*store.Entry{}, records: map[string]*store.Entry{}, root: ino == Root}
	e, err := r.get(ctx, inodeKey(ino))
	if err != nil || e == nil && ino != Root {
		return w, err
	}
	if e != nil {
		w.records[inodeKey(ino)] = e
	}
	if w.attrs, err = loadAttrs(ctx, r, ino); err != nil {
		return w, err
	}
	var bad error
	err = r.scan(ctx, string(key(ino, keyXattr, 0)), prefixEnd(ino, keyTarget), func(k string, e *store.Entry) bool {
		bad = w.add(k, e)
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	if err != nil || w.exists() {
		return w, err
	}
	if e, err = r.get(ctx, orphanKey(ino)); e != nil {
		w.records[orphanKey(ino)] = e
	}
	return w, err
}

// add takes in a record behind the inode record.
func (n *version) add(k string, e *store.Entry) error {
	_, kind, rest, _ := splitKey(k)
	switch kind {
	case keyLink:
		if len(rest) <= 8 {
			return fmt.Errorf("name of an inode: %w", errRecord)
		}
		n.links = append(n.links, nameIn{Ino(binary.BigEndian.Uint64([]byte(rest))), rest[8:]})
		return nil
	case keyContent:
		n.content = e
	default:
		n.extra[k[8:]] = e
	}
	n.records[k] = e
	return nil
}

// decideLinks returns the names that an inode has when only what has become of itself is looked at.
func (n *merged) decideLinks() []nameIn {
	base, a, b := &n.was[mergeBase], &n.was[mergeFirst], &n.was[mergeSecond]
	switch {
	case !a.exists():
		return keptLinks(base, b)
	case !b.exists():
		return keptLinks(base, a)
	case n.isDir(), len(base.links) == 1 && len(a.links) == 1 && len(b.links) == 1:
		// One name, which may have moved. A file that both have moved must not end up with two.
		if slices.Equal(a.links, base.links) {
			return b.links
		}
		return a.links
	}
	links := slices.DeleteFunc(slices.Concat(a.links, b.links), func(l nameIn) bool {
		return slices.Contains(base.links, l) && !(slices.Contains(a.links, l) && slices.Contains(b.links, l))
	})
	slices.SortFunc(links, compareNames)
	links = slices.Compact(links)
	switch {
	case len(links) > 0:
	case edited(base, a):
		return a.links
	case edited(base, b):
		return b.links
	}
	return links
}

// keptLinks returns the names of an inode that the other side does not have: it has removed it, or never had it.
func keptLinks(base, n *version) []nameIn {
	if !n.exists() {
		return nil
	}
	if !base.exists() || edited(base, n) {
		return n.links
	}
	return slices.DeleteFunc(slices.Clone(n.links), func(l nameIn) bool { return slices.Contains(base.links, l) })
}

func compareNames(a, b nameIn) int {
	if a.parent != b.parent {
		if a.parent < b.parent {
			return -1
		}
		return 1
	}
	return strings.Compare(a.name, b.name)
}

// edited reports whether somebody has changed an inode itself, not only its names or what is in it.
func edited(base, n *version) bool {
	x, y := *base.attrs, *n.attrs
	x.Nlink, x.Atime, x.Ctime = y.Nlink, y.Atime, y.Ctime
	if n.isDir() {
		x.Mtime, x.Changed, x.Size = y.Mtime, y.Changed, y.Size
	}
	return string(appendAttrs(nil, &x)) != string(appendAttrs(nil, &y)) ||
		!sameContent(base, n) || !maps.EqualFunc(base.extra, n.extra, sameRecord)
}

// sameContent reports whether two versions of files have the same bytes.
func sameContent(x, y *version) bool {
	return x.attrs.Size == y.attrs.Size && contentID(x) == contentID(y)
}

func contentID(n *version) store.ID {
	if n.content == nil || len(n.content.Refs) == 0 {
		return store.ID{}
	}
	return n.content.Refs[0].ID
}

// sameRecord reports whether two records of one key are equal: hints do not count.
func sameRecord(x, y *store.Entry) bool {
	if x == nil || y == nil {
		return x == y
	}
	return string(x.Value) == string(y.Value) &&
		slices.EqualFunc(x.Refs, y.Refs, func(a, b store.Ref) bool { return a.ID == b.ID && a.Kind == b.Kind })
}

func (n *merged) setLinks(links []nameIn) {
	n.links = nil
	for _, l := range links {
		n.links = append(n.links, link{l, l})
	}
}

// settle makes sure that everything that is there is in a directory that is there, and that all of them are below the
// root. Both only ever bring directories back, or back to where the first side has them, so it comes to an end.
func (m *merger) settle(ctx context.Context) error {
	for {
		restored, err := m.restoreParents(ctx)
		if err != nil {
			return err
		}
		undone, err := m.undoCycle(ctx)
		if err != nil || !restored && !undone {
			return err
		}
	}
}

// restoreParents brings back directories that one side has removed and that are not empty.
func (m *merger) restoreParents(ctx context.Context) (any bool, err error) {
	for queue := m.sorted(); len(queue) > 0; queue = queue[1:] {
		n := queue[0]
		if !n.alive() && n.was[m.onto].isDir() { // what is in it may not be here yet
			children, err := m.childrenIn(ctx, m.onto, n.ino)
			if err != nil {
				return false, err
			}
			for _, ino := range children {
				if m.nodes[ino] != nil {
					continue
				}
				c, err := m.node(ctx, ino)
				if err != nil {
					return false, err
				}
				queue = append(queue, c)
			}
		}
		for _, l := range n.links {
			known := m.nodes[l.parent] != nil
			p, err := m.node(ctx, l.parent)
			if err != nil {
				return false, err
			}
			if !known {
				queue = append(queue, p)
			}
			if p.alive() {
				continue
			}
			if err := p.restore(); err != nil {
				return false, err
			}
			any = true
			queue = append(queue, p)
		}
	}
	return any, nil
}

// restore gives a directory the name back that it has where it was not removed.
func (n *merged) restore() error {
	for _, i := range []int{mergeFirst, mergeSecond} {
		if n.was[i].isDir() {
			n.setLinks(n.was[i].links)
			return nil
		}
	}
	return fmt.Errorf("inode %d is the parent of another and no directory: %w", n.ino, errRecord)
}

// childrenIn returns the inodes that have a name in a directory.
func (m *merger) childrenIn(ctx context.Context, state int, dir Ino) ([]Ino, error) {
	var inos []Ino
	var bad error
	err := m.states[state].scan(ctx, string(key(dir, keyEntry, 0)), prefixEnd(dir, keyEntry), func(_ string, e *store.Entry) bool {
		ino, _, err := parseEntryValue(e.Value)
		bad = err
		inos = append(inos, ino)
		return err == nil
	})
	if err == nil {
		err = bad
	}
	return inos, err
}

// undoCycle looks for directories that contain each other, and undoes the second side's moves of them. There is one:
// the edges of one state alone make no cycle, and one that leads from a directory which the first side has not cannot
// follow on one of the first side's.
func (m *merger) undoCycle(ctx context.Context) (any bool, err error) {
	clear := map[Ino]bool{Root: true} // known to be below the root
	for _, n := range m.sorted() {
		if !n.isDir() || !n.alive() {
			continue
		}
		cycle, err := m.climb(ctx, n, clear)
		if err != nil {
			return false, err
		}
		if cycle == nil {
			continue
		}
		for _, d := range cycle {
			first := d.was[mergeFirst]
			if first.isDir() && !slices.Equal(d.links, linksAs(first.links)) {
				d.setLinks(first.links)
				any = true
			}
		}
		if !any {
			return false, fmt.Errorf("directory %d contains itself: %w", n.ino, errRecord)
		}
		return true, nil
	}
	return false, nil
}

func linksAs(names []nameIn) []link {
	n := merged{}
	n.setLinks(names)
	return n.links
}

// climb goes up from n to what is known to be below the root. If it meets a cycle on its way, it returns it.
func (m *merger) climb(ctx context.Context, n *merged, clear map[Ino]bool) ([]*merged, error) {
	var way []*merged
	for !clear[n.ino] {
		if i := slices.Index(way, n); i >= 0 {
			return way[i:], nil
		}
		way = append(way, n)
		if len(n.links) != 1 {
			return nil, fmt.Errorf("directory %d has %d names: %w", n.ino, len(n.links), errRecord)
		}
		var err error
		if n, err = m.node(ctx, n.links[0].parent); err != nil {
			return nil, err
		}
	}
	for _, d := range way {
		clear[d.ino] = true
	}
	return nil, nil
}

// makeCopies puts contents aside that have lost against another one.
func (m *merger) makeCopies(ctx context.Context) error {
	for _, n := range m.sorted() {
		if !n.contentConflict() {
			continue
		}
		if err := m.makeCopy(ctx, n); err != nil {
			return fmt.Errorf("keep the other content of inode %d: %w", n.ino, err)
		}
	}
	return nil
}

func (n *merged) isFile() bool {
	a := &n.was[mergeFirst]
	return a.exists() && a.attrs.Mode&syscall.S_IFMT == syscall.S_IFREG
}

// contentConflict reports whether both sides have changed the content, each in its own way.
func (n *merged) contentConflict() bool {
	base, a, b := &n.was[mergeBase], &n.was[mergeFirst], &n.was[mergeSecond]
	return n.alive() && !n.made && a.exists() && b.exists() && n.isFile() && !sameContent(a, b) &&
		(!base.exists() || !sameContent(base, a) && !sameContent(base, b))
}

// makeCopy puts the content of the second side beside that of the first. One that is there already, from the same merge
// made elsewhere, or was and has been removed, is not made again.
func (m *merger) makeCopy(ctx context.Context, n *merged) error {
	loser := &n.was[mergeSecond]
	c, err := m.node(ctx, copyIno(n.ino, loser))
	if err != nil {
		return err
	}
	if c.made || slices.ContainsFunc(c.was[:], func(w version) bool { return w.exists() }) {
		return nil
	}
	at := n.links[0].nameIn
	for _, l := range n.links {
		if slices.Contains(loser.links, l.was) {
			at = l.nameIn
			break
		}
	}
	if at.name, err = m.freeName(ctx, at, loser.attrs); err != nil {
		return err
	}
	c.made, c.lost = true, true
	c.attrs, c.extra = *loser.attrs, loser.extra
	if loser.content != nil {
		c.content = &store.Entry{Key: []byte(contentKey(c.ino)), Value: loser.content.Value, Refs: loser.content.Refs}
	}
	c.setLinks([]nameIn{at})
	m.enter(c, at)
	return nil
}

// copyIno returns the number of the inode that keeps a content which has lost.
func copyIno(ino Ino, loser *version) Ino {
	a := *loser.attrs
	a.Nlink, a.Atime, a.Ctime = 0, Timespec{}, Timespec{}
	h := sha256.New()
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(ino)))
	h.Write(appendAttrs(nil, &a))
	id := contentID(loser)
	h.Write(id[:])
	return mergeClass | Ino(binary.BigEndian.Uint64(h.Sum(nil)))&(mergeClass-1)
}
