package fs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/dedupfs/dedupfs/store"
)

// enterNames notes all names of the nodes that are here.
func (m *merger) enterNames(context.Context) error {
	for _, n := range m.sorted() {
		for _, l := range n.links {
			m.enter(n, l.nameIn)
		}
	}
	return nil
}

func (m *merger) enter(n *merged, at nameIn) {
	dir := m.names[at.parent]
	if dir == nil {
		dir = map[string][]*merged{}
		m.names[at.parent] = dir
	}
	if !slices.Contains(dir[at.name], n) {
		dir[at.name] = append(dir[at.name], n)
	}
}

// leave takes a name away from n, in the list of names and among its own.
func (m *merger) leave(n *merged, at nameIn) link {
	dir := m.names[at.parent]
	dir[at.name] = slices.DeleteFunc(dir[at.name], func(o *merged) bool { return o == n })
	i := slices.IndexFunc(n.links, func(l link) bool { return l.nameIn == at })
	old := n.links[i]
	n.links = slices.Delete(n.links, i, i+1)
	return old
}

// give gives n the name at, which was was in the state that it comes from.
func (m *merger) give(n *merged, at, was nameIn) {
	if !slices.ContainsFunc(n.links, func(l link) bool { return l.nameIn == at }) {
		n.links = append(n.links, link{at, was})
	}
	m.enter(n, at)
}

// holders returns who has a name. One that the other side has not touched is brought here.
func (m *merger) holders(ctx context.Context, at nameIn) ([]*merged, error) {
	ino, err := m.entryIn(ctx, m.onto, at)
	if err != nil {
		return nil, err
	}
	if ino != 0 && m.nodes[ino] == nil {
		n, err := m.node(ctx, ino)
		if err != nil {
			return nil, err
		}
		for _, l := range n.links {
			m.enter(n, l.nameIn)
		}
	}
	return m.names[at.parent][at.name], nil
}

// entryIn returns the inode that a state has under a name; 0 if it has none.
func (m *merger) entryIn(ctx context.Context, state int, at nameIn) (Ino, error) {
	group, err := m.group(ctx, state, at.parent, m.cookie(at.parent, []byte(at.name)))
	return group[at.name].ino, err
}

// slot is a directory entry as it stands among those whose names have one hash.
type slot struct {
	cookie uint64
	ino    Ino
}

// group returns the entries of a directory whose names have one hash.
func (m *merger) group(ctx context.Context, state int, dir Ino, base uint64) (map[string]slot, error) {
	group := map[string]slot{}
	var bad error
	err := m.states[state].scan(ctx, entryKey(dir, base, nil), entryKey(dir, base+128, nil), func(k string, e *store.Entry) bool {
		_, _, rest, _ := splitKey(k)
		cookie, name, ok := splitEntry(rest)
		ino, _, err := parseEntryValue(e.Value)
		if !ok || err != nil {
			bad = fmt.Errorf("entry in directory %d: %w", dir, errRecord)
			return false
		}
		group[name] = slot{cookie, ino}
		return true
	})
	if err == nil {
		err = bad
	}
	return group, err
}

// resolveNames lets each name stand for one inode. The names that are looked at are those which may have come from the
// side that is not edited; directories that become one bring theirs in while this goes on.
func (m *merger) resolveNames(ctx context.Context) error {
	var queue []nameIn
	for _, dir := range slices.Sorted(maps.Keys(m.names)) {
		for _, name := range slices.Sorted(maps.Keys(m.names[dir])) {
			queue = append(queue, nameIn{dir, name})
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		more, err := m.resolveName(ctx, queue[0])
		if err != nil {
			return err
		}
		queue = append(queue, more...)
	}
	return nil
}

// resolveName leaves one of those who have the name at. It returns names that have to be looked at because of that.
func (m *merger) resolveName(ctx context.Context, at nameIn) (more []nameIn, err error) {
	all, err := m.holders(ctx, at)
	if err != nil || len(all) < 2 {
		return nil, err
	}
	all = slices.Clone(all)
	slices.SortFunc(all, func(x, y *merged) int { return m.compareClaims(at, x, y) })
	winner := all[0]
	for _, loser := range all[1:] {
		switch {
		case winner.isDir() && loser.isDir():
			names, err := m.unite(ctx, winner, loser, at)
			if err != nil {
				return nil, err
			}
			more = append(more, names...)
		case loser.replaced():
			m.leave(loser, at)
		case winner.equals(loser):
			m.leave(loser, at)
			winner.twins = append(winner.twins, loser)
		default:
			if err := m.rename(ctx, loser, at); err != nil {
				return nil, err
			}
		}
	}
	return more, nil
}

// compareClaims orders those who have one name: the first side's, then those whose name was there before directories
// became one, then by number.
func (m *merger) compareClaims(at nameIn, x, y *merged) int {
	rank := func(n *merged) int {
		i := slices.IndexFunc(n.links, func(l link) bool { return l.nameIn == at })
		was, r := n.links[i].was, 0
		if !slices.Contains(n.was[mergeFirst].links, was) {
			r += 2
		}
		if was != at {
			r++
		}
		return r
	}
	if d := rank(x) - rank(y); d != 0 {
		return d
	}
	if x.ino < y.ino {
		return -1
	}
	return 1
}

// newest returns the version of n that its merged state mostly comes from.
func (n *merged) newest() *version {
	if n.was[mergeFirst].exists() {
		if n.isFile() && n.was[mergeBase].exists() && sameContent(&n.was[mergeBase], &n.was[mergeFirst]) && n.was[mergeSecond].exists() {
			return &n.was[mergeSecond]
		}
		return &n.was[mergeFirst]
	}
	return &n.was[mergeSecond]
}

// replaced reports whether n is a file that one side has removed and of which the other has changed everything but the
// content: where the name has gone to another file, nothing of it is missed.
func (n *merged) replaced() bool {
	base := &n.was[mergeBase]
	if n.made || !base.exists() || n.isDir() || n.was[mergeFirst].exists() && n.was[mergeSecond].exists() {
		return false
	}
	return sameContent(base, n.newest())
}

// equals reports whether n and o are of one type and have one content, so that one of them is enough.
func (n *merged) equals(o *merged) bool {
	if n.made || o.made {
		return false
	}
	x, y := n.newest(), o.newest()
	if x.attrs.Mode&syscall.S_IFMT != y.attrs.Mode&syscall.S_IFMT || x.attrs.Rdev != y.attrs.Rdev {
		return false
	}
	if x.attrs.Mode&syscall.S_IFMT == syscall.S_IFLNK {
		return string(x.attrs.Target) == string(y.attrs.Target) && maps.EqualFunc(x.extra, y.extra, sameRecord)
	}
	return sameContent(x, y)
}

// unite moves everything in the directory loser into winner; at is their common name. Its attributes are lost.
func (m *merger) unite(ctx context.Context, winner, loser *merged, at nameIn) (more []nameIn, err error) {
	if loser.was[m.onto].exists() {
		children, err := m.childrenIn(ctx, m.onto, loser.ino)
		if err != nil {
			return nil, err
		}
		for _, ino := range children {
			if m.nodes[ino] == nil {
				n, err := m.node(ctx, ino)
				if err != nil {
					return nil, err
				}
				for _, l := range n.links {
					m.enter(n, l.nameIn)
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.names[loser.ino])) {
		for _, n := range slices.Clone(m.names[loser.ino][name]) {
			old := m.leave(n, nameIn{loser.ino, name})
			m.give(n, nameIn{winner.ino, name}, old.was)
			more = append(more, nameIn{winner.ino, name})
		}
	}
	m.leave(loser, at)
	winner.twins = append(winner.twins, loser)
	return more, nil
}

// rename gives loser another name beside the one that it has lost.
func (m *merger) rename(ctx context.Context, loser *merged, at nameIn) error {
	a := loser.newest().attrs
	if loser.made {
		a = &loser.attrs
	}
	name, err := m.freeName(ctx, at, a)
	if err != nil {
		return err
	}
	old := m.leave(loser, at)
	m.give(loser, nameIn{at.parent, name}, old.was)
	loser.lost = true
	return nil
}

// freeName returns a conflict name that nobody in the directory has.
func (m *merger) freeName(ctx context.Context, at nameIn, loser *attrs) (string, error) {
	host, err := m.host(loser.Changed)
	if err != nil {
		return "", fmt.Errorf("name of client %s: %w", loser.Changed, err)
	}
	for i := 1; ; i++ {
		name := conflictName(at.name, host, loser.Mtime, i)
		all, err := m.holders(ctx, nameIn{at.parent, name})
		if err != nil || len(all) == 0 {
			return name, err
		}
	}
}

const (
	conflictMark = " (conflict "
	maxExtension = 32 // bytes that are kept behind the mark; what is longer is no extension
	maxHost      = 64
)

// conflictName returns the i-th name of what has lost the name name: "name (conflict HOST DATE).ext". A mark that is
// there already is replaced. The name is cut at a character to fit.
func conflictName(name, host string, t Timespec, i int) string {
	stem, ext := splitName(name)
	if at := strings.LastIndex(stem, conflictMark); at > 0 && strings.HasSuffix(stem, ")") {
		stem = stem[:at]
	}
	mark := conflictMark + plainHost(host) + " " + t.Time().UTC().Format("2006-01-02 15.04.05")
	if i > 1 {
		mark += fmt.Sprintf(" %d", i)
	}
	mark += ")"
	return cutName(stem, NameMax-len(mark)-len(ext)) + mark + ext
}

// splitName takes the extension off a name, behind which a mark would hide it.
func splitName(name string) (stem, ext string) {
	if dot := strings.LastIndexByte(name, '.'); dot > 0 && len(name)-dot <= maxExtension {
		return name[:dot], name[dot:]
	}
	return name, ""
}

// plainName returns a name without the mark of a conflict. What was cut off to make room for the mark stays off.
func plainName(name string) string {
	at := strings.LastIndex(name, conflictMark)
	if at < 0 {
		return name
	}
	end := strings.IndexByte(name[at:], ')')
	if end < 0 {
		return name
	}
	return name[:at] + name[at+end+1:]
}

// plainHost makes a host's name a part of a file's name.
func plainHost(host string) string {
	host = strings.Map(func(r rune) rune {
		if r < ' ' || strings.ContainsRune("/\x7f()", r) {
			return '-'
		}
		return r
	}, host)
	return cutName(host, maxHost)
}

// cutName cuts s to at most n bytes, not within a character.
func cutName(s string, n int) string {
	if len(s) <= n {
		return s
	}
	cut := n
	for cut > 0 && cut > n-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut]
}
