//go:build long

package chunking

import (
	"encoding/binary"
	"flag"
	"hash/maphash"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var (
	dataDir  = flag.String("data", "", "directory of the data sets: SET/v00, SET/v01, ...")
	dataSets = flag.String("sets", "", "comma-separated names of data sets; all by default")
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

func scaled(r rule, by float64) rule {
	r.below, r.above = uint64(float64(r.below)*by), uint64(min(float64(r.above)*by, math.MaxUint64))
	return r
}

// TestExplore
func TestExplore(t *testing.T) {
	sets := strings.Split(*dataSets, ",")
	for _, set := range sets {
		files := distinct(loadSet(t, filepath.Join(*dataDir, set)))
		for _, kib := range []int{4, 8, 64, 256} {
			avg := kib << 10
			c, _ := newGear("", avg, qualityKey(0))
			gr := c.(*twoStage).rule
			var ref [3]stored
			for i, by := range []float64{0.7, 1.1, 1.7} {
				ref[i] = overKeys(files, func(key []byte) Chunker { return newGearRule("", key, scaled(gr, by)) })
			}
			at := func(mean float64) float64 { // unique bytes of gear at this mean
				i := 0
				if mean < ref[1].mean() {
					i = 1
				}
				x0, x1, x := math.Log(ref[i].mean()), math.Log(ref[i+1].mean()), math.Log(mean)
				return ref[i].unique + (ref[i+1].unique-ref[i].unique)*(x-x0)/(x1-x0)
			}
			t.Logf("%-8s %3d gear mean %.0f unique %.2f MB of %.2f", set, kib, ref[1].mean(), ref[1].unique/1e6, ref[1].bytes/1e6)
			for _, v := range variants(avg) {
				s := overKeys(files, v.make)
				t.Logf("%-8s %3d %-20s mean %7.0f unique %.3f MB gear %.3f: %+.2f%%", set, kib, v.name, s.mean(), s.unique/1e6, at(s.mean())/1e6, 100*(s.unique/at(s.mean())-1))
			}
		}
	}
}

type variant struct {
	name string
	make func(key []byte) Chunker
}

func variants(avg int) []variant {
	gfdWith := func(edit func(*rule)) func(key []byte) Chunker {
		return func(key []byte) Chunker {
			c, err := newGFD("", avg, key)
			if err != nil {
				panic(err)
			}
			edit(&c.(*twoStage).rule)
			return c
		}
	}
	return []variant{
		{"nc1 1/2..2 backup", gfdWith(func(*rule) {})},
		{"nc1 1/2..4 backup", gfdWith(func(r *rule) { r.max *= 2 })},
		{"nc1 1/4..2 backup", gfdWith(func(r *rule) { r.min /= 2; r.below, r.above = r.below/4*3, r.above/4*3 })},
	}
}
