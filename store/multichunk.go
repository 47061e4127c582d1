package store

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"

	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// dataDir is the directory of all multichunks, which lie in 256 directories by the first byte of their names.
const dataDir = "data"

// ObjectName returns the name of multichunk n on the remote, like "data/ab/abcd...".
func ObjectName(n Name) string {
	name := n.String()
	return dataDir + "/" + name[:2] + "/" + name
}

// parseObjectName is the inverse of ObjectName, and strict: what it refuses is not ours.
func parseObjectName(object string) (Name, bool) {
	b, err := hex.DecodeString(object[strings.LastIndexByte(object, '/')+1:])
	if err != nil || len(b) != len(Name{}) {
		return Name{}, false
	}
	n := Name(b)
	return n, ObjectName(n) == object
}

// newName returns a random name.
func newName() (n Name) {
	rand.Read(n[:]) // never fails
	return n
}

// The stream of a multichunk, which is the plaintext of its object, is prefix, groups, table, and zeros up to the length
// that the object shall have.
const (
	prefixSize    = 16            // kind, codec of the table, 0, 0, and three lengths
	tableHeadSize = 4             // what the number of groups takes in the table at most
	groupLineSize = 4 + 3         // what a group takes there at most: its stored length and number of chunks
	chunkLineSize = 3 + len(ID{}) // and a chunk
)

// A TableEntry tells of one chunk of a multichunk.
type TableEntry struct {
	ID   ID
	Len  uint32 // plaintext bytes of the chunk
	Hint Hint   // where its group lies
}

// Sealed is a multichunk that is ready to be stored under ObjectName(Name).
type Sealed struct {
	Name  Name
	Kind  Kind
	Wire  []byte       // the object
	Table []TableEntry // all chunks in it, in their order

	release func([]byte)
}

// Release hands Wire back for use by another multichunk. Calling it is optional; Wire must not be used after it.
func (s *Sealed) Release() {
	if s.release != nil {
		s.release(s.Wire)
	}
	s.Wire, s.release = nil, nil
}

// blocks is what a Repository needs to pack multichunks and to read them.
type blocks struct {
	*compressor
	full int // bytes of the stream of a full multichunk

	groups  sync.Pool // of *groupBuffer
	streams sync.Pool // of []byte, for plaintext
	wires   sync.Pool // of []byte, for objects
}

// newBlocks returns the blocks of a repository with the given Config.Compression, MultichunkSize and GroupSize.
func newBlocks(compression string, multichunkSize, groupSize int) (*blocks, error) {
	if multichunkSize < MinMultichunk || multichunkSize > MaxMultichunk {
		return nil, fmt.Errorf("multichunk size of %d bytes is not between %d and %d", multichunkSize, MinMultichunk, MaxMultichunk)
	}
	if groupSize < MinGroup || groupSize > MaxGroup {
		return nil, fmt.Errorf("group size of %d bytes is not between %d and %d", groupSize, MinGroup, MaxGroup)
	}
	full, err := seal.PlainSize(multichunkSize)
	if err != nil {
		return nil, fmt.Errorf("multichunk size: %w", err)
	}
	c, err := newCompressor(compression, groupSize)
	if err != nil {
		return nil, err
	}
	return &blocks{compressor: c, full: full}, nil
}

func (b *blocks) group() *groupBuffer {
	g, _ := b.groups.Get().(*groupBuffer)
	if g == nil {
		g = new(groupBuffer)
	}
	g.reset()
	return g
}

// seal completes s and seals it. A full one gets the length that all full ones have, another the next one of few. s must
// not be used afterwards, but for its name and table.
func (b *blocks) seal(k *seal.Keyring, s *stream, full bool) (*Sealed, error) {
	if err := s.finish(b.compressor); err != nil {
		return nil, err
	}
	size := b.full
	if !full || len(s.buf) > size {
		var err error
		if size, err = seal.PlainSize(seal.PadSize(seal.WireSize(len(s.buf)))); err != nil {
			return nil, err
		}
		if len(s.buf) <= b.full {
			size = min(size, b.full)
		}
	}
	s.pad(size)
	wire, _ := b.wires.Get().([]byte)
	wire, err := k.Seal(wire[:0], seal.KindMultichunk, ObjectName(s.name), s.buf)
	b.streams.Put(s.buf)
	s.buf = nil
	if err != nil {
		return nil, err
	}
	release := func(wire []byte) { b.wires.Put(wire) }
	return &Sealed{Name: s.name, Kind: s.kind, Wire: wire, Table: s.table, release: release}, nil
}

// stream is a multichunk that is being filled.
type stream struct {
	name   Name
	kind   Kind
	full   int    // bytes of the stream of a full multichunk
	buf    []byte // room for the prefix, then groups
	groups []groupLine
	table  []TableEntry
}

// groupLine is what the table says of a group, besides its chunks.
type groupLine struct{ stored, chunks int }

// newStream returns an empty stream.
func (b *blocks) newStream(kind Kind) *stream {
	buf, _ := b.streams.Get().([]byte)
	s := &stream{name: newName(), kind: kind, full: b.full, buf: buf[:0]}
	s.grow(prefixSize)
	s.buf = s.buf[:prefixSize]
	return s
}

// grow makes room for n more bytes: little at first, for many multichunks are closed early, and never much more than for a
// full one.
func (s *stream) grow(n int) {
	need := len(s.buf) + n
	if need <= cap(s.buf) {
		return
	}
	size := max(need, min(4*cap(s.buf), s.full), min(64<<10, s.full))
	s.buf = append(make([]byte, 0, size), s.buf...)
}

// size returns the bytes that the stream takes with one more group of the given length and number of chunks.
func (s *stream) size(stored, chunks int) int {
	table := tableHeadSize + (len(s.groups)+1)*groupLineSize + (len(s.table)+chunks)*chunkLineSize
	return len(s.buf) + stored + table
}

// add appends a group of the chunks i to j of g, and returns where it lies.
func (s *stream) add(g *groupBuffer, i, j int, group []byte) Hint {
	h := Hint{Multichunk: s.name, Off: uint32(len(s.buf)), Len: uint32(len(group))}
	s.grow(len(group))
	s.buf = append(s.buf, group...)
	s.groups = append(s.groups, groupLine{stored: len(group), chunks: j - i})
	for k := i; k < j; k++ {
		s.table = append(s.table, TableEntry{ID: g.ids[k], Len: uint32(g.length(k)), Hint: h})
	}
	return h
}

// finish appends the table and writes the prefix. The stream is then complete but for its padding.
func (s *stream) finish(c *compressor) error {
	tableOff := len(s.buf)
	raw := appendTable(nil, s.groups, s.table)
	s.grow(len(raw))
	used, buf, err := c.compress(s.buf, raw)
	if err != nil {
		return fmt.Errorf("compress table: %w", err)
	}
	if len(raw) > maxTableGain*(len(buf)-tableOff) {
		used, buf = codecNone, append(s.buf, raw...)
	}
	s.buf = buf
	p := prefix{kind: s.kind, codec: used, tableOff: tableOff, tableLen: len(buf) - tableOff, tableRaw: len(raw)}
	p.put(s.buf)
	return nil
}

// maxTableGain bounds how much longer a table may be than it is stored, so that a reader need not believe more than it
// has been given. Ids do not compress, so that no table of different chunks comes near it.
const maxTableGain = 2

// pad lengthens the stream with zeros to size.
func (s *stream) pad(size int) {
	n := len(s.buf)
	s.grow(size - n)
	s.buf = s.buf[:size]
	clear(s.buf[n:])
}

// prefix is the start of a stream.
type prefix struct {
	kind               Kind
	codec              codec // of the table
	tableOff, tableLen int   // where the table lies in the stream
	tableRaw           int   // bytes of the table before compression
}

// put writes p to the first prefixSize bytes of b.
func (p *prefix) put(b []byte) {
	b[0], b[1], b[2], b[3] = byte(p.kind), byte(p.codec), 0, 0
	binary.BigEndian.PutUint32(b[4:], uint32(p.tableOff))
	binary.BigEndian.PutUint32(b[8:], uint32(p.tableLen))
	binary.BigEndian.PutUint32(b[12:], uint32(p.tableRaw))
}

// parsePrefix reads the prefix of a stream, of which b is the start or the whole.
func parsePrefix(b []byte) (p prefix, err error) {
	d := decoder{b: b}
	p.kind, p.codec = Kind(d.byte()), codec(d.byte())
	zero := d.byte() | d.byte()
	p.tableOff, p.tableLen, p.tableRaw = int(d.uint32()), int(d.uint32()), int(d.uint32())
	switch {
	case d.bad, zero != 0, p.kind != KindData && p.kind != KindNodes, p.codec >= codecEnd:
		return p, corruptf("multichunk with a broken prefix")
	case p.tableOff < prefixSize, p.tableOff+p.tableLen > MaxMultichunk, p.tableRaw > maxTableGain*p.tableLen:
		return p, corruptf("multichunk whose table of %d bytes lies at %d", p.tableLen, p.tableOff)
	}
	return p, nil
}

// appendTable appends the table of a stream by columns: the number of groups, their stored lengths, how many chunks each
// has, the lengths of all chunks, and their ids. Groups lie one behind the other, so that their offsets follow.
func appendTable(dst []byte, groups []groupLine, table []TableEntry) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(groups)))
	for _, g := range groups {
		dst = binary.AppendUvarint(dst, uint64(g.stored))
	}
	for _, g := range groups {
		dst = binary.AppendUvarint(dst, uint64(g.chunks))
	}
	for i := range table {
		dst = binary.AppendUvarint(dst, uint64(table[i].Len))
	}
	for i := range table {
		dst = append(dst, table[i].ID[:]...)
	}
	return dst
}

// parseTable reads what appendTable wrote. The groups must fill the stream of multichunk name up to tableOff.
func parseTable(b []byte, name Name, tableOff int) ([]TableEntry, error) {
	d := decoder{b: b}
	groups := d.uvarint(len(b))
	stored, sum := d.column(groups, maxGroupStored)
	chunks, count := d.column(groups, maxGroupChunks)
	if d.bad || prefixSize+sum != tableOff || count > len(d.b)/len(ID{}) {
		return nil, corruptf("table of %d bytes whose groups do not end at %d", len(b), tableOff)
	}
	sizes, _ := d.column(count, MaxChunk)
	ids := d.bytes(count * len(ID{}))
	if d.bad || len(d.b) > 0 {
		return nil, corruptf("table of %d bytes with %d chunks", len(b), count)
	}
	return tableEntries(name, groups, stored, chunks, sizes, ids)
}

// tableEntries puts the columns of a table together. They have been found to agree in number.
func tableEntries(name Name, groups int, stored, chunks, chunkSizes, ids []byte) ([]TableEntry, error) {
	table := make([]TableEntry, 0, len(ids)/len(ID{}))
	storedLengths, chunkCounts, chunkLengths := lengths{column: stored}, lengths{column: chunks}, lengths{column: chunkSizes}
	off := prefixSize
	for range groups {
		n, count := storedLengths.next(), chunkCounts.next()
		if count == 0 {
			return nil, corruptf("table with an empty group")
		}
		h := Hint{Multichunk: name, Off: uint32(off), Len: uint32(n)}
		for range count {
			id := ID(ids[len(table)*len(ID{}):])
			table = append(table, TableEntry{ID: id, Len: uint32(chunkLengths.next()), Hint: h})
		}
		off += n
	}
	return table, nil
}
