package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/dedupfs/dedupfs/remote"
)

// checkMemory bounds the multichunks that are read at the same time, in bytes.
const checkMemory = 32 << 20

// checkMultichunks reads every table, or every byte, and collects the ids of all that is there.
func (c *checker) checkMultichunks(ctx context.Context) error {
	stage, workers := "tables", parallel
	if c.o.ReadData {
		stage, workers = "data", max(1, min(parallel, checkMemory/c.r.cfg.MultichunkSize))
	}
	if err := each(ctx, c, stage, workers, slices.Collect(maps.Keys(c.sizes)), c.checkMultichunk); err != nil {
		return err
	}
	c.known.sort()
	return nil
}

func (c *checker) checkMultichunk(ctx context.Context, n Name) error {
	held, err := c.readMultichunk(ctx, n)
	switch {
	case errors.Is(err, remote.ErrNotExist):
		return nil // deleted since it was listed
	case err != nil && !aboutObject(err):
		return fmt.Errorf("read %s: %w", ObjectName(n), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		b := c.breakMultichunk(n, err)
		b.noTable, b.kind, b.held = held.table == nil, held.kind, held.lost
	}
	lost := map[ID]bool{}
	for _, id := range held.lost {
		lost[id] = true
	}
	for i := range held.table {
		e := &held.table[i]
		if lost[e.ID] {
			continue
		}
		c.known.add(e.ID)
		if held.kind == KindNodes {
			c.nodes[fingerprintOf(e.ID)] = e.Hint
		}
	}
	return nil
}

// readMultichunk returns what multichunk n holds.
func (c *checker) readMultichunk(ctx context.Context, n Name) (held contents, err error) {
	if c.o.ReadData && c.o.Subset.has(n) && !c.wasRead(n) {
		wire, err := c.r.st.Get(ctx, ObjectName(n), 0, -1)
		if err != nil {
			return contents{}, err
		}
		if held, err = c.r.openMultichunk(n, wire); err == nil {
			err = c.checkParity(ctx, n, wire)
		}
		if err == nil && c.o.Intact != nil {
			c.o.Intact(n)
		}
		return held, err
	}
	held.kind, held.table, err = c.r.readTable(c.r.RemoteReader(ctx, n), c.sizes[n], n)
	return held, err
}

// wasRead reports whether multichunk n need not be read again, and counts it.
func (c *checker) wasRead(n Name) bool {
	if c.o.Known == nil || !c.o.Known(n) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Known++
	return true
}

// fingerprint stands for an id where millions are kept. That one which is missing has the fingerprint of another has a
// chance of one in 2^64 for each other.
type fingerprint uint64

func fingerprintOf(id ID) fingerprint { return fingerprint(binary.BigEndian.Uint64(id[:])) }

// idSet is a set of ids, some of which are marked.
type idSet struct {
	all   []fingerprint // sorted once all are there
	marks []uint64      // a bit for each of all
}

func (s *idSet) add(id ID) { s.all = append(s.all, fingerprintOf(id)) }

// sort must be called between the last add and all else.
func (s *idSet) sort() {
	slices.Sort(s.all)
	s.all = slices.Compact(s.all)
	s.marks = make([]uint64, (len(s.all)+63)/64)
}

// mark marks id and reports whether it is in s, and whether it was not marked yet.
func (s *idSet) mark(id ID) (found, first bool) {
	i, found := slices.BinarySearch(s.all, fingerprintOf(id))
	if !found {
		return false, false
	}
	first = s.marks[i/64]>>(i%64)&1 == 0
	s.marks[i/64] |= 1 << (i % 64)
	return true, first
}

// marked reports whether id is in s and marked.
func (s *idSet) marked(id ID) bool {
	i, found := slices.BinarySearch(s.all, fingerprintOf(id))
	return found && s.marks[i/64]>>(i%64)&1 == 1
}

func uniqueIDs(ids []ID) []ID {
	slices.SortFunc(ids, func(a, b ID) int { return bytes.Compare(a[:], b[:]) })
	return slices.Compact(ids)
}

// checkTrees walks from all roots through all nodes, each once, and sees that everything they refer to is known.
func (c *checker) checkTrees(ctx context.Context) error {
	c.done = 0
	w := &walk{c: c, lost: map[ID]bool{}, from: map[ID]Name{}, groups: map[Hint]*openedGroup{}}
	w.wake.L = &w.mu
	for n, b := range c.broken {
		for _, id := range b.held {
			w.from[id] = n
		}
	}
	for _, root := range c.roots {
		if !root.IsZero() {
			w.refer(root, -1, nil)
		}
	}
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() { w.work(ctx) })
	}
	workers.Wait()
	return w.err
}

// walk is a walk through all nodes by several goroutines.
type walk struct {
	c *checker

	mu     sync.Mutex // guards all below; c.mu is acquired after it
	wake   sync.Cond  // signalled when stack, busy or err change
	stack  []pending  // nodes to look at
	busy   int        // goroutines that look at one
	err    error      // of the storage; ends the walk
	lost   map[ID]bool
	from   map[ID]Name // the broken multichunk that has, or had, an id
	groups map[Hint]*openedGroup
	recent []Hint // of groups, oldest first
}

// pending is a node to look at.
type pending struct {
	ref   Ref
	level int    // that it must have; -1 for a root
	key   []byte // that it must begin with, for a child
}

// work looks at nodes until none is left.
func (w *walk) work(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for len(w.stack) == 0 && w.busy > 0 && w.err == nil {
			w.wake.Wait()
		}
		if len(w.stack) == 0 || w.err != nil {
			return
		}
		s := w.stack[len(w.stack)-1]
		w.stack = w.stack[:len(w.stack)-1]
		w.busy++
		w.mu.Unlock()
		n, err := w.load(ctx, s)
		w.mu.Lock()
		w.busy--
		switch {
		case err == nil, lostObject(err):
			if err != nil {
				w.lose(s.ref, err)
			}
			if n != nil {
				w.visit(n)
			}
		default:
			w.err = err
		}
		w.wake.Broadcast()
	}
}

// lostObject reports whether err means that something cannot be had from where it should be, now and later.
func lostObject(err error) bool {
	return aboutObject(err) || errors.Is(err, ErrNotFound) || errors.Is(err, remote.ErrNotExist)
}

// visit refers to all that n refers to. w.mu is held.
func (w *walk) visit(n *Node) {
	for i := range n.Entries {
		e := &n.Entries[i]
		for _, ref := range e.Refs {
			if n.Level > 0 {
				w.refer(ref, int(n.Level)-1, e.Key)
			} else {
				w.refer(ref, -1, nil)
			}
		}
	}
	w.c.report.Nodes++
	w.c.step(int64(len(w.c.nodes)), "trees")
}

// refer notes that ref is needed, and has it looked at if it is a node that has not been seen yet. w.mu is held.
func (w *walk) refer(ref Ref, level int, key []byte) {
	found, first := w.c.known.mark(ref.ID)
	if !found {
		if ref.Kind == RefNode && !w.lost[ref.ID] {
			w.stack = append(w.stack, pending{ref, level, key}) // a spare may tell what is below it
		}
		w.lose(ref, nil)
		return
	}
	if !first {
		return
	}
	if b := w.c.broken[ref.Hint.Multichunk]; b != nil && b.noTable {
		b.dup, b.kind = append(b.dup, ref.ID), kindOf(ref)
	}
	if ref.Kind == RefNode {
		w.stack = append(w.stack, pending{ref, level, key})
	} else {
		w.c.report.Chunks++
	}
}

// lose notes that ref cannot be read anywhere, because of err if that is known, and puts it down to the multichunk that has
// or had it. w.mu is held.
func (w *walk) lose(ref Ref, err error) {
	if w.lost[ref.ID] {
		return
	}
	w.lost[ref.ID] = true
	n := w.ownerLocked(ref)
	_, listed := w.c.sizes[n]
	switch {
	case err != nil:
	case !listed:
		err = remote.ErrNotExist
	case w.c.broken[n] == nil:
		err = fmt.Errorf("table lacks what is referred to here: %w", ErrNotFound)
	}
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	b := w.c.broken[n]
	if err != nil {
		b = w.c.breakMultichunk(n, err)
	}
	b.lost = append(b.lost, ref)
	b.kind = kindOf(ref)
}

// load returns the node of s from where its hint says, or from where the tables have it. If it is lost there, it returns an
// error, and with it the node if this machine has a spare.
func (w *walk) load(ctx context.Context, s pending) (*Node, error) {
	n, err := w.loadRemote(ctx, s)
	if err == nil || !lostObject(err) {
		return n, err
	}
	data, spareErr := w.c.spares.find(ctx, s.ref, w.owner(s.ref))
	if spareErr != nil {
		return nil, spareErr
	}
	if data == nil {
		return nil, err
	}
	n, spareErr = w.checkNode(s, data)
	if spareErr != nil {
		return nil, err
	}
	return n, err
}

// owner returns the multichunk that has, or had, what ref refers to.
func (w *walk) owner(ref Ref) Name {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ownerLocked(ref)
}

func (w *walk) ownerLocked(ref Ref) Name {
	if from, ok := w.from[ref.ID]; ok {
		return from
	}
	if at, ok := w.c.nodes[fingerprintOf(ref.ID)]; ok {
		return at.Multichunk
	}
	return ref.Hint.Multichunk
}

// loadRemote is load without spares.
func (w *walk) loadRemote(ctx context.Context, s pending) (*Node, error) {
	n, err := w.loadFrom(ctx, s, s.ref.Hint)
	if err == nil || !lostObject(err) {
		return n, err
	}
	at, ok := w.c.nodes[fingerprintOf(s.ref.ID)]
	if !ok || at == s.ref.Hint {
		return nil, err
	}
	return w.loadFrom(ctx, s, at)
}

func (w *walk) loadFrom(ctx context.Context, s pending, h Hint) (*Node, error) {
	if h.IsZero() {
		return nil, fmt.Errorf("node %v: %w", s.ref.ID, ErrNotFound)
	}
	g, err := w.group(ctx, h)
	if err != nil {
		return nil, err
	}
	data, ok := g.Find(s.ref.ID)
	if !ok {
		return nil, fmt.Errorf("node %v in group at %d: %w", s.ref.ID, h.Off, ErrNotFound)
	}
	return w.checkNode(s, data)
}

// checkNode decodes a node and sees that it is the one that s tells of.
func (w *walk) checkNode(s pending, data []byte) (*Node, error) {
	n, err := w.c.r.CheckNode(s.ref.ID, data)
	switch {
	case err != nil:
		return nil, err
	case s.level >= 0 && (int(n.Level) != s.level || !bytes.Equal(n.Entries[0].Key, s.key)):
		return nil, corruptf("node %v is not the child that its parent says", s.ref.ID)
	case n.Level > 0 && !isInner(n):
		return nil, corruptf("inner node %v has an entry that is no single child", s.ref.ID)
	}
	return n, nil
}

// isInner reports whether every entry of n refers to one node.
func isInner(n *Node) bool {
	for i := range n.Entries {
		if refs := n.Entries[i].Refs; len(refs) != 1 || refs[0].Kind != RefNode {
			return false
		}
	}
	return true
}

// openedGroup is a group that is, or is going to be, in memory.
type openedGroup struct {
	once  sync.Once
	group *Group
	err   error
}

// groupsHeld is how many groups a walk keeps in memory. Nodes that are needed together lie in few.
const groupsHeld = 32

// group returns the group at h, from memory if it was needed lately.
func (w *walk) group(ctx context.Context, h Hint) (*Group, error) {
	w.mu.Lock()
	g := w.groups[h]
	if g == nil {
		g = new(openedGroup)
		w.groups[h] = g
		w.recent = append(w.recent, h)
		if len(w.recent) > groupsHeld {
			delete(w.groups, w.recent[0])
			w.recent = w.recent[1:]
		}
	}
	w.mu.Unlock()
	g.once.Do(func() { g.group, g.err = w.read(ctx, h) })
	return g.group, g.err
}

func (w *walk) read(ctx context.Context, h Hint) (*Group, error) {
	size, listed := w.c.sizes[h.Multichunk]
	if !listed {
		return nil, fmt.Errorf("multichunk %v: %w", h.Multichunk, remote.ErrNotExist)
	}
	return w.c.r.ReadGroup(w.c.r.RemoteReader(ctx, h.Multichunk), size, h)
}
