package chunking

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"testing"
)

// golden holds what every chunker makes of goldenData. Existing lines never
// change: repositories depend on them.
var golden = []struct {
	name   string
	chunks int
	hash   uint64 // FNV-1a of the ends, 8 bytes each in little endian
}{
	{"GFD-1", 6629, 0x1cbcf1dbace6dc11},
	{"GFD-2", 3037, 0x9b8f24988b63c057},
	{"GFD-4", 1525, 0xa93842b521f327bd},
	{"GFD-8", 766, 0x5a1698f3866dd6e0},
	{"GFD-16", 390, 0xfd65e308608cffa7},
	{"GFD-32", 191, 0x73204a09a4d5d250},
	{"GFD-64", 100, 0xb2653744335d389c},
	{"GFD-128", 48, 0xd021cd69961bbeef},
	{"GFD-256", 27, 0xb92afc948602e636},
	{"GFD-512", 16, 0x705ed68e42fd5d84},
	{"GFD-1024", 11, 0x620de8a7221e4d4a},
	{"Gear-4", 1281, 0x7f7545847d74b795},
	{"Gear-8", 644, 0xe04cda9cd7bc7b16},
	{"Gear-64", 82, 0xa04e6bb793a4c0a1},
	{"TTTD-4-Adler32", 1111, 0xbfe00f2e001bbcb5},
	{"TTTD-8-Adler32", 585, 0x3799cfa3204fd326},
	{"TTTD-4-PLAIN", 1227, 0x6b6e8a4142007fe8},
	{"TTTD-8-PLAIN", 540, 0xa3ffafbb4558cc5c},
	{"TTTD-4-Rabin", 1501, 0x76c700feeeaff2af},
	{"TTTD-8-Rabin", 747, 0x02f8bf7f6d7651d1},
	{"BSW-4", 1116, 0x69b6503faef9c84a},
	{"BSW-4-Unbounded", 1115, 0x0dc19534af7003e2},
	{"Typed-4", 1531, 0xaa556b3e7f35a242},
	{"Typed-8", 776, 0x008a282054555a0a},
	{"Fixed-4", 1855, 0x3a4f9088275fa786},
	{"Fixed-100", 80, 0x51d487a1d3f1115e},
	{"Whole", 15, 0x3008c958c3947a41},
	{"Whole-Unbounded", 8, 0xd4e6ce76bb673479},
}

const goldenKey = "an example key of thirty-two byt"

func goldenData() (streams [][]byte) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, kind := range sampleKinds {
		streams = append(streams, sample(rng, kind, 1<<20))
	}
	return append(streams, partsByHand(rng))
}

func TestGolden(t *testing.T) {
	streams := goldenData()
	for _, g := range golden {
		for _, kernel := range Kernels() {
			c, err := WithKernel(newChunker(t, g.name, []byte(goldenKey)), kernel)
			if err != nil {
				t.Fatal(err)
			}
			chunks := 0
			h := fnv.New64a()
			for _, data := range streams {
				ends := c.Ends(nil, data, true)
				for _, end := range ends {
					h.Write(binary.LittleEndian.AppendUint64(nil, uint64(end)))
				}
				chunks += len(ends)
			}
			if chunks != g.chunks || h.Sum64() != g.hash {
				t.Errorf("%s, %s kernel: {%q, %d, %#016x}, want {%q, %d, %#016x}", g.name, kernel, g.name, chunks, h.Sum64(), g.name, g.chunks, g.hash)
			}
		}
	}
}

// TestKernelsEnds: all kernels cut alike.
func TestKernelsEnds(t *testing.T) {
	rng := newRand(t)
	for _, name := range []string{"GFD-1", "GFD-2", "GFD-4", "GFD-8", "GFD-32", "GFD-64", "Typed-8", "TTTD-4-Rabin", "BSW-1"} {
		c := newChunker(t, name, randomKey(rng))
		data := mixedSample(rng, 2<<20)
		want := c.Ends(nil, data, true)
		for _, kernel := range Kernels() {
			other, err := WithKernel(c, kernel)
			if err != nil {
				t.Fatal(err)
			}
			checkEnds(t, name+" by the "+kernel+" kernel", other.Ends(nil, data, true), want)
		}
	}
	if _, err := WithKernel(newChunker(t, "GFD-8", randomKey(rng)), "abacus"); err == nil {
		t.Error("there is a kernel called abacus")
	}
}
