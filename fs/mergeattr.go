package fs

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"syscall"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// pick merges one field: what one side has changed, or else what the first has.
func pick[T comparable](base, a, b T) T {
	if a == base {
		return b
	}
	return a
}

// pickTime is pick, but takes the later time where both have changed it.
func pickTime(base, a, b Timespec) Timespec {
	if a != base && b != base && a.Less(b) {
		return b
	}
	return pick(base, a, b)
}

// mergeAttrs merges what is in the inodes, now that it is known which of them stay.
func (m *merger) mergeAttrs(context.Context) error {
	for _, n := range m.sorted() {
		if n.alive() && !n.made {
			n.mergeRecords()
		}
	}
	for _, n := range m.sorted() {
		for _, twin := range n.twins {
			t := twin.newest().attrs
			n.attrs.Mtime = later(n.attrs.Mtime, t.Mtime)
			n.attrs.Ctime = later(n.attrs.Ctime, t.Ctime)
		}
	}
	return nil
}

func later(a, b Timespec) Timespec {
	if a.Less(b) {
		return b
	}
	return a
}

func (n *merged) mergeRecords() {
	base, a, b := &n.was[mergeBase], &n.was[mergeFirst], &n.was[mergeSecond]
	switch {
	case !a.exists():
		n.attrs, n.content, n.extra = *b.attrs, b.content, b.extra
		return
	case !b.exists():
		n.attrs, n.content, n.extra = *a.attrs, a.content, a.extra
		return
	case !base.exists():
		base = b // then the first side has changed all that differs
	}
	n.attrs = mergeAttrs(base.attrs, a.attrs, b.attrs)
	n.extra = mergeExtra(base.extra, a.extra, b.extra)
	n.content = a.content
	if !n.isFile() {
		return
	}
	from := a
	switch changedA, changedB := !sameContent(base, a), !sameContent(base, b); {
	case sameContent(a, b):
		return
	case changedB && !changedA:
		from = b
	}
	n.content = from.content
	n.attrs.Size, n.attrs.Mtime, n.attrs.Changed = from.attrs.Size, from.attrs.Mtime, from.attrs.Changed
}

func mergeAttrs(base, a, b *attrs) attrs {
	return attrs{
		Mode: pick(base.Mode, a.Mode, b.Mode), Nlink: a.Nlink,
		Uid: pick(base.Uid, a.Uid, b.Uid), Gid: pick(base.Gid, a.Gid, b.Gid),
		Rdev: a.Rdev, Size: pick(base.Size, a.Size, b.Size),
		Atime: pickTime(base.Atime, a.Atime, b.Atime), Mtime: pickTime(base.Mtime, a.Mtime, b.Mtime),
		Ctime: pickTime(base.Ctime, a.Ctime, b.Ctime), Btime: pick(base.Btime, a.Btime, b.Btime),
		Changed: pick(base.Changed, a.Changed, b.Changed), Target: a.Target,
	}
}

func mergeExtra(base, a, b map[string]*store.Entry) map[string]*store.Entry {
	out := map[string]*store.Entry{}
	for k := range joinKeys(a, b) {
		e := a[k]
		if sameRecord(e, base[k]) {
			e = b[k]
		}
		if e != nil {
			out[k] = e
		}
	}
	return out
}

func joinKeys[V any](a, b map[string]V) map[string]bool {
	keys := map[string]bool{}
	for k := range a {
		keys[k] = true
	}
	for k := range b {
		keys[k] = true
	}
	return keys
}

// countLinks sets the link counts. A directory's is what it was in the state that is edited, plus the sub-directories
// that have come and less those that have gone.
func (m *merger) countLinks(ctx context.Context) error {
	for _, n := range m.sorted() {
		if !n.isDir() {
			continue
		}
		before := n.was[m.onto].links
		if len(before) == 1 && len(n.links) == 1 && before[0].parent == n.links[0].parent {
			continue
		}
		for _, l := range before {
			if err := m.countSubdir(ctx, l.parent, -1); err != nil {
				return err
			}
		}
		for _, l := range n.links {
			if err := m.countSubdir(ctx, l.parent, 1); err != nil {
				return err
			}
		}
	}
	for _, n := range m.nodes {
		n.countNames(m.onto)
	}
	return nil
}

func (m *merger) countSubdir(ctx context.Context, dir Ino, by int) error {
	known := m.nodes[dir] != nil
	n, err := m.node(ctx, dir)
	if err != nil {
		return err
	}
	if !known && n.alive() {
		n.mergeRecords()
	}
	n.subdirs += by
	return nil
}

func (n *merged) countNames(onto int) {
	if !n.isDir() {
		n.attrs.Nlink = uint32(len(n.links))
		return
	}
	was := uint32(2)
	if w := &n.was[onto]; w.exists() {
		was = w.attrs.Nlink
	}
	n.attrs.Nlink = uint32(int64(was) + int64(n.subdirs))
}

// edits returns what has to be changed in the state onto, in the order of keys.
func (m *merger) edits(ctx context.Context) ([]tree.Edit, error) {
	out := maps.Clone(m.marks)
	for _, n := range m.sorted() {
		m.editRecords(out, n)
		if n.lost && n.alive() {
			k := conflictKey(n.ino)
			out[k] = &store.Entry{Key: []byte(k)}
		}
		for _, l := range n.was[m.onto].links {
			m.groupFor(l).gone[l.name] = true
		}
		for _, l := range n.links {
			m.groupFor(l.nameIn).here[l.name] = n
		}
	}
	for g, names := range m.groups {
		if err := m.editNames(ctx, out, g, names); err != nil {
			return nil, err
		}
	}
	return out.sorted(), nil
}

// edits collects changes by key.
type edits map[string]*store.Entry

func (es edits) sorted() []tree.Edit {
	out := make([]tree.Edit, 0, len(es))
	for _, k := range slices.Sorted(maps.Keys(es)) {
		out = append(out, tree.Edit{Key: []byte(k), Entry: es[k]})
	}
	return out
}

// editRecords notes the changes of the records of an inode but its directory entries.
func (m *merger) editRecords(out edits, n *merged) {
	was := &n.was[m.onto]
	want := map[string]*store.Entry{}
	if n.alive() {
		n.appendRecords(want, was)
	} else {
		want = n.unnamed()
	}
	have := maps.Clone(was.records)
	if have == nil {
		have = map[string]*store.Entry{}
	}
	for _, l := range was.links {
		k := linkKey(n.ino, l.parent, []byte(l.name))
		have[k] = &store.Entry{Key: []byte(k)}
	}
	for k := range joinKeys(want, have) {
		if !sameRecord(want[k], have[k]) {
			out[k] = want[k]
		}
	}
}

// unnamed returns the records of an inode without a name that somebody has open. They are one whole: who has it open
// changes it, nobody else.
func (n *merged) unnamed() map[string]*store.Entry {
	var kept [3]map[string]*store.Entry
	for i := range n.was {
		if !n.was[i].exists() {
			kept[i] = n.was[i].records
		}
	}
	if maps.EqualFunc(kept[mergeBase], kept[mergeFirst], sameRecord) {
		return kept[mergeSecond]
	}
	return kept[mergeFirst]
}

// appendRecords puts the records of n into want.
func (n *merged) appendRecords(want map[string]*store.Entry, was *version) {
	put := func(k string, value []byte, refs []store.Ref) {
		want[k] = &store.Entry{Key: []byte(k), Value: value, Refs: refs}
	}
	value := appendAttrs(nil, &n.attrs)
	if n.ino != Root || was.records[inodeKey(Root)] != nil || !bytes.Equal(value, appendAttrs(nil, was.attrs)) {
		put(inodeKey(n.ino), value, nil)
	}
	if n.content != nil {
		put(contentKey(n.ino), n.content.Value, n.content.Refs)
	}
	for suffix, e := range n.extra {
		put(string(key(n.ino, suffix[0], 0))+suffix[1:], e.Value, e.Refs)
	}
	for _, l := range n.links {
		put(linkKey(n.ino, l.parent, []byte(l.name)), nil, nil)
	}
}

// groupOf names the entries of a directory whose names have one hash.
type groupOf struct {
	dir  Ino
	base uint64 // the first cookie
}

// nameGroup is what becomes of such entries: names that were, and those that are there now.
type nameGroup struct {
	gone map[string]bool
	here map[string]*merged
}

func (m *merger) groupFor(at nameIn) *nameGroup {
	g := groupOf{at.parent, m.cookie(at.parent, []byte(at.name))}
	if m.groups[g] == nil {
		m.groups[g] = &nameGroup{map[string]bool{}, map[string]*merged{}}
	}
	return m.groups[g]
}

// editNames notes the changes of the entries of one group.
func (m *merger) editNames(ctx context.Context, out edits, g groupOf, names *nameGroup) error {
	have, err := m.group(ctx, m.onto, g.dir, g.base)
	if err != nil {
		return err
	}
	want := map[string]slot{}
	for name, s := range have {
		if !names.gone[name] {
			want[name] = s
		}
	}
	for name, n := range names.here {
		want[name] = slot{0, n.ino}
	}
	if err := m.placeNames(ctx, g, want); err != nil {
		return err
	}
	for name, s := range have {
		if want[name] != s {
			out[entryKey(g.dir, s.cookie, []byte(name))] = nil
		}
	}
	for name, s := range want {
		if have[name] == s {
			continue
		}
		k := entryKey(g.dir, s.cookie, []byte(name))
		n := names.here[name]
		if n == nil { // only its cookie has changed
			if n, err = m.node(ctx, s.ino); err != nil {
				return err
			}
		}
		out[k] = &store.Entry{Key: []byte(k), Value: entryValue(s.ino, n.mode())}
	}
	return nil
}

func (n *merged) mode() uint32 {
	if n.made {
		return n.attrs.Mode
	}
	return n.newest().attrs.Mode
}

// placeNames gives the names of a group their cookies: those that they have, or numbers in the order of the names if
// two have one.
func (m *merger) placeNames(ctx context.Context, g groupOf, want map[string]slot) error {
	var have [3]map[string]slot
	for i := range have {
		var err error
		if have[i], err = m.group(ctx, i, g.dir, g.base); err != nil {
			return err
		}
	}
	taken := map[uint64]bool{}
	for name, s := range want {
		a, b := have[mergeFirst][name].cookie, have[mergeSecond][name].cookie
		if a != 0 && b != 0 {
			a = pick(have[mergeBase][name].cookie, a, b)
		}
		s.cookie = cmp.Or(a, b, g.base)
		want[name], taken[s.cookie] = s, true
	}
	if len(taken) == len(want) {
		return nil
	}
	if len(want) > 128 {
		return fmt.Errorf("%d names of one hash in directory %d: %w", len(want), g.dir, syscall.ENOSPC)
	}
	for i, name := range slices.Sorted(maps.Keys(want)) {
		want[name] = slot{g.base + uint64(i), want[name].ino}
	}
	return nil
}
