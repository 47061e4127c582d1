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
	{"GFD-1", 6379, 0x8bc85c5a33482b26},
	{"GFD-2", 2908, 0x4fddaf12605036ba},
	{"GFD-4", 1463, 0xc95bb985068f96cc},
	{"GFD-8", 735, 0x78aab7e863ef1c21},
	{"GFD-16", 374, 0x4413a60a0e4d9ad4},
	{"GFD-32", 184, 0xcde721dbc8455f46},
	{"GFD-64", 96, 0x6f752bc45c5fd068},
	{"GFD-128", 46, 0xd869252fd968a95a},
	{"GFD-256", 26, 0xcda3332940e6934e},
	{"GFD-512", 15, 0xcece203b02cb686c},
	{"GFD-1024", 10, 0xb455db00913c24d2},
	{"Gear-4", 1227, 0xd3e82cced808f565},
	{"Gear-8", 617, 0xa640228b539d60d5},
	{"Gear-64", 78, 0x5c67b5dc22ad24df},
	{"TTTD-4-Adler32", 1045, 0x22d62d3bd39293d6},
	{"TTTD-8-Adler32", 551, 0x6919251053b36fe2},
	{"TTTD-4-PLAIN", 1163, 0x2fa74a5c994c7914},
	{"TTTD-8-PLAIN", 527, 0xf192b4a304d751f1},
	{"TTTD-4-Rabin", 1438, 0x3a6d793f35d92f14},
	{"TTTD-8-Rabin", 713, 0x4ec1a1cbc2072b91},
	{"BSW-4", 1061, 0x18489cd2898ee7a8},
	{"BSW-4-Unbounded", 1060, 0xabefa68f814c97d0},
	{"Typed-4", 1463, 0xc95bb985068f96cc},
	{"Typed-8", 735, 0x78aab7e863ef1c21},
	{"Fixed-4", 1792, 0x9a29780c9582e4b5},
	{"Fixed-100", 77, 0xdd340548f2994844},
	{"Whole", 14, 0xb90686ba9fa2faad},
	{"Whole-Unbounded", 7, 0x55f0333fe355bf15},
}

const goldenKey = "an example key of thirty-two byt"

func goldenData() (streams [][]byte) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, kind := range sampleKinds {
		streams = append(streams, sample(rng, kind, 1<<20))
	}
	return streams
}

func TestGolden(t *testing.T) {
	streams := goldenData()
	for _, g := range golden {
		c := newChunker(t, g.name, []byte(goldenKey))
		for _, kernel := range kernelsOf(c) {
			chunks := 0
			h := fnv.New64a()
			for _, data := range streams {
				ends := kernel.chunker.Ends(nil, data, true)
				for _, end := range ends {
					h.Write(binary.LittleEndian.AppendUint64(nil, uint64(end)))
				}
				chunks += len(ends)
			}
			if chunks != g.chunks || h.Sum64() != g.hash {
				t.Errorf("%s, %s kernel: {%q, %d, %#016x}, want {%q, %d, %#016x}", g.name, kernel.name, g.name, chunks, h.Sum64(), g.name, g.chunks, g.hash)
			}
		}
	}
}

type kernel struct {
	name    string
	chunker Chunker
}

// kernelsOf returns c with each of the kernels that it can use here.
func kernelsOf(c Chunker) (ks []kernel) {
	t, ok := c.(*twoStage)
	if !ok {
		return []kernel{{"only", c}}
	}
	switch m := t.mark.(type) {
	case *gfd:
		for _, s := range gfdScanners {
			ks = append(ks, kernel{s.name, &twoStage{t.name, t.rule, &gfd{m.key, s.scan}}})
		}
	case *rabin:
		for _, blocks := range []bool{false, hasRabinBlocks} {
			x := *m
			x.blocks = blocks
			ks = append(ks, kernel{map[bool]string{false: "rolling", true: "block"}[blocks], &twoStage{t.name, t.rule, &x}})
		}
	default:
		ks = append(ks, kernel{"only", c})
	}
	return ks
}

// TestKernelsEnds: all kernels cut alike.
func TestKernelsEnds(t *testing.T) {
	rng := newRand(t)
	for _, name := range []string{"GFD-1", "GFD-2", "GFD-4", "GFD-8", "GFD-32", "GFD-64", "TTTD-4-Rabin", "BSW-1"} {
		ks := kernelsOf(newChunker(t, name, randomKey(rng)))
		data := mixedSample(rng, 2<<20)
		want := ks[len(ks)-1].chunker.Ends(nil, data, true)
		for _, k := range ks {
			checkEnds(t, name+" by the "+k.name+" kernel", k.chunker.Ends(nil, data, true), want)
		}
	}
}
