package seal

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// The kinds of failure. ErrEpoch is an ErrCorrupt as well.
var (
	// ErrCorrupt says that an object is not what a holder of the keyring sealed under its kind and name.
	ErrCorrupt = errors.New("damaged or tampered with")

	// ErrEpoch says that an object names an epoch that the keyring does not have: it is damaged, or the keyring has
	// been rotated since it was read.
	ErrEpoch = fmt.Errorf("sealed under a key that is not in the keyring: %w", ErrCorrupt)

	// ErrFormat says that an object was written by a holder of the keyring with a newer program.
	ErrFormat = errors.New("written in a format that this program does not know; upgrade dedupfs")
)

// Format is the version of everything that this package writes.
const Format = 1

// HeaderSize is the length in bytes of the public header of every sealed object.
const HeaderSize = 96

const (
	magic      = "dedupfs"
	publicSize = 32 // the header up to the salt
)

// A Kind says what a sealed object is. It is not in the header: it is bound into the key, and known from the object's
// place.
type Kind byte

// The kinds. Their values never change their meaning.
const (
	KindRepository   Kind = 1
	KindRegistration Kind = 2
	KindCommit       Kind = 3
	KindMultichunk   Kind = 4 // of chunks or of nodes: from outside they look alike
	KindNotice       Kind = 5
	KindHooks        Kind = 6
	KindMove         Kind = 7
	KindSetting      Kind = 8
	KindPast         Kind = 9
)

// A Suite says with what the segments of an object are encrypted.
type Suite byte

// The suites. Their values never change their meaning.
const (
	SuiteAES    Suite = 1 // AES-256-GCM
	SuiteChaCha Suite = 2 // ChaCha20-Poly1305
)

// Features are three words of flags for what an object has beyond its format. A program that meets a flag it does not
// know may go on (Ignore), may read but not write (ReadOnly), or must not read the object (Refuse). Format 1 knows no
// flags.
type Features struct {
	Ignore   uint32
	ReadOnly uint32
	Refuse   uint32
}

// A Header is the public part of a sealed object. It can be trusted only after the object has been opened.
type Header struct {
	Format     byte
	Suite      Suite
	reserved   [3]byte
	Features   Features
	Epoch      Epoch
	salt       [32]byte
	commitment [32]byte // shows that the key is the one that the object was sealed with
}

func appendHeader(dst []byte, h *Header) []byte {
	dst = appendPublic(dst, h)
	dst = append(dst, h.salt[:]...)
	return append(dst, h.commitment[:]...)
}

// appendPublic appends the fields before the salt, which are bound into the key.
func appendPublic(dst []byte, h *Header) []byte {
	dst = append(dst, magic...)
	dst = append(dst, h.Format, byte(h.Suite))
	dst = append(dst, h.reserved[:]...)
	dst = binary.BigEndian.AppendUint32(dst, h.Features.Ignore)
	dst = binary.BigEndian.AppendUint32(dst, h.Features.ReadOnly)
	dst = binary.BigEndian.AppendUint32(dst, h.Features.Refuse)
	return binary.BigEndian.AppendUint64(dst, uint64(h.Epoch))
}

// ParseHeader reads the header at the front of wire. Nothing that it returns has been checked against a key.
func ParseHeader(wire []byte) (Header, error) {
	var h Header
	if len(wire) < HeaderSize {
		return h, fmt.Errorf("header: %d bytes of %d: %w", len(wire), HeaderSize, ErrCorrupt)
	}
	if !bytes.HasPrefix(wire, []byte(magic)) {
		return h, fmt.Errorf("header: no magic: %w", ErrCorrupt)
	}
	h.Format, h.Suite = wire[7], Suite(wire[8])
	copy(h.reserved[:], wire[9:])
	h.Features.Ignore = binary.BigEndian.Uint32(wire[12:])
	h.Features.ReadOnly = binary.BigEndian.Uint32(wire[16:])
	h.Features.Refuse = binary.BigEndian.Uint32(wire[20:])
	h.Epoch = Epoch(binary.BigEndian.Uint64(wire[24:]))
	copy(h.salt[:], wire[32:])
	copy(h.commitment[:], wire[64:])
	return h, nil
}

// known reports whether this program can read an object with header h. The header must have been checked: what is
// merely damaged is not newer.
func (h *Header) known() error {
	switch {
	case h.Format != Format:
		return fmt.Errorf("format %d, this program knows %d: %w", h.Format, Format, ErrFormat)
	case h.Suite != SuiteAES && h.Suite != SuiteChaCha:
		return fmt.Errorf("suite %d: %w", h.Suite, ErrFormat)
	case h.reserved != [3]byte{}:
		return fmt.Errorf("reserved bytes %x: %w", h.reserved, ErrFormat)
	case h.Features.Refuse != 0:
		return fmt.Errorf("features %#x: %w", h.Features.Refuse, ErrFormat)
	}
	return nil
}

// objectKeys derives the segment key and the commitment of the object with header h. The commitment is computed in this
// way in every format, so that a header which claims to be newer can be believed or not.
func (k *Keyring) objectKeys(h *Header, kind Kind, name string) (key, commitment Key, err error) {
	epoch, ok := k.epochs[h.Epoch]
	if !ok {
		return key, commitment, ErrEpoch
	}
	prk, err := hkdf.Extract(sha256.New, epoch[:], h.salt[:])
	if err != nil {
		return key, commitment, fmt.Errorf("derive object key: %w", err)
	}
	context := make([]byte, 0, 1+len(k.repository)+publicSize+len(name))
	context = append(context, byte(kind))
	context = append(context, k.repository[:]...)
	context = appendPublic(context, h)
	context = append(context, name...)
	return expandPRK(prk, "dedupfs 1 segments\x00", context), expandPRK(prk, "dedupfs 1 commitment\x00", context), nil
}

func expandPRK(prk []byte, label string, context []byte) Key {
	key, err := hkdf.Expand(sha256.New, prk, label+string(context), KeySize)
	if err != nil {
		panic(fmt.Sprintf("seal: HKDF: %v", err)) // only for lengths that are never asked for
	}
	return Key(key)
}

// openHeader checks the header at the front of wire and returns it with the key of the segments.
func (k *Keyring) openHeader(kind Kind, name string, wire []byte) (Header, Key, error) {
	h, err := ParseHeader(wire)
	if err != nil {
		return h, Key{}, err
	}
	key, commitment, err := k.objectKeys(&h, kind, name)
	if err != nil {
		return h, Key{}, err
	}
	if !hmac.Equal(commitment[:], h.commitment[:]) {
		return h, Key{}, fmt.Errorf("key commitment: %w", ErrCorrupt)
	}
	return h, key, h.known()
}
