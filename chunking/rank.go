package chunking

import (
	"encoding/binary"
	"math/bits"
)

// A rankKey is the key of a PRF of 64 bytes: SipHash-2-4 of an almost
// universal hash of them (NH, Black et al. 1999, of words of 64 bits), which
// is twice as fast as SipHash of the whole, and as hard to predict.
type rankKey struct {
	hash       [8]uint64
	sip0, sip1 uint64
}

// rank returns the PRF of the window p.
func (k *rankKey) rank(p *[gfdWindow]byte) uint64 {
	var lo, hi, carry uint64
	for i := 0; i < 8; i += 2 {
		h, l := bits.Mul64(
			binary.LittleEndian.Uint64(p[8*i:])+k.hash[i],
			binary.LittleEndian.Uint64(p[8*i+8:])+k.hash[i+1])
		lo, carry = bits.Add64(lo, l, 0)
		hi, _ = bits.Add64(hi, h, carry)
	}
	return sipHash(k.sip0, k.sip1, lo, hi)
}

// sipHash returns SipHash-2-4 of the 16 bytes that m0 and m1 are in little
// endian, under the key k0, k1.
func sipHash(k0, k1, m0, m1 uint64) uint64 {
	const length = 16 << 56
	v0, v1 := k0^0x736f6d6570736575, k1^0x646f72616e646f6d
	v2, v3 := k0^0x6c7967656e657261, k1^0x7465646279746573
	v3 ^= m0
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0 ^= m0
	v3 ^= m1
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0 ^= m1
	v3 ^= length
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0 ^= length
	v2 ^= 0xff
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	return v0 ^ v1 ^ v2 ^ v3
}

func sipRound(v0, v1, v2, v3 uint64) (_, _, _, _ uint64) {
	v0 += v1
	v1 = bits.RotateLeft64(v1, 13) ^ v0
	v0 = bits.RotateLeft64(v0, 32)
	v2 += v3
	v3 = bits.RotateLeft64(v3, 16) ^ v2
	v0 += v3
	v3 = bits.RotateLeft64(v3, 21) ^ v0
	v2 += v1
	v1 = bits.RotateLeft64(v1, 17) ^ v2
	v2 = bits.RotateLeft64(v2, 32)
	return v0, v1, v2, v3
}
