package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// A testSpare has copies of some objects and chunks.
type testSpare struct {
	objects map[Name][]byte
	chunks  map[ID][]byte
	small   map[string][]byte
}

func (s *testSpare) SpareMultichunk(n Name) []byte  { return s.objects[n] }
func (s *testSpare) SpareChunk(ref Ref) []byte      { return s.chunks[ref.ID] }
func (s *testSpare) SpareObject(name string) []byte { return s.small[name] }
func (s *testSpare) SpareObjects() []string         { return slices.Collect(maps.Keys(s.small)) }

// held returns all chunks and nodes that can be read by tables.
func (s *sample) held(t testing.TB) map[ID][]byte {
	t.Helper()
	all := map[ID][]byte{}
	for _, name := range s.st.InDir(dataDir) {
		n, ok := parseObjectName(name)
		wire, _ := s.st.Object(name)
		if !ok {
			continue
		}
		c, _ := s.r.openMultichunk(n, wire)
		for _, e := range c.table {
			if slices.Contains(c.lost, e.ID) {
				continue
			}
			g, err := s.r.ReadGroup(bytes.NewReader(wire), int64(len(wire)), e.Hint)
			s.must(t, err)
			data, _ := g.Find(e.ID)
			all[e.ID] = data
		}
	}
	return all
}

// objects returns all that lies on the storage.
func (s *sample) objects() map[string]string {
	all := map[string]string{}
	for _, name := range s.st.Names() {
		b, _ := s.st.Object(name)
		all[name] = string(b)
	}
	return all
}

// A ruin is a way to lose one multichunk.
type ruin func(s *sample, t *testing.T, name string)

var ruins = map[string]ruin{
	"gone": func(s *sample, t *testing.T, name string) { s.delete(t, name) },
	"short": func(s *sample, t *testing.T, name string) {
		s.st.Damage(name, func(b []byte) []byte { return b[:len(b)/2] })
	},
	"empty": func(s *sample, t *testing.T, name string) { s.st.Damage(name, func(b []byte) []byte { return nil }) },
	"header": func(s *sample, t *testing.T, name string) {
		s.st.Damage(name, func(b []byte) []byte { b[70] ^= 1; return b })
	},
	"first": func(s *sample, t *testing.T, name string) {
		s.st.Damage(name, func(b []byte) []byte { b[seal.HeaderSize+5] ^= 1; return b })
	},
	"last": func(s *sample, t *testing.T, name string) {
		s.st.Damage(name, func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	},
	"replaced": func(s *sample, t *testing.T, name string) {
		other := s.st.InDir(dataDir)[0]
		if other == name {
			other = s.st.InDir(dataDir)[1]
		}
		s.replace(t, name, other)
	},
}

// TestRepair loses multichunks in each way, with whole copies, with single chunks, or with nothing as spares.
func TestRepair(t *testing.T) {
	rng := newRand(t)
	s := newSample(t, rng)
	intact := s.st.Snapshot()
	before := s.held(t)
	whole := &testSpare{objects: map[Name][]byte{}}
	for _, name := range s.st.InDir(dataDir) {
		n, _ := parseObjectName(name)
		whole.objects[n], _ = s.st.Object(name)
	}
	victims := []string{s.owner[s.chunks[0]][0], s.owner[s.last.Root.ID][0]}
	if long {
		victims = s.st.InDir(dataDir)
	}
	for _, victim := range victims {
		for how, ruin := range ruins {
			only := []string{"copies", "chunks", "nothing"}[rng.IntN(3)]
			for spares, spare := range map[string]*testSpare{"copies": whole, "chunks": {chunks: before}, "nothing": {}} {
				if !long && spares != only {
					continue
				}
				s.st.Restore(intact)
				ruin(s, t, victim)
				readable := s.held(t)
				was := s.objects()
				o := &RepairOptions{Check: CheckOptions{ReadData: true, Spare: spare}, DryRun: true}
				dry, err := s.r.Repair(t.Context(), o)
				s.must(t, err)
				if !maps.Equal(was, s.objects()) {
					t.Fatalf("%s, %s: a dry run has changed something", how, spares)
				}
				o.DryRun = false
				report, err := s.r.Repair(t.Context(), o)
				s.must(t, err)
				if len(dry.Fixes) != len(report.Fixes) || len(dry.Left) != len(report.Left) {
					t.Errorf("%s, %s: %+v, the dry run said %+v", how, spares, report, dry)
				}
				after := s.held(t)
				for id := range readable {
					if after[id] == nil {
						t.Fatalf("%s, %s: repair of %s has lost %v", how, spares, victim, id)
					}
				}
				if spares == "nothing" {
					continue
				}
				unrepairable := func(d Damage) bool { return !d.Repairable }
				if len(report.Left) > 0 || slices.ContainsFunc(report.Before.Damages, unrepairable) {
					t.Errorf("%s, %s: %+v is left, before it was %+v", how, spares, report.Left, report.Before.Damages)
				}
				if r := s.check(t, readData); len(r.Damages)+len(r.Healed)+len(r.Foreign) > 0 {
					t.Errorf("%s, %s: after repair %+v", how, spares, r)
				}
			}
		}
	}
}

// cutOff is a storage that fails all calls from one on, which without long is one that changes something.
type cutOff struct {
	remote.Storage
	left *atomic.Int64
}

func (c cutOff) do() error {
	if c.left.Add(-1) < 0 {
		return errStorage
	}
	return nil
}

func (c cutOff) Get(ctx context.Context, name string, off, n int64) ([]byte, error) {
	if !long {
		if c.left.Load() < 0 {
			return nil, errStorage
		}
	} else if err := c.do(); err != nil {
		return nil, err
	}
	return c.Storage.Get(ctx, name, off, n)
}

// Put leaves half of an object when it fails.
func (c cutOff) Put(ctx context.Context, name string, data []byte) error {
	if err := c.do(); err != nil {
		if c.left.Load() == -1 {
			return errors.Join(err, c.Storage.Put(ctx, name, data[:len(data)/2]))
		}
		return err
	}
	return c.Storage.Put(ctx, name, data)
}

func (c cutOff) Delete(ctx context.Context, name string) error {
	if err := c.do(); err != nil {
		return err
	}
	return c.Storage.Delete(ctx, name)
}

// TestRepairInterrupted stops a repair at every call of the storage and repeats it.
func TestRepairInterrupted(t *testing.T) {
	s := newSample(t, newRand(t))
	// A copy of the chunks, so that much of what is damaged lies elsewhere.
	before := s.held(t)
	victim := s.owner[s.chunks[0]][0]
	s.st.Damage(victim, func(b []byte) []byte { b[seal.HeaderSize+seal.SegmentSize+5] ^= 1; return b })
	was := s.st.Snapshot()
	readable := s.held(t)
	st := s.r.st
	interrupted := 0
	for i := int64(0); ; i++ {
		s.st.Restore(was)
		var left atomic.Int64
		left.Store(i)
		s.r.st = cutOff{st, &left}
		o := &RepairOptions{Check: CheckOptions{ReadData: true, Spare: &testSpare{chunks: before}}}
		_, err := s.r.Repair(t.Context(), o)
		s.r.st = st
		if err != nil {
			interrupted++
		}
		after := s.held(t)
		for id := range readable {
			if after[id] == nil {
				t.Fatalf("stopped at call %d: %v is lost", i, id)
			}
		}
		report, again := s.r.Repair(t.Context(), o)
		s.must(t, again)
		if len(report.Left) > 0 {
			t.Fatalf("stopped at call %d: after another repair %+v is left", i, report.Left)
		}
		if r := s.check(t, readData); len(r.Damages) > 0 {
			t.Fatalf("stopped at call %d: after another repair %+v", i, r.Damages)
		}
		if left.Load() >= 0 {
			break
		}
	}
	if interrupted < 3 {
		t.Errorf("stopped %d times, so this shows nothing", interrupted)
	}
}

// refusing is a storage that takes new objects and nothing else, as with append-only credentials.
type refusing struct {
	remote.Storage
	objects func(name string) bool
}

var errRefused = fmt.Errorf("append-only: %w", remote.ErrAuth)

func (r refusing) Put(ctx context.Context, name string, data []byte) error {
	if r.objects(name) {
		return errRefused
	}
	return r.Storage.Put(ctx, name, data)
}

func (r refusing) Delete(context.Context, string) error { return errRefused }

// TestRepairAppendOnly repairs where nothing can be replaced: what can be found is put beside.
func TestRepairAppendOnly(t *testing.T) {
	s := newSample(t, newRand(t))
	before := s.held(t)
	victim := s.owner[s.chunks[0]][0]
	s.st.Damage(victim, func(b []byte) []byte { b[seal.HeaderSize+5] ^= 1; return b })
	st := s.r.st
	s.r.st = refusing{st, func(name string) bool { _, ok := s.st.Object(name); return ok }}
	report, err := s.r.Repair(t.Context(), &RepairOptions{Check: CheckOptions{ReadData: true, Spare: &testSpare{chunks: before}}})
	s.must(t, err)
	if len(report.Fixes) != 1 || !errors.Is(report.Fixes[0].Refused, errRefused) {
		t.Errorf("fixes = %+v, want one that was refused", report.Fixes)
	}
	if r := s.check(t, readData); len(r.Damages) > 0 || len(r.Healed) != 1 {
		t.Errorf("damages %+v, healed %+v, want one healed", r.Damages, r.Healed)
	}
}

// TestFinder finds what no commit tells of too, and what is before a damaged commit.
func TestFinder(t *testing.T) {
	rng := newRand(t)
	s := newSample(t, rng)
	copies := s.r.NewPacker(KindData, s.put)
	extra := randomBytes(rng, 5000)
	id := s.r.ChunkID(extra)
	s.must(t, copies.Add(t.Context(), id, extra), copies.Flush(t.Context()))
	first := s.st.InDir(commitsDir)[0]
	s.st.Damage(first, func(b []byte) []byte { b[100] ^= 1; return b })
	f := s.r.NewFinder(KindData)
	seen := map[Name]int{}
	found := false
	for {
		n, table, err := f.Next(t.Context())
		if errors.Is(err, ErrNotFound) {
			break
		}
		s.must(t, err)
		seen[n]++
		found = found || slices.ContainsFunc(table, func(e TableEntry) bool { return e.ID == id })
	}
	data := 0
	for _, name := range s.st.InDir(dataDir) {
		n, _ := parseObjectName(name)
		kind, _, err := s.r.ReadTable(s.r.RemoteReader(t.Context(), n), -1, n)
		s.must(t, err)
		if kind == KindData {
			data++
		}
	}
	if len(seen) != data || !found {
		t.Errorf("%d multichunks of data seen of %d, one that nobody announces: %v", len(seen), data, found)
	}
	for n, times := range seen {
		if times != 1 {
			t.Errorf("%v was seen %d times", n, times)
		}
	}
}
