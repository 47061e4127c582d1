package store

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
	"golang.org/x/sync/errgroup"
)

// movedDir is the directory of all moves.
const movedDir = "moved"

// A move says that what was needed of some multichunks, or part of it, lies in another one as well. It is published before that is
// put, so that none is ever there without one. Like a hint it is no promise: what it leads to is checked.
type move struct {
	to   Name
	from []Name // sorted
}

const (
	maxMoveFrom = 1 << 16 // multichunks in one move
	maxMoveWire = 4 << 20 // bytes; what is longer is none of ours
)

func appendMove(dst []byte, m *move) []byte {
	dst = append(dst, m.to[:]...)
	dst = binary.AppendUvarint(dst, uint64(len(m.from)))
	for _, n := range m.from {
		dst = append(dst, n[:]...)
	}
	return dst
}

// parseMove is the inverse of appendMove.
func parseMove(b []byte) (*move, error) {
	d := decoder{b: b}
	m := &move{to: d.bytes16()}
	for range d.count(len(Name{})) {
		m.from = append(m.from, d.bytes16())
	}
	if d.bad || len(m.from) > maxMoveFrom || !slices.IsSortedFunc(m.from, compareNames) {
		return nil, corruptf("move")
	}
	return m, nil
}

// moves are those that are known. They are never forgotten: nobody uses a name again.
type moves struct {
	mu    sync.Mutex // guards what follows
	known map[[16]byte]*move
	to    map[Name][]Name
}

func (s *moves) add(id [16]byte, m *move) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil {
		s.known, s.to = map[[16]byte]*move{}, map[Name][]Name{}
	}
	s.known[id] = m
	for _, n := range m.from {
		if n != m.to && !slices.Contains(s.to[n], m.to) {
			s.to[n] = append(s.to[n], m.to)
		}
	}
}

// all returns all moves that are known.
func (s *moves) all() map[[16]byte]*move {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.known)
}

// drop forgets that a move is there, but not what it told.
func (s *moves) drop(id [16]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, id)
}

// ReadMoves makes known where chunks were moved to by regrouping, as far as that is not known yet, and returns the multichunks where
// they may lie that are new. A move that is damaged is passed over: what it tells is found by looking everywhere.
func (r *Repository) ReadMoves(ctx context.Context) ([]Name, error) {
	var fresh [][16]byte
	err := listObjects(ctx, r.st, movedDir, func(id [16]byte, e remote.Entry) {
		r.moves.mu.Lock()
		defer r.moves.mu.Unlock()
		if r.moves.known[id] == nil && e.Size <= maxMoveWire {
			fresh = append(fresh, id)
		}
	})
	if err != nil {
		return nil, err
	}
	var (
		mu sync.Mutex // guards to
		to []Name
	)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, id := range fresh {
		group.Go(func() error {
			m, err := r.getMove(ctx, id)
			if errors.Is(err, remote.ErrNotExist) || aboutObject(err) {
				return nil
			}
			if err != nil {
				return err
			}
			r.moves.add(id, m)
			mu.Lock()
			defer mu.Unlock()
			to = append(to, m.to)
			return nil
		})
	}
	err = group.Wait()
	slices.SortFunc(to, compareNames)
	return slices.Compact(to), err
}

func moveName(id [16]byte) string { return fmt.Sprintf("%s/%x", movedDir, id[:]) }

func (r *Repository) getMove(ctx context.Context, id [16]byte) (*move, error) {
	m, _, err := getSealed(ctx, r, moveName(id), r.openMove)
	return m, err
}

func (r *Repository) openMove(name string, wire []byte) (*move, error) {
	return openSealed(r.keys, seal.KindMove, name, wire, parseMove)
}

// putMove publishes m.
func (r *Repository) putMove(ctx context.Context, m *move) error {
	var id [16]byte
	rand.Read(id[:])
	if _, err := r.putSealed(ctx, seal.KindMove, moveName(id), appendMove(nil, m)); err != nil {
		return err
	}
	r.moves.add(id, m)
	return nil
}

// MovedTo returns the multichunks where what lay in n may lie now, as far as ReadMoves has found: the nearest first.
func (r *Repository) MovedTo(n Name) []Name {
	r.moves.mu.Lock()
	defer r.moves.mu.Unlock()
	if len(r.moves.to) == 0 {
		return nil
	}
	all := []Name{n}
	for i := 0; i < len(all); i++ {
		for _, t := range r.moves.to[all[i]] {
			if !slices.Contains(all, t) {
				all = append(all, t)
			}
		}
	}
	return all[1:]
}

// RegroupOptions say how much is regrouped.
type RegroupOptions struct {
	Reseal    bool      // what is sealed under an older key than the newest is stored anew, however much of it is needed
	MaxUnused float64   // share of what is needed that may lie unused in multichunks of which something is needed
	MaxBytes  int64     // of needed chunks that are stored anew at most; 0 is no bound
	End       time.Time // nothing more is begun after it; zero is no bound
}

// Regrouped is what regrouping has done, or would do.
type Regrouped struct {
	From      int   `json:"from"` // multichunks
	FromBytes int64 `json:"from_bytes"`
	Live      int64 `json:"live_bytes"` // about as much of them is needed
	To        int   `json:"to"`
	ToBytes   int64 `json:"to_bytes"`
	Old       int   `json:"old_keys,omitempty"` // of a run with Reseal: multichunks that it found sealed under older keys
}

// Add adds what another run has done.
func (r *Regrouped) Add(o *Regrouped) {
	r.From += o.From
	r.FromBytes += o.FromBytes
	r.Live += o.Live
	r.To += o.To
	r.ToBytes += o.ToBytes
	r.Old = o.Old
}

// partial is a multichunk of which something is needed, as the plan found it.
type partial struct {
	name        Name
	kind        Kind
	size        int64 // on the remote
	live, total int64 // plaintext bytes
	spared      bool  // it is condemned, and cannot be deduplicated against
	old         bool  // it is sealed under an older key, and shall not be
}

func (p *partial) unused() int64 {
	if p.total == 0 {
		return 0
	}
	return p.size - p.needed()
}

// needed returns about how many bytes on the remote are needed.
func (p *partial) needed() int64 {
	if p.total == 0 {
		return p.size
	}
	return int64(float64(p.size) * float64(p.live) / float64(p.total))
}

const (
	smallOnes  = 8  // so many small multichunks of a kind are put together
	smallGain  = 4  // if that leaves at most one in so many
	worthShare = 64 // of a multichunk at least 1/worthShare must be unused for it to be chosen for that
)

// choose returns those that are to be regrouped: what is condemned and needed even so, or is sealed under an older key; then those with the largest unused share, until
// what is left unused is little enough; and the small ones, if there are many.
func (r *Repository) choose(all []partial, o *RegroupOptions) []partial {
	var needed, unused, taken int64
	for i := range all {
		needed += all[i].needed()
		unused += all[i].unused()
	}
	full := int64(r.cfg.MultichunkSize)
	chosen := map[Name]partial{}
	choose := func(p partial) bool {
		if _, ok := chosen[p.name]; ok || o.MaxBytes > 0 && taken+p.needed() > o.MaxBytes {
			return ok
		}
		chosen[p.name] = p
		taken += p.needed()
		unused -= p.unused()
		return true
	}
	for _, p := range all {
		if p.spared || p.old {
			choose(p)
		}
	}
	byShare := slices.SortedFunc(slices.Values(all), func(a, b partial) int {
		return cmp.Or(-cmp.Compare(float64(a.unused())/float64(a.size), float64(b.unused())/float64(b.size)), compareNames(a.name, b.name))
	})
	for _, p := range byShare {
		if float64(unused) <= o.MaxUnused*float64(needed) || p.unused() < p.size/worthShare {
			break
		}
		choose(p)
	}
	for _, kind := range []Kind{KindData, KindNodes} {
		var small []partial
		sum := int64(0)
		for _, p := range all {
			if _, ok := chosen[p.name]; !ok && p.kind == kind && p.size <= full/2 {
				small = append(small, p)
				sum += p.needed()
			}
		}
		if len(small) < smallOnes || sum/full+1 > int64(len(small)/smallGain) {
			continue
		}
		for _, p := range small {
			choose(p)
		}
	}
	return slices.SortedFunc(maps.Values(chosen), func(a, b partial) int { return compareNames(a.name, b.name) })
}

// findOld marks those multichunks of a plan that are sealed under an older key, if they are to be stored anew.
func (c *Collector) findOld(ctx context.Context, p *plan, o *RegroupOptions) error {
	if !o.Reseal {
		return nil
	}
	newest := c.r.keys.now.Load().Current()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := range p.partial {
		q := &p.partial[i]
		group.Go(func() error {
			wire, err := c.r.st.Get(ctx, ObjectName(q.name), 0, seal.HeaderSize)
			if err != nil {
				return fmt.Errorf("get %s: %w", ObjectName(q.name), err)
			}
			h, err := seal.ParseHeader(wire)
			q.old = err == nil && h.Epoch != newest
			return err
		})
	}
	err := group.Wait()
	for i := range p.partial {
		if p.partial[i].old {
			p.found.Regrouped.Old++
		}
	}
	return err
}

// regrouper stores the needed chunks of multichunks anew.
type regrouper struct {
	c   *Collector
	m   *marks
	o   *RegroupOptions
	out *Regrouped

	source map[ID]Name   // where a chunk came from that is not sealed yet
	placed map[ID]Name   // where one lies that is
	twice  map[Name][]ID // chunks of a multichunk that another had too
	done   []partial     // of which all was read
}

// regroup stores what is needed of chosen anew, chunks that are read together put together, and returns those of which nothing is
// left that lies nowhere else.
func (c *Collector) regroup(ctx context.Context, m *marks, chosen []partial, o *RegroupOptions, out *Regrouped) ([]partial, error) {
	rg := &regrouper{c: c, m: m, o: o, out: out, twice: map[Name][]ID{}, placed: map[ID]Name{}}
	for _, kind := range []Kind{KindData, KindNodes} {
		var list []partial
		for _, p := range chosen {
			if p.kind == kind {
				list = append(list, p)
			}
		}
		// In the order in which marking has met them, which is that of the tree.
		slices.SortFunc(list, func(a, b partial) int {
			return cmp.Or(cmp.Compare(m.hinted[a.name], m.hinted[b.name]), compareNames(a.name, b.name))
		})
		if err := rg.pack(ctx, kind, list); err != nil {
			return nil, err
		}
	}
	if s, ok := c.r.st.(remote.Syncer); ok {
		if err := s.Sync(ctx); err != nil {
			return nil, fmt.Errorf("sync remote: %w", err)
		}
	}
	var free []partial
	for _, p := range rg.done {
		needed, err := m.needs(ctx, p.name, p.size)
		if err != nil {
			return nil, err
		}
		if !needed {
			free = append(free, p)
		}
	}
	return free, nil
}

func (rg *regrouper) pack(ctx context.Context, kind Kind, list []partial) error {
	if len(list) == 0 {
		return nil
	}
	rg.source = map[ID]Name{}
	packer := rg.c.r.NewPacker(kind, rg.put)
	for i, p := range list {
		if !rg.o.End.IsZero() && time.Now().After(rg.o.End) {
			break
		}
		if rg.c.o.Progress != nil {
			rg.c.o.Progress(int64(i), int64(len(list)), "regrouping")
		}
		err := rg.add(ctx, packer, p)
		if aboutObject(err) || errors.Is(err, ErrCorrupt) || errors.Is(err, remote.ErrNotExist) {
			continue // it stays as it is
		}
		if err != nil {
			return fmt.Errorf("regroup multichunk %v: %w", p.name, err)
		}
		rg.out.From++
		rg.out.FromBytes += p.size
		rg.out.Live += p.needed()
		rg.done = append(rg.done, p)
	}
	if err := packer.Flush(ctx); err != nil {
		return err
	}
	return rg.tellTwice(ctx)
}

// add packs what is needed of a multichunk and lies nowhere else.
func (rg *regrouper) add(ctx context.Context, packer *Packer, p partial) error {
	r := rg.c.r
	wire, err := r.st.Get(ctx, ObjectName(p.name), 0, -1)
	if err != nil {
		return err
	}
	src, size := bytes.NewReader(wire), int64(len(wire))
	_, table, err := r.ReadTable(src, size, p.name)
	if err != nil {
		return err
	}
	lacking, err := rg.m.lacking(ctx, p.name, table)
	if err != nil {
		return err
	}
	want := map[ID]bool{}
	for _, e := range lacking {
		want[e.ID] = true
	}
	var hint Hint
	var chunks []ID
	var datas [][]byte
	for i := range table {
		if table[i].Hint == hint || !want[table[i].ID] {
			continue
		}
		hint = table[i].Hint
		g, err := r.ReadGroup(src, size, hint)
		if err != nil {
			return err // before anything of it is packed
		}
		for k := range g.Len() {
			if id, data := g.Chunk(k); want[id] {
				chunks, datas = append(chunks, id), append(datas, data)
				delete(want, id)
			}
		}
	}
	if len(want) > 0 {
		return corruptf("%d chunks of the table are not there", len(want))
	}
	for i, id := range chunks {
		if rg.isPlaced(id) {
			rg.twice[p.name] = append(rg.twice[p.name], id)
			continue
		}
		rg.note(id, p.name)
		if err := packer.Add(ctx, id, datas[i]); err != nil {
			return err
		}
	}
	return nil
}

func (rg *regrouper) isPlaced(id ID) bool {
	rg.m.mu.Lock()
	defer rg.m.mu.Unlock()
	_, waits := rg.source[id]
	_, placed := rg.placed[id]
	return waits || placed
}

func (rg *regrouper) note(id ID, n Name) {
	rg.m.mu.Lock()
	defer rg.m.mu.Unlock()
	rg.source[id] = n
}

// put publishes where the chunks of a new multichunk come from, and puts it.
func (rg *regrouper) put(ctx context.Context, s *Sealed) error {
	if rg.c.packed != nil {
		rg.c.packed(s)
	}
	from := map[Name]bool{}
	rg.m.mu.Lock()
	for _, e := range s.Table {
		from[rg.source[e.ID]] = true
		delete(rg.source, e.ID)
		rg.placed[e.ID] = s.Name
	}
	rg.m.mu.Unlock()
	if err := rg.c.r.putMove(ctx, &move{to: s.Name, from: slices.SortedFunc(maps.Keys(from), compareNames)}); err != nil {
		return err
	}
	if err := rg.c.r.PutMultichunk(ctx, s.Name, s.Wire); err != nil {
		return fmt.Errorf("put multichunk %v: %w", s.Name, err)
	}
	rg.out.To++
	rg.out.ToBytes += int64(len(s.Wire))
	s.Release()
	return nil
}

// tellTwice publishes where chunks lie that came from another multichunk first.
func (rg *regrouper) tellTwice(ctx context.Context) error {
	byTarget := map[Name]map[Name]bool{}
	for from, ids := range rg.twice {
		for _, id := range ids {
			to := rg.placed[id]
			if byTarget[to] == nil {
				byTarget[to] = map[Name]bool{}
			}
			byTarget[to][from] = true
		}
	}
	clear(rg.twice)
	for _, to := range slices.SortedFunc(maps.Keys(byTarget), compareNames) {
		if err := rg.c.r.putMove(ctx, &move{to: to, from: slices.SortedFunc(maps.Keys(byTarget[to]), compareNames)}); err != nil {
			return err
		}
	}
	return nil
}
