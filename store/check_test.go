package store

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// A sample is a repository with a few commits, on a storage in memory.
type sample struct {
	r      *Repository
	st     *remotetest.Mem
	chunks []ID            // of the newest commit
	owner  map[ID][]string // objects that hold a chunk or node

	reg  *Registration
	key  ed25519.PrivateKey
	last *Commit
}

func newSample(t testing.TB, rng *rand.Rand) *sample {
	t.Helper()
	r, st, _ := initSmall(t)
	s := &sample{r: r, st: st, owner: map[ID][]string{}}
	var err error
	if s.reg, s.key, err = r.Register(t.Context(), NewClientID(), "host"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.commit(t, rng)
	}
	return s
}

// initSmall makes a repository of small multichunks.
func initSmall(t testing.TB) (*Repository, *remotetest.Mem, string) {
	t.Helper()
	st := remotetest.NewMem()
	cfg := Config{MultichunkSize: 256 << 10, GroupSize: 8 << 10, SettleTime: NoSettleTime}
	r, recovery, err := Init(t.Context(), st, password, &InitOptions{Config: cfg, KDF: cheapKDF})
	if err != nil {
		t.Fatal(err)
	}
	r.askAgain = 0
	return r, st, recovery
}

// put is a sink.
func (s *sample) put(ctx context.Context, m *Sealed) error {
	for _, e := range m.Table {
		s.owner[e.ID] = append(s.owner[e.ID], ObjectName(m.Name))
	}
	return s.r.Storage().Put(ctx, ObjectName(m.Name), m.Wire)
}

// commit stores chunks of its own beneath a tree of two levels, and commits that.
func (s *sample) commit(t testing.TB, rng *rand.Rand) {
	t.Helper()
	ctx := t.Context()
	data, nodes := s.r.NewPacker(KindData, s.put), s.r.NewPacker(KindNodes, s.put)
	s.chunks = nil
	hints := map[ID]Hint{}
	for range 60 {
		chunk := randomBytes(rng, 1+rng.IntN(6000))
		id := s.r.ChunkID(chunk)
		s.chunks = append(s.chunks, id)
		s.must(t, data.Add(ctx, id, chunk), data.CloseGroup(ctx))
		hints[id], _ = data.Hint(id)
	}
	s.must(t, data.Flush(ctx))
	root := &Node{Level: 1}
	for i := 0; i < len(s.chunks); i += 10 {
		leaf := &Node{}
		for j, id := range s.chunks[i : i+10] {
			leaf.Entries = append(leaf.Entries, Entry{Key: binary.BigEndian.AppendUint32(nil, uint32(i+j)), Refs: []Ref{{ID: id, Hint: hints[id]}}})
		}
		id := s.addNode(t, nodes, leaf)
		h, _ := nodes.Hint(id)
		root.Entries = append(root.Entries, Entry{Key: leaf.Entries[0].Key, Refs: []Ref{{ID: id, Kind: RefNode, Hint: h}}})
	}
	id := s.addNode(t, nodes, root)
	h, _ := nodes.Hint(id)
	s.must(t, nodes.Flush(ctx))
	c := s.reg.Next(s.last)
	c.Root = Ref{ID: id, Kind: RefNode, Hint: h}
	_, err := s.r.PutCommit(ctx, c, s.key)
	s.must(t, err)
	s.last = c
}

// addNode packs n and closes its group.
func (s *sample) addNode(t testing.TB, p *Packer, n *Node) ID {
	t.Helper()
	id := s.r.NodeID(AppendCanonical(nil, n))
	s.must(t, p.Add(t.Context(), id, AppendNode(nil, n)), p.CloseGroup(t.Context()))
	return id
}

func (s *sample) must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// check runs Check, which must come to its end.
func (s *sample) check(t testing.TB, o *CheckOptions) *CheckReport {
	t.Helper()
	report, err := s.r.Check(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

var readData = &CheckOptions{ReadData: true}

func TestCheckClean(t *testing.T) {
	s := newSample(t, newRand(t))
	stages := map[string]bool{}
	o := &CheckOptions{ReadData: true, Progress: func(done, total int64, stage string) { stages[stage] = true }}
	for _, o := range []*CheckOptions{nil, o} {
		report := s.check(t, o)
		if len(report.Damages) > 0 || len(report.Foreign) > 0 || len(report.HalfWritten) > 0 {
			t.Errorf("report of an intact repository: %+v", report)
		}
		if report.Nodes != 7 || report.Chunks != 60 {
			t.Errorf("%d nodes and %d chunks, want 7 and 60", report.Nodes, report.Chunks)
		}
		if report.Objects != int64(len(s.st.Names())) || report.Bytes != s.st.Bytes() {
			t.Errorf("%d objects of %d bytes, want %d of %d", report.Objects, report.Bytes, len(s.st.Names()), s.st.Bytes())
		}
	}
	for _, stage := range []string{"names", "keys", "clients", "commits", "data", "trees"} {
		if !stages[stage] {
			t.Errorf("no progress of stage %q", stage)
		}
	}
}

// TestCheckFlips flips a bit of every object in turn, at random places, and checks that the object is named, and alone.
func TestCheckFlips(t *testing.T) {
	rng := newRand(t)
	s := newSample(t, rng)
	intact := s.st.Snapshot()
	flips := 1
	if long {
		flips = 50
	}
	for _, name := range s.st.Names() {
		for range flips {
			s.st.Restore(intact)
			var at int
			s.st.Damage(name, func(b []byte) []byte {
				at = rng.IntN(8 * len(b))
				b[at/8] ^= 1 << (at % 8)
				return b
			})
			report := s.check(t, readData)
			if len(report.Damages) != 1 || report.Damages[0].Object != name || !aboutObject(report.Damages[0].Err) {
				t.Fatalf("bit %d of %s: %+v", at, name, report.Damages)
			}
		}
	}
}

// TestCheckStructure checks that damage to tables and nodes is found without reading data, with what is lost by it.
func TestCheckStructure(t *testing.T) {
	rng := newRand(t)
	s := newSample(t, rng)
	intact := s.st.Snapshot()
	chunk, node := s.chunks[rng.IntN(len(s.chunks))], s.last.Root.ID
	for name, test := range map[string]struct {
		object string
		damage func(name string)
		lost   ID
	}{
		"chunks gone":      {s.owner[chunk][0], func(n string) { s.delete(t, n) }, chunk},
		"nodes gone":       {s.owner[node][0], func(n string) { s.delete(t, n) }, node},
		"chunks cut short": {s.owner[chunk][0], func(n string) { s.st.Damage(n, func(b []byte) []byte { return b[:len(b)/2] }) }, chunk},
		"chunks empty":     {s.owner[chunk][0], func(n string) { s.st.Damage(n, func(b []byte) []byte { return nil }) }, chunk},
		"nodes replaced":   {s.owner[node][0], func(n string) { s.replace(t, n, s.owner[chunk][0]) }, node},
	} {
		t.Run(name, func(t *testing.T) {
			s.st.Restore(intact)
			test.damage(test.object)
			report := s.check(t, nil)
			if len(report.Damages) != 1 || report.Damages[0].Object != test.object || report.Damages[0].Repairable {
				t.Fatalf("damages = %+v, want one of %s", report.Damages, test.object)
			}
			if !slices.Contains(report.Damages[0].IDs, test.lost) {
				t.Errorf("lost = %v, want %v among them", report.Damages[0].IDs, test.lost)
			}
		})
	}
}

// TestCheckSegment damages the second segment of a multichunk, which has neither its prefix nor its table, and checks that
// only what lies in that segment is called lost.
func TestCheckSegment(t *testing.T) {
	s := newSample(t, newRand(t))
	object := s.owner[s.chunks[0]][0]
	want := map[ID]bool{}
	for _, id := range s.chunks {
		h := s.hintOf(t, id)
		want[id] = s.owner[id][0] == object && h.Off < 2*seal.SegmentSize && h.Off+h.Len > seal.SegmentSize
	}
	s.st.Damage(object, func(b []byte) []byte { b[seal.HeaderSize+3*seal.SegmentSize/2] ^= 1; return b })
	report := s.check(t, readData)
	if len(report.Damages) != 1 || report.Damages[0].Object != object || report.Damages[0].Repairable {
		t.Fatalf("damages = %+v, want one of %s", report.Damages, object)
	}
	lost := report.Damages[0].IDs
	for id, want := range want {
		if got := slices.Contains(lost, id); got != want {
			t.Errorf("chunk %v is called lost: %v, want %v", id, got, want)
		}
	}
	if len(lost) == 0 || len(lost) == len(s.chunks) {
		t.Errorf("%d of %d chunks are lost, so this shows nothing", len(lost), len(s.chunks))
	}
}

func (s *sample) delete(t *testing.T, name string) {
	t.Helper()
	s.must(t, s.st.Delete(t.Context(), name))
}

// replace puts a copy of one object in the place of another.
func (s *sample) replace(t *testing.T, name, by string) {
	t.Helper()
	b, ok := s.st.Object(by)
	if !ok {
		t.Fatalf("no object %s", by)
	}
	s.st.SetObject(name, b)
}

// TestCheckHealed checks that a chunk that lies elsewhere too is not called lost.
func TestCheckHealed(t *testing.T) {
	s := newSample(t, newRand(t))
	chunk := s.chunks[0]
	object := s.owner[chunk][0]
	copies := s.r.NewPacker(KindData, s.put)
	for _, id := range s.chunks {
		if !slices.Contains(s.owner[id], object) {
			continue
		}
		h := s.hintOf(t, id)
		g, err := s.r.ReadGroup(s.r.RemoteReader(t.Context(), h.Multichunk), -1, h)
		s.must(t, err)
		data, _ := g.Find(id)
		s.must(t, copies.Add(t.Context(), id, data))
	}
	s.must(t, copies.Flush(t.Context()))
	s.st.Damage(object, func(b []byte) []byte { b[len(b)-1] ^= 1; b[50] ^= 1; return b })
	for _, o := range []*CheckOptions{nil, readData} {
		report := s.check(t, o)
		if len(report.Damages) != 0 || len(report.Healed) != 1 || report.Healed[0].Object != object {
			t.Fatalf("damages = %+v, healed = %+v, want one healed, %s", report.Damages, report.Healed, object)
		}
		if d := report.Healed[0]; !d.Repairable || !slices.Contains(d.IDs, chunk) {
			t.Errorf("repairable: %v, lost %v, want true and %v", d.Repairable, d.IDs, chunk)
		}
	}
}

// hintOf returns where id lies, from the tables.
func (s *sample) hintOf(t *testing.T, id ID) Hint {
	t.Helper()
	n, ok := parseObjectName(s.owner[id][0])
	if !ok {
		t.Fatalf("%s is no multichunk", s.owner[id][0])
	}
	_, table, err := s.r.ReadTable(s.r.RemoteReader(t.Context(), n), -1, n)
	s.must(t, err)
	for _, e := range table {
		if e.ID == id {
			return e.Hint
		}
	}
	t.Fatalf("%v is not in the table of %v", id, n)
	return Hint{}
}

// TestCheckSubset checks that all parts together read everything, and that one part reads less.
func TestCheckSubset(t *testing.T) {
	s := newSample(t, newRand(t))
	object := s.owner[s.chunks[0]][0]
	n, _ := parseObjectName(object)
	seen := 0
	for part := range 5 {
		if (Subset{part + 1, 5}).has(n) {
			seen++
		}
	}
	if seen != 1 {
		t.Errorf("%s is in %d of 5 parts, want one", object, seen)
	}
	if !(Subset{}).has(n) || !(Subset{1, 1}).has(n) {
		t.Error("a multichunk is not in the subset of all")
	}
}

// TestCheckGoesOn interrupts a check that reads everything: the next one reads what that has not, and reports what is damaged there.
func TestCheckGoesOn(t *testing.T) {
	s := newSample(t, newRand(t))
	all := len(s.st.InDir(dataDir))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	read := map[Name]int{}
	o := &CheckOptions{ReadData: true, Known: func(n Name) bool {
		mu.Lock()
		defer mu.Unlock()
		return read[n] > 0
	}}
	o.Intact = func(n Name) {
		mu.Lock()
		defer mu.Unlock()
		if read[n]++; len(read) == 2 {
			cancel()
		}
	}
	if _, err := s.r.Check(ctx, o); !errors.Is(err, context.Canceled) {
		t.Fatalf("Check = %v, want it interrupted", err)
	}
	before := len(read)
	if before >= all {
		t.Fatalf("%d of %d multichunks were read: nothing is left to go on with", before, all)
	}
	for _, object := range s.st.InDir(dataDir) {
		if n, _ := parseObjectName(object); read[n] == 0 {
			wire, _ := s.st.Object(object)
			s.st.SetObject(object, append(bytes.Clone(wire[:len(wire)-1]), wire[len(wire)-1]^1))
			break
		}
	}
	report, err := s.r.Check(t.Context(), o)
	if err != nil || report.Known != int64(before) || len(report.Damages) != 1 || len(read) != all-1 {
		t.Errorf("%d were known, %d read, damages %v, %v, want %d, %d and one", report.Known, len(read), report.Damages, err, before, all-1)
	}
	for n, times := range read {
		if times > 1 {
			t.Errorf("multichunk %v was read %d times", n, times)
		}
	}
}

// TestCheckForeign checks that what is not ours is named, and nothing else happens.
func TestCheckForeign(t *testing.T) {
	s := newSample(t, newRand(t))
	id := strings.Repeat("ab", 16)
	foreign := []string{
		"readme.txt", "data/readme.txt", "data/ab/" + id + ".partial", "data/cd/" + id, "data/AB/" + strings.ToUpper(id),
		"keys/x", "commits/" + id + "/x", "commits/" + id + "/" + id + "/00000000000000/0000000000000001", "clients/" + id + "/" + id,
		"repository/" + id + "x", "other/dir/file", "data/" + id,
	}
	for _, name := range foreign {
		s.st.SetObject(name, []byte("foreign"))
	}
	report := s.check(t, readData)
	if len(report.Damages) > 0 {
		t.Errorf("damages: %+v", report.Damages)
	}
	// Of what is in a directory that is not ours only that is named.
	want := append(slices.Clone(foreign), "data/AB", "other")
	want = slices.DeleteFunc(want, func(n string) bool { return strings.Contains(n, "AB/") || strings.HasPrefix(n, "other/") })
	slices.Sort(want)
	if !slices.Equal(report.Foreign, want) {
		t.Errorf("foreign = %q,\nwant %q", report.Foreign, want)
	}
}

// TestCheckHalfWritten checks that a short multichunk which nobody has announced is no damage.
func TestCheckHalfWritten(t *testing.T) {
	s := newSample(t, newRand(t))
	name := ObjectName(newName())
	s.st.SetObject(name, make([]byte, 5000))
	report := s.check(t, readData)
	if len(report.Damages) > 0 || !slices.Equal(report.HalfWritten, []string{name}) {
		t.Errorf("damages %+v, half-written %q, want none and %q", report.Damages, report.HalfWritten, name)
	}
}

// TestCheckCommits checks that commits that are missing or forked are reported.
func TestCheckCommits(t *testing.T) {
	rng := newRand(t)
	s := newSample(t, rng)
	intact := s.st.Snapshot()
	first := s.st.InDir("commits")[0]
	second := s.st.InDir("commits")[1]
	s.delete(t, second)
	report := s.check(t, nil)
	if len(report.Damages) != 1 || !errors.Is(report.Damages[0].Err, ErrNotFound) || !strings.HasPrefix(second, report.Damages[0].Object) {
		t.Errorf("the second of three commits is gone: %+v", report.Damages)
	}
	s.st.Restore(intact)
	s.last = nil
	s.commit(t, rng)
	report = s.check(t, nil)
	if !slices.ContainsFunc(report.Damages, func(d Damage) bool { return errors.Is(d.Err, ErrRollback) }) {
		t.Errorf("two first commits, one of them %s: %+v", first, report.Damages)
	}
}

// failing is a storage that fails a call.
type failing struct {
	remote.Storage
	left *atomic.Int64 // calls until then
}

var errStorage = fmt.Errorf("storm: %w", remote.ErrUnreachable)

func (f failing) Get(ctx context.Context, name string, off, n int64) ([]byte, error) {
	if f.left.Add(-1) == 0 {
		return nil, errStorage
	}
	return f.Storage.Get(ctx, name, off, n)
}

func (f failing) List(ctx context.Context, dir string, fn func(remote.Entry) error) error {
	if f.left.Add(-1) == 0 {
		return errStorage
	}
	return f.Storage.List(ctx, dir, fn)
}

// TestCheckStorageFails checks that an error of the storage is never taken for damage, nor for nothing being there.
func TestCheckStorageFails(t *testing.T) {
	s := newSample(t, newRand(t))
	st := s.r.st
	for i := int64(1); ; i++ {
		var left atomic.Int64
		left.Store(i)
		s.r.st = failing{st, &left}
		report, err := s.r.Check(t.Context(), readData)
		if left.Load() > 0 {
			if i < 20 {
				t.Errorf("only %d calls", i)
			}
			break
		}
		if !errors.Is(err, errStorage) {
			t.Fatalf("call %d fails: Check = %+v, %v", i, report, err)
		}
	}
	s.r.st = st
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.r.Check(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Check after cancel: %v", err)
	}
}
