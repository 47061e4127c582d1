package store

import (
	"encoding/binary"
	"fmt"
	"sort"
)

// Kind says what a multichunk or a group holds. Nodes and data never share one.
type Kind byte

const (
	KindData  Kind = 1 + iota // chunks: pieces of files
	KindNodes                 // nodes of trees
)

// String returns "data" or "nodes".
func (k Kind) String() string {
	switch k {
	case KindData:
		return "data"
	case KindNodes:
		return "nodes"
	default:
		return fmt.Sprintf("kind %d", byte(k))
	}
}

// Bounds of a group. They hold for every repository, so that a reader need not believe a length that it reads.
const (
	MaxChunk       = 512 << 10 // bytes of a chunk or an encoded node
	maxGroupChunks = 4096      // chunks of a group

	groupHeaderSize = 1 + 1 + 4                       // kind, codec, length of the block before compression
	groupHeadRoom   = 3 + 3*maxGroupChunks            // the longest head of a block: number and lengths of its chunks
	maxGroupBlock   = groupHeadRoom + MaxGroup        // the longest block before compression
	maxGroupStored  = groupHeaderSize + maxGroupBlock // and as it stands in a stream
)

// groupBuffer collects the chunks of one group.
//
// The block that is compressed is the number of chunks, their lengths, and then their bytes. The lengths are known last,
// so room for them is kept in front of the bytes and they are written right before them.
type groupBuffer struct {
	ids  []ID
	ends []int  // in buf, of each chunk
	buf  []byte // groupHeadRoom bytes, then the chunks
	out  []byte // room for the group as it goes into the stream
}

func (g *groupBuffer) reset() {
	if cap(g.buf) < groupHeadRoom {
		g.buf = make([]byte, groupHeadRoom)
	}
	g.ids, g.ends, g.buf, g.out = g.ids[:0], g.ends[:0], g.buf[:groupHeadRoom], g.out[:0]
}

func (g *groupBuffer) add(id ID, data []byte) {
	g.ids = append(g.ids, id)
	g.buf = append(g.buf, data...)
	g.ends = append(g.ends, len(g.buf))
}

// size returns the bytes of all chunks.
func (g *groupBuffer) size() int { return len(g.buf) - groupHeadRoom }

// start returns where chunk i begins in buf, or where the last one ends.
func (g *groupBuffer) start(i int) int {
	if i == 0 {
		return groupHeadRoom
	}
	return g.ends[i-1]
}

// length returns the bytes of chunk i.
func (g *groupBuffer) length(i int) int { return g.ends[i] - g.start(i) }

// chunksWithin returns how many chunks from i on have at most size bytes together.
func (g *groupBuffer) chunksWithin(i, size int) int {
	return sort.SearchInts(g.ends[i:], g.start(i)+size+1)
}

// block returns the block of the chunks from i up to j. It overwrites what stands before chunk i.
func (g *groupBuffer) block(i, j int) []byte {
	var head [groupHeadRoom]byte
	h := binary.AppendUvarint(head[:0], uint64(j-i))
	for k := i; k < j; k++ {
		h = binary.AppendUvarint(h, uint64(g.length(k)))
	}
	start := g.start(i) - len(h)
	copy(g.buf[start:], h)
	return g.buf[start:g.ends[j-1]]
}

// appendGroup appends a group of the given block: its header and the block, compressed if that pays.
func (c *compressor) appendGroup(dst []byte, kind Kind, block []byte) ([]byte, error) {
	start := len(dst)
	dst = append(dst, byte(kind), 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(block)))
	used, dst, err := c.compress(dst, block)
	if err != nil {
		return nil, fmt.Errorf("compress group: %w", err)
	}
	dst[start+1] = byte(used)
	return dst, nil
}

// A Group is an opened group: chunks or nodes that were stored together, each with the id that its bytes have.
type Group struct {
	kind Kind
	data []byte // the bytes of all chunks
	ends []int  // in data, of each chunk
	ids  []ID
}

// Kind tells whether the group holds chunks or encoded nodes.
func (g *Group) Kind() Kind { return g.kind }

// Len returns the number of chunks.
func (g *Group) Len() int { return len(g.ids) }

// Size returns the bytes of all chunks, which is about what the group takes in memory.
func (g *Group) Size() int { return len(g.data) }

// Chunk returns chunk i and its id. The bytes are shared and must not be changed.
func (g *Group) Chunk(i int) (ID, []byte) {
	start := 0
	if i > 0 {
		start = g.ends[i-1]
	}
	return g.ids[i], g.data[start:g.ends[i]:g.ends[i]]
}

// Find returns the chunk named id, and whether the group has it. The bytes are shared and must not be changed.
func (g *Group) Find(id ID) ([]byte, bool) {
	for i := range g.ids {
		if g.ids[i] == id {
			_, data := g.Chunk(i)
			return data, true
		}
	}
	return nil, false
}

// parseGroup opens a group as it stands in the stream of a multichunk and computes the id of every chunk in it. The group
// may keep b.
func (r *Repository) parseGroup(b []byte) (*Group, error) {
	d := decoder{b: b}
	kind, used, size := Kind(d.byte()), codec(d.byte()), d.uint32()
	if d.bad || size > maxGroupBlock || kind != KindData && kind != KindNodes {
		return nil, corruptf("group of %d bytes with a broken header", len(b))
	}
	block, err := r.blocks.decompress(used, d.b, int(size))
	if err != nil {
		return nil, fmt.Errorf("group: %w", err)
	}
	g := &Group{kind: kind}
	if err := g.parseBlock(block); err != nil {
		return nil, err
	}
	return g, r.nameChunks(g)
}

func (g *Group) parseBlock(block []byte) error {
	d := decoder{b: block}
	count := d.uvarint(maxGroupChunks)
	if d.bad || count == 0 || count > len(d.b) {
		return corruptf("group with a bad number of chunks")
	}
	g.ends = make([]int, count)
	end := 0
	for i := range g.ends {
		end += d.uvarint(MaxChunk)
		g.ends[i] = end
	}
	if d.bad || end != len(d.b) {
		return corruptf("group whose lengths do not fit its %d bytes", len(block))
	}
	g.data = d.b
	return nil
}

// nameChunks computes the ids of g from its bytes.
func (r *Repository) nameChunks(g *Group) error {
	g.ids = make([]ID, len(g.ends))
	for i := range g.ids {
		_, data := g.Chunk(i)
		if g.kind == KindData {
			g.ids[i] = r.ChunkID(data)
			continue
		}
		size, err := canonicalSize(data)
		if err != nil {
			return fmt.Errorf("node %d of a group: %w", i, err)
		}
		g.ids[i] = r.NodeID(data[:size])
	}
	return nil
}
