package seal

import (
	"encoding/binary"
	"fmt"
)

// SealPadded seals a small object so that its length on the wire is PadSize of what it needs.
func (k *Keyring) SealPadded(kind Kind, name string, plaintext []byte, f Features) ([]byte, error) {
	size, err := PlainSize(PadSize(WireSize(4 + len(plaintext))))
	if err != nil {
		return nil, err
	}
	padded := make([]byte, size)
	binary.BigEndian.PutUint32(padded, uint32(len(plaintext)))
	copy(padded[4:], plaintext)
	return k.SealFeatures(nil, kind, name, padded, f)
}

// OpenPadded opens what SealPadded sealed.
func (k *Keyring) OpenPadded(kind Kind, name string, wire []byte) ([]byte, Features, error) {
	padded, err := k.Open(nil, kind, name, wire)
	if err != nil {
		return nil, Features{}, err
	}
	if len(padded) < 4 || uint64(binary.BigEndian.Uint32(padded)) > uint64(len(padded)-4) {
		return nil, Features{}, fmt.Errorf("padding: %w", ErrCorrupt)
	}
	h, err := ParseHeader(wire)
	n := binary.BigEndian.Uint32(padded)
	return padded[4 : 4+n : 4+n], h.Features, err
}
