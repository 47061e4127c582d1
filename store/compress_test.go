package store

import (
	"bytes"
	"testing"
)

func TestWorthTrying(t *testing.T) {
	rng := newRand(t)
	random, text := randomBytes(rng, 512<<10), randomText(rng, 512<<10)
	mixed := bytes.Clone(random)
	copy(mixed[100<<10:], text[:32<<10])
	g := new(groupBuffer)
	g.reset()
	for off := 0; off < len(random); off += 8 << 10 {
		g.add(ID{}, random[off:off+8<<10])
	}
	for name, test := range map[string]struct {
		src  []byte
		want bool
	}{
		"random":                {random, false},
		"text":                  {text, true},
		"a little text":         {mixed, true},
		"short":                 {random[:100], true},
		"group of equal chunks": {g.block(0, len(g.ids)), false},
	} {
		if got := worthTrying(test.src); got != test.want {
			t.Errorf("%s: worthTrying = %v, want %v", name, got, test.want)
		}
	}
}

// TestDecompressLimit checks that a block which decodes to more or fewer bytes than it says is refused.
func TestDecompressLimit(t *testing.T) {
	zeros := make([]byte, 4<<20)
	for _, compression := range []string{"zstd", "gzip", "bzip2"} {
		c, err := newCompressor(compression, 512<<10)
		if err != nil {
			t.Fatal(err)
		}
		used, block, err := c.compress(nil, zeros)
		if err != nil || used != c.codec {
			t.Fatalf("%s: compressed by %d, %v", compression, used, err)
		}
		if got, err := c.decompress(used, block, len(zeros)); err != nil || !bytes.Equal(got, zeros) {
			t.Errorf("%s: %d bytes, %v", compression, len(got), err)
		}
		for _, size := range []int{0, 1, 1000, len(zeros) - 1, len(zeros) + 1} {
			limit := size + 1<<20
			if compression == "bzip2" {
				limit += 8 << 20 // its tables
			}
			limitAllocs(t, limit, func() {
				if got, err := c.decompress(used, block, size); err == nil {
					t.Errorf("%s: %d bytes of a block of %d that says %d", compression, len(got), len(zeros), size)
				}
			})
		}
	}
}
