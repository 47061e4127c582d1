// Package chunking decides where a stream of bytes is cut into chunks. It is
// made of pure functions over bytes: it reads from an io.Reader or an
// io.ReaderAt where a stream is too long to be held, and knows nothing of
// files, hashes and stores.
//
// The end of a chunk depends only on the bytes from the chunk's start, at most
// on those of a largest chunk. So equal stretches are cut alike wherever they
// lie (Chunker), several workers find the chunks of one (Plan), and a change
// costs the chunks around it (Rechunk).
//
// # Names
//
// New takes these names, N being the mean in KiB:
//
//	GFD-N            the default, specified below
//	Gear-N           FastCDC: gear hash of 64 bits, normalised chunking of level 2
//	TTTD-N-Adler32   two thresholds, two divisors, with three fingerprints of
//	TTTD-N-PLAIN     48 bytes: Adler-32, the sum of the bytes, and Rabin's
//	TTTD-N-Rabin
//	BSW-N            basic sliding window, as in LBFS but without its bounds
//	Typed-N          cuts at the parts of known file formats; GFD between them
//	Fixed-N          every N KiB
//	Whole            not at all
//
// BSW and Whole are cut at 512 KiB, the largest chunk of a repository, unless
// -Unbounded is appended. TwoSize, which asks an index, is not a Chunker.
//
// # Two stages
//
// Most chunkers work in two stages, as in SS-CDC (Ni et al. 2019). The first
// marks the places where a chunk may end and ranks the marks; it looks at a few
// bytes before a place and at nothing else. The second walks over the marks: a
// chunk ends at its first mark at or after min bytes whose rank is low enough
// for its length, or, if it reaches max, at the lowest rank seen. That last
// rule is TTTD's backup (Eshghi and Tang 2005).
//
// # GFD, byte by byte
//
// GFD ("GF(2) digest") finds marks by a keyed linear filter that vector units
// compute for 64 places at once, and ranks the few it finds by a keyed PRF. This
// section is normative, and every constant in it belongs to the format of
// repositories; golden values in the tests pin it.
//
// Key. The chunker key has 32 bytes. Let S be the output, as long as needed, of
// BLAKE3 in keyed mode with that key, for the 22 bytes of
// "dedupfs chunking GFD 1". From S are taken, in this order, integers being
// little-endian:
//
//   - H0..H7, 8 bytes each, and P0, P1, 8 bytes each: the secrets of the rank;
//   - K, one byte: the first whose three low bits are not all zero;
//   - M0..M3, 8 bytes each: the first four, of consecutive groups of 8 bytes,
//     that are invertible as 8x8 matrices over GF(2).
//
// Bit i of the product of a matrix M and a byte x is the parity of x AND byte
// 7-i of M, bytes being counted from the least significant.
//
// Digest. Let b[i] be the bytes of the chunk, and x<<<n the byte x rotated left
// by n bits. For a place i, at least 64 bytes into the chunk:
//
//	d4(i)  = M0*b[i] ^ M1*b[i-1] ^ M2*b[i-2] ^ M3*b[i-3]
//	d8(i)  = d4(i)  ^ (d4(i-4)   <<< 4)
//	d16(i) = d8(i)  ^ (d8(i-8)   <<< 1)
//	d32(i) = d16(i) ^ (d16(i-16) <<< 2)
//
// Mark. With w the width below, z(i) holds if d32(i) and K agree in their w low
// bits, and m(i) if z(i) and z(i-31). There is a mark after b[i] if m(i) and not
// m(i-1). Runs of zeros have none, for d32 is 0 there and K is not; the first of
// adjacent places is taken lest other runs are full of them. 31 is odd so that
// records of a power of two do not meet themselves.
//
// Rank. Let q0..q7 be the 64 bytes b[i-63]..b[i] as eight integers of 64 bits,
// and
//
//	u = (q0+H0)(q1+H1) + (q2+H2)(q3+H3) + (q4+H4)(q5+H5) + (q6+H6)(q7+H7)
//
// modulo 2^128, the sums in parentheses modulo 2^64. The rank is SipHash-2-4,
// under the key P0, P1, of the 16 bytes of u. It is a PRF of the window, since u
// is an almost universal hash of it.
//
// Cut. A chunk has at least avg/2 and at most 2*avg bytes. Let L be its length
// if it ended at a mark. It ends at the first mark, from L = avg/2 on, whose rank
// is at most T if L < avg, or at most 4T if L >= avg. If it reaches 2*avg bytes,
// it ends at the mark with the lowest rank, the first of equal ones, or at
// 2*avg if there is none. The end of the stream ends it too, unless it has
// exactly 2*avg bytes then. w and T are:
//
//	  N   w  T
//	  1   3  124ec00000000000
//	  2   4  242f3b0000000000
//	  4   4  12179d0000000000
//	  8   5  2414100000000000
//	 16   5  120a080000000000
//	 32   6  240d4c0000000000
//	 64   6  1206a60000000000
//	128   6  0903530000000000
//	256   6  0481a90000000000
//	512   6  0240d40000000000
//	1024  6  01206a0000000000
//
// T makes the mean on random data avg: with p = 2^-2w(1-2^-2w) the density of
// marks, marks that are strong enough come at p*T/2^64 below avg and at four
// times that above (normalised chunking). It was solved once, and is stored.
//
// # What the key hides
//
// Without the key nobody can tell where a file is cut, nor choose bytes that are
// cut as he likes. The filter is linear, though: who sees the lengths of many
// chunks of files that he knows can solve for it. Then the lengths of an unknown
// file tell whether it is one that he suspects. So lengths must not be seen: a
// repository packs chunks into encrypted containers. The rank does not depend on
// the filter, and stays a secret.
//
// # Kernels
//
// GFD's first stage exists in portable Go, for AVX2, for AVX-512 with GFNI, and
// for NEON. New takes the fastest that the machine has; tests compare all of them
// with the definition above.
package chunking
