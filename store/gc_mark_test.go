package store

import (
	"encoding/binary"
	"runtime"
	"testing"
)

func TestIDRuns(t *testing.T) {
	rng := newRand(t)
	var s idRuns
	in := map[ID]bool{}
	draw := func() (id ID) {
		copy(id[:], randomBytes(rng, len(id)))
		return id
	}
	var added []ID
	for range 100_000 {
		id := draw()
		if len(added) > 0 && rng.IntN(4) == 0 {
			id = added[rng.IntN(len(added))]
		}
		s.add(id)
		added = append(added, id)
		in[id] = true
		if probe := draw(); s.has(probe) != in[probe] {
			t.Fatalf("has(%v) = %v, want %v", probe, s.has(probe), in[probe])
		}
	}
	kept := 0
	for i := range s.runs {
		s.runs[i].merge()
		kept += len(s.runs[i].sorted)
	}
	if kept != len(in) {
		t.Errorf("%d ids are kept, want %d", kept, len(in))
	}
	for id := range in {
		if !s.has(id) {
			t.Fatalf("has(%v) = false", id)
		}
	}
}

// TestIDRunsMemory adds a hundred million ids, or a million if not DEDUPFS_LONG: nine bytes each must do.
func TestIDRunsMemory(t *testing.T) {
	n := 1_000_000
	if long {
		n = 100_000_000
	}
	rng := newRand(t)
	var s idRuns
	for range n {
		var id ID
		binary.BigEndian.PutUint64(id[:], rng.Uint64())
		s.add(id)
	}
	for i := range s.runs {
		s.runs[i].merge()
		s.runs[i].added = nil
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	t.Logf("%d ids: %d MiB of heap, %d MiB from the system", n, m.HeapAlloc>>20, m.Sys>>20)
	if limit := uint64(9*n + 64<<20); m.HeapAlloc > limit {
		t.Errorf("%d bytes of heap, want at most %d", m.HeapAlloc, limit)
	}
	runtime.KeepAlive(&s)
}
