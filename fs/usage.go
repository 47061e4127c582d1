package fs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
	"golang.org/x/sync/errgroup"
)

// Usage tells what a repository holds, and what that takes. All is in bytes.
type Usage struct {
	Logical  uint64 `json:"logical"`  // of all files as they are now, holes included, hard links once
	Files    uint64 `json:"files"`    // as they are now
	Dirs     uint64 `json:"dirs"`     //
	Chunks   uint64 `json:"chunks"`   // that the present or a snapshot needs, each once
	Unique   uint64 `json:"unique"`   // of these, before compression
	Stored   uint64 `json:"stored"`   // of these, compressed
	Metadata uint64 `json:"metadata"` // nodes that are needed, compressed
	Remote   int64  `json:"remote"`   // all objects on the remote
	Objects  int    `json:"multichunks"`
	Unused   uint64 `json:"unused"`  // compressed, in multichunks that are needed for something else
	Garbage  int64  `json:"garbage"` // multichunks of which nothing is needed

	States  []StateUsage  `json:"states"` // the present, all automatic states as one, of which the oldest is described, and all snapshots, the oldest first
	Clients []ClientUsage `json:"clients"`
	WhatIf  *WhatIf       `json:"what_if,omitempty"`
}

// StateUsage is what one state has, and what is there for it alone.
type StateUsage struct {
	Name    string `json:"name"`
	Logical uint64 `json:"logical"`
	Files   uint64 `json:"files"`
	Dirs    uint64 `json:"dirs"`
	Unique  uint64 `json:"unique"` // chunks that no other state has, before compression
	Stored  uint64 `json:"stored"` // of these, and of nodes, compressed
}

// ClientUsage is what files a client was the last to write.
type ClientUsage struct {
	Client  string `json:"client"`
	Logical uint64 `json:"logical"`
	Files   uint64 `json:"files"`
}

// WhatIf says what would come back if some snapshots were forgotten, once every client goes by that.
type WhatIf struct {
	Snapshots []string `json:"snapshots"`
	Objects   int      `json:"multichunks"` // of which nothing would be needed any more
	Bytes     int64    `json:"bytes"`       // what they take on the remote
	Unused    uint64   `json:"unused"`      // more, compressed, in multichunks that stay needed: regrouping may bring it back
}

// owner says whose something is: of a state by its place in the list, or of several.
type owner int32

const (
	nobody owner = iota // the zero value
	several
	firstState
)

// usageState is what a line of a Usage is about: one state, or several that count as one.
type usageState struct {
	name string
	root store.Ref
	also []store.Ref // roots of the others
}

// usage finds out who needs what. It has about forty bytes in memory for each chunk and node.
type usage struct {
	v      *Volume
	owners map[uint64]owner // of chunks and nodes, by the first bytes of their ids
	hinted map[store.Name]owner
	sums   map[store.ID]treeSum // of the nodes of volumes' trees
	report func(done, total int64, what string)
}

// treeSum is what the inodes below a node have.
type treeSum struct{ logical, files, dirs uint64 }

func (s *treeSum) add(o treeSum) {
	s.logical, s.files, s.dirs = s.logical+o.logical, s.files+o.files, s.dirs+o.dirs
}

func fingerprint(id store.ID) uint64 { return binary.BigEndian.Uint64(id[:8]) }

// Usage walks the present state and all snapshots, and reads the tables of all multichunks. whatIf names snapshots that might be
// forgotten.
func (v *Volume) Usage(ctx context.Context, whatIf []string, report func(done, total int64, what string)) (*Usage, error) {
	u := &usage{v: v, owners: map[uint64]owner{}, hinted: map[store.Name]owner{}, sums: map[store.ID]treeSum{}, report: report}
	states, roots, err := u.states(ctx)
	if err != nil {
		return nil, err
	}
	out := &Usage{}
	forgotten, err := u.whatIf(states, whatIf)
	if err != nil {
		return nil, err
	}
	if err := u.walkAll(ctx, states, roots, forgotten, out); err != nil {
		return nil, err
	}
	if len(whatIf) > 0 {
		out.WhatIf = &WhatIf{Snapshots: whatIf}
	}
	if err := u.readTables(ctx, out, forgotten); err != nil {
		return nil, err
	}
	other, err := v.repo.OtherBytes(ctx)
	if err != nil {
		return nil, err
	}
	out.Remote += other
	return out, nil
}

// AutomaticStates stands for all automatic states together where snapshots are named.
const AutomaticStates = "@automatic"

// states returns the states that are kept once all clients have seen each other's commits, and the roots of the maps that name
// the snapshots among them. Present states come first.
func (u *usage) states(ctx context.Context) (states []usageState, roots []store.Ref, err error) {
	u.v.follower.pollMu.Lock()
	heads, err := u.v.pollHeads(ctx, true)
	u.v.follower.pollMu.Unlock()
	if err != nil && !tolerable(err) {
		return nil, nil, err
	}
	red := reducer{commits: u.v.commitsThatCount()}
	commits, err := red.maximal(ctx, heads)
	if err != nil {
		return nil, nil, err
	}
	snaps := map[string]Snapshot{}
	for _, c := range commits {
		name := CurrentState
		if len(commits) > 1 {
			name += " of " + c.Host
		}
		states = append(states, usageState{name: name, root: c.Root})
		roots = append(roots, c.Snapshots)
		list, err := listSnapshots(ctx, u.v.stateAt(c.Snapshots).base)
		if err != nil {
			return nil, nil, err
		}
		for _, s := range list {
			snaps[s.key()] = s
		}
	}
	automatic := usageState{name: AutomaticStates}
	var named []usageState
	for _, s := range slices.SortedFunc(maps.Values(snaps), compareAge) {
		switch {
		case !s.Automatic:
			named = append(named, usageState{name: s.Name, root: s.Root})
		case automatic.root.IsZero():
			automatic.root = s.Root
		default:
			automatic.also = append(automatic.also, s.Root)
		}
	}
	if !automatic.root.IsZero() {
		states = append(states, automatic)
	}
	states = append(states, named...)
	return states, roots, nil
}

// whatIf returns for each state whether it is one of names.
func (u *usage) whatIf(states []usageState, names []string) ([]bool, error) {
	forgotten := make([]bool, len(states))
	for _, name := range names {
		i := slices.IndexFunc(states, func(s usageState) bool { return s.name == name })
		if name == latestName {
			i = len(states) - 1
		}
		if i < 0 || states[i].name == CurrentState || name == latestName && states[i].name == AutomaticStates {
			return nil, fmt.Errorf("%s: %w", name, ErrNoSnapshot)
		}
		forgotten[i] = true
	}
	return forgotten, nil
}

// walkAll notes who needs what. States that might be forgotten count as one, and everything else as several, so that what only
// they need is what has them as its owner; otherwise each state counts for itself.
func (u *usage) walkAll(ctx context.Context, states []usageState, roots []store.Ref, forgotten []bool, out *Usage) error {
	for _, root := range roots {
		if err := u.walkMap(ctx, root); err != nil {
			return err
		}
	}
	asking := slices.Contains(forgotten, true)
	for i, s := range states {
		u.report(int64(i), int64(len(states)), "states")
		who := firstState + owner(i)
		if asking {
			who = several
			if forgotten[i] {
				who = firstState
			}
		}
		for _, root := range append(s.also, s.root) {
			if err := u.walk(ctx, root, who); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		sum, err := u.sum(ctx, s.root)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		out.States = append(out.States, StateUsage{Name: s.name, Logical: sum.logical, Files: sum.files, Dirs: sum.dirs})
		if i == 0 {
			out.Logical, out.Files, out.Dirs = sum.logical, sum.files, sum.dirs
			if out.Clients, err = u.clients(ctx, s.root); err != nil {
				return err
			}
		}
	}
	return nil
}

// walkMap notes the nodes of a map of snapshots, but not what these have.
func (u *usage) walkMap(ctx context.Context, ref store.Ref) error {
	if ref.IsZero() {
		return nil
	}
	u.note(ref, several)
	n, err := u.v.ca.Node(ctx, ref)
	if err != nil || n.Level == 0 {
		return err
	}
	for i := range n.Entries {
		if err := u.walkMap(ctx, n.Entries[i].Refs[0]); err != nil {
			return err
		}
	}
	return nil
}

// note notes that who needs what ref refers to, and reports whether that is new for it.
func (u *usage) note(ref store.Ref, who owner) bool {
	if h := u.v.ca.HintOf(ref); !h.IsZero() {
		u.hinted[h.Multichunk] = join(u.hinted[h.Multichunk], who)
	}
	fp := fingerprint(ref.ID)
	before := u.owners[fp]
	after := join(before, who)
	u.owners[fp] = after
	return before != after
}

func join(a, b owner) owner {
	if a == nobody || a == b {
		return b
	}
	return several
}

// walk notes all that can be reached from root. A node is looked into once when it is first met, and once more when it is found
// to belong to several.
func (u *usage) walk(ctx context.Context, root store.Ref, who owner) error {
	if root.IsZero() || !u.note(root, who) {
		return nil
	}
	for stack := []store.Ref{root}; len(stack) > 0; {
		ref := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		n, err := u.v.ca.Node(ctx, ref)
		if err != nil {
			return err
		}
		for i := range n.Entries {
			for _, child := range n.Entries[i].Refs {
				if u.note(child, who) && child.Kind == store.RefNode {
					stack = append(stack, child)
				}
			}
		}
	}
	return nil
}

// sum returns what the inodes of a tree have.
func (u *usage) sum(ctx context.Context, ref store.Ref) (treeSum, error) {
	if s, ok := u.sums[ref.ID]; ok || ref.IsZero() {
		return s, nil
	}
	n, err := u.v.ca.Node(ctx, ref)
	if err != nil {
		return treeSum{}, err
	}
	var s treeSum
	for i := range n.Entries {
		e := &n.Entries[i]
		one := treeSum{}
		if n.Level > 0 {
			one, err = u.sum(ctx, e.Refs[0])
		} else {
			one, err = sumOf(e)
		}
		if err != nil {
			return treeSum{}, err
		}
		s.add(one)
	}
	u.sums[ref.ID] = s
	return s, nil
}

// sumOf returns what one record adds: that of an inode.
func sumOf(e *store.Entry) (treeSum, error) {
	_, kind, _, ok := splitKey(string(e.Key))
	if !ok || kind != keyInode {
		return treeSum{}, nil
	}
	a, err := parseAttrs(e.Value)
	if err != nil {
		return treeSum{}, err
	}
	switch a.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		return treeSum{dirs: 1}, nil
	case syscall.S_IFREG:
		return treeSum{logical: a.Size, files: 1}, nil
	}
	return treeSum{files: 1}, nil
}

// clients returns whose files those of a state are.
func (u *usage) clients(ctx context.Context, root store.Ref) ([]ClientUsage, error) {
	byID := map[store.ClientID]*ClientUsage{}
	it := u.v.stateAt(root).base.Seek(ctx, nil)
	for it.Next(ctx) {
		e := it.Entry()
		_, kind, _, ok := splitKey(string(e.Key))
		if !ok || kind != keyInode {
			continue
		}
		a, err := parseAttrs(e.Value)
		if err != nil {
			return nil, err
		}
		if a.Mode&syscall.S_IFMT != syscall.S_IFREG {
			continue
		}
		c := byID[a.Changed]
		if c == nil {
			c = &ClientUsage{Client: a.Changed.String()}
			byID[a.Changed] = c
		}
		c.Files++
		c.Logical += a.Size
	}
	all := []ClientUsage{}
	for _, c := range byID {
		all = append(all, *c)
	}
	slices.SortFunc(all, func(a, b ClientUsage) int { return slices.Compare([]byte(a.Client), []byte(b.Client)) })
	return all, it.Err()
}

// tableReaders is how many tables are read at the same time.
const tableReaders = 8

// readTables adds what everything takes on the remote.
func (u *usage) readTables(ctx context.Context, out *Usage, forgotten []bool) error {
	sizes := map[store.Name]int64{}
	err := u.v.repo.EachMultichunk(ctx, func(n store.Name, size int64) error {
		sizes[n] = size
		return nil
	})
	if err != nil {
		return err
	}
	var mu sync.Mutex // guards out, seen and done
	seen, done := map[uint64]bool{}, int64(0)
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(tableReaders)
	for n, size := range sizes {
		group.Go(func() error {
			kind, table, err := u.v.repo.ReadTable(u.v.repo.RemoteReader(groupCtx, n), size, n)
			mu.Lock()
			defer mu.Unlock()
			done++
			u.report(done, int64(len(sizes)), "multichunks")
			if errors.Is(err, remote.ErrNotExist) {
				return nil // collected meanwhile
			}
			out.Remote += size
			out.Objects++
			if errors.Is(err, store.ErrCorrupt) {
				return nil // `check` tells
			}
			if err != nil {
				return err
			}
			u.addTable(out, n, size, kind, table, seen)
			return nil
		})
	}
	return group.Wait()
}

// addTable adds what one multichunk holds. Of a chunk that lies in several, the others are unused.
func (u *usage) addTable(out *Usage, n store.Name, size int64, kind store.Kind, table []store.TableEntry, seen map[uint64]bool) {
	now := u.hinted[n]
	var unused, more uint64
	shares := sharesOf(table)
	for i, e := range table {
		fp := fingerprint(e.ID)
		who := u.owners[fp]
		now = join2(now, who)
		share := shares[i]
		switch {
		case who == nobody || seen[fp]:
			unused += share
			continue
		case kind == store.KindNodes:
			out.Metadata += share
		default:
			out.Chunks++
			out.Unique += uint64(e.Len)
			out.Stored += share
		}
		seen[fp] = true
		if who == several {
			continue
		}
		if out.WhatIf != nil {
			more += share
			continue
		}
		s := &out.States[who-firstState]
		s.Stored += share
		if kind == store.KindData {
			s.Unique += uint64(e.Len)
		}
	}
	switch {
	case now == nobody:
		out.Garbage += size
		return
	case out.WhatIf != nil && now == firstState:
		out.WhatIf.Objects++
		out.WhatIf.Bytes += size
	case out.WhatIf != nil:
		out.WhatIf.Unused += more
	}
	out.Unused += unused
}

// join2 is join where nobody adds nothing.
func join2(a, b owner) owner {
	if b == nobody {
		return a
	}
	return join(a, b)
}

// sharesOf returns what each entry of a table takes of its group as it is stored, by its length.
func sharesOf(table []store.TableEntry) []uint64 {
	plain := map[store.Hint]uint64{}
	for _, e := range table {
		plain[e.Hint] += uint64(e.Len)
	}
	shares := make([]uint64, len(table))
	for i, e := range table {
		if sum := plain[e.Hint]; sum > 0 {
			shares[i] = uint64(e.Hint.Len) * uint64(e.Len) / sum
		}
	}
	return shares
}
