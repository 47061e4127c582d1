package store

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/chunking"
)

var (
	setsDir  = flag.String("data", "", "directory of the data sets to measure with: SET/v00, SET/v01, ...")
	sweep    = flag.String("sweep", "", "compressions to measure, all by default")
	setNames = flag.String("sets", "source,office,media,npm,vm,sqldump", "comma-separated names of data sets")
)

// uniqueChunks cuts all files below dir as a volume would, and returns each chunk once, in the order in which they are met.
func uniqueChunks(t *testing.T, r *Repository, dir string) (chunks [][]byte, ids []ID, total int) {
	t.Helper()
	seen := map[ID]bool{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || d.Name() == "MANIFEST" {
			return err
		}
		b, err := os.ReadFile(path)
		total += len(b)
		kind := chunking.Detect(b[:min(len(b), 64<<10)])
		start := 0
		for _, end := range r.Chunkers()[kind].Ends(nil, b, true) {
			c := b[start:end]
			start = end
			if id := r.ChunkID(c); !seen[id] && len(bytes.Trim(c, "\x00")) > 0 {
				seen[id] = true
				chunks, ids = append(chunks, bytes.Clone(c)), append(ids, id)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return chunks, ids, total
}

// TestMeasure prints what real data takes on the remote under different settings, and what packing it and reading it at
// random costs. It needs -data.
func TestMeasure(t *testing.T) {
	if *setsDir == "" {
		t.Skip("no -data")
	}
	base := testConfig
	base.MultichunkSize, base.GroupSize, base.Compression = 8<<20, 512<<10, "zstd"
	var configs []Config
	for _, size := range []int{32, 64, 128, 256, 512, 1024} {
		c := base
		c.GroupSize = size << 10
		configs = append(configs, c)
	}
	for _, size := range []int{1, 4, 16} {
		c := base
		c.MultichunkSize = size << 20
		configs = append(configs, c)
	}
	for _, compression := range []string{"zstd-fast", "zstd-better", "gzip", "bzip2", "none"} {
		c := base
		c.Compression = compression
		configs = append(configs, c)
	}
	if *sweep != "" {
		configs = slices.DeleteFunc(configs, func(c Config) bool { return !slices.Contains(strings.Split(*sweep, ","), c.Compression) })
	}
	fmt.Println("set group_KiB multichunk_MiB compression plain_MB without_padding_MB stored_MB pack_ms read_us")
	for _, set := range strings.Split(*setNames, ",") {
		chunks, ids, _ := uniqueChunks(t, newTestRepository(t, base), filepath.Join(*setsDir, set))
		for _, cfg := range configs {
			measure(t, set, cfg, chunks, ids)
		}
	}
}

func measure(t *testing.T, set string, cfg Config, chunks [][]byte, ids []ID) {
	t.Helper()
	r := newTestRepository(t, cfg)
	s := new(shelf)
	plain, used, stored := 0, 0, 0
	start := time.Now()
	p := r.NewPacker(KindData, func(ctx context.Context, m *Sealed) error {
		stored += len(m.Wire)
		used += len(m.Wire) - paddingOf(t, r, m)
		return s.put(ctx, m)
	})
	for i, c := range chunks {
		plain += len(c)
		if err := p.Add(t.Context(), ids[i], c); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	packed := time.Since(start)
	rng := newRand(t)
	const reads = 200
	start = time.Now()
	for range reads {
		m := s.sealed[rng.IntN(len(s.sealed))]
		if _, err := r.ReadGroup(bytes.NewReader(m.Wire), int64(len(m.Wire)), m.Table[rng.IntN(len(m.Table))].Hint); err != nil {
			t.Fatal(err)
		}
	}
	read := time.Since(start) / reads
	fmt.Printf("%s %d %d %s %.2f %.2f %.2f %d %d\n", set, cfg.GroupSize>>10, cfg.MultichunkSize>>20, cfg.Compression,
		float64(plain)/1e6, float64(used)/1e6, float64(stored)/1e6, packed.Milliseconds(), read.Microseconds())
}
