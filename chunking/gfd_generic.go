package chunking

import (
	"encoding/binary"
	"math/bits"
)

// lanes times a byte is that byte in every byte of a word.
const lanes = 0x01010101_01010101

// gfdScanGeneric is the portable kernel. It computes eight digests at a time,
// one in each byte of a word.
func gfdScanGeneric(data []byte, from, to int, k *gfdKey) int {
	// The digests of the first 31 bytes lack what came before them, and are
	// not looked at: a mark needs the digests up to gfdLag+1 bytes before it.
	const warmUp = 64
	var (
		d8, d16, d16Prev  uint64 // digests of the eight positions before, and d16 of the eight before those
		carry             uint64 // what these add to the digests of the next eight
		match, mark, prev uint64 // bit j: the digest, both digests, at i+j are K; match of the block before
		tail              [64]byte
		flag              = uint64(1) << k.width * lanes
		gather            = uint64(0x01020408_10204080) >> k.width
	)
	for i := from - warmUp; i < to; i += 64 {
		block := data[i:]
		if len(block) < 64 {
			copy(tail[:], block)
			block = tail[:]
		}
		block = block[:64]
		prev, match = match, 0
		for j := 0; j < 64; j += 8 {
			x := binary.LittleEndian.Uint64(block[j : j+8])
			t0, t1, t2, t3 := k.digest8[byte(x)], k.digest8[byte(x>>8)], k.digest8[byte(x>>16)], k.digest8[byte(x>>24)]
			t4, t5, t6, t7 := k.digest8[byte(x>>32)], k.digest8[byte(x>>40)], k.digest8[byte(x>>48)], k.digest8[byte(x>>56)]
			e8 := carry ^ t0 ^ t1<<8 ^ t2<<16 ^ t3<<24 ^ t4<<32 ^ t5<<40 ^ t6<<48 ^ t7<<56
			carry = t1>>56 ^ t2>>48 ^ t3>>40 ^ t4>>32 ^ t5>>24 ^ t6>>16 ^ t7>>8
			e16 := e8 ^ d8<<1&(0xfe*lanes) ^ d8>>7&lanes
			e32 := e16 ^ d16Prev<<2&(0xfc*lanes) ^ d16Prev>>6&(3*lanes)
			d8, d16, d16Prev = e8, e16, d16
			// Adding the mask carries into the flag unless the digest is K.
			hits := flag &^ ((e32^k.want8)&k.mask8 + k.mask8)
			match |= hits * gather >> 56 << j
		}
		both := match & (match<<gfdLag | prev>>(64-gfdLag))
		first := both &^ (both<<1 | mark>>63)
		mark = both
		if i < from {
			first &^= 1<<(from-i) - 1
		}
		if first != 0 {
			if at := i + bits.TrailingZeros64(first); at < to {
				return at
			}
			return -1
		}
	}
	return -1
}
