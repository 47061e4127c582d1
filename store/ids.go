package store

import (
	"encoding/hex"
)

// ID names a chunk or a node: a keyed hash of its content, so that nobody without the key can confirm a known file.
type ID [32]byte

// String returns the ID in lower-case hex.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether id is the zero value, which names nothing.
func (id ID) IsZero() bool { return id == ID{} }

// Name is the random name of a multichunk.
type Name [16]byte

// String returns the name in lower-case hex, as it stands on the remote.
func (n Name) String() string { return hex.EncodeToString(n[:]) }

// IsZero reports whether n is the zero value, which names nothing.
func (n Name) IsZero() bool { return n == Name{} }

// Hint says where a chunk or node was last known to lie: a group of a multichunk. A wrong hint costs a look-up, never
// correctness. The zero Hint is "not known".
type Hint struct {
	Multichunk Name
	Off        uint32 // of the group, bytes from the start of the multichunk's plaintext stream
	Len        uint32 // of the group as it stands there (compressed), bytes
}

// IsZero reports whether h says nothing.
func (h Hint) IsZero() bool { return h.Multichunk.IsZero() }

// RefKind tells chunks from nodes.
type RefKind uint8

const (
	RefChunk RefKind = iota // file bytes
	RefNode                 // a node of a tree
)

// Ref is an identity plus a hint. Two refs are the same when kind and id are; hints do not count.
type Ref struct {
	ID   ID
	Kind RefKind
	Hint Hint
}

// IsZero reports whether r refers to nothing (the root of an empty tree).
func (r Ref) IsZero() bool { return r.ID.IsZero() }

// Entry is one record of a tree, or in an inner node the reference to a child whose smallest key is Key.
type Entry struct {
	Key   []byte
	Value []byte // at most MaxValue bytes
	Refs  []Ref
}

// MaxValue is the largest value of a record, in bytes; what is longer is stored as chunks and referred to.
const MaxValue = 1024

// MaxKey is the longest key of a record, in bytes.
const MaxKey = 512

// MaxNode is the largest canonical encoding of a node, in bytes.
const MaxNode = 64 << 10

// Node is a decoded node of a tree. It is immutable once it has been saved or loaded.
type Node struct {
	Level   uint8   // 0 for leaves
	Entries []Entry // sorted by key, keys differ
}
