package fs

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// lostXattr says of a file what of it was lost when it was replaced by what was left.
const lostXattr = "user.dedupfs.lost"

const (
	damagedMark  = " (damaged"
	maxLostXattr = 1000 // bytes; what does not fit is left out
)

// mender makes a state of the volume that refers to nothing lost. It changes no state but writes another one: its edits lie in
// over, through which it reads.
type mender struct {
	v    *Volume
	st   tree.Store
	lost map[store.ID]bool // as far as is known; chunks are looked for once more
	root store.Ref
	over *overlay
	r    *layered

	gaps    gapList
	damaged map[Ino]*damage
	changed map[Ino]bool // have other names or entries than before
	list    []Replaced
}

// damage is what is lost of an inode.
type damage struct {
	spans []span
	what  []string // beside bytes of the content
	whole bool     // its bytes are all there: it keeps its name
}

func newMender(v *Volume, st tree.Store, lost map[store.ID]bool, root store.Ref) *mender {
	m := &mender{v: v, st: st, lost: lost, root: root, over: newOverlay(), damaged: map[Ino]*damage{}, changed: map[Ino]bool{}}
	m.r = &layered{over: []*overlay{m.over}, base: m.tree(root)}
	return m
}

func (m *mender) tree(root store.Ref) *tree.Tree { return tree.New(m.st, root, m.v.treeOptions()) }

func (m *mender) put(k string, value []byte) {
	m.over.set(k, &store.Entry{Key: []byte(k), Value: value})
}

func (m *mender) del(k string) { m.over.set(k, nil) }

func (m *mender) damageOf(ino Ino) *damage {
	d := m.damaged[ino]
	if d == nil {
		d = &damage{whole: true}
		m.damaged[ino] = d
	}
	return d
}

// run returns the root of the new state, which is the old one if nothing is lost.
func (m *mender) run(ctx context.Context) (store.Ref, error) {
	if err := m.closeGaps(ctx); err != nil {
		return store.Ref{}, err
	}
	files, err := m.find(ctx)
	if err != nil {
		return store.Ref{}, err
	}
	for _, ino := range files {
		if err := m.mend(ctx, ino); err != nil {
			return store.Ref{}, fmt.Errorf("inode %d: %w", ino, err)
		}
	}
	for _, ino := range slices.Sorted(maps.Keys(m.damaged)) {
		if err := m.mark(ctx, ino); err != nil {
			return store.Ref{}, fmt.Errorf("inode %d: %w", ino, err)
		}
	}
	if err := m.count(ctx); err != nil {
		return store.Ref{}, err
	}
	if m.over.len() == 0 {
		return m.root, nil
	}
	return m.tree(m.root).Apply(ctx, m.over.edits())
}

// find returns the inodes that refer to something lost.
func (m *mender) find(ctx context.Context) ([]Ino, error) {
	found := map[Ino]bool{}
	a := &affected{lost: func(id store.ID) bool { return m.lost[id] }, clean: map[store.ID]bool{}}
	a.load = func(ctx context.Context, ref store.Ref) (*store.Node, error) {
		n, err := m.st.Load(ctx, ref)
		if store.IsLost(err) && m.lost[ref.ID] {
			return nil, nil
		}
		return n, err
	}
	err := a.walk(ctx, m.root, 0, func(l loss) { found[l.ino] = true })
	delete(found, 0)
	return slices.Sorted(maps.Keys(found)), err
}

// isLost reports whether a chunk that was found lost still is.
func (m *mender) isLost(ctx context.Context, ref store.Ref) (bool, error) {
	if !m.lost[ref.ID] {
		return false, nil
	}
	_, err := m.v.ca.Chunk(ctx, ref)
	if store.IsLost(err) {
		return true, nil
	}
	return false, err
}

// mend takes out of an inode's records what is lost.
func (m *mender) mend(ctx context.Context, ino Ino) error {
	w, err := loadVersion(ctx, m.r, ino)
	if err != nil || w.attrs == nil {
		return err
	}
	if w.content != nil {
		if err := m.mendContent(ctx, ino, w.content); err != nil {
			return err
		}
	}
	for _, rest := range slices.Sorted(maps.Keys(w.extra)) {
		e := w.extra[rest]
		gone := false
		for _, ref := range e.Refs {
			lost, err := m.isLost(ctx, ref)
			if err != nil {
				return err
			}
			gone = gone || lost
		}
		if gone {
			m.dropXattr(ino, &w, string(e.Key), rest[1:])
		}
	}
	return nil
}

func (m *mender) dropXattr(ino Ino, w *version, k, name string) {
	m.del(k)
	d := m.damageOf(ino)
	d.what = append(d.what, fmt.Sprintf("attribute %q", name))
	if name == aclAccess { // whom it shut out is not known any more
		w.attrs.Mode &^= 0o070
		m.put(inodeKey(ino), appendAttrs(nil, w.attrs))
	}
}

// mendContent makes holes where bytes of a content are lost.
func (m *mender) mendContent(ctx context.Context, ino Ino, e *store.Entry) error {
	was, err := parseExtentMap(e)
	if err != nil {
		return err
	}
	now, spans, err := m.without(ctx, was)
	if err != nil || len(spans) == 0 {
		return err
	}
	m.over.set(contentKey(ino), now.entry(ino))
	d := m.damageOf(ino)
	d.spans, d.whole = append(d.spans, spans...), false
	return nil
}

// without returns a content with holes where something is lost, and where that is.
func (m *mender) without(ctx context.Context, was extentMap) (extentMap, []span, error) {
	now := was
	switch {
	case was.Ref.IsZero():
		return was, nil, nil
	case was.Ref.Kind != store.RefNode:
		lost, err := m.isLost(ctx, was.Ref)
		if !lost || err != nil {
			return was, nil, err
		}
		now.Ref, now.Allocated = store.Ref{}, 0
		return now, []span{{0, int64(was.Allocated)}}, nil
	}
	root, spans, edits, err := m.leftOf(ctx, chunkAt{n: was.Length, ref: was.Ref})
	if err != nil || len(spans) == 0 {
		return was, nil, err
	}
	if root, err = m.tree(root).Apply(ctx, slices.Values(edits.sorted())); err != nil {
		return was, nil, err
	}
	now.Ref, now.Allocated = root, 0
	chunks := 0
	it := m.tree(root).Seek(ctx, nil)
	for it.Next(ctx) {
		e := it.Entry()
		c, err := parseChunkEntry(&e)
		if err != nil {
			return was, nil, err
		}
		if chunks++; chunks == 1 && c.off == 0 && !c.nested() && c.skip+c.rest == 0 {
			now.Ref = c.ref // unless it is not the only one
		} else {
			now.Ref = root
		}
		now.Allocated += uint64(c.n)
	}
	return now, spans, it.Err()
}

// leftOf returns the root of the tree of what is left of the chunks of a content, of which at is a part, the spans of the part that are
// lost, in the file, and the changes that take out single chunks.
func (m *mender) leftOf(ctx context.Context, at chunkAt) (store.Ref, []span, edits, error) {
	lo, hi, shift := at.skip, at.skip+at.n, at.off-at.skip
	root, gaps, err := m.tree(at.ref).Salvage(ctx, func(id store.ID) bool { return m.lost[id] }, store.IsLost)
	if err != nil {
		return store.Ref{}, nil, nil, err
	}
	var spans []span
	lose := func(off, end int64) {
		if off, end = max(off, lo), min(end, hi); off < end {
			spans = append(spans, span{off + shift, end + shift})
		}
	}
	for _, g := range gaps {
		lose(offsetOf(g.From, 0), offsetOf(g.To, hi))
	}
	out := edits{}
	it := m.tree(root).Seek(ctx, nil)
	for it.Next(ctx) {
		e := it.Entry()
		c, err := parseChunkEntry(&e)
		if err != nil {
			return store.Ref{}, nil, nil, err
		}
		if c.end() <= lo || c.off >= hi {
			continue
		}
		left, gone, err := m.leftOfChunk(ctx, c)
		if err != nil {
			return store.Ref{}, nil, nil, err
		}
		if len(gone) == 0 {
			continue
		}
		out[string(e.Key)] = nil
		for _, s := range gone {
			lose(s.lo, s.hi)
		}
		for _, c := range left {
			e := chunkEntry(c)
			out[string(e.Key)] = e
		}
	}
	return root, spans, out, it.Err()
}

// leftOfChunk returns the spans of a chunk of a content that are lost, and if there are any, what is left of it.
func (m *mender) leftOfChunk(ctx context.Context, c chunkAt) (left []chunkAt, gone []span, err error) {
	if !c.nested() {
		lost, err := m.isLost(ctx, c.ref)
		if lost {
			gone = []span{{c.off, c.end()}}
		}
		return nil, gone, err
	}
	root, gone, changes, err := m.leftOf(ctx, c)
	if err != nil || len(gone) == 0 {
		return nil, nil, err
	}
	if root, err = m.tree(root).Apply(ctx, slices.Values(changes.sorted())); err != nil {
		return nil, nil, err
	}
	it := m.tree(root).Seek(ctx, nil)
	for it.Next(ctx) {
		e := it.Entry()
		below, err := parseChunkEntry(&e)
		if err != nil {
			return nil, nil, err
		}
		if below.end() > c.skip && below.off < c.skip+c.n {
			below = below.part(c.skip, c.skip+c.n)
			below.off += c.off - c.skip
			left = append(left, below)
		}
	}
	return left, gone, it.Err()
}

// offsetOf returns the offset that the key of a content stands for; none if there is no key.
func offsetOf(k []byte, none int64) int64 {
	if len(k) != 8 {
		return none
	}
	return int64(binary.BigEndian.Uint64(k))
}

// mark gives a damaged inode the attribute and the names that say so, and lists it.
func (m *mender) mark(ctx context.Context, ino Ino) error {
	d := m.damaged[ino]
	slices.SortFunc(d.spans, func(a, b span) int { return int(min(max(a.lo-b.lo, -1), 1)) })
	text := d.String()
	before, err := m.r.get(ctx, xattrKey(ino, lostXattr))
	if err != nil {
		return err
	}
	if before != nil && len(before.Value) > 0 && before.Value[0] == xattrInline {
		text = string(before.Value[1:]) + "; " + text
	}
	m.put(xattrKey(ino, lostXattr), append([]byte{xattrInline}, cutName(text, maxLostXattr)...))
	if ino == Root {
		m.tell("/", "/", d)
		return nil
	}
	for _, l := range linksOf(ctx, m.r, ino) {
		dir := dirPath(ctx, m.r, l.parent) + "/"
		name := l.name
		if !d.whole && !strings.Contains(name, damagedMark) {
			if name, err = m.rename(ctx, ino, l); err != nil {
				return err
			}
		}
		m.tell(dir+l.name, dir+name, d)
	}
	return nil
}

func (m *mender) tell(path, now string, d *damage) {
	m.list = append(m.list, Replaced{Path: path, Now: now, What: d.String(), Lost: d.bytes()})
}

func (d *damage) bytes() (n int64) {
	for _, s := range d.spans {
		n += s.hi - s.lo
	}
	return n
}

// String tells what is lost: first and last bytes, then all else.
func (d *damage) String() string {
	var parts []string
	for _, s := range d.spans {
		if i := len(parts) - 1; i >= 0 && strings.HasSuffix(parts[i], fmt.Sprintf("-%d", s.lo-1)) {
			first, _, _ := strings.Cut(parts[i], "-")
			parts[i] = fmt.Sprintf("%s-%d", first, s.hi-1)
			continue
		}
		parts = append(parts, fmt.Sprintf("%d-%d", s.lo, s.hi-1))
	}
	var all []string
	if len(parts) > 0 {
		all = append(all, "bytes "+strings.Join(parts, " "))
	}
	for _, what := range d.what {
		if !slices.Contains(all, what) {
			all = append(all, what)
		}
	}
	return strings.Join(all, ", ")
}

// rename gives one name of a damaged file its mark, and returns the new one.
func (m *mender) rename(ctx context.Context, ino Ino, l nameIn) (string, error) {
	f, _, err := m.v.find(ctx, m.r, l.parent, []byte(l.name))
	if err != nil {
		return "", err
	}
	if f == nil || f.ino != ino {
		return l.name, nil
	}
	name, err := m.enterFree(ctx, ino, f.mode, l.parent, l.name)
	if err != nil {
		return "", err
	}
	m.del(f.key)
	m.del(linkKey(ino, l.parent, []byte(l.name)))
	return name, nil
}

// enterFree gives ino a name in a directory that nobody has there: name with a mark.
func (m *mender) enterFree(ctx context.Context, ino Ino, mode uint32, parent Ino, name string) (string, error) {
	for i := 1; ; i++ {
		marked := damagedName(name, i)
		f, free, err := m.v.find(ctx, m.r, parent, []byte(marked))
		if err != nil {
			return "", err
		}
		if f == nil {
			m.enter(ino, mode, parent, free, marked)
			return marked, nil
		}
	}
}

// enter gives ino a name: an entry and a reverse link.
func (m *mender) enter(ino Ino, mode uint32, parent Ino, cookie uint64, name string) {
	m.put(entryKey(parent, cookie, []byte(name)), entryValue(ino, mode))
	m.put(linkKey(ino, parent, []byte(name)), nil)
	m.changed[ino], m.changed[parent] = true, true
}

// damagedName returns the i-th name of a damaged file: "name (damaged).ext".
func damagedName(name string, i int) string {
	stem, ext := splitName(name)
	mark := damagedMark
	if i > 1 {
		mark += fmt.Sprintf(" %d", i)
	}
	mark += ")"
	return cutName(stem, NameMax-len(mark)-len(ext)) + mark + ext
}

// count sets the link counts of what has other names or entries than before.
func (m *mender) count(ctx context.Context) error {
	for _, ino := range slices.Sorted(maps.Keys(m.changed)) {
		a, err := loadAttrs(ctx, m.r, ino)
		if err != nil {
			return err
		}
		n := uint32(len(linksOf(ctx, m.r, ino)))
		if a.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			n = 2
			err = m.r.scan(ctx, string(key(ino, keyEntry, 0)), prefixEnd(ino, keyEntry), func(_ string, e *store.Entry) bool {
				if _, mode, err := parseEntryValue(e.Value); err == nil && mode == syscall.S_IFDIR {
					n++
				}
				return true
			})
		}
		if err != nil {
			return err
		}
		if n != a.Nlink {
			a.Nlink = n
			m.put(inodeKey(ino), appendAttrs(nil, a))
		}
	}
	return nil
}
