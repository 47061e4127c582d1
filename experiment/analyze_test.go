package experiment

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/dedupfs/dedupfs/chunking"
)

func random(seed byte, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func write(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// makeVersions makes two versions of a folder: 1 MB that repeats itself nowhere, a copy, small files, a hole, links.
func makeVersions(t *testing.T) string {
	dir := t.TempDir()
	data := random(1, 1_000_000)
	for i := range data {
		data[i] &= 63 // not incompressible
	}
	for _, v := range []string{"v0", "v1"} {
		d := filepath.Join(dir, v)
		write(t, filepath.Join(d, "a.bin"), data)
		write(t, filepath.Join(d, "copy.bin"), data)
		for i := range 300 { // more than a batch
			write(t, filepath.Join(d, "many", fmt.Sprintf("%d.TXT", i)), []byte("the same"))
		}
		write(t, filepath.Join(d, ".hidden"), nil)
		if err := os.Link(filepath.Join(d, "a.bin"), filepath.Join(d, "link.bin")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("a.bin", filepath.Join(d, "sym")); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mkfifo(filepath.Join(d, "fifo"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(filepath.Join(d, ".hidden"), 100<<20); err != nil { // a hole
			t.Fatal(err)
		}
		data = append(data[:500_000:500_000], append([]byte("inserted"), data[500_000:]...)...)
	}
	return dir
}

func TestAnalyze(t *testing.T) {
	dir := makeVersions(t)
	var stages []string
	out, err := Analyze(t.Context(), dir, &AnalyzeOptions{Versions: true, Line: 1000,
		Failed: func(path string, err error) { t.Errorf("%s: %v", path, err) },
		Progress: func(stage string, _, _ int64) {
			if n := len(stages); n == 0 || stages[n-1] != stage {
				stages = append(stages, stage)
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	if want := (Count{606, 4_000_016 + 600*8 + 200<<20}); out.Files != want {
		t.Errorf("files = %+v, want %+v", out.Files, want)
	}
	if out.HardLinks != 2 || out.Links != 2 || out.Special != 2 || out.Directories != 2 {
		t.Errorf("hard links %d, symbolic links %d, special %d, directories %d, want 2 each", out.HardLinks, out.Links, out.Special, out.Directories)
	}
	if got := out.Types[0]; got.Name != "none" || got.Bytes != 200<<20 {
		t.Errorf("largest type = %+v, want the hidden files without one", got)
	}
	if got := out.Duplicates; got.Files != 2+599+1 {
		t.Errorf("%d files are there already, want 602", got.Files)
	}
	e := out.Estimates[0]
	if !e.Exact || e.UniqueBytes < 1_000_000 || e.UniqueBytes > 1_060_000 {
		t.Errorf("unique bytes = %d (exact: %v), want one megabyte and what an insertion adds", e.UniqueBytes, e.Exact)
	}
	// Six bits of eight are random.
	if ratio := float64(e.Stored-e.Lists) / float64(e.UniqueBytes); ratio < 0.74 || ratio > 0.80 {
		t.Errorf("compressed to %.2f, want 0.75", ratio)
	}
	if len(out.Versions) != 2 || out.Versions[0].New < 1_000_000 || out.Versions[1].New > 60_000 || out.Versions[1].Files != 303 {
		t.Errorf("versions = %+v, want all of the first and little of the second", out.Versions)
	}
	if len(out.Estimates) != len(Settings()) || out.Recommended != "(default)" {
		t.Errorf("%d estimates, recommended is %s", len(out.Estimates), out.Recommended)
	}
	if fmt.Sprint(stages) != "[counting reading]" {
		t.Errorf("stages = %v", stages)
	}
}

// TestAnalyzeRecommends checks that pages that change in place lead to a setting that cuts pages, where the kind is not known.
func TestAnalyzeRecommends(t *testing.T) {
	dir := t.TempDir()
	var data []byte
	for i := range 256 {
		page := random(byte(i), 4096)
		for j := range page {
			page[j] &= 63
		}
		data = append(data, page...)
	}
	for v := range 8 {
		for i := v; i < 256; i += 4 {
			copy(data[i*4096+1000:], fmt.Sprintf("changed by version %d", v))
		}
		write(t, filepath.Join(dir, fmt.Sprint("v", v), "pages"), data)
	}
	out, err := Analyze(t.Context(), dir, &AnalyzeOptions{Versions: true})
	if err != nil {
		t.Fatal(err)
	}
	if out.Recommended != "--chunker Fixed-4" {
		t.Errorf("recommended is %s (%s), want pages: %+v", out.Recommended, out.Why, out.Estimates)
	}
}

func TestAnalyzeErrors(t *testing.T) {
	if _, err := Analyze(t.Context(), filepath.Join(t.TempDir(), "none"), nil); !os.IsNotExist(err) {
		t.Errorf("Analyze of nothing = %v", err)
	}
	if _, err := Analyze(t.Context(), t.TempDir(), &AnalyzeOptions{Versions: true}); err == nil {
		t.Error("Analyze finds versions in an empty directory")
	}
	if out, err := Analyze(t.Context(), t.TempDir(), nil); err != nil || out.Files.Files != 0 {
		t.Errorf("Analyze of an empty directory = %+v, %v", out, err)
	}
}

func TestSketch(t *testing.T) {
	s := newSketch(1 << 12)
	id := func(i int) uint64 { return xxhash.Sum64String(fmt.Sprint(i)) }
	for i := range 4000 {
		s.add(id(i), 10)
		s.add(id(i/2), 10)
	}
	if n, b := s.unique(); n != 4000 || b != 40_000 || !s.exact() {
		t.Errorf("unique = %d, %d (exact: %v), want 4000, 40000", n, b, s.exact())
	}
	const many = 300_000
	for i := range many {
		s.add(id(i), int64(i%100))
		s.add(id(i/3), int64(i/3%100))
	}
	n, b := s.unique()
	if s.exact() || math.Abs(float64(n)/many-1) > 0.08 || math.Abs(float64(b)/(many*49.5)-1) > 0.1 {
		t.Errorf("unique = %d, %d (exact: %v), want about %d, %d", n, b, s.exact(), many, int(many*49.5))
	}
	if len(s.kept) > 1<<12 {
		t.Errorf("%d ids are kept", len(s.kept))
	}
}

// TestCutter compares with cutting all at once, for blocks of any size.
func TestCutter(t *testing.T) {
	c, err := chunking.New("GFD-4", make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	data := random(3, 1<<20)
	want := c.Ends(nil, data, true)
	rng := rand.New(rand.NewPCG(1, 2))
	var got []int
	at := 0
	cut := cutter{chunker: c, emit: func(chunk []byte) error {
		if !bytes.Equal(chunk, data[at:at+len(chunk)]) {
			t.Fatalf("chunk at %d has other bytes", at)
		}
		at += len(chunk)
		got = append(got, at)
		return nil
	}}
	for rest := data; len(rest) > 0; {
		n := min(len(rest), rng.IntN(100_000))
		if err := cut.write(rest[:n], false); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	if err := cut.write(nil, true); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%d ends, want %d", len(got), len(want))
	}
}

// TestWeights checks that the groups that are sampled stand for all.
func TestWeights(t *testing.T) {
	c := cut{}
	stand, sampled := uint64(0), 0
	const groups = 100_000
	for ; c.number < groups; c.number++ {
		if w := c.weight(); w > 0 {
			stand += w
			sampled++
		}
	}
	if math.Abs(float64(stand)/groups-1) > 0.05 || sampled > 1000 {
		t.Errorf("%d groups stand for %d, want few for %d", sampled, stand, groups)
	}
}

// TestAnalyzeMemory checks that the heap does not grow with the number of chunks.
func TestAnalyzeMemory(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	c, err := newCut(Settings()[3])
	if err != nil {
		t.Fatal(err)
	}
	fill := func(from, to int) {
		chunk := make([]byte, 64)
		for i := from; i < to; i++ {
			copy(chunk, fmt.Sprint("chunk ", i))
			if err := c.add(chunk); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill(0, 300_000)
	before := heap()
	fill(300_000, 2_000_000)
	if after := heap(); after > before+4<<20 {
		t.Errorf("the heap has grown from %d to %d", before, after)
	}
	if n, _ := c.chunks.unique(); math.Abs(float64(n)/2_000_000-1) > 0.02 {
		t.Errorf("%d different chunks, want about 2,000,000", n)
	}
}
