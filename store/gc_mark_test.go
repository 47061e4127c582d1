package store

import (
	"encoding/binary"
	"os"
	"runtime"
	"testing"
	"time"
)

// TestIDRuns compares a set that has to write runs all the time with a map, and with one that has not.
func TestIDRuns(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	rng := newRand(t)
	s, roomy := idRuns{room: 700}, idRuns{}
	defer s.close()
	in := map[ID]bool{}
	draw := func() (id ID) {
		copy(id[:], randomBytes(rng, len(id)))
		return id
	}
	var added []ID
	merges := 0
	for range 30_000 {
		id := draw()
		if len(added) > 0 && rng.IntN(4) == 0 {
			id = added[rng.IntN(len(added))]
		}
		before := len(s.runs)
		s.add(id)
		roomy.add(id)
		if len(s.runs) < before {
			merges++
		}
		added = append(added, id)
		in[id] = true
		if rng.IntN(50) == 0 {
			probe, old := draw(), added[rng.IntN(len(added))]
			if s.has(probe) || roomy.has(probe) || !s.has(old) || !roomy.has(old) {
				t.Fatalf("after %d ids: has is wrong", len(added))
			}
		}
	}
	if merges < 2 || len(roomy.runs) > 0 {
		t.Errorf("runs were merged %d times, and there are %d where all fits", merges, len(roomy.runs))
	}
	s.settle()
	if len(s.runs) != 1 || s.runs[0].n != len(in) {
		t.Errorf("%d runs, the first of %d ids; want one of %d", len(s.runs), s.runs[0].n, len(in))
	}
	for id := range in {
		if !s.has(id) {
			t.Fatalf("has(%v) = false", id)
		}
	}
	if s.err != nil {
		t.Error(s.err)
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("files %v, %v, want none that has a name", left, err)
	}
}

// TestIDRunsFull sees that a disk that is full makes a mark fail, and nothing look unneeded.
func TestIDRunsFull(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()+"/none")
	s := idRuns{room: 10}
	for i := range 20 {
		s.add(ID{byte(i)})
	}
	if s.err == nil || !s.has(ID{0}) || !s.has(ID{200}) {
		t.Errorf("err = %v, or something is not there", s.err)
	}
}

// TestIDRunsMemory adds a hundred million ids, or a million if not DEDUPFS_LONG, with room for a twelfth of that.
func TestIDRunsMemory(t *testing.T) {
	n := 1_000_000
	if long {
		n = 100_000_000
	}
	rng := newRand(t)
	s := idRuns{room: n / 12}
	defer s.close()
	var before, most runtime.MemStats
	runtime.ReadMemStats(&before) // with what other tests have taken
	began := time.Now()
	for range n {
		var id ID
		binary.BigEndian.PutUint64(id[:], rng.Uint64())
		s.add(id)
	}
	s.settle()
	took := time.Since(began)
	runtime.ReadMemStats(&most)
	grown := most.Sys - before.Sys
	for range n / 100 {
		var id ID
		binary.BigEndian.PutUint64(id[:], rng.Uint64())
		s.has(id)
	}
	t.Logf("%d ids: %v to add, %v to look up a hundredth; %d MiB from the system, %d runs", n, took, time.Since(began)-took, grown>>20, len(s.runs))
	if s.err != nil {
		t.Fatal(s.err)
	}
	if limit := uint64(5*8*n/12 + 96<<20); grown > limit {
		t.Errorf("%d bytes from the system, want at most %d", grown, limit)
	}
}
