package fs

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// What is lost for good stands in the way: of a file of which a chunk is lost, a part gives errors for ever; of a lost node of the tree
// itself nobody knows what was in it, so nothing can be changed there, and no commit gets past it. ReplaceLost goes on without.
// It does so in two steps, of which each leaves a state that can be used:
//
//  1. Of a tree that has lost nodes, a tree without them is made, and notes of where they were (gap records). It becomes the base below
//     everything that is not committed yet.
//  2. What was made of the gaps and of the files is a new state, to which the volume goes as to another client's.

// ReplaceOptions say what to replace.
type ReplaceOptions struct {
	Lost   []store.ID `json:"lost"` // chunks and nodes that are lost, as Check has found; each is looked for once more
	DryRun bool       `json:"dry_run"`
}

// Replaced is what has become, or would become, of one name of a file or directory of which something is lost.
type Replaced struct {
	Path string `json:"path"`       // as it was, or where it has come to be if that is lost
	Now  string `json:"now"`        // the same if it keeps its name
	What string `json:"what"`       // is lost, for people
	Lost int64  `json:"lost_bytes"` // of the content, at most
}

// errBusy says that the volume could not be brought to another state.
var errBusy = errors.New("files are changing, or open for writing, all the time; close them and try again")

// ReplaceLost replaces every file of the volume of which something is lost by what is left of it, under a name that says so and with
// the attribute lostXattr, and makes the volume usable again where nodes of its tree are lost. Snapshots stay as they are, but
// names of snapshots that are lost go. It publishes the new state. It may be stopped at any time and called again.
func (v *Volume) ReplaceLost(ctx context.Context, o ReplaceOptions) ([]Replaced, error) {
	if v.opt.ReadOnly {
		return nil, syscall.EROFS
	}
	if err := v.Sync(ctx, nil); err != nil && !store.IsLost(err) {
		return nil, err
	}
	list, sw, err := v.replaceLost(ctx, o)
	if sw != nil {
		sw.tellKernel()
	}
	if err != nil || o.DryRun {
		return list, err
	}
	return list, v.commits.publishAll(ctx, nil)
}

func (v *Volume) replaceLost(ctx context.Context, o ReplaceOptions) ([]Replaced, *swap, error) {
	if err := v.commits.publishMu.lock(ctx); err != nil {
		return nil, nil, err
	}
	defer v.commits.publishMu.unlock()
	lost := make(map[store.ID]bool, len(o.Lost))
	for _, id := range o.Lost {
		lost[id] = true
	}
	lc := &lazyCommit{ca: v.ca}
	defer func() { lc.discard() }()
	from, list, err := v.goWithout(ctx, lost, lc, o.DryRun)
	if err != nil {
		return nil, nil, err
	}
	m := newMender(v, lc, lost, from.root)
	root, err := m.run(ctx)
	if err != nil {
		return nil, nil, err
	}
	list = append(list, m.list...)
	if o.DryRun || root.ID == from.root.ID {
		return list, nil, nil
	}
	sw, err := v.swapTo(ctx, from, &outcome{state: volumeState{root, from.snaps}, history: v.position()}, lc)
	if sw == nil && err == nil {
		err = errBusy
	}
	return list, sw, err
}

// goWithout does the first step, or with dry says what it would give, and returns the state from which the second one starts.
func (v *Volume) goWithout(ctx context.Context, lost map[store.ID]bool, lc *lazyCommit, dry bool) (volumeState, []Replaced, error) {
	c := v.commits
	if err := c.mu.lock(ctx); err != nil {
		return volumeState{}, nil, err
	}
	s := &withoutLost{v: v, lc: lc, suspect: func(id store.ID) bool { return lost[id] }}
	err := s.run(ctx)
	if err == nil && s.changed && !dry {
		err = s.keep()
	}
	c.mu.unlock()
	if err != nil || dry {
		return s.to, s.list, err
	}
	if err := c.commit(ctx, nil); err != nil {
		return volumeState{}, nil, err
	}
	return v.baseState(), s.list, nil
}

// withoutLost makes a state of the base that has no lost nodes. The committer's lock is held, so that the base stays.
type withoutLost struct {
	v       *Volume
	lc      *lazyCommit
	suspect func(store.ID) bool

	to      volumeState
	changed bool
	list    []Replaced
}

func (s *withoutLost) run(ctx context.Context) error {
	v := s.v
	s.to = v.baseState()
	at := func(root store.Ref) *tree.Tree { return tree.New(s.lc, root, v.treeOptions()) }
	root, gaps, err := at(s.to.root).Salvage(ctx, s.suspect, store.IsLost)
	if err != nil {
		return err
	}
	if len(gaps) == 1 && gaps[0].From == nil {
		return fmt.Errorf("the root of the newest state is lost, and with it everything; restore a snapshot: %w", store.ErrNotFound)
	}
	if len(gaps) > 0 {
		s.changed = true
		if s.to.root, err = at(root).Apply(ctx, slices.Values(s.gapRecords(gaps))); err != nil {
			return err
		}
	}
	snaps, gaps, err := at(s.to.snaps).Salvage(ctx, s.suspect, store.IsLost)
	for _, g := range gaps {
		s.changed = true
		what := fmt.Sprintf("snapshots with names from %q on", g.From)
		if g.To != nil {
			what += fmt.Sprintf(" and before %q", g.To)
		}
		s.list = append(s.list, Replaced{Path: "/" + v.opt.SnapshotsDir, Now: "/" + v.opt.SnapshotsDir, What: what})
	}
	s.to.snaps = snaps
	return err
}

// gapRecords returns what notes the gaps, and files that are being changed and whose old content is in one.
func (s *withoutLost) gapRecords(gaps []tree.Gap) []tree.Edit {
	var values [][]byte
	known := gapList{}
	for _, g := range gaps {
		known = append(known, gap{string(g.From), string(g.To)})
		values = append(values, appendGap(nil, known[len(known)-1]))
	}
	s.v.mu.RLock()
	for ino, in := range s.v.table {
		in.mu.RLock()
		if in.content == nil && known.has(contentKey(ino)) {
			values = append(values, binary.BigEndian.AppendUint64([]byte{gapOfContent}, uint64(ino)))
		}
		in.mu.RUnlock()
	}
	s.v.mu.RUnlock()
	out := edits{}
	for _, value := range values {
		out[gapKey(value)] = &store.Entry{Value: value}
	}
	return out.sorted()
}

// keep makes the state the base. What has changed since the last local commit stays in the log and in the overlays.
func (s *withoutLost) keep() error {
	v := s.v
	_, _, cut, meta, _, _, _ := v.ca.LastCommit()
	if err := s.lc.begin().Finish(s.to.root, s.to.snaps, cut, meta); err != nil {
		s.lc.lc = nil
		return fmt.Errorf("write the state without what is lost: %w", err)
	}
	s.lc.lc = nil
	v.commits.unstable.Store(true)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.base, v.snapMap = v.localTree(s.to.root), s.to.snaps
	return nil
}

// keyGap is the kind of a note, below inode 0: there was a lost node here. It goes when the gap is closed.
const keyGap = 0x12

// First byte of such a note.
const (
	gapOfRecords = 0 // the first key that was lost and the first that was not follow, each with its length; the latter may be empty
	gapOfContent = 1 // an inode follows: it was being changed when its content was lost
)

// gapKey returns the key of a note: there may be others, of an earlier time.
func gapKey(value []byte) string {
	sum := sha256.Sum256(value)
	return string(append(key(0, keyGap, 8), sum[:8]...))
}

// gap is a range of keys: from from on and before to, which is "" for the end of the map.
type gap struct{ from, to string }

func (g gap) has(k string) bool { return k >= g.from && (g.to == "" || k < g.to) }

func appendGap(dst []byte, g gap) []byte {
	dst = append(dst, gapOfRecords)
	for _, k := range []string{g.from, g.to} {
		dst = append(binary.AppendUvarint(dst, uint64(len(k))), k...)
	}
	return dst
}

// parseGap is the inverse of appendGap, and of what notes a content: then the gap is that of the one record.
func parseGap(value []byte) (gap, error) {
	r := reader{b: value}
	var g gap
	switch r.byte() {
	case gapOfRecords:
		g = gap{string(r.lenBytes()), string(r.lenBytes())}
	case gapOfContent:
		ino := r.bytes(8)
		if ino == nil {
			return gap{}, errRecord
		}
		k := contentKey(Ino(binary.BigEndian.Uint64(ino)))
		g = gap{k, k + "\x00"}
	default:
		return gap{}, errRecord
	}
	if r.bad || len(r.b) > 0 {
		return gap{}, errRecord
	}
	return g, nil
}

// gapList is some gaps, in no order: there are few.
type gapList []gap

func (l gapList) has(k string) bool {
	return slices.ContainsFunc(l, func(g gap) bool { return g.has(k) })
}

// touches reports whether some of the keys from from on and before to are in a gap.
func (l gapList) touches(from, to string) bool {
	return slices.ContainsFunc(l, func(g gap) bool { return g.from < to && (g.to == "" || from < g.to) })
}
