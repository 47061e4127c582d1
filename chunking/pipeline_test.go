package chunking

import (
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/blake3"
)

// BenchmarkPipeline measures what becomes of bytes on their way into a
// repository, stage by stage and all together: cut, hash, look up, compress and
// seal groups of 1 MiB.
func BenchmarkPipeline(b *testing.B) {
	const size = 32 << 20
	text := sample(rand.New(rand.NewPCG(1, 1)), "text", size)
	for _, in := range []struct {
		name string
		data []byte
	}{{"random", randomBytes(1, size)}, {"text", text}} {
		for _, name := range []string{Default, "GFD-8", "GFD-4", "GFD-64"} {
			c, err := New(name, make([]byte, keySize))
			if err != nil {
				b.Fatal(err)
			}
			p := newPipeline(b, c)
			for _, stage := range []struct {
				name string
				run  func(data []byte)
			}{
				{"cut", p.cut}, {"hash", p.hash}, {"look up", p.lookUp}, {"compress", p.compress}, {"seal", p.seal}, {"all", p.all},
			} {
				p.all(in.data)
				b.Run(fmt.Sprintf("%s/%s/%s", in.name, name, stage.name), func(b *testing.B) {
					benchmarkCPU(b, size, func() { stage.run(in.data) })
				})
			}
		}
	}
}

// pipeline holds what each stage leaves to the next.
type pipeline struct {
	chunker Chunker
	hasher  *blake3.Hasher
	encoder *zstd.Encoder
	aead    cipher.AEAD

	ends   []int
	ids    [][32]byte
	known  map[[32]byte]bool
	packed []byte
	sealed []byte
}

func newPipeline(b *testing.B, c Chunker) *pipeline {
	hasher, err := blake3.NewKeyed(make([]byte, 32))
	if err != nil {
		b.Fatal(err)
	}
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		b.Fatal(err)
	}
	block, err := aes.NewCipher(make([]byte, 32))
	if err != nil {
		b.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		b.Fatal(err)
	}
	return &pipeline{chunker: c, hasher: hasher, encoder: encoder, aead: aead}
}

func (p *pipeline) cut(data []byte) { p.ends = p.chunker.Ends(p.ends[:0], data, true) }

func (p *pipeline) hash(data []byte) {
	p.ids = p.ids[:0]
	start := 0
	for _, end := range p.ends {
		var id [32]byte
		p.hasher.Reset()
		p.hasher.Write(data[start:end])
		p.hasher.Sum(id[:0])
		p.ids = append(p.ids, id)
		start = end
	}
}

func (p *pipeline) lookUp([]byte) {
	p.known = make(map[[32]byte]bool)
	for _, id := range p.ids {
		p.known[id] = true
	}
}

// groups calls f for every group. All chunks count as new.
func (p *pipeline) groups(data []byte, f func(group []byte)) {
	for len(data) > 0 {
		n := min(len(data), 1<<20)
		f(data[:n])
		data = data[n:]
	}
}

func (p *pipeline) compress(data []byte) {
	p.packed = p.packed[:0]
	p.groups(data, func(group []byte) { p.packed = p.encoder.EncodeAll(group, p.packed) })
}

func (p *pipeline) seal([]byte) {
	var nonce [12]byte
	p.groups(p.packed, func(group []byte) { p.sealed = p.aead.Seal(p.sealed[:0], nonce[:], group, nil) })
}

func (p *pipeline) all(data []byte) {
	p.cut(data)
	p.hash(data)
	p.lookUp(data)
	p.compress(data)
	p.seal(data)
}
