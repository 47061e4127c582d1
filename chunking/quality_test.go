//go:build long

package chunking

import (
	"encoding/binary"
	"flag"
	"fmt"
	"hash/maphash"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

var (
	dataDir  = flag.String("data", "", "directory of the data sets: SET/v00, SET/v01, ...")
	dataSets = flag.String("sets", "", "comma-separated names of data sets; all by default")
	chunkers = flag.String("chunkers", "GFD-2,GFD-4,GFD-8,GFD-16,GFD-64,GFD-256,Fixed-4,Fixed-16,TTTD-8-Adler32,Gear-8,Typed-4,Typed-8", "chunkers to compare")
)

// loadSet returns the contents of all files of all versions of a data set.
// Equal files are kept: a store meets them again.
func loadSet(t testing.TB, dir string) [][]byte {
	t.Helper()
	var files [][]byte
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || d.Name() == "MANIFEST" {
			return err
		}
		b, err := os.ReadFile(path)
		if len(b) > 0 {
			files = append(files, b)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// distinct drops files that are equal to an earlier one. They add nothing to
// what is stored, whatever the chunker.
func distinct(files [][]byte) [][]byte {
	seed := maphash.MakeSeed()
	seen := make(map[uint64]bool)
	var out [][]byte
	for _, f := range files {
		if h := maphash.Bytes(seed, f); !seen[h] {
			seen[h] = true
			out = append(out, f)
		}
	}
	return out
}

// stored is what is left of a data set after deduplication.
type stored struct{ bytes, unique, chunks float64 }

func (s stored) mean() float64 { return s.bytes / s.chunks }

func dedup(c Chunker, files [][]byte) (s stored) {
	seed := maphash.MakeSeed()
	seen := make(map[uint64]bool)
	var ends []int
	for _, f := range files {
		start := 0
		ends = c.Ends(ends[:0], f, true)
		for _, end := range ends {
			if h := maphash.Bytes(seed, f[start:end]); !seen[h] {
				seen[h] = true
				s.unique += float64(end - start)
			}
			start = end
		}
		s.bytes += float64(len(f))
		s.chunks += float64(len(ends))
	}
	return s
}

func qualityKey(i int) []byte {
	key := make([]byte, keySize)
	binary.LittleEndian.PutUint64(key, uint64(i)+1)
	return key
}

const qualityKeys = 8

func overKeys(files [][]byte, newChunker func(key []byte) Chunker) stored {
	var sum stored
	for i := range qualityKeys {
		s := dedup(newChunker(qualityKey(i)), files)
		sum.bytes += s.bytes / qualityKeys
		sum.unique += s.unique / qualityKeys
		sum.chunks += s.chunks / qualityKeys
	}
	return sum
}

// TestDedup compares GFD with gear64 under normalised chunking, at the real
// mean that GFD has on the same data, averaged over keys.
func TestDedup(t *testing.T) {
	forSets(t, func(t *testing.T, set string, files [][]byte) {
		for _, kib := range []int{4, 8, 64, 256} {
			s := overKeys(files, func(key []byte) Chunker { return mustNew(fmt.Sprintf("GFD-%d", kib), key) })
			ref := gearAt(files, kib<<10, s.mean())
			worse := s.unique/ref - 1
			t.Logf("%-8s GFD-%-3d mean %7.0f unique %8.3f MB, gear64 %8.3f MB: %+.2f%%", set, kib, s.mean(), s.unique/1e6, ref/1e6, 100*worse)
			if worse > 0.01 {
				t.Errorf("%s: GFD-%d stores %.2f%% more than gear64 at the same mean", set, kib, 100*worse)
			}
		}
	})
}

// gearAt returns the unique bytes that gear64 leaves at a given real mean,
// interpolated between three scales of its thresholds.
func gearAt(files [][]byte, avg int, mean float64) float64 {
	c, err := newGear("", avg, qualityKey(0))
	if err != nil {
		panic(err)
	}
	r := c.(*twoStage).rule
	var at [3]stored
	for i, by := range []float64{0.7, 1.1, 1.7} {
		at[i] = overKeys(files, func(key []byte) Chunker { return newGearRule("", key, scaled(r, by)) })
	}
	i := 0
	if mean < at[1].mean() {
		i = 1
	}
	x0, x1 := math.Log(at[i].mean()), math.Log(at[i+1].mean())
	return at[i].unique + (at[i+1].unique-at[i].unique)*(math.Log(mean)-x0)/(x1-x0)
}

func scaled(r rule, by float64) rule {
	r.below, r.above = uint64(float64(r.below)*by), uint64(min(float64(r.above)*by, math.MaxUint64))
	return r
}

func mustNew(name string, key []byte) Chunker {
	c, err := New(name, key)
	if err != nil {
		panic(err)
	}
	return c
}

// forSets calls f for the data sets that the flags name, as subtests.
func forSets(t *testing.T, f func(t *testing.T, set string, files [][]byte)) {
	if *dataDir == "" {
		t.Skip("no -data")
	}
	names := strings.Split(*dataSets, ",")
	if *dataSets == "" {
		names = nil
		entries, err := os.ReadDir(*dataDir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	for _, set := range names {
		t.Run(set, func(t *testing.T) {
			f(t, set, distinct(loadSet(t, filepath.Join(*dataDir, set))))
		})
	}
}

// TestRepositorySize tells what a repository takes for all versions of a data
// set: unique chunks in groups of 1 MiB, compressed, and 48 bytes for every
// unique chunk and for every reference.
func TestRepositorySize(t *testing.T) {
	names := strings.Split(*chunkers, ",")
	forSets(t, func(t *testing.T, set string, files [][]byte) {
		for _, name := range names {
			c := mustNew(name, qualityKey(0))
			t.Logf("%-8s %-16s %7.2f MB", set, name, repositorySize(t, files, func([]byte) Chunker { return c })/1e6)
		}
		cs, err := DefaultSet().Chunkers(qualityKey(0))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%-8s %-16s %7.2f MB", set, "DefaultSet", repositorySize(t, files, func(f []byte) Chunker { return cs[Detect(f[:min(len(f), 64<<10)])] })/1e6)
	})
}

func repositorySize(t *testing.T, files [][]byte, choose func(file []byte) Chunker) float64 {
	const groupSize, perChunk = 1 << 20, 48
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	seed := maphash.MakeSeed()
	seen := make(map[uint64]bool)
	var total float64
	var group, packed []byte
	pack := func() {
		packed = enc.EncodeAll(group, packed[:0])
		total += float64(len(packed))
		group = group[:0]
	}
	for _, f := range files {
		start := 0
		for _, end := range choose(f).Ends(nil, f, true) {
			chunk := f[start:end]
			start = end
			total += perChunk
			if h := maphash.Bytes(seed, chunk); !seen[h] {
				seen[h] = true
				total += perChunk
				if group = append(group, chunk...); len(group) >= groupSize {
					pack()
				}
			}
		}
	}
	pack()
	return total
}
