package chunking

import (
	"encoding/binary"
	"math/bits"

	"github.com/zeebo/blake3"
)

const (
	gfdLag    = 31 // distance of the two digests that must both match
	gfdWindow = 64 // bytes that decide a mark and its rank
	gfdReach  = 67 // bytes before a place that the kernels read to decide it
	keySize   = 32 // bytes of a chunker key
)

// gfdKey is the key of a GFD chunker, expanded for one filter width. The
// assembly knows the offsets of the fields before width.
type gfdKey struct {
	matrix [4]uint64      //   0: M0..M3
	rot    [3]uint64      //  32: rotation of a byte by 4, 1 and 2 bits, as matrices
	want8  uint64         //  56: K under the mask, eight times
	mask8  uint64         //  64: 2^w-1, eight times
	ahead  uint64         //  72: how many bytes ahead of a block memory is fetched
	_      [48]byte       //  80
	nibble [4][2][16]byte // 128: M0..M3 times the low and the high half of a byte
	mask32 [32]byte       // 256: mask8, four times
	want32 [32]byte       // 288: want8, four times

	width   uint        // w: bits of a digest that are compared
	digest8 [256]uint64 // byte k of digest8[x] is what b[i-k] = x adds to d8(i)
	rank    rankKey
}

// gfdSize is what a mean size fixes. The thresholds are part of the format of
// repositories and must not change; see the package documentation.
type gfdSize struct {
	width uint   // w
	below uint64 // T1; T2 is four times that
}

// gfdSizes holds the sizes by the binary logarithm of their mean in KiB.
var gfdSizes = [11]gfdSize{
	{3, 0x124ec00000000000},
	{4, 0x242f3b0000000000},
	{4, 0x12179d0000000000},
	{5, 0x2414100000000000},
	{5, 0x120a080000000000},
	{6, 0x240d4c0000000000},
	{6, 0x1206a60000000000},
	{6, 0x0903530000000000},
	{6, 0x0481a90000000000},
	{6, 0x0240d40000000000},
	{6, 0x01206a0000000000},
}

func newGFD(name string, avg int, key []byte) (Chunker, error) {
	if err := checkKey(name, key); err != nil {
		return nil, err
	}
	size := gfdSizes[bits.Len(uint(avg>>10))-1]
	k := expandGFD(key, size.width)
	k.ahead = fetchAhead(avg)
	return &twoStage{
		name: name,
		rule: rule{
			min: avg / 2, max: 2 * avg, avg: avg,
			below: size.below, above: 4 * size.below,
			backup: backupFirst,
		},
		mark: &gfd{key: k, scan: gfdScanners[0].scan},
	}, nil
}

// fetchAhead returns how far ahead of a block the memory is fetched. Scans are
// too short for the hardware to notice that bytes are read in order. At small
// chunks most of the wait is for the first bytes of the next scan, which begins
// half a chunk behind the end of this one. Measured: 16% at 8 KiB, 10% at 64.
func fetchAhead(avg int) uint64 {
	if avg <= 16<<10 {
		return uint64(avg/2 + 1024)
	}
	return 2048
}

// expandGFD derives the secrets of a GFD chunker from key: those of the
// ranks, K and the matrices, in this order, from one stream of keyed BLAKE3.
func expandGFD(key []byte, width uint) *gfdKey {
	stream := expand(key, "dedupfs chunking GFD 1")
	k := &gfdKey{width: width}
	for i := range k.rank.hash {
		k.rank.hash[i] = stream.uint64()
	}
	k.rank.sip0, k.rank.sip1 = stream.uint64(), stream.uint64()
	want := stream.byte()
	for want&7 == 0 { // runs of zeros never match
		want = stream.byte()
	}
	for i := range k.matrix {
		for {
			k.matrix[i] = stream.uint64()
			if invertible(k.matrix[i]) {
				break
			}
		}
	}
	for i, n := range []int{4, 1, 2} {
		k.rot[i] = matrixOf(func(x byte) byte { return bits.RotateLeft8(x, n) })
	}
	k.mask8 = (1<<width - 1) * lanes
	k.want8 = uint64(want) * lanes & k.mask8
	for i := range k.mask32 {
		k.mask32[i], k.want32[i] = byte(k.mask8), byte(k.want8)
	}
	for x := range 256 {
		for j, m := range k.matrix {
			y := mulMatrix(m, byte(x))
			k.digest8[x] |= uint64(y)<<(8*j) | uint64(bits.RotateLeft8(y, 4))<<(8*j+32)
			if x < 16 {
				k.nibble[j][0][x] = y
				k.nibble[j][1][x] = mulMatrix(m, byte(x<<4))
			}
		}
	}
	return k
}

// expand returns the key stream of key for one purpose: the output of BLAKE3
// in keyed mode, of any length, for the label's bytes.
func expand(key []byte, label string) keyStream {
	h, err := blake3.NewKeyed(key)
	if err != nil {
		panic("chunking: " + err.Error())
	}
	h.WriteString(label)
	return keyStream{h.Digest()}
}

type keyStream struct{ digest *blake3.Digest }

func (s keyStream) byte() byte {
	var b [1]byte
	s.digest.Read(b[:])
	return b[0]
}

func (s keyStream) uint64() uint64 {
	var b [8]byte
	s.digest.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// mulMatrix multiplies the 8x8 matrix m over GF(2) with the vector x. Byte 7-i
// of m is row i: it selects the bits of x whose sum is bit i of the product.
// This is the layout of GF2P8AFFINEQB.
func mulMatrix(m uint64, x byte) (y byte) {
	for i := range 8 {
		row := byte(m >> (8 * (7 - i)))
		y |= byte(bits.OnesCount8(row&x)&1) << i
	}
	return y
}

// matrixOf returns the matrix of the linear map f.
func matrixOf(f func(byte) byte) (m uint64) {
	for col := range 8 {
		y := f(1 << col)
		for row := range 8 {
			m |= uint64(y>>row&1) << (8*(7-row) + col)
		}
	}
	return m
}

// invertible reports whether no vector but 0 is mapped to 0.
func invertible(m uint64) bool {
	for x := 1; x < 256; x++ {
		if mulMatrix(m, byte(x)) == 0 {
			return false
		}
	}
	return true
}

// gfd marks by digests over GF(2), and ranks marks by a PRF of their window.
type gfd struct {
	key  *gfdKey
	scan gfdScan
}

// A gfdScan returns the index of the first mark in data[from:to], or -1: the
// position of the mark's last byte. data has at least gfdReach bytes before
// from, and to-from is positive.
type gfdScan func(data []byte, from, to int, k *gfdKey) int

// A gfdScanner is one way to compute the same marks.
type gfdScanner struct {
	name string
	scan gfdScan
}

func (g *gfd) reach() int { return gfdReach + 1 }

func (g *gfd) next(data []byte, from, to int) (end int, rank uint64) {
	i := g.scan(data, from-1, to, g.key)
	if i < 0 {
		return -1, 0
	}
	return i + 1, g.key.rank.rank((*[gfdWindow]byte)(data[i+1-gfdWindow:]))
}
