package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// ReadGroup opens the group that h tells of, in the sealed multichunk behind ra. It reads no more than the header and the
// segments that hold the group, and computes the id of every chunk from its bytes. wireSize is the length of the object, -1
// if it is not known. It returns ErrCorrupt for what is damaged, or has no group there; errors of ra are returned wrapped.
func (r *Repository) ReadGroup(ra io.ReaderAt, wireSize int64, h Hint) (*Group, error) {
	g, err := r.readGroup(ra, wireSize, h)
	if err != nil {
		return nil, fmt.Errorf("read group at %d of multichunk %v: %w", h.Off, h.Multichunk, err)
	}
	return g, nil
}

func (r *Repository) readGroup(ra io.ReaderAt, wireSize int64, h Hint) (*Group, error) {
	if h.Off < prefixSize || h.Len < groupHeaderSize || h.Len > maxGroupStored {
		return nil, corruptf("no group has %d bytes", h.Len)
	}
	b, err := r.openRange(ra, wireSize, h.Multichunk, int(h.Off), int(h.Len))
	if err != nil {
		return nil, err
	}
	return r.parseGroup(b)
}

// FindGroup opens the group of the sealed multichunk n behind ra that holds id, by the table: a multichunk that was repaired has
// its groups elsewhere. It returns ErrNotFound if none holds it. The rest is as for ReadGroup.
func (r *Repository) FindGroup(ra io.ReaderAt, wireSize int64, n Name, id ID) (*Group, error) {
	_, table, err := r.ReadTable(ra, wireSize, n)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(table, func(e TableEntry) bool { return e.ID == id })
	if i < 0 {
		return nil, fmt.Errorf("%v in multichunk %v: %w", id, n, ErrNotFound)
	}
	return r.ReadGroup(ra, wireSize, table[i].Hint)
}

// ReadTable returns what the sealed multichunk n behind ra holds, from its prefix and table alone. wireSize and errors are
// as for ReadGroup. Whether the chunks are really there is not looked at.
func (r *Repository) ReadTable(ra io.ReaderAt, wireSize int64, n Name) (Kind, []TableEntry, error) {
	kind, table, err := r.readTable(ra, wireSize, n)
	if err != nil {
		return 0, nil, fmt.Errorf("read table of multichunk %v: %w", n, err)
	}
	return kind, table, nil
}

func (r *Repository) readTable(ra io.ReaderAt, wireSize int64, n Name) (Kind, []TableEntry, error) {
	b, err := r.openRange(ra, wireSize, n, 0, prefixSize)
	if err != nil {
		return 0, nil, err
	}
	p, err := parsePrefix(b)
	if err != nil {
		return 0, nil, err
	}
	if b, err = r.openRange(ra, wireSize, n, p.tableOff, p.tableLen); err != nil {
		return 0, nil, err
	}
	table, err := r.parseTable(&p, n, b)
	return p.kind, table, err
}

// parseTable decodes the table of multichunk n, which stands compressed in b and has the prefix p.
func (r *Repository) parseTable(p *prefix, n Name, b []byte) ([]TableEntry, error) {
	raw, err := r.blocks.decompress(p.codec, b, p.tableRaw)
	if err != nil {
		return nil, fmt.Errorf("table: %w", err)
	}
	return parseTable(raw, n, p.tableOff)
}

func (r *Repository) openRange(ra io.ReaderAt, wireSize int64, n Name, off, size int) ([]byte, error) {
	return r.keys.OpenRange(ra, wireSize, seal.KindMultichunk, ObjectName(n), off, size)
}

// contents is what the whole object of a multichunk turned out to hold.
type contents struct {
	kind  Kind
	table []TableEntry
	lost  []ID // chunks of the table that are not in their group
}

// openMultichunk opens the object of multichunk n whole, and checks every byte of it. If it is damaged, it returns what can
// still be told of it together with the error: without a table that is nothing.
func (r *Repository) openMultichunk(n Name, wire []byte) (contents, error) {
	stream, err := r.keys.Open(nil, seal.KindMultichunk, ObjectName(n), wire)
	if err != nil {
		return r.salvage(n, wire), err
	}
	p, err := parsePrefix(stream)
	if err != nil {
		return contents{}, err
	}
	if p.tableOff+p.tableLen > len(stream) {
		return contents{}, corruptf("table ends behind the stream")
	}
	table, err := r.parseTable(&p, n, stream[p.tableOff:p.tableOff+p.tableLen])
	if err != nil {
		return contents{}, err
	}
	c := contents{kind: p.kind, table: table}
	err = r.checkGroups(&c, func(h Hint) ([]byte, error) { return stream[h.Off : h.Off+h.Len], nil })
	if slices.ContainsFunc(stream[p.tableOff+p.tableLen:], func(b byte) bool { return b != 0 }) {
		err = errors.Join(err, corruptf("padding is not zero"))
	}
	return c, err
}

// salvage returns what is known of a damaged multichunk whose table can be read: other segments may be intact.
func (r *Repository) salvage(n Name, wire []byte) (c contents) {
	ra, size := bytes.NewReader(wire), int64(len(wire))
	var err error
	if c.kind, c.table, err = r.readTable(ra, size, n); err != nil {
		return contents{}
	}
	// What is wrong is known already.
	_ = r.checkGroups(&c, func(h Hint) ([]byte, error) { return r.openRange(ra, size, n, int(h.Off), int(h.Len)) })
	return c
}

// checkGroups compares every group with the table of c, and lists in c the chunks that are lost.
func (r *Repository) checkGroups(c *contents, read func(Hint) ([]byte, error)) error {
	var errs []error
	for table := c.table; len(table) > 0; {
		h, n := table[0].Hint, 1
		for n < len(table) && table[n].Hint == h {
			n++
		}
		b, err := read(h)
		if err == nil {
			err = r.checkGroup(c.kind, table[:n], b)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("group at %d: %w", h.Off, err))
			for i := range table[:n] {
				c.lost = append(c.lost, table[i].ID)
			}
		}
		table = table[n:]
	}
	return errors.Join(errs...)
}

// checkGroup checks that the group b holds exactly the chunks of table.
func (r *Repository) checkGroup(kind Kind, table []TableEntry, b []byte) error {
	g, err := r.parseGroup(b)
	if err != nil {
		return err
	}
	if g.kind != kind || g.Len() != len(table) {
		return corruptf("%d of %v, the table says %d of %v", g.Len(), g.kind, len(table), kind)
	}
	for i := range table {
		if id, data := g.Chunk(i); id != table[i].ID || len(data) != int(table[i].Len) {
			return corruptf("chunk %d is not the one in the table", i)
		}
	}
	return nil
}

// remoteReader reads ranges of an object. It remembers what it has read of the front, which every opening begins with.
type remoteReader struct {
	ctx  context.Context
	st   remote.Storage
	name string

	mu    sync.Mutex // guards front
	front []byte     // the first bytes of the object
}

// RemoteReader returns the multichunk n on the remote as ReadGroup and ReadTable want it, safe for concurrent use. Every read
// is one get, or two where the object ends within. What all readings need, the header, is got once. ctx ends all reads.
func (r *Repository) RemoteReader(ctx context.Context, n Name) io.ReaderAt {
	return &remoteReader{ctx: ctx, st: r.st, name: ObjectName(n)}
}

// ReadAt implements io.ReaderAt.
func (rr *remoteReader) ReadAt(p []byte, off int64) (int, error) {
	if rr.readFront(p, off) {
		return len(p), nil
	}
	b, err := rr.st.Get(rr.ctx, rr.name, off, int64(len(p)))
	if errors.Is(err, io.ErrUnexpectedEOF) {
		// The object ends before: what is left of it is less than was asked for.
		b, err = rr.st.Get(rr.ctx, rr.name, off, -1)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return 0, io.EOF
		}
	}
	if err != nil {
		return 0, err
	}
	if off == 0 {
		rr.setFront(b)
	}
	if n := copy(p, b); n < len(p) {
		return n, io.EOF
	}
	return len(p), nil
}

// readFront fills p from what is known of the front, or returns false.
func (rr *remoteReader) readFront(p []byte, off int64) bool {
	rr.mu.Lock()
	defer rr.mu.Unlock()
	if off < 0 || off > int64(len(rr.front)) || len(p) > len(rr.front)-int(off) {
		return false
	}
	copy(p, rr.front[off:])
	return true
}

func (rr *remoteReader) setFront(b []byte) {
	rr.mu.Lock()
	defer rr.mu.Unlock()
	if len(b) > len(rr.front) {
		rr.front = b
	}
}
