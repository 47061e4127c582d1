package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// refHintSize is what one line of a node's hint table takes: name, offset and length.
const refHintSize = 16 + 4 + 4

// AppendNode appends the encoding of n to dst: the canonical part, which alone makes the id, and then the hints of all
// references. ParseNode is its inverse. It panics on a node that ParseNode would refuse, see AppendCanonical.
func AppendNode(dst []byte, n *Node) []byte {
	return appendHints(AppendCanonical(dst, n), n)
}

// AppendCanonical appends the part of n that makes its id: everything but the hints. Equal content gives equal bytes. It
// panics if n has no entries, if its keys are not in order, or if a bound (MaxKey, MaxValue, MaxNode) does not hold.
//
// The part is laid out by columns, so that like stands beside like and compresses well: level, count; how many bytes each
// key shares with the one before it, how many follow; the lengths of the values; the numbers of references; then the bytes
// of the keys, of the values, the kinds and the ids.
func AppendCanonical(dst []byte, n *Node) []byte {
	if len(n.Entries) == 0 {
		panic("store: node without entries")
	}
	start := len(dst)
	dst = append(dst, n.Level)
	dst = binary.AppendUvarint(dst, uint64(len(n.Entries)))
	dst = appendKeyLengths(dst, n.Entries)
	for i := range n.Entries {
		dst = binary.AppendUvarint(dst, uint64(len(n.Entries[i].Value)))
	}
	for i := range n.Entries {
		dst = binary.AppendUvarint(dst, uint64(len(n.Entries[i].Refs)))
	}
	dst = appendColumns(dst, n.Entries)
	if len(dst)-start > MaxNode {
		panic(fmt.Sprintf("store: node of %d bytes, more than %d", len(dst)-start, MaxNode))
	}
	return dst
}

// appendKeyLengths appends the two columns that describe the keys, and checks the bounds of keys and values.
func appendKeyLengths(dst []byte, entries []Entry) []byte {
	var prev []byte
	for i := range entries {
		key := entries[i].Key
		if i > 0 && bytes.Compare(prev, key) >= 0 {
			panic("store: node with keys out of order")
		}
		if len(key) > MaxKey || len(entries[i].Value) > MaxValue {
			panic(fmt.Sprintf("store: record with a key of %d and a value of %d bytes", len(key), len(entries[i].Value)))
		}
		dst = binary.AppendUvarint(dst, uint64(sharedPrefix(prev, key)))
		prev = key
	}
	prev = nil
	for i := range entries {
		key := entries[i].Key
		dst = binary.AppendUvarint(dst, uint64(len(key)-sharedPrefix(prev, key)))
		prev = key
	}
	return dst
}

func appendColumns(dst []byte, entries []Entry) []byte {
	var prev []byte
	for i := range entries {
		key := entries[i].Key
		dst = append(dst, key[sharedPrefix(prev, key):]...)
		prev = key
	}
	for i := range entries {
		dst = append(dst, entries[i].Value...)
	}
	for i := range entries {
		for j := range entries[i].Refs {
			dst = append(dst, byte(entries[i].Refs[j].Kind))
		}
	}
	for i := range entries {
		for j := range entries[i].Refs {
			dst = append(dst, entries[i].Refs[j].ID[:]...)
		}
	}
	return dst
}

// appendHints appends the distinct hints of n in the order of their first use, and then for each run of references with
// one hint its length and the number of that hint, counted from 1; 0 is a reference without one.
func appendHints(dst []byte, n *Node) []byte {
	var table, runs []byte
	seen := map[Hint]uint64{}
	run, last := uint64(0), uint64(0)
	endRun := func() {
		if run > 0 {
			runs = binary.AppendUvarint(runs, run)
			runs = binary.AppendUvarint(runs, last)
		}
	}
	for i := range n.Entries {
		for j := range n.Entries[i].Refs {
			hint := &n.Entries[i].Refs[j].Hint
			number := uint64(0)
			if !hint.IsZero() {
				if number = seen[*hint]; number == 0 {
					number = uint64(len(seen) + 1)
					seen[*hint] = number
					table = appendHint(table, hint)
				}
			}
			if number != last {
				endRun()
				run, last = 0, number
			}
			run++
		}
	}
	endRun()
	dst = binary.AppendUvarint(dst, uint64(len(seen)))
	return append(append(dst, table...), runs...)
}

func appendHint(dst []byte, h *Hint) []byte {
	dst = append(dst, h.Multichunk[:]...)
	dst = binary.BigEndian.AppendUint32(dst, h.Off)
	return binary.BigEndian.AppendUint32(dst, h.Len)
}

func parseHint(b []byte) (h Hint) {
	h.Multichunk = Name(b[:16])
	h.Off = binary.BigEndian.Uint32(b[16:])
	h.Len = binary.BigEndian.Uint32(b[20:])
	return h
}

// ParseNode decodes what AppendNode wrote. The values of the node are parts of b, which must not be changed afterwards.
// Anything that AppendNode would not have written is refused with ErrCorrupt. The id is not checked, see CheckNode.
//
// A node takes up to a hundred times the memory of its encoding, because keys share their prefixes there.
func ParseNode(b []byte) (*Node, error) {
	n, _, err := parseNode(b)
	return n, err
}

// CheckNode is ParseNode for bytes that are not trusted: it returns ErrCorrupt if they are not the node named id.
func (r *Repository) CheckNode(id ID, b []byte) (*Node, error) {
	n, size, err := parseNode(b)
	if err != nil {
		return nil, err
	}
	if r.NodeID(b[:size]) != id {
		return nil, corruptf("node has another id than %v", id)
	}
	return n, nil
}

// parseNode returns the node in b and the length of its canonical part.
func parseNode(b []byte) (*Node, int, error) {
	c, err := parseColumns(b)
	if err != nil {
		return nil, 0, err
	}
	n := &Node{Level: c.level, Entries: make([]Entry, c.count)}
	if err := c.keys(n.Entries); err != nil {
		return nil, 0, err
	}
	refs := make([]Ref, c.refs)
	if err := c.refsInto(refs); err != nil {
		return nil, 0, err
	}
	if err := parseHints(b[c.size:], refs); err != nil {
		return nil, 0, err
	}
	c.valuesAndRefs(n.Entries, refs)
	return n, c.size, nil
}

// columns are the parts of the canonical part of a node, whose lengths have been found to agree.
type columns struct {
	level                               uint8
	count, refs                         int // of entries, of references
	keySize                             int // of all keys, decoded
	size                                int // of the canonical part
	shared, suffixes, values, refCounts []byte
	keyBytes, valueBytes, kinds, ids    []byte
}

// parseColumns finds where the columns of a node lie. It allocates nothing.
func parseColumns(b []byte) (c columns, err error) {
	d := decoder{b: b}
	c.level = d.byte()
	count := d.uvarint(MaxNode)
	if d.bad || count == 0 || count > len(d.b) {
		return c, corruptf("node of %d bytes: bad number of entries", len(b))
	}
	c.count = count
	var shared, suffix, values int
	c.shared, shared = d.column(count, MaxKey)
	c.suffixes, suffix = d.column(count, MaxKey)
	c.values, values = d.column(count, MaxValue)
	c.refCounts, c.refs = d.column(count, MaxNode/len(ID{}))
	c.keySize = shared + suffix
	c.keyBytes = d.bytes(suffix)
	c.valueBytes = d.bytes(values)
	c.kinds = d.bytes(c.refs)
	c.ids = d.bytes(c.refs * len(ID{}))
	c.size = len(b) - len(d.b)
	if d.bad || c.size > MaxNode {
		return c, corruptf("node of %d bytes: broken columns", len(b))
	}
	return c, nil
}

// keys decodes the keys into entries and checks that they are in order and that no prefix is longer than it says.
func (c *columns) keys(entries []Entry) error {
	all := make([]byte, 0, c.keySize)
	shared, suffixes, rest := lengths{column: c.shared}, lengths{column: c.suffixes}, c.keyBytes
	var prev []byte
	for i := range entries {
		s, n := shared.next(), suffixes.next()
		if s > len(prev) || s+n > MaxKey || n == 0 && i > 0 {
			return corruptf("node with a broken key")
		}
		// Where the keys part the new one must be greater: a shorter prefix would be a second encoding of the same node.
		if s < len(prev) && rest[0] <= prev[s] {
			return corruptf("node with keys out of order")
		}
		start := len(all)
		all = append(append(all, prev[:s]...), rest[:n]...)
		rest = rest[n:]
		prev = all[start:len(all):len(all)]
		entries[i].Key = prev
	}
	return nil
}

func (c *columns) refsInto(refs []Ref) error {
	for i := range refs {
		kind := RefKind(c.kinds[i])
		if kind > RefNode {
			return corruptf("node with a reference of kind %d", kind)
		}
		refs[i].Kind = kind
		refs[i].ID = ID(c.ids[i*len(ID{}):])
	}
	return nil
}

// valuesAndRefs hands every entry its value and its share of refs.
func (c *columns) valuesAndRefs(entries []Entry, refs []Ref) {
	values, refCounts, rest := lengths{column: c.values}, lengths{column: c.refCounts}, c.valueBytes
	for i := range entries {
		if n := values.next(); n > 0 {
			entries[i].Value = rest[:n:n]
			rest = rest[n:]
		}
		if n := refCounts.next(); n > 0 {
			entries[i].Refs = refs[:n:n]
			refs = refs[n:]
		}
	}
}

// parseHints reads what appendHints wrote into refs.
func parseHints(b []byte, refs []Ref) error {
	d := decoder{b: b}
	count := d.uvarint(len(refs))
	table := d.bytes(count * refHintSize)
	if d.bad {
		return corruptf("node with a broken hint table")
	}
	used, last := 0, -1
	for len(refs) > 0 {
		run, number := d.uvarint(len(refs)), d.uvarint(count)
		// A hint that is skipped or a run that goes on would be a second encoding.
		if d.bad || run == 0 || number > used+1 || number == last {
			return corruptf("node with broken hints")
		}
		if number > 0 {
			hint := parseHint(table[(number-1)*refHintSize:])
			if hint.IsZero() {
				return corruptf("node with an empty hint")
			}
			for i := range refs[:run] {
				refs[i].Hint = hint
			}
		}
		used, last = max(used, number), number
		refs = refs[run:]
	}
	if used != count || len(d.b) > 0 {
		return corruptf("node with bytes behind its end")
	}
	return nil
}

// canonicalSize returns the length of the canonical part of the node in b, without decoding it.
func canonicalSize(b []byte) (int, error) {
	c, err := parseColumns(b)
	return c.size, err
}

// sharedPrefix returns how many bytes a and b have in common at their start.
func sharedPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
