package store

import (
	"bytes"
	"context"
	"slices"
	"sync"
)

// A Spare has copies of what lies on the remote, as the cache of a client does. What it returns need not be right: it is
// checked. What it does not have it returns as nil.
type Spare interface {
	// SpareMultichunk returns the object of a multichunk as it lies, or should lie, on the remote.
	SpareMultichunk(n Name) []byte

	// SpareChunk returns the bytes of a chunk, or a node as it is encoded in multichunks.
	SpareChunk(ref Ref) []byte

	// SpareObject returns an object that is no multichunk, by its name on the remote, and SpareObjects the names of all that it has.
	SpareObject(name string) []byte
	SpareObjects() []string
}

// spares finds what is lost on the remote.
type spares struct {
	c *checker

	mu    sync.Mutex // guards all below; held while one is looked for
	known []spareMultichunk
	hint  Hint // of the group that was read last
	group *Group
}

// spareMultichunk is what could be found of one multichunk elsewhere than in its object.
type spareMultichunk struct {
	name  Name
	wire  []byte // verified; nil if there is none
	table []TableEntry
}

// sparesHeld is how many multichunks a spares keeps in memory.
const sparesHeld = 2

// multichunk returns an intact object of multichunk n and its table, nil if there is none.
func (s *spares) multichunk(ctx context.Context, n Name) (spareMultichunk, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.known {
		if m.name == n {
			return m, nil
		}
	}
	m := spareMultichunk{name: n}
	for _, source := range []func(context.Context, Name) ([]byte, error){s.fromCopy, s.fromParity} {
		wire, err := source(ctx, n)
		if err != nil {
			return m, err
		}
		if wire == nil {
			continue
		}
		if held, err := s.c.r.openMultichunk(n, wire); err == nil {
			m.wire, m.table = wire, held.table
			break
		}
	}
	s.known = append(s.known, m)
	if len(s.known) > sparesHeld {
		s.known = slices.Delete(s.known, 0, 1)
	}
	return m, nil
}

// fromParity computes the object from what is left of it.
func (s *spares) fromParity(ctx context.Context, n Name) ([]byte, error) {
	if !s.c.parity[n] {
		return nil, nil
	}
	wire, err := s.c.r.st.Get(ctx, ObjectName(n), 0, -1)
	if err == nil {
		wire, err = s.c.r.Mend(ctx, n, wire)
	}
	if err != nil && lostObject(err) {
		return nil, nil
	}
	return wire, err
}

func (s *spares) fromCopy(_ context.Context, n Name) ([]byte, error) {
	if s.c.o.Spare == nil {
		return nil, nil
	}
	return s.c.o.Spare.SpareMultichunk(n), nil
}

// find returns the chunk or encoded node of ref, which was in multichunk n, nil if there is no spare of it. The bytes have
// been checked.
func (s *spares) find(ctx context.Context, ref Ref, n Name) ([]byte, error) {
	m, err := s.multichunk(ctx, n)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(m.table, func(e TableEntry) bool { return e.ID == ref.ID }); i >= 0 {
		g, err := s.c.r.ReadGroup(bytes.NewReader(m.wire), int64(len(m.wire)), m.table[i].Hint)
		if err != nil {
			panic("store: spare was verified and does not open: " + err.Error())
		}
		if data, ok := g.Find(ref.ID); ok && g.Kind() == kindOf(ref) {
			return data, nil
		}
	}
	if data, err := s.fromHint(ctx, ref); data != nil || err != nil {
		return data, err
	}
	if s.c.o.Spare == nil {
		return nil, nil
	}
	data := s.c.o.Spare.SpareChunk(ref)
	if data == nil || s.c.r.checkBytes(ref, data) != nil {
		return nil, nil
	}
	return data, nil
}

// fromHint reads ref from where its hint says: in a multichunk whose table is damaged its group may still be intact.
func (s *spares) fromHint(ctx context.Context, ref Ref) ([]byte, error) {
	size, listed := s.c.sizes[ref.Hint.Multichunk]
	if !listed {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hint != ref.Hint {
		g, err := s.c.r.ReadGroup(s.c.r.RemoteReader(ctx, ref.Hint.Multichunk), size, ref.Hint)
		if err != nil && !lostObject(err) {
			return nil, err
		}
		s.hint, s.group = ref.Hint, g
	}
	if s.group == nil || s.group.Kind() != kindOf(ref) {
		return nil, nil
	}
	data, _ := s.group.Find(ref.ID)
	return data, nil
}

// haveAll reports whether there is a spare of all refs, which were in multichunk n.
func (s *spares) haveAll(ctx context.Context, n Name, refs []Ref) (bool, error) {
	for _, ref := range refs {
		if data, err := s.find(ctx, ref, n); data == nil || err != nil {
			return false, err
		}
	}
	return true, nil
}

// kindOf returns the kind of the multichunks that hold what ref refers to.
func kindOf(ref Ref) Kind {
	if ref.Kind == RefNode {
		return KindNodes
	}
	return KindData
}

// refOf returns a reference to what lies under id in a multichunk of a kind.
func refOf(id ID, kind Kind) Ref {
	if kind == KindNodes {
		return Ref{ID: id, Kind: RefNode}
	}
	return Ref{ID: id}
}

// checkBytes returns ErrCorrupt unless data is what ref refers to.
func (r *Repository) checkBytes(ref Ref, data []byte) error {
	if ref.Kind == RefNode {
		_, err := r.CheckNode(ref.ID, data)
		return err
	}
	if len(data) > MaxChunk || r.ChunkID(data) != ref.ID {
		return corruptf("chunk %v", ref.ID)
	}
	return nil
}
