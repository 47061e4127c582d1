package seal

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
)

// KeySize is the length in bytes of every symmetric key.
const KeySize = 32

// A Key is a symmetric key.
type Key [KeySize]byte

// An Epoch names a key under which objects are sealed: its number in the upper half, so that later epochs are larger,
// and random bits below, so that two that were begun at the same time differ.
type Epoch uint64

// newEpoch returns a fresh name for epoch number n.
func newEpoch(n uint32) Epoch {
	var b [4]byte
	rand.Read(b[:])
	return Epoch(n)<<32 | Epoch(binary.BigEndian.Uint32(b[:]))
}

// A Keyring holds the secrets of one repository. It is immutable, and safe for concurrent use.
type Keyring struct {
	repository [16]byte
	suite      Suite
	root       Key // from which all keys that outlive epochs are derived
	epochs     map[Epoch]Key
	current    Epoch // the largest
}

// NewKeyring returns fresh secrets for a new repository.
func NewKeyring(repository [16]byte) *Keyring {
	return newKeyring(repository, randomKey(), map[Epoch]Key{newEpoch(1): randomKey()})
}

func newKeyring(repository [16]byte, root Key, epochs map[Epoch]Key) *Keyring {
	return &Keyring{
		repository: repository,
		suite:      defaultSuite(),
		root:       root,
		epochs:     epochs,
		current:    slices.Max(slices.Collect(maps.Keys(epochs))),
	}
}

// Repository returns the id of the repository that k belongs to.
func (k *Keyring) Repository() [16]byte { return k.repository }

// SameRoot reports whether k and other, of one repository, can be united. They differ only by mistake or ill will.
func (k *Keyring) SameRoot(other *Keyring) bool {
	return k.repository == other.repository && k.root == other.root
}

// Union returns the keyring that has the epochs of both. It panics unless SameRoot holds.
func (k *Keyring) Union(other *Keyring) *Keyring {
	if !k.SameRoot(other) {
		panic("seal: union of keyrings of different repositories")
	}
	epochs := maps.Clone(k.epochs)
	maps.Copy(epochs, other.epochs)
	return newKeyring(k.repository, k.root, epochs)
}

// NextEpoch returns the keyring with one more epoch, under which it seals from then on.
func (k *Keyring) NextEpoch() (*Keyring, error) {
	if len(k.epochs) >= maxEpochs {
		return nil, fmt.Errorf("keyring: %d epochs: no more than %d", len(k.epochs), maxEpochs)
	}
	epochs := maps.Clone(k.epochs)
	epochs[newEpoch(uint32(k.current>>32)+1)] = randomKey()
	return newKeyring(k.repository, k.root, epochs), nil
}

// Current returns the epoch that new objects are sealed under.
func (k *Keyring) Current() Epoch { return k.current }

// Epochs returns how many epochs k has, and the number of the newest.
func (k *Keyring) Epochs() (n int, newest uint32) { return len(k.epochs), uint32(k.current >> 32) }

// Derive returns the key for purpose. It is the same in every epoch. Purposes are constants of the program, listed in
// FORMAT.md.
func (k *Keyring) Derive(purpose string) Key {
	return expand(k.root[:], k.repository[:], "dedupfs 1 root "+purpose)
}

// expand derives a key from secret by HKDF-SHA256.
func expand(secret, salt []byte, info string) Key {
	key, err := hkdf.Key(sha256.New, secret, salt, info, KeySize)
	if err != nil {
		panic(fmt.Sprintf("seal: HKDF: %v", err)) // only for lengths that are never asked for
	}
	return Key(key)
}

func randomKey() (k Key) {
	rand.Read(k[:])
	return k
}
