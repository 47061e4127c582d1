package fs

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/dedupfs/dedupfs/chunking"
	"github.com/dedupfs/dedupfs/store"
)

// The kinds of record of one inode, in the order in which they adjoin (docs/architecture.md, "Keys").
const (
	keyInode   = 0x01
	keyEntry   = 0x02
	keyXattr   = 0x03
	keyLink    = 0x04
	keyContent = 0x05
	keyTarget  = 0x06 // parts of a long target of a symbolic link
	keyOrphan  = 0x10 // of inode 0: inodes that have no name but are still in use
)

func key(ino Ino, kind byte, room int) []byte {
	k := make([]byte, 9, 9+room)
	binary.BigEndian.PutUint64(k, uint64(ino))
	k[8] = kind
	return k
}

func inodeKey(ino Ino) string   { return string(key(ino, keyInode, 0)) }
func contentKey(ino Ino) string { return string(key(ino, keyContent, 0)) }

func orphanKey(ino Ino) string {
	return string(binary.BigEndian.AppendUint64(key(0, keyOrphan, 8), uint64(ino)))
}

func entryKey(parent Ino, cookie uint64, name []byte) string {
	k := key(parent, keyEntry, 8+len(name))
	k = binary.BigEndian.AppendUint64(k, cookie)
	return string(append(k, name...))
}

func xattrKey(ino Ino, name string) string {
	return string(append(key(ino, keyXattr, len(name)), name...))
}

func linkKey(ino, parent Ino, name []byte) string {
	k := key(ino, keyLink, 8+len(name))
	k = binary.BigEndian.AppendUint64(k, uint64(parent))
	return string(append(k, name...))
}

// splitKey takes a key apart; rest aliases k.
func splitKey(k string) (ino Ino, kind byte, rest string, ok bool) {
	if len(k) < 9 {
		return 0, 0, "", false
	}
	return Ino(binary.BigEndian.Uint64([]byte(k[:8]))), k[8], k[9:], true
}

// splitEntry takes the rest of an entry's key apart.
func splitEntry(rest string) (cookie uint64, name string, ok bool) {
	if len(rest) < 9 {
		return 0, "", false
	}
	return binary.BigEndian.Uint64([]byte(rest[:8])), rest[8:], true
}

// prefixEnd returns the smallest key above all keys of one kind of ino.
func prefixEnd(ino Ino, kind byte) string { return string(key(ino, kind+1, 0)) }

var errRecord = fmt.Errorf("record does not parse: %w", store.ErrCorrupt)

// attrs is the inode record: everything about an inode but its content, its names and its extended attributes.
type attrs struct {
	Mode, Nlink, Uid, Gid, Rdev uint32
	Size                        uint64
	Atime, Mtime, Ctime, Btime  Timespec
	Changed                     store.ClientID // who last changed the content
	Target                      []byte         // of a symbolic link, when it fits into a record
}

const attrsVersion = 1

// appendAttrs encodes a; times other than mtime are differences to it, which are mostly zero.
func appendAttrs(dst []byte, a *attrs) []byte {
	dst = append(dst, attrsVersion)
	for _, u := range []uint32{a.Mode, a.Nlink, a.Uid, a.Gid, a.Rdev} {
		dst = binary.AppendUvarint(dst, uint64(u))
	}
	dst = binary.AppendUvarint(dst, a.Size)
	dst = binary.AppendVarint(dst, a.Mtime.Sec)
	dst = binary.AppendVarint(dst, int64(a.Mtime.Nsec))
	for _, t := range []Timespec{a.Ctime, a.Atime, a.Btime} {
		dst = binary.AppendVarint(dst, t.Sec-a.Mtime.Sec)
		dst = binary.AppendVarint(dst, int64(t.Nsec)-int64(a.Mtime.Nsec))
	}
	dst = append(dst, a.Changed[:]...)
	dst = binary.AppendUvarint(dst, uint64(len(a.Target)))
	return append(dst, a.Target...)
}

func parseAttrs(b []byte) (*attrs, error) {
	r := reader{b: b}
	if r.byte() != attrsVersion {
		return nil, fmt.Errorf("inode record version: %w", errRecord)
	}
	a := &attrs{}
	for _, u := range []*uint32{&a.Mode, &a.Nlink, &a.Uid, &a.Gid, &a.Rdev} {
		*u = r.uint32()
	}
	a.Size = r.uvarint()
	a.Mtime = Timespec{r.varint(), r.nsec(0)}
	for _, t := range []*Timespec{&a.Ctime, &a.Atime, &a.Btime} {
		*t = Timespec{a.Mtime.Sec + r.varint(), r.nsec(int64(a.Mtime.Nsec))}
	}
	copy(a.Changed[:], r.bytes(len(a.Changed)))
	a.Target = r.bytes(int(min(r.uvarint(), 1<<16)))
	if r.bad || len(r.b) != 0 || a.Size > maxSize {
		return nil, errRecord
	}
	return a, nil
}

// extentMap is the content record: how a file is cut, and where its chunks stand.
type extentMap struct {
	Kind      chunking.Kind
	Decided   bool   // the kind will not change before the file is truncated to zero
	Length    int64  // of the file when it was cut; what lies above is a hole
	Allocated uint64 // bytes of all chunks: what is not a hole
	Ref       store.Ref
}

func (m *extentMap) entry(ino Ino) *store.Entry {
	flags := byte(0)
	if m.Decided {
		flags = 1
	}
	v := binary.AppendUvarint([]byte{byte(m.Kind), flags}, uint64(m.Length))
	e := &store.Entry{Key: []byte(contentKey(ino)), Value: binary.AppendUvarint(v, m.Allocated)}
	if !m.Ref.IsZero() {
		e.Refs = []store.Ref{m.Ref}
	}
	return e
}

func parseExtentMap(e *store.Entry) (extentMap, error) {
	if e == nil {
		return extentMap{}, nil
	}
	r := reader{b: e.Value}
	m := extentMap{Kind: chunking.Kind(r.byte()), Decided: r.byte() == 1, Length: int64(r.uvarint()), Allocated: r.uvarint()}
	if len(e.Refs) > 0 {
		m.Ref = e.Refs[0]
	}
	if r.bad || len(r.b) != 0 || len(e.Refs) > 1 || m.Length < 0 {
		return extentMap{}, errRecord
	}
	return m, nil
}

// entryValue is the value of a directory entry.
func entryValue(ino Ino, mode uint32) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(ino)), byte(mode>>12))
}

func parseEntryValue(v []byte) (Ino, uint32, error) {
	if len(v) != 9 {
		return 0, 0, errRecord
	}
	return Ino(binary.BigEndian.Uint64(v)), uint32(v[8]) << 12, nil
}

// reader takes fields off a byte slice; after the first that is not there, bad is set and all are zero.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) byte() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) bytes(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.bad, r.b = true, nil
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) uvarint() uint64 {
	u, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return u
}

func (r *reader) varint() int64 {
	i, n := binary.Varint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return i
}

func (r *reader) uint32() uint32 {
	u := r.uvarint()
	if u > 1<<32-1 {
		r.bad = true
	}
	return uint32(u)
}

// nsec reads the difference of nanoseconds to base.
func (r *reader) nsec(base int64) uint32 {
	n := base + r.varint()
	if n < 0 || n >= 1e9 {
		r.bad = true
		return 0
	}
	return uint32(n)
}

func (r *reader) lenBytes() []byte {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return nil
	}
	return r.bytes(int(n))
}

// appendEdit encodes a change of one record for the log: a nil entry deletes it.
func appendEdit(dst []byte, k string, e *store.Entry) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(k)))
	dst = append(dst, k...)
	if e == nil {
		return append(dst, 0)
	}
	dst = append(dst, 1)
	dst = binary.AppendUvarint(dst, uint64(len(e.Value)))
	dst = append(dst, e.Value...)
	dst = binary.AppendUvarint(dst, uint64(len(e.Refs)))
	for _, ref := range e.Refs {
		dst = append(dst, byte(ref.Kind))
		dst = append(dst, ref.ID[:]...)
		dst = append(dst, ref.Hint.Multichunk[:]...)
		dst = binary.BigEndian.AppendUint32(dst, ref.Hint.Off)
		dst = binary.BigEndian.AppendUint32(dst, ref.Hint.Len)
	}
	return dst
}

var errLogRecord = errors.New("log record does not parse")

// parseEdit takes one change off r.
func parseEdit(r *reader) (k string, e *store.Entry, err error) {
	k = string(r.lenBytes())
	if r.byte() == 0 {
		if r.bad {
			err = errLogRecord
		}
		return k, nil, err
	}
	e = &store.Entry{Key: []byte(k), Value: append([]byte(nil), r.lenBytes()...)}
	for n := r.uvarint(); n > 0 && !r.bad; n-- {
		var ref store.Ref
		ref.Kind = store.RefKind(r.byte())
		copy(ref.ID[:], r.bytes(len(ref.ID)))
		copy(ref.Hint.Multichunk[:], r.bytes(len(ref.Hint.Multichunk)))
		if p := r.bytes(8); p != nil {
			ref.Hint.Off, ref.Hint.Len = binary.BigEndian.Uint32(p), binary.BigEndian.Uint32(p[4:])
		}
		e.Refs = append(e.Refs, ref)
	}
	if r.bad || k == "" {
		return "", nil, errLogRecord
	}
	return k, e, nil
}
