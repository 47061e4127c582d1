package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// lostIDs returns what a check finds lost.
func (e *env) lostIDs() (ids []store.ID) {
	e.t.Helper()
	report, err := e.repo.Check(ctx, nil)
	if err != nil {
		e.t.Fatal(err)
	}
	for _, d := range report.Damages {
		ids = append(ids, d.IDs...)
	}
	return ids
}

func (e *env) replace(dry bool) []Replaced {
	e.t.Helper()
	list, err := e.v.ReplaceLost(ctx, ReplaceOptions{Lost: e.lostIDs(), DryRun: dry})
	if err != nil {
		e.t.Fatal(err)
	}
	return list
}

// checkWhole fails unless a check finds nothing damaged that the newest state needs.
func (e *env) checkWhole() {
	e.t.Helper()
	other := e.other()
	if err := other.v.Sync(ctx, nil); err != nil {
		e.t.Error(err)
	}
	if report, err := e.repo.Check(ctx, nil); err != nil || len(report.Damages) > 0 {
		e.t.Errorf("Check = %v, %v", report.Damages, err)
	}
}

// TestReplaceLostChunk replaces files of which chunks are lost.
func TestReplaceLostChunk(t *testing.T) {
	e := newImpatientEnv(t)
	first, second := randomData(1, 300_000), randomData(2, 300_000)
	e.write("big.bin", 0, first)
	e.write("small.txt", 0, []byte("all in one chunk"))
	e.sync()
	e.write("big.bin", int64(len(first)), second)
	e.write("whole", 0, second)
	big := randomData(4, 5000)
	if err := e.v.Setxattr(ctx, e.walk("whole"), "user.whole", big, 0); err != nil {
		t.Fatal(err)
	}
	e.sync()
	if err := e.v.Setxattr(ctx, e.walk("whole"), "user.big", randomData(3, 5000), 0); err != nil {
		t.Fatal(err)
	}
	lostOnes := append(e.multichunks("small.txt"), e.multichunks("big.bin")[0])
	if _, err := e.v.Link(ctx, e.walk("small.txt"), Root, []byte("second name.txt")); err != nil {
		t.Fatal(err)
	}
	e.sync()
	xattr := func() (ref store.Ref) {
		_ = e.v.view(ctx, func(r *layered) error {
			entry, err := r.get(ctx, xattrKey(e.walk("whole"), "user.big"))
			if err == nil {
				ref = entry.Refs[0]
			}
			return err
		})
		return ref
	}()
	lostOnes = append(lostOnes, e.ca.HintOf(xattr).Multichunk)
	slices.SortFunc(lostOnes, func(a, b store.Name) int { return bytes.Compare(a[:], b[:]) })
	lostOnes = slices.Compact(lostOnes)
	if _, err := e.v.CreateSnapshot(ctx, Snapshot{Name: "before"}); err != nil {
		t.Fatal(err)
	}
	e.wipe()
	e.lose(lostOnes...)

	plan := e.replace(true)
	if len(plan) != 4 || !slices.Equal(e.names(Root), []string{"big.bin", "second name.txt", "small.txt", "whole"}) {
		t.Fatalf("a dry run would replace %v, and has left %q", plan, e.names(Root))
	}
	done := e.replace(false)
	if !slices.Equal(plan, done) {
		t.Errorf("replaced %v, a dry run has said %v", done, plan)
	}
	want := []string{"big (damaged).bin", "second name (damaged).txt", "small (damaged).txt", "whole"}
	if got := e.names(Root); !slices.Equal(got, want) {
		t.Errorf("names %q, want %q", got, want)
	}
	whole := append(bytes.Clone(first), second...)
	got := e.read("big (damaged).bin")
	left := 0
	for i := range whole {
		if got[i] != 0 && got[i] != whole[i] {
			t.Fatalf("byte %d is neither right nor zero", i)
		}
		if got[i] == whole[i] {
			left++
		}
	}
	if len(got) != len(whole) || left < len(second)/2 {
		t.Errorf("%d bytes of %d are left, want at least %d", left, len(whole), len(second)/2)
	}
	if got := e.read("small (damaged).txt"); !bytes.Equal(got, make([]byte, 16)) {
		t.Errorf("small.txt reads %q", got)
	}
	note, err := e.v.Getxattr(ctx, e.walk("small (damaged).txt"), lostXattr)
	if string(note) != "bytes 0-15" || err != nil {
		t.Errorf("attribute %q, %v", note, err)
	}
	if _, err := e.v.Getxattr(ctx, e.walk("whole"), "user.big"); !errors.Is(err, errNoXattr) {
		t.Errorf("lost attribute: %v", err)
	}
	if got, err := e.v.Getxattr(ctx, e.walk("whole"), "user.whole"); err != nil || !bytes.Equal(got, big) {
		t.Errorf("other attribute: %v", err)
	}
	if got := e.read("whole"); !bytes.Equal(got, second) {
		t.Error("a file that nothing is lost of has another content")
	}
	if again := e.replace(false); len(again) != 0 {
		t.Errorf("a second run replaces %v", again)
	}
	e.write("more", 0, first)
	e.wipe()
	if got := e.read("more"); !bytes.Equal(got, first) {
		t.Error("what was written after has another content")
	}
	if err := e.v.ForgetSnapshot(ctx, "before"); err != nil {
		t.Fatal(err)
	}
	e.sync()
	e.checkWhole()
}

// nodesOf returns all nodes of the newest tree at a level, in order.
func (e *env) nodesOf(root store.Ref, level uint8) (refs []store.Ref) {
	e.t.Helper()
	n, err := e.ca.Node(ctx, root)
	if err != nil {
		e.t.Fatal(err)
	}
	if n.Level == level {
		return []store.Ref{root}
	}
	for i := range n.Entries {
		refs = append(refs, e.nodesOf(n.Entries[i].Refs[0], level)...)
	}
	return refs
}

// loseNode makes one node unreadable, as a lost multichunk does with all that are in it.
type loseNode struct {
	tree.Store
	lost map[store.ID]bool
}

func (l loseNode) Load(ctx context.Context, ref store.Ref) (*store.Node, error) {
	if l.lost[ref.ID] {
		return nil, fmt.Errorf("node %s: %w", ref.ID, store.ErrNotFound)
	}
	return l.Store.Load(ctx, ref)
}

// fsck returns what is inconsistent in a state.
func (e *env) fsck(r *layered) (wrong []string) {
	e.t.Helper()
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	links, subdirs, names := map[Ino]int{}, map[Ino]int{}, map[nameIn]Ino{}
	attrsOf := map[Ino]*attrs{Root: {Mode: syscall.S_IFDIR, Nlink: 2}}
	err := r.scan(ctx, "", "\xff", func(k string, en *store.Entry) bool {
		ino, kind, rest, _ := splitKey(k)
		switch kind {
		case keyInode:
			a, err := parseAttrs(en.Value)
			if err != nil {
				complain("inode %d: %v", ino, err)
				return true
			}
			attrsOf[ino] = a
		case keyEntry:
			_, name, _ := splitEntry(rest)
			child, mode, _ := parseEntryValue(en.Value)
			if names[nameIn{ino, name}] != 0 {
				complain("name %q twice", name)
			}
			names[nameIn{ino, name}] = child
			if mode == syscall.S_IFDIR {
				subdirs[ino]++
			}
			if l, err := r.get(ctx, linkKey(child, ino, []byte(name))); l == nil || err != nil {
				complain("entry %q of %d has no link: %v", name, ino, err)
			}
		case keyLink:
			links[ino]++
		case keyGap:
			if ino == 0 {
				complain("gap")
			}
		}
		return true
	})
	if err != nil {
		complain("scan: %v", err)
	}
	total := 0
	for at, ino := range names {
		total++
		if attrsOf[ino] == nil || attrsOf[at.parent] == nil || attrsOf[at.parent].Mode&syscall.S_IFMT != syscall.S_IFDIR {
			complain("entry %q of %d leads nowhere, or is in no directory", at.name, at.parent)
		}
	}
	for ino, n := range links {
		total -= n
		if attrsOf[ino] == nil {
			complain("links of no inode %d", ino)
		}
	}
	if total != 0 {
		complain("%d more entries than links", total)
	}
	for ino, a := range attrsOf {
		want := links[ino]
		if a.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			want = 2 + subdirs[ino]
		}
		if ino != Root && links[ino] == 0 || int(a.Nlink) != want {
			complain("inode %d has %d links, %d names, want %d", ino, a.Nlink, links[ino], want)
		}
	}
	return wrong
}

// TestReplaceLostNode loses nodes at random of the tree of a small volume: what is made of the rest is a whole
// file system, and nothing that was outside of the lost nodes is missing.
func TestReplaceLostNode(t *testing.T) {
	rnd := newRand(t)
	e := newEnv(t)
	dirs := [][]string{nil}
	for i := range 1200 {
		in := dirs[rnd.Intn(len(dirs))]
		parent := e.walk(in...)
		name := fmt.Sprintf("%c%d.txt", 'a'+i%26, i)
		path := append(slices.Clone(in), name)
		switch rnd.Intn(4) {
		case 0:
			if _, err := e.v.Mkdir(ctx, parent, []byte(name), 0o750, Cred{}); err != nil {
				t.Fatal(err)
			}
			dirs = append(dirs, path)
		case 1:
			if _, err := e.v.Symlink(ctx, parent, []byte(name), []byte(strings.Repeat("t", 1+rnd.Intn(2000))), Cred{}); err != nil {
				t.Fatal(err)
			}
		default:
			_, h, err := e.v.Create(ctx, parent, []byte(name), 2, 0o640, Cred{})
			if err == nil {
				_, err = h.Write(ctx, randomData(int64(i), rnd.Intn(5000)), 0)
				h.Release()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	e.sync()
	root := e.v.baseState().root
	leaves, inner := e.nodesOf(root, 0), e.nodesOf(root, 1)
	if len(leaves) < 5 || len(inner) < 2 {
		t.Fatalf("%d leaves, %d nodes above", len(leaves), len(inner))
	}
	var trials [][]store.Ref
	for _, ref := range append(inner, leaves[0], leaves[len(leaves)-1]) {
		trials = append(trials, []store.Ref{ref})
	}
	for range 6 {
		trials = append(trials, []store.Ref{leaves[rnd.Intn(len(leaves))]}, []store.Ref{leaves[rnd.Intn(len(leaves))], leaves[rnd.Intn(len(leaves))]})
	}
	for _, refs := range trials {
		e.replaceNodes(root, refs)
	}
}

// replaceNodes mends the tree of root as if some nodes were lost.
func (e *env) replaceNodes(root store.Ref, refs []store.Ref) {
	t := e.t
	t.Helper()
	lost := map[store.ID]bool{}
	for _, ref := range refs {
		lost[ref.ID] = true
	}
	lc := &lazyCommit{ca: e.ca}
	defer func() { lc.discard() }()
	st := loseNode{lc, lost}
	lc.begin()
	at := func(root store.Ref) *tree.Tree { return tree.New(st, root, e.v.treeOptions()) }
	before := &layered{base: tree.New(e.ca.NewLocalCommit(), root, e.v.treeOptions())}
	left, gaps, err := at(root).Salvage(ctx, func(id store.ID) bool { return lost[id] }, store.IsLost)
	if err != nil || len(gaps) == 0 {
		t.Fatalf("Salvage = %v, %v", gaps, err)
	}
	s := &withoutLost{v: e.v}
	if left, err = at(left).Apply(ctx, slices.Values(s.gapRecords(gaps))); err != nil {
		t.Fatal(err)
	}
	m := newMender(e.v, st, lost, left)
	mended, err := m.run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	after := &layered{base: at(mended)}
	if wrong := e.fsck(after); len(wrong) > 0 {
		t.Fatalf("without %d nodes: %s", len(refs), strings.Join(wrong, "\n"))
	}
	// All contents that were readable are, and every name is there, changed only where something is lost.
	err = before.scan(ctx, "", "\xff", func(k string, en *store.Entry) bool {
		ino, kind, _, _ := splitKey(k)
		if m.gaps.has(k) || ino == 0 {
			return true
		}
		switch kind {
		case keyInode, keyContent:
			if got, err := after.get(ctx, k); got == nil || err != nil || kind == keyContent && !sameRecord(got, en) {
				t.Errorf("record of inode %d, kind %d, is gone or changed: %v", ino, kind, err)
			}
		case keyEntry:
			child, _, _ := parseEntryValue(en.Value)
			if len(linksOf(ctx, after, child)) == 0 {
				t.Errorf("inode %d has no name any more", child)
			}
		case keyLink:
			if len(linksOf(ctx, after, ino)) == 0 {
				t.Errorf("inode %d has no name any more", ino)
			}
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(m.list) == 0 {
		t.Error("nothing is listed")
	}
}

// deafKernel is a kernel that need not be told anything.
type deafKernel struct{}

func (deafKernel) InvalInode(Ino, int64, int64) {}
func (deafKernel) InvalEntry(Ino, []byte)       {}

// TestReplaceLostMount loses nodes of the tree under a volume with changes that cannot be committed: ReplaceLost makes it usable
// again, and so does what it publishes for another client.
func TestReplaceLostMount(t *testing.T) {
	rnd := rand.New(rand.NewSource(1))
	e := newImpatientEnv(t)
	for i := range 200 {
		e.write(fmt.Sprintf("f%03d", i), 0, randomData(int64(i), 100+rnd.Intn(1000)))
	}
	e.sync()
	first := e.v.baseState().root.Hint.Multichunk
	for i := range 3 { // the root and some leaves are put elsewhere
		e.write(fmt.Sprintf("f%03d", 50*i), 5, []byte("changed"))
	}
	e.wipe()
	other := e.other()
	other.v.SetNotify(&deafKernel{}) // it is mounted, and has not read anything yet
	if first == e.v.baseState().root.Hint.Multichunk {
		t.Fatal("the root lies where it did")
	}
	for i := range 200 {
		_, h, err := e.v.Create(ctx, Root, fmt.Appendf(nil, "f%03d", i), 2, 0o644, Cred{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Write(ctx, []byte("again"), 0); err != nil {
			t.Fatal(err)
		}
		if err := h.Fsync(ctx, false); err != nil {
			t.Fatal(err)
		}
		h.Release()
	}
	e.lose(first)
	e.powerCut(rnd) // what was written is in the log, and the nodes that it changes are nowhere
	if err := e.v.Sync(ctx, nil); !store.IsLost(err) {
		t.Fatalf("Sync = %v, want what a lost node gives", err)
	}
	lost := e.lostIDs()
	list, err := e.v.ReplaceLost(ctx, ReplaceOptions{Lost: lost})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 10 {
		t.Errorf("replaced %d", len(list))
	}
	e.sync()
	if wrong := e.fsck(e.v.live()); len(wrong) > 0 {
		t.Errorf("%s", strings.Join(wrong, "\n"))
	}
	names := e.names(Root)
	found := e.names(e.walk(foundDir))
	if len(found) == 0 || len(names)-1+len(found) != 200 {
		t.Errorf("%d files have names and %d have none, want 200", len(names)-1, len(found))
	}
	for _, name := range names {
		if name != foundDir && string(e.read(name)[:5]) != "again" {
			t.Errorf("what was written to %s and could not be committed is gone", name)
		}
	}
	for _, name := range found {
		if string(e.read(foundDir, name)[:5]) != "again" {
			t.Errorf("what was written to %s and could not be committed is gone", name)
		}
	}
	other.sync()
	if got := other.names(Root); !slices.Equal(got, names) {
		t.Errorf("another client has %d names, want %d", len(got), len(names))
	}
	e.checkWhole()
}
