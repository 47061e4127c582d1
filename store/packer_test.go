package store

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// A shelf is a sink that keeps all multichunks.
type shelf struct{ sealed []*Sealed }

func (s *shelf) put(_ context.Context, m *Sealed) error {
	s.sealed = append(s.sealed, m)
	return nil
}

func (s *shelf) find(t *testing.T, n Name) *Sealed {
	t.Helper()
	for _, m := range s.sealed {
		if m.Name == n {
			return m
		}
	}
	t.Fatalf("no multichunk %v", n)
	return nil
}

// tables returns all tables one after the other.
func (s *shelf) tables() (all []TableEntry) {
	for _, m := range s.sealed {
		all = append(all, m.Table...)
	}
	return all
}

// randomChunk returns a chunk of at most limit bytes, mostly small, that compresses well, badly or not.
func randomChunk(rng *rand.Rand, limit int) []byte {
	n := rng.IntN(1 + min(limit, 1<<rng.IntN(20)))
	if rng.IntN(2) == 0 {
		return randomText(rng, n)
	}
	return randomBytes(rng, n)
}

// packAll packs chunks and returns what the sink got.
func packAll(t testing.TB, r *Repository, kind Kind, chunks [][]byte) *shelf {
	t.Helper()
	s := new(shelf)
	p := r.NewPacker(kind, s.put)
	for _, c := range chunks {
		if err := p.Add(t.Context(), r.ChunkID(c), c); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestPackerRoundTrip packs random chunks under random configurations, and reads all of them back in every way.
func TestPackerRoundTrip(t *testing.T) {
	rng := newRand(t)
	for i := range 40 {
		cfg := testConfig
		cfg.MultichunkSize = MinMultichunk << rng.IntN(5)
		cfg.GroupSize = MinGroup << rng.IntN(9)
		cfg.Compression = []string{"zstd", "zstd-fast", "zstd-better", "gzip", "bzip2", "none"}[i%6]
		chunks := make([][]byte, rng.IntN(200))
		for i := range chunks {
			chunks[i] = randomChunk(rng, min(MaxChunk, cfg.MultichunkSize/2))
		}
		name := fmt.Sprintf("%s_%d_%d", cfg.Compression, cfg.MultichunkSize>>10, cfg.GroupSize>>10)
		t.Run(name, func(t *testing.T) {
			r := newTestRepository(t, cfg)
			s := packAll(t, r, KindData, chunks)
			checkChunks(t, r, s, chunks)
			checkLengths(t, r, s)
		})
	}
}

// checkChunks checks that s holds exactly chunks in their order, and that each can be read.
func checkChunks(t *testing.T, r *Repository, s *shelf, chunks [][]byte) {
	t.Helper()
	table := s.tables()
	if len(table) != len(chunks) {
		t.Fatalf("%d chunks in the tables, want %d", len(table), len(chunks))
	}
	var g *Group
	var last Hint
	for i, e := range table {
		if e.ID != r.ChunkID(chunks[i]) || int(e.Len) != len(chunks[i]) {
			t.Fatalf("chunk %d is not in its place", i)
		}
		if e.Hint != last {
			m := s.find(t, e.Hint.Multichunk)
			var err error
			if g, err = r.ReadGroup(bytes.NewReader(m.Wire), int64(len(m.Wire)), e.Hint); err != nil {
				t.Fatal(err)
			}
			last = e.Hint
		}
		if data, ok := g.Find(e.ID); !ok || !bytes.Equal(data, chunks[i]) {
			t.Fatalf("chunk %d of %d bytes: found %v", i, len(chunks[i]), ok)
		}
	}
	for _, m := range s.sealed {
		for _, size := range []int64{int64(len(m.Wire)), -1} {
			kind, table, err := r.ReadTable(bytes.NewReader(m.Wire), size, m.Name)
			if err != nil || kind != m.Kind || !reflect.DeepEqual(table, m.Table) {
				t.Fatalf("ReadTable(%d) = %v, %d entries, %v", size, kind, len(table), err)
			}
		}
		if c, err := r.openMultichunk(m.Name, m.Wire); err != nil || !reflect.DeepEqual(c.table, m.Table) {
			t.Fatalf("openMultichunk: %v", err)
		}
	}
}

// checkLengths checks that no length on the wire tells anything: all multichunks but the last have one, unless a single
// chunk is longer, and the others have one of few.
func checkLengths(t *testing.T, r *Repository, s *shelf) {
	t.Helper()
	full := r.cfg.MultichunkSize
	for i, m := range s.sealed {
		n := len(m.Wire)
		alone := len(m.Table) == 1
		if i < len(s.sealed)-1 && n != full && !(alone && n > full) {
			t.Errorf("multichunk %d of %d has %d bytes, want %d", i, len(s.sealed), n, full)
		}
		if n != full && n != seal.PadSize(n) {
			t.Errorf("multichunk of %d bytes, which is no allowed length", n)
		}
	}
}

// TestPackerEdges packs the chunks that are easily forgotten.
func TestPackerEdges(t *testing.T) {
	rng := newRand(t)
	tiny := make([][]byte, 3*maxGroupChunks)
	for i := range tiny {
		tiny[i] = []byte{byte(i), byte(i >> 8)}
	}
	for name, chunks := range map[string][][]byte{
		"nothing":          nil,
		"empty":            {{}},
		"one byte":         {{1}},
		"largest":          {randomBytes(rng, MaxChunk), randomText(rng, MaxChunk), randomBytes(rng, MaxChunk)},
		"many tiny":        tiny,
		"one chunk often":  slicesRepeat([]byte("again"), 20000),
		"zeros":            {make([]byte, MaxChunk), make([]byte, 10)},
		"largest and tiny": {randomBytes(rng, MaxChunk), {}, {1}, randomBytes(rng, MaxChunk-1), {2}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{MinMultichunk, 1 << 20} {
				cfg := testConfig
				cfg.MultichunkSize = size
				r := newTestRepository(t, cfg)
				s := packAll(t, r, KindData, chunks)
				checkChunks(t, r, s, chunks)
				checkLengths(t, r, s)
			}
		})
	}
}

func slicesRepeat(b []byte, n int) [][]byte {
	all := make([][]byte, n)
	for i := range all {
		all[i] = b
	}
	return all
}

// TestPackerRepeats checks that the same chunks are packed in the same way, however compression takes its turns.
func TestPackerRepeats(t *testing.T) {
	rng := newRand(t)
	r := newTestRepository(t, testConfig)
	chunks := make([][]byte, 500)
	for i := range chunks {
		chunks[i] = randomChunk(rng, 64<<10)
	}
	first := packAll(t, r, KindData, chunks).tables()
	second := packAll(t, r, KindData, chunks).tables()
	for i := range first {
		a, b := first[i], second[i]
		a.Hint.Multichunk, b.Hint.Multichunk = Name{}, Name{}
		if a != b {
			t.Fatalf("chunk %d lies at %v and at %v", i, a.Hint, b.Hint)
		}
	}
}

// TestPackerPadsLittle checks that what full multichunks lose to padding is less than 1% of them.
func TestPackerPadsLittle(t *testing.T) {
	rng := newRand(t)
	cfg := testConfig
	cfg.MultichunkSize, cfg.GroupSize = 2<<20, 256<<10
	for name, content := range map[string]func(*rand.Rand, int) []byte{"random": randomBytes, "text": randomText} {
		t.Run(name, func(t *testing.T) {
			r := newTestRepository(t, cfg)
			var chunks [][]byte
			for range 4000 {
				chunks = append(chunks, content(rng, 2<<10+rng.IntN(12<<10)))
			}
			s := packAll(t, r, KindData, chunks)
			if len(s.sealed) < 3 {
				t.Fatalf("%d multichunks, too few to tell", len(s.sealed))
			}
			padding, sum := 0, 0
			for _, m := range s.sealed[:len(s.sealed)-1] {
				sum += len(m.Wire)
				padding += paddingOf(t, r, m)
			}
			if padding*100 > sum {
				t.Errorf("%d of %d bytes are padding", padding, sum)
			}
		})
	}
}

// paddingOf returns the bytes behind the table of m.
func paddingOf(t *testing.T, r *Repository, m *Sealed) int {
	t.Helper()
	stream, err := r.keys.Open(nil, seal.KindMultichunk, ObjectName(m.Name), m.Wire)
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsePrefix(stream)
	if err != nil {
		t.Fatal(err)
	}
	return len(stream) - p.tableOff - p.tableLen
}

func TestPackerHint(t *testing.T) {
	r := newTestRepository(t, testConfig)
	rng := newRand(t)
	ctx := t.Context()
	for _, kind := range []Kind{KindData, KindNodes} {
		s := new(shelf)
		p := r.NewPacker(kind, s.put)
		first := randomBytes(rng, 1000)
		id := r.ChunkID(first)
		add := func(data []byte) {
			t.Helper()
			if err := p.Add(ctx, r.ChunkID(data), data); err != nil {
				t.Fatal(err)
			}
		}
		add(first)
		if h, ok := p.Hint(id); ok {
			t.Errorf("%v: Hint = %v before the group was closed", kind, h)
		}
		if err := p.CloseGroup(ctx); err != nil {
			t.Fatal(err)
		}
		h, ok := p.Hint(id)
		if !ok {
			t.Fatalf("%v: no hint after CloseGroup", kind)
		}
		for len(s.sealed) == 0 {
			add(randomBytes(rng, 10000))
			if err := p.CloseGroup(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if h != s.sealed[0].Table[0].Hint {
			t.Errorf("%v: Hint = %v, the table says %v", kind, h, s.sealed[0].Table[0].Hint)
		}
		if _, ok := p.Hint(id); ok != (kind == KindNodes) {
			t.Errorf("%v: Hint known after the sink: %v", kind, ok)
		}
		if err := p.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		if _, ok := p.Hint(id); ok {
			t.Errorf("%v: Hint known after Flush", kind)
		}
	}
}

// TestPackerNodes checks that a group of nodes gives each the id of its canonical part, whatever its hints.
func TestPackerNodes(t *testing.T) {
	r := newTestRepository(t, testConfig)
	rng := newRand(t)
	s := new(shelf)
	p := r.NewPacker(KindNodes, s.put)
	nodes := map[ID]*Node{}
	for range 300 {
		n := randomNode(rng)
		id := r.NodeID(AppendCanonical(nil, n))
		nodes[id] = n
		if err := p.Add(t.Context(), id, AppendNode(nil, n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, e := range s.tables() {
		m := s.find(t, e.Hint.Multichunk)
		g, err := r.ReadGroup(bytes.NewReader(m.Wire), -1, e.Hint)
		if err != nil {
			t.Fatal(err)
		}
		data, ok := g.Find(e.ID)
		if !ok || g.Kind() != KindNodes {
			t.Fatalf("node %v is not in its group of %v", e.ID, g.Kind())
		}
		if got, err := r.CheckNode(e.ID, data); err != nil || !reflect.DeepEqual(got, nodes[e.ID]) {
			t.Errorf("CheckNode: %v", err)
		}
	}
}

// TestPackerStaysBroken checks that after an error of the sink everything fails with it, and nothing more is stored.
func TestPackerStaysBroken(t *testing.T) {
	r := newTestRepository(t, testConfig)
	rng := newRand(t)
	boom := errors.New("boom")
	var calls atomic.Int64
	p := r.NewPacker(KindData, func(context.Context, *Sealed) error { calls.Add(1); return boom })
	for range 200 {
		data := randomBytes(rng, 10000)
		if err := p.Add(t.Context(), r.ChunkID(data), data); err != nil {
			break
		}
	}
	data := []byte("more")
	for what, err := range map[string]error{
		"Add":        p.Add(t.Context(), r.ChunkID(data), data),
		"CloseGroup": p.CloseGroup(t.Context()),
		"Flush":      p.Flush(t.Context()),
	} {
		if !errors.Is(err, boom) {
			t.Errorf("%s after an error of the sink: %v, want %v", what, err, boom)
		}
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("the sink was called %d times, want once", n)
	}
}

// TestPackerWaits checks that a sink that waits makes Add wait, before much has been taken, and that ctx ends that.
func TestPackerWaits(t *testing.T) {
	r := newTestRepository(t, testConfig)
	rng := newRand(t)
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan struct{})
	p := r.NewPacker(KindData, func(ctx context.Context, _ *Sealed) error {
		close(waiting)
		<-ctx.Done()
		return ctx.Err()
	})
	done := make(chan error)
	var added atomic.Int64
	go func() {
		for {
			data := randomBytes(rng, 10000)
			if err := p.Add(ctx, r.ChunkID(data), data); err != nil {
				done <- err
				return
			}
			added.Add(int64(len(data)))
		}
	}()
	<-waiting
	select {
	case err := <-done:
		t.Fatalf("Add while the sink waits: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	if n := added.Load(); n > int64(2*r.cfg.MultichunkSize) {
		t.Errorf("%d bytes were taken while the sink waits for the first %d", n, r.cfg.MultichunkSize)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Add after cancel: %v, want %v", err, context.Canceled)
	}
}

// TestPackerShowsNothing looks for what was packed in the objects, as it is and in the encodings in which it may hide.
func TestPackerShowsNothing(t *testing.T) {
	canary := []byte("canary-3f81c0de-content")
	for _, compression := range []string{"zstd", "none"} {
		cfg := testConfig
		cfg.Compression = compression
		r := newTestRepository(t, cfg)
		rng := newRand(t)
		var chunks [][]byte
		for range 300 {
			chunks = append(chunks, append(randomChunk(rng, 10000), canary...))
		}
		s := packAll(t, r, KindData, chunks)
		id := r.ChunkID(chunks[0])
		for _, needle := range [][]byte{canary, []byte(hex.EncodeToString(canary)), canary[3:],
			[]byte(base64.StdEncoding.EncodeToString(canary))[:12], id[:8], []byte(id.String()[:16])} {
			for _, m := range s.sealed {
				if bytes.Contains(m.Wire, needle) {
					t.Errorf("%s: %q stands in an object", compression, needle)
				}
			}
		}
	}
}

// TestPackerMemory measures what is live while the sink holds a multichunk, when a packer holds most.
func TestPackerMemory(t *testing.T) {
	rng := newRand(t)
	cfg := testConfig
	cfg.MultichunkSize, cfg.GroupSize, cfg.Compression = DefaultMultichunk, DefaultGroup, DefaultCompression
	r := newTestRepository(t, cfg)
	chunk := append(randomBytes(rng, 6<<10), randomText(rng, 2<<10)...)
	before, peak := live(), uint64(0)
	p := r.NewPacker(KindData, func(_ context.Context, s *Sealed) error {
		peak = max(peak, live())
		s.Release()
		return nil
	})
	for i := range 40 << 20 / len(chunk) {
		copy(chunk, randomBytes(rng, 4<<10))
		if err := p.Add(t.Context(), ID{byte(i), byte(i >> 8)}, chunk); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d KiB at most", (peak-before)>>10)
	if peak-before > 4*uint64(cfg.MultichunkSize) {
		t.Errorf("a packer held %d bytes, more than four multichunks", peak-before)
	}
}

// live returns the bytes that are reachable, pools included only if they are in use.
func live() uint64 {
	runtime.GC()
	runtime.GC() // pools are emptied by the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestNewBlocksRefuses(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.Compression = "lzma" },
		func(c *Config) { c.MultichunkSize = MinMultichunk - 1 },
		func(c *Config) { c.MultichunkSize = MaxMultichunk + 1 },
		func(c *Config) { c.GroupSize = 1 },
		func(c *Config) { c.GroupSize = MaxGroup + 1 },
	} {
		cfg := testConfig
		change(&cfg)
		if _, err := newBlocks(cfg.Compression, cfg.MultichunkSize, cfg.GroupSize); err == nil {
			t.Errorf("a repository of %+v was opened", cfg)
		}
	}
}

// BenchmarkPacker packs chunks of 8 KiB from memory, without the cost of naming them.
func BenchmarkPacker(b *testing.B) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, content := range []struct {
		name string
		make func(*rand.Rand, int) []byte
	}{{"random", randomBytes}, {"text", randomText}} {
		data := content.make(rng, 32<<20)
		for _, compression := range []string{"none", "zstd-fast", "zstd", "zstd-better", "gzip"} {
			b.Run(content.name+"/"+compression, func(b *testing.B) {
				cfg := testConfig
				cfg.MultichunkSize, cfg.GroupSize, cfg.Compression = 8<<20, 512<<10, compression
				r := newTestRepository(b, cfg)
				b.SetBytes(int64(len(data)))
				b.ReportAllocs()
				end := reportCPU(b)
				for b.Loop() {
					benchmarkPack(b, r, data)
				}
				end(len(data))
			})
		}
	}
}

func benchmarkPack(b *testing.B, r *Repository, data []byte) {
	p := r.NewPacker(KindData, func(_ context.Context, s *Sealed) error { s.Release(); return nil })
	var id ID
	for off := 0; off < len(data); off += 8 << 10 {
		id[0], id[1], id[2] = byte(off), byte(off>>8), byte(off>>16)
		if err := p.Add(b.Context(), id, data[off:off+8<<10]); err != nil {
			b.Fatal(err)
		}
	}
	if err := p.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
}
