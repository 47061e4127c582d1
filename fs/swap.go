package fs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// lazyCommit is a local commit that begins with the first node that is saved in it, and a tree.Store.
type lazyCommit struct {
	ca *cache.Cache
	lc *cache.LocalCommit
}

func (l *lazyCommit) begin() *cache.LocalCommit {
	if l.lc == nil {
		l.lc = l.ca.NewLocalCommit()
	}
	return l.lc
}

// Load returns the node that ref names, from wherever it is.
func (l *lazyCommit) Load(ctx context.Context, ref store.Ref) (*store.Node, error) {
	if l.lc == nil {
		return l.ca.Node(ctx, ref)
	}
	return l.lc.Load(ctx, ref)
}

// Save keeps a node.
func (l *lazyCommit) Save(ctx context.Context, n *store.Node) (store.Ref, error) {
	return l.begin().Save(ctx, n)
}

func (l *lazyCommit) discard() {
	if l.lc != nil {
		l.lc.Discard()
	}
}

// swap is the change of the base under a live mount. All that it needs is fetched before the locks are taken.
type swap struct {
	v     *Volume
	lc    *lazyCommit
	from  volumeState
	to    *outcome
	what  changedKeys
	names []string       // of snapshots that differ
	fresh map[Ino]*attrs // of changed inodes that are in the table: what they will be, nil if they go
}

// prepare finds what has to change. The committer's lock is held, so that the base stays.
func (s *swap) prepare(ctx context.Context) error {
	v := s.v
	v.mu.RLock()
	known := len(v.table) > 0 || v.notifier() != nil
	v.mu.RUnlock()
	if !known { // nobody has seen anything yet, and a mount must not walk the tree
		return nil
	}
	if err := s.compareTrees(ctx); err != nil {
		return err
	}
	if err := s.compareSnapshots(ctx); err != nil {
		return err
	}
	return s.prepareTable(ctx)
}

func (s *swap) tree(root store.Ref) *tree.Tree { return tree.New(s.lc, root, s.v.treeOptions()) }

// before is tree for a state that is left: what is lost of it must not keep anybody there.
func (s *swap) before(root store.Ref) *tree.Tree {
	return tree.New(s.lc, root, s.v.treeOptionsPast())
}

func (s *swap) compareTrees(ctx context.Context) error {
	s.what.inodes = map[Ino]bool{}
	return tree.Diff(ctx, s.before(s.from.root), s.tree(s.to.state.root), func(k []byte, _, _ *store.Entry) error {
		s.what.add(string(k))
		return nil
	})
}

func (s *swap) compareSnapshots(ctx context.Context) error {
	return tree.Diff(ctx, s.before(s.from.snaps), s.tree(s.to.state.snaps), func(name []byte, _, _ *store.Entry) error {
		s.names = append(s.names, strings.TrimPrefix(string(name), automaticMark))
		return nil
	})
}

// prepareTable looks at the inodes in the table that change. What is open keeps its content, so that is loaded.
func (s *swap) prepareTable(ctx context.Context) error {
	var ins []*inode
	s.v.mu.RLock()
	for ino, in := range s.v.table {
		if _, changes := s.what.inodes[ino]; changes {
			ins = append(ins, in)
		}
	}
	s.v.mu.RUnlock()
	after := &layered{base: s.tree(s.to.state.root)}
	for _, in := range ins {
		if err := s.v.ensureContent(ctx, in); err != nil {
			return err
		}
		a, err := loadAttrs(ctx, after, in.ino)
		if err != nil && !errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("inode %d: %w", in.ino, err)
		}
		s.fresh[in.ino] = a
	}
	s.v.mu.RLock()
	defer s.v.mu.RUnlock()
	for _, in := range ins {
		if s.held(in) {
			return errHeld
		}
	}
	return nil
}

// errHeld says that a file which others have removed is open for writing here. What will be written to it counts as an edit,
// which brings it back; until then, or until it is closed, the base has to stay.
var errHeld = errors.New("a file that was removed elsewhere is open for writing")

// held reports whether in is such a file. Volume.mu must be held.
func (s *swap) held(in *inode) bool {
	a := s.fresh[in.ino]
	return in.writers > 0 && !in.orphan && (a == nil || a.Nlink == 0)
}

// tellKernel makes the kernel look again at what has changed.
func (s *swap) tellKernel() {
	s.v.invalidate(&s.what)
	if len(s.names) > 0 {
		s.v.snapshotsChanged(s.names...)
	}
}

// run swaps the base if everything is clean, and reports whether it did. The committer's locks are held.
func (s *swap) run() (bool, error) {
	v := s.v
	v.cutMu.Lock()
	defer v.cutMu.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.frozen != nil || v.active.len() > 0 || !s.tableReady() {
		return false, nil
	}
	if err := s.keep(); err != nil {
		return false, err
	}
	for ino, a := range s.fresh {
		if in := v.table[ino]; in != nil {
			s.refresh(in, a)
		}
	}
	for _, in := range v.table {
		in.mu.Lock()
		in.logged = false // the log is replayed from here on
		in.mu.Unlock()
	}
	v.baseMade = v.stampNow()
	if s.to.head != nil {
		v.baseMade = stampOf(s.to.head)
	}
	v.base, v.snapMap = v.localTree(s.to.state.root), s.to.state.snaps
	_, _, _, _, n, _, _ := v.ca.LastCommit()
	v.commits.seen.before(n, v.ca.State().Seen, s.to.head != nil && v.allPublished())
	return true, v.noteSeen(s.to.history, s.to.head)
}

// tableReady reports whether no open file has changes, and each that the swap changes was looked at before.
func (s *swap) tableReady() bool {
	for ino, in := range s.v.table {
		if in.stale || !in.active.empty() || in.frozen != nil {
			return false
		}
		_, changes := s.what.inodes[ino]
		if _, looked := s.fresh[ino]; changes && (!looked || in.content == nil || s.held(in)) {
			return false
		}
	}
	return true
}

// keep makes the state last: another client's as it is, a merged one as a local commit, which has to be published.
func (s *swap) keep() error {
	v := s.v
	if s.to.head != nil && !v.commits.unstable.Load() && v.allPublished() {
		return v.ca.AdoptBase(s.to.state.root, s.to.state.snaps)
	}
	meta, err := s.to.history.marshal()
	if err != nil {
		return err
	}
	if err := s.lc.begin().Finish(s.to.state.root, s.to.state.snaps, v.log.End(), meta); err != nil {
		s.lc.lc = nil // it is gone, with the nodes of the merge
		return fmt.Errorf("write the merged state: %w", err)
	}
	v.commits.unstable.Store(true)
	signal(v.commits.early.newer)
	return nil
}

// refresh brings an inode in the table to its new state. Who reads goes on with the content that was opened; who writes
// writes to the new one. A file that was removed here and is back is another one for those who have it open.
func (s *swap) refresh(in *inode, a *attrs) {
	in.mu.Lock()
	defer in.mu.Unlock()
	named := a != nil && a.Nlink > 0
	switch {
	case in.orphan && a != nil && !named:
		return // its records are still there
	case in.orphan, !named, s.what.inodes[in.ino] && in.opens > 0 && in.writers == 0:
		in.cutOff = true
		s.v.cutOffs[in] = true
		delete(s.v.table, in.ino)
		return
	}
	in.attrs, in.content = *a, nil
}

// noteSeen notes what the base contains. If a crash comes before it, the next mount finds that in the local commit, or
// takes over another client's state once more.
func (v *Volume) noteSeen(h history, head *store.Commit) error {
	return v.ca.UpdateState(func(st *State) {
		st.Seen = withoutChain(h.heads(), st.Client, st.Incarnation)
		if head != nil {
			st.BaseHead = head.Head()
		}
	})
}

// marshal encodes h for a local commit.
func (h history) marshal() ([]byte, error) {
	var t store.Trust
	for _, head := range h.heads() {
		t.Accept(head)
	}
	return t.MarshalBinary()
}

// recoverSeen notes what a merged local commit contains, if a crash came before that was done.
func (v *Volume) recoverSeen(meta []byte) error {
	var t store.Trust
	if len(meta) == 0 {
		return nil
	}
	if err := t.UnmarshalBinary(meta); err != nil {
		return fmt.Errorf("local commit: %w", err)
	}
	h := v.position()
	h.add(t.Heads()...)
	return v.noteSeen(h, nil)
}
