package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/sys/cpu"
)

// Seal appends to dst the sealed form of plaintext, which opens only with k, kind and name. Each call draws a fresh
// salt, so no two results are alike. It panics if plaintext is longer than MaxPlain.
func (k *Keyring) Seal(dst []byte, kind Kind, name string, plaintext []byte) ([]byte, error) {
	return k.SealFeatures(dst, kind, name, plaintext, Features{})
}

// SealFeatures is Seal with feature flags in the header.
func (k *Keyring) SealFeatures(dst []byte, kind Kind, name string, plaintext []byte, f Features) ([]byte, error) {
	h := Header{Format: Format, Suite: k.suite, Features: f, Epoch: k.current}
	rand.Read(h.salt[:])
	return k.seal(dst, &h, kind, name, plaintext)
}

// seal seals under the header h, whose salt must never have been used before, and fills in its commitment.
func (k *Keyring) seal(dst []byte, h *Header, kind Kind, name string, plaintext []byte) ([]byte, error) {
	if len(plaintext) > MaxPlain {
		panic(fmt.Sprintf("seal: object of %d bytes", len(plaintext)))
	}
	key, commitment, err := k.objectKeys(h, kind, name)
	if err != nil {
		return dst, err
	}
	h.commitment = commitment
	aead, err := newAEAD(h.Suite, key)
	if err != nil {
		return dst, err
	}
	dst = slices.Grow(dst, WireSize(len(plaintext)))
	dst = appendHeader(dst, h)
	for i := 0; ; i++ {
		segment := plaintext[:min(len(plaintext), SegmentSize)]
		plaintext = plaintext[len(segment):]
		nonce := segmentNonce(i, len(plaintext) == 0)
		dst = aead.Seal(dst, nonce[:], segment, nil)
		if len(plaintext) == 0 {
			return dst, nil
		}
	}
}

// Open appends to dst what was sealed into wire under kind and name. The whole object must be there. If it is not
// what was sealed, Open returns dst as it was, and ErrCorrupt or ErrFormat.
func (k *Keyring) Open(dst []byte, kind Kind, name string, wire []byte) ([]byte, error) {
	h, key, err := k.openHeader(kind, name, wire)
	if err != nil {
		return dst, err
	}
	plain, err := PlainSize(len(wire))
	if err != nil {
		return dst, err
	}
	aead, err := newAEAD(h.Suite, key)
	if err != nil {
		return dst, err
	}
	out := slices.Grow(dst, plain)
	body := wire[HeaderSize:]
	for i := 0; len(body) > 0; i++ {
		segment := body[:min(len(body), wireSegment)]
		body = body[len(segment):]
		nonce := segmentNonce(i, len(body) == 0)
		if out, err = aead.Open(out, nonce[:], segment, nil); err != nil {
			return dst, fmt.Errorf("segment %d: %w", i, ErrCorrupt)
		}
	}
	return out, nil
}

// OpenRange returns n bytes, at least one, from off of the plaintext of the object behind ra, reading its header and
// the segments that hold them, both at the same time. wireSize is the length of the object, or -1 if that is not
// known; then a range may be read from the front of an object that has been cut short, but never wrong bytes. Errors
// of ra other than io.EOF are returned wrapped.
func (k *Keyring) OpenRange(ra io.ReaderAt, wireSize int64, kind Kind, name string, off, n int) ([]byte, error) {
	first, last, err := segmentsOf(wireSize, off, n)
	if err != nil {
		return nil, err
	}
	header, body, err := readSegments(ra, wireSize, first, last)
	if err != nil {
		return nil, err
	}
	h, key, err := k.openHeader(kind, name, header)
	if err != nil {
		return nil, err
	}
	aead, err := newAEAD(h.Suite, key)
	if err != nil {
		return nil, err
	}
	out, err := openSegments(aead, body, first, wireSize)
	if err != nil {
		return nil, err
	}
	skip := off - first*SegmentSize
	if skip+n > len(out) {
		return nil, fmt.Errorf("%d bytes from %d: object ends before: %w", n, off, ErrCorrupt)
	}
	return out[skip : skip+n : skip+n], nil
}

// segmentsOf returns the first and the last segment that a range touches.
func segmentsOf(wireSize int64, off, n int) (first, last int, err error) {
	if off < 0 || n < 1 || off > MaxPlain || n > MaxPlain-off {
		return 0, 0, fmt.Errorf("%d bytes from %d: no such range: %w", n, off, ErrCorrupt)
	}
	if wireSize >= 0 {
		plain, err := PlainSize(int(min(wireSize, maxWire+1)))
		if err != nil {
			return 0, 0, err
		}
		if off+n > plain {
			return 0, 0, fmt.Errorf("%d bytes from %d: object has %d: %w", n, off, plain, ErrCorrupt)
		}
	}
	return off / SegmentSize, (off + n - 1) / SegmentSize, nil
}

// readSegments reads the header and the segments first to last, as far as they are there.
func readSegments(ra io.ReaderAt, wireSize int64, first, last int) (header, body []byte, err error) {
	start, end := int64(HeaderSize)+int64(first)*wireSegment, int64(HeaderSize)+int64(last+1)*wireSegment
	if wireSize >= 0 {
		end = min(end, wireSize)
	}
	if first == 0 {
		both, err := readAt(ra, 0, end)
		n := min(len(both), HeaderSize)
		return both[:n], both[n:], err
	}
	headerErr := make(chan error, 1)
	go func() {
		var err error
		header, err = readAt(ra, 0, HeaderSize)
		headerErr <- err
	}()
	body, err = readAt(ra, start, end)
	return header, body, errors.Join(<-headerErr, err)
}

// readAt returns the bytes from start to end, fewer if the object ends before.
func readAt(ra io.ReaderAt, start, end int64) ([]byte, error) {
	b := make([]byte, end-start)
	n, err := ra.ReadAt(b, start)
	if n == len(b) || err == io.EOF {
		return b[:n], nil
	}
	return nil, fmt.Errorf("read %d bytes from %d: %w", len(b), start, err)
}

// openSegments opens the segments in body, which it uses up; the first of them is number first.
func openSegments(aead cipher.AEAD, body []byte, first int, wireSize int64) ([]byte, error) {
	final := -1 // number of the object's last segment, if that is known
	if wireSize >= 0 {
		final = int((wireSize - HeaderSize - 1) / wireSegment)
	}
	out := body[:0]
	for i := first; len(body) > 0; i++ {
		segment := body[:min(len(body), wireSegment)]
		body = body[len(segment):]
		// A segment that is shorter than the others can only be the last; of a full one the sealed flag decides.
		isLast := i == final || final < 0 && len(segment) < wireSegment
		plain, err := openSegment(aead, i, isLast, segment, final < 0 && !isLast)
		if err != nil {
			return nil, fmt.Errorf("segment %d: %w", i, ErrCorrupt)
		}
		out = append(out, plain...) // moves it to the front, over what has been opened
	}
	return out, nil
}

// openSegment opens segment number i in place. With either it may be the last one, whatever isLast says.
func openSegment(aead cipher.AEAD, i int, isLast bool, segment []byte, either bool) ([]byte, error) {
	nonce := segmentNonce(i, isLast)
	if !either {
		return aead.Open(segment[:0], nonce[:], segment, nil)
	}
	plain, err := aead.Open(nil, nonce[:], segment, nil) // the second try needs the sealed bytes
	if err != nil {
		nonce = segmentNonce(i, true)
		plain, err = aead.Open(nil, nonce[:], segment, nil)
	}
	return plain, err
}

// segmentNonce is the nonce of the STREAM construction as in age: the segment's number, and whether it is the last.
func segmentNonce(i int, last bool) (nonce [12]byte) {
	binary.BigEndian.PutUint64(nonce[3:], uint64(i))
	if last {
		nonce[11] = 1
	}
	return nonce
}

func newAEAD(s Suite, key Key) (cipher.AEAD, error) {
	if s == SuiteChaCha {
		return chacha20poly1305.New(key[:])
	}
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// defaultSuite returns the faster suite on this machine, which is also the one without side channels.
func defaultSuite() Suite {
	if cpu.X86.HasAES && cpu.X86.HasPCLMULQDQ || cpu.ARM64.HasAES && cpu.ARM64.HasPMULL || cpu.S390X.HasAESGCM {
		return SuiteAES
	}
	return SuiteChaCha
}
