package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// tamperChunks is enough for a multichunk of several segments and groups.
func tamperChunks(rng *rand.Rand) (chunks [][]byte) {
	for range 40 {
		chunks = append(chunks, randomBytes(rng, 3000), randomText(rng, 3000))
	}
	return chunks
}

// readAll reads everything of the object wire of multichunk n, in all ways, and returns the chunks that it got and the
// errors. wireSize is what it says of the length.
func readAll(r *Repository, n Name, hints []Hint, wire []byte, wireSize int64) (got [][]byte, errs []error) {
	ra := bytes.NewReader(wire)
	for _, h := range hints {
		g, err := r.ReadGroup(ra, wireSize, h)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for i := range g.Len() {
			_, data := g.Chunk(i)
			got = append(got, data)
		}
	}
	if _, _, err := r.ReadTable(ra, wireSize, n); err != nil {
		errs = append(errs, err)
	}
	if _, err := r.openMultichunk(n, wire); err != nil {
		errs = append(errs, err)
	}
	return got, errs
}

func hintsOf(m *Sealed) (hints []Hint) {
	for i := range m.Table {
		hints = append(hints, m.Table[i].Hint)
	}
	return slices.Compact(hints)
}

// checkTampered checks that what is read of a changed object is a part of what was written or ErrCorrupt, and that reading
// the whole of it fails.
func checkTampered(t *testing.T, r *Repository, m *Sealed, wire []byte, chunks [][]byte) {
	t.Helper()
	for _, size := range []int64{int64(len(wire)), -1} {
		limit := 4*len(m.Wire) + 1<<20 // for reading it twice
		var got [][]byte
		var errs []error
		limitAllocs(t, 4*limit, func() { got, errs = readAll(r, m.Name, hintsOf(m), wire, size) })
		if len(errs) == 0 {
			t.Error("a changed object was read without an error")
		}
		for _, err := range errs {
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("%v, want %v", err, ErrCorrupt)
			}
		}
		for _, data := range got {
			if !slices.ContainsFunc(chunks, func(c []byte) bool { return bytes.Equal(c, data) }) {
				t.Error("wrong bytes were read")
			}
		}
	}
}

// TestTamperFlips flips bits of a multichunk: some in every part, or all of them.
func TestTamperFlips(t *testing.T) {
	rng := newRand(t)
	r := newTestRepository(t, testConfig)
	chunks := tamperChunks(rng)
	m := packAll(t, r, KindData, chunks).sealed[0]
	stream, err := r.keys.Open(nil, seal.KindMultichunk, ObjectName(m.Name), m.Wire)
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsePrefix(stream)
	if err != nil {
		t.Fatal(err)
	}
	if len(hintsOf(m)) < 3 || len(m.Wire) < 3*seal.SegmentSize/2 || p.tableOff+p.tableLen == len(stream) {
		t.Fatalf("a multichunk of %d groups in %d bytes is not enough to tell", len(hintsOf(m)), len(m.Wire))
	}
	parts := [][2]int{ // header, prefix, groups, table, padding with its tag
		{0, seal.HeaderSize}, {seal.HeaderSize, seal.HeaderSize + prefixSize}, {seal.HeaderSize + prefixSize, p.tableOff},
		{p.tableOff + seal.HeaderSize, p.tableOff + seal.HeaderSize + p.tableLen}, {len(m.Wire) - 50, len(m.Wire)},
	}
	flips := 30
	if long {
		flips = 2000
	}
	for _, part := range parts {
		for range flips {
			wire := bytes.Clone(m.Wire)
			bit := 8*part[0] + rng.IntN(8*(part[1]-part[0]))
			wire[bit/8] ^= 1 << (bit % 8)
			checkTampered(t, r, m, wire, chunks)
			if t.Failed() {
				t.Fatalf("after bit %d", bit)
			}
		}
	}
}

// TestTamperLengths cuts a multichunk at the borders of segments and elsewhere, and makes it longer.
func TestTamperLengths(t *testing.T) {
	rng := newRand(t)
	r := newTestRepository(t, testConfig)
	chunks := tamperChunks(rng)
	m := packAll(t, r, KindData, chunks).sealed[0]
	lengths := []int{0, 1, seal.HeaderSize - 1, seal.HeaderSize, seal.HeaderSize + 16, len(m.Wire) - 1, len(m.Wire) + 1, len(m.Wire) + 16, 2 * len(m.Wire)}
	for end := seal.HeaderSize; end < len(m.Wire); end += seal.SegmentSize + 16 {
		lengths = append(lengths, end-1, end, end+1)
	}
	for range 30 {
		lengths = append(lengths, rng.IntN(len(m.Wire)))
	}
	for _, n := range lengths {
		wire := append(bytes.Clone(m.Wire), m.Wire...)[:n]
		checkTampered(t, r, m, wire, chunks)
		if t.Failed() {
			t.Fatalf("after cutting to %d of %d bytes", n, len(m.Wire))
		}
	}
}

// TestTamperSwaps puts objects and segments in the places of others.
func TestTamperSwaps(t *testing.T) {
	rng := newRand(t)
	r, other := newTestRepository(t, testConfig), newTestRepository(t, testConfig)
	chunks := tamperChunks(rng)
	m := packAll(t, r, KindData, chunks).sealed[0]
	again := packAll(t, r, KindData, chunks).sealed[0]
	foreign := packAll(t, other, KindData, chunks).sealed[0]
	swapped := bytes.Clone(m.Wire)
	const segment = seal.SegmentSize + 16
	first, second := swapped[seal.HeaderSize:][:segment], bytes.Clone(swapped[seal.HeaderSize+segment:][:segment])
	copy(swapped[seal.HeaderSize+segment:], first)
	copy(first, second)
	mixed := append(bytes.Clone(m.Wire[:seal.HeaderSize]), again.Wire[seal.HeaderSize:]...)
	commit, err := r.keys.Seal(nil, seal.KindCommit, ObjectName(m.Name), make([]byte, 200000))
	if err != nil {
		t.Fatal(err)
	}
	for name, wire := range map[string][]byte{
		"same chunks under another name": again.Wire, "of another repository": foreign.Wire, "segments": swapped,
		"header of another": mixed, "of another kind": commit,
	} {
		t.Run(name, func(t *testing.T) { checkTampered(t, r, m, wire, chunks) })
	}
}

// TestOpenMultichunkRefuses seals streams that a writer with the keys but with a fault could make.
func TestOpenMultichunkRefuses(t *testing.T) {
	rng := newRand(t)
	cfg := testConfig
	cfg.Compression = "none"
	r := newTestRepository(t, cfg)
	m := packAll(t, r, KindData, tamperChunks(rng)).sealed[0]
	stream, err := r.keys.Open(nil, seal.KindMultichunk, ObjectName(m.Name), m.Wire)
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsePrefix(stream)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(b []byte){
		"padding":           func(b []byte) { b[len(b)-1] = 1 },
		"chunk":             func(b []byte) { b[m.Table[0].Hint.Off+m.Table[0].Hint.Len-1] ^= 1 },
		"kind of group":     func(b []byte) { b[prefixSize] = byte(KindNodes) },
		"codec of group":    func(b []byte) { b[prefixSize+1] = byte(codecEnd) },
		"length of group":   func(b []byte) { b[prefixSize+5] ^= 1 },
		"number of chunks":  func(b []byte) { b[prefixSize+groupHeaderSize] ^= 1 },
		"length of a chunk": func(b []byte) { b[prefixSize+groupHeaderSize+1] ^= 1 },
		"id in the table":   func(b []byte) { b[p.tableOff+p.tableLen-1] ^= 1 },
		"number of groups":  func(b []byte) { b[p.tableOff]++ },
		"kind":              func(b []byte) { b[0] = byte(KindNodes) },
		"codec of table":    func(b []byte) { b[1] = byte(codecZstd) },
		"place of table":    func(b []byte) { b[7]++ },
		"end of table":      func(b []byte) { b[11]++ },
		"nothing":           func(b []byte) {},
	} {
		b := bytes.Clone(stream)
		change(b)
		wire, err := r.keys.Seal(nil, seal.KindMultichunk, ObjectName(m.Name), b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.openMultichunk(m.Name, wire); errors.Is(err, ErrCorrupt) == (name == "nothing") {
			t.Errorf("changed %s: %v", name, err)
		}
	}
}

func TestParseBlockRefuses(t *testing.T) {
	for name, block := range map[string][]byte{
		"nothing":               {},
		"no chunks":             {0},
		"too many chunks":       append([]byte{0x81, 0x20}, make([]byte, maxGroupChunks+1)...),
		"lengths not there":     {2, 0},
		"bytes not there":       {1, 2, 'a'},
		"bytes behind the end":  {1, 1, 'a', 'b'},
		"chunk that is too big": append([]byte{1, 0x81, 0x80, 0x20}, make([]byte, MaxChunk+1)...),
	} {
		if err := new(Group).parseBlock(block); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v, want %v", name, err, ErrCorrupt)
		}
	}
	if err := new(Group).parseBlock([]byte{2, 0, 1, 'a'}); err != nil {
		t.Errorf("a block like these but whole: %v", err)
	}
}

// TestReadGroupWrongHints checks that a hint that is wrong in any way costs no more than an error.
func TestReadGroupWrongHints(t *testing.T) {
	rng := newRand(t)
	r := newTestRepository(t, testConfig)
	m := packAll(t, r, KindData, tamperChunks(rng)).sealed[0]
	right := hintsOf(m)[1]
	for range 2000 {
		h := right
		switch rng.IntN(3) {
		case 0:
			h.Off = rng.Uint32N(uint32(2 * len(m.Wire)))
		case 1:
			h.Len = rng.Uint32N(uint32(2 * len(m.Wire)))
		case 2:
			h.Off, h.Len = rng.Uint32(), rng.Uint32()
		}
		size := []int64{-1, int64(len(m.Wire))}[rng.IntN(2)]
		limitAllocs(t, 16<<20, func() {
			g, err := r.ReadGroup(bytes.NewReader(m.Wire), size, h)
			if err == nil && h != right || err != nil && !errors.Is(err, ErrCorrupt) {
				t.Errorf("ReadGroup(%v) = %v, %v, want %v", h, g, err, ErrCorrupt)
			}
		})
	}
}

// counting is a storage that counts gets and their bytes.
type counting struct {
	remote.Storage
	mu          sync.Mutex
	gets, bytes int
}

func (c *counting) Get(ctx context.Context, name string, off, n int64) ([]byte, error) {
	b, err := c.Storage.Get(ctx, name, off, n)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gets++
	c.bytes += len(b)
	return b, err
}

// TestRemoteReader checks that groups are read by few and small gets.
func TestRemoteReader(t *testing.T) {
	rng := newRand(t)
	r := newTestRepository(t, testConfig)
	chunks := tamperChunks(rng)
	st := &counting{Storage: r.st}
	r.st = st
	s := packAll(t, r, KindData, chunks)
	m := s.sealed[0]
	if err := st.Put(t.Context(), ObjectName(m.Name), m.Wire); err != nil {
		t.Fatal(err)
	}
	for i, h := range hintsOf(m) {
		for _, size := range []int64{-1, int64(len(m.Wire))} {
			st.gets, st.bytes = 0, 0
			g, err := r.ReadGroup(r.RemoteReader(t.Context(), m.Name), size, h)
			if err != nil {
				t.Fatal(err)
			}
			if id, _ := g.Chunk(0); !slices.ContainsFunc(m.Table, func(e TableEntry) bool { return e.ID == id && e.Hint == h }) {
				t.Errorf("group %d begins with a chunk that is not its own", i)
			}
			segments := (int(h.Off)+int(h.Len)-1)/seal.SegmentSize - int(h.Off)/seal.SegmentSize + 1
			limit := 2
			if size < 0 {
				limit = 3 // it may end before the last segment does
			}
			if st.gets > limit || st.bytes > segments*(seal.SegmentSize+16)+seal.HeaderSize {
				t.Errorf("group %d in %d segments took %d gets of %d bytes", i, segments, st.gets, st.bytes)
			}
		}
	}
	st.gets = 0
	kind, table, err := r.ReadTable(r.RemoteReader(t.Context(), m.Name), -1, m.Name)
	if err != nil || kind != KindData || !reflect.DeepEqual(table, m.Table) {
		t.Errorf("ReadTable = %v, %d entries, %v", kind, len(table), err)
	}
	if st.gets > 3 {
		t.Errorf("the table took %d gets", st.gets)
	}
}

// TestRemoteReaderErrors checks that errors of the storage come through as they are.
func TestRemoteReaderErrors(t *testing.T) {
	r := newTestRepository(t, testConfig)
	h := Hint{Multichunk: newName(), Off: prefixSize, Len: 100}
	_, err := r.ReadGroup(r.RemoteReader(t.Context(), h.Multichunk), -1, h)
	if !errors.Is(err, remote.ErrNotExist) || errors.Is(err, ErrCorrupt) {
		t.Errorf("ReadGroup of nothing: %v, want %v", err, remote.ErrNotExist)
	}
	var left atomic.Int64
	left.Store(1)
	r.st = failing{r.st, &left}
	_, _, err = r.ReadTable(r.RemoteReader(t.Context(), h.Multichunk), -1, h.Multichunk)
	if !errors.Is(err, errStorage) || errors.Is(err, ErrCorrupt) {
		t.Errorf("ReadTable from a storage that fails: %v, want %v", err, errStorage)
	}
}

func TestObjectName(t *testing.T) {
	n := Name{0xab, 0xcd, 15: 1}
	const want = "data/ab/abcd0000000000000000000000000001"
	if got := ObjectName(n); got != want {
		t.Errorf("ObjectName = %q, want %q", got, want)
	}
	if got, ok := parseObjectName(want); !ok || got != n {
		t.Errorf("parseObjectName = %v, %v", got, ok)
	}
	for _, bad := range []string{
		"", "data", "data/ab", "data/ab/", want[1:], want + "0", want[:len(want)-1], "data/ac/abcd0000000000000000000000000001",
		"data/AB/ABCD0000000000000000000000000001", "data/ab/abcd000000000000000000000000000g", want + ".tmp", "x/" + want,
	} {
		if n, ok := parseObjectName(bad); ok {
			t.Errorf("parseObjectName(%q) = %v", bad, n)
		}
	}
}

// FuzzParseTable checks that a table has one encoding.
func FuzzParseTable(f *testing.F) {
	f.Add(appendTable(nil, nil, nil), prefixSize)
	f.Add(appendTable(nil, []groupLine{{100, 2}, {7, 1}}, []TableEntry{{Len: 5}, {Len: 0}, {ID: ID{1}, Len: MaxChunk}}), prefixSize+107)
	f.Fuzz(func(t *testing.T, b []byte, tableOff int) {
		var table []TableEntry
		var err error
		limitAllocs(t, 256<<10+4*len(b), func() { table, err = parseTable(b, Name{1}, tableOff) })
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("parseTable: %v, want %v", err, ErrCorrupt)
			}
			return
		}
		var groups []groupLine
		for i := range table {
			if i == 0 || table[i].Hint != table[i-1].Hint {
				groups = append(groups, groupLine{stored: int(table[i].Hint.Len)})
			}
			groups[len(groups)-1].chunks++
		}
		again := appendTable(nil, groups, table)
		// Two groups without a byte at one place cannot be told apart here; they open as nothing.
		empty := slices.ContainsFunc(groups, func(g groupLine) bool { return g.stored == 0 })
		if !empty && !bytes.Equal(again, b) {
			t.Fatalf("%x is encoded again as %x", b, again)
		}
	})
}

// FuzzParsePrefix checks that a prefix has one encoding.
func FuzzParsePrefix(f *testing.F) {
	b := make([]byte, prefixSize)
	(&prefix{kind: KindNodes, codec: codecZstd, tableOff: 100, tableLen: 50, tableRaw: 60}).put(b)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parsePrefix(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("parsePrefix: %v, want %v", err, ErrCorrupt)
			}
			return
		}
		again := make([]byte, prefixSize)
		p.put(again)
		if !bytes.HasPrefix(b, again) {
			t.Fatalf("%x is encoded again as %x", b, again)
		}
	})
}

// FuzzParseGroup checks that no group, however compressed, makes its reader take more than it says, nor panic.
func FuzzParseGroup(f *testing.F) {
	r := newTestRepository(f, testConfig)
	rng := rand.New(rand.NewPCG(7, 8))
	for _, compression := range []string{"zstd", "gzip", "bzip2", "none"} {
		cfg := testConfig
		cfg.Compression = compression
		writer := newTestRepository(f, cfg)
		g := writer.blocks.group()
		for range 5 {
			g.add(ID{}, randomText(rng, rng.IntN(1000)))
		}
		group, err := writer.blocks.appendGroup(nil, KindData, g.block(0, 5))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(group)
	}
	node := AppendNode(nil, leafNode(3))
	f.Add(append(binary.BigEndian.AppendUint32([]byte{byte(KindNodes), 0}, uint32(2+len(node))), append([]byte{1, byte(len(node)&127 | 128), byte(len(node) >> 7)}, node...)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		declared := 0
		if len(b) >= groupHeaderSize {
			declared = min(maxGroupBlock, int(binary.BigEndian.Uint32(b[2:])))
		}
		var g *Group
		var err error
		// bzip2 has tables of 4 MiB of its own; ids and ends take 40 bytes for a chunk, which may be empty.
		limitAllocs(t, 10<<20+2*declared+50*maxGroupChunks, func() { g, err = r.parseGroup(b) })
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("parseGroup: %v, want %v", err, ErrCorrupt)
			}
			return
		}
		size := 0
		for i := range g.Len() {
			id, data := g.Chunk(i)
			size += len(data)
			if g.Kind() == KindData && id != r.ChunkID(data) {
				t.Fatalf("chunk %d has the id of other bytes", i)
			}
		}
		if size != g.Size() {
			t.Fatalf("chunks of %d bytes in a group of %d", size, g.Size())
		}
	})
}

// BenchmarkReadGroup opens a group of 64 chunks of 8 KiB of text, and so finds the cost of a random read.
func BenchmarkReadGroup(b *testing.B) {
	rng := rand.New(rand.NewPCG(9, 10))
	for _, size := range []int{64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20} {
		for name, content := range map[string]func(*rand.Rand, int) []byte{"text": randomText, "random": randomBytes} {
			b.Run(name+"/"+strconv.Itoa(size>>10), func(b *testing.B) {
				cfg := testConfig
				cfg.MultichunkSize, cfg.GroupSize = 8<<20, size
				r := newTestRepository(b, cfg)
				var chunks [][]byte
				for range 2 << 20 / (8 << 10) {
					chunks = append(chunks, content(rng, 8<<10))
				}
				m := packAll(b, r, KindData, chunks).sealed[0]
				ra := bytes.NewReader(m.Wire)
				b.ReportAllocs()
				b.SetBytes(int64(size))
				end := reportCPU(b)
				for b.Loop() {
					if _, err := r.ReadGroup(ra, int64(len(m.Wire)), m.Table[0].Hint); err != nil {
						b.Fatal(err)
					}
				}
				end(size)
			})
		}
	}
}

var _ io.ReaderAt = (*remoteReader)(nil)
