package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/klauspost/reedsolomon"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// parityDir is the directory of all parity objects. They lie as multichunks do, each under the name of its multichunk.
const parityDir = "parity"

// parityName returns the name of the parity object of multichunk n.
func parityName(n Name) string { return parityDir + strings.TrimPrefix(ObjectName(n), dataDir) }

// parseParityName is the inverse of parityName, and strict.
func parseParityName(object string) (Name, bool) {
	rest, ok := strings.CutPrefix(object, parityDir+"/")
	if !ok {
		return Name{}, false
	}
	return parseObjectName(dataDir + "/" + rest)
}

// Sizes in parity objects, in bytes.
const (
	paritySegment = 65_600 // of a parity segment: a sealed segment with zeros up to a multiple of 64
	sealedSegment = seal.SegmentSize + 16
	paritySum     = 16 // of a checksum
	parityFixed   = 48 // before the copy of the multichunk's header

	maxParityData   = (MaxMultichunk+1<<20)/sealedSegment + 1 // segments of a multichunk
	maxParityObject = (maxParityData + 1) * paritySegment
)

// MaxParity is the largest Config.Parity: as much parity as data.
const MaxParity = 1000

// A parity is a parity object: what is needed to find out which segments of a multichunk's object are damaged, and to compute as
// many of them as there are parity segments. It says nothing of the plaintext and needs no key.
type parity struct {
	size     int // of the multichunk's object, bytes
	header   []byte
	sums     [][]byte // of all segments of data, then of parity
	data     int      // segments of the multichunk
	segments [][]byte // of parity; nil where one is damaged
	heads    bool     // both are there
}

// segmentsOf returns the sealed segments of an object, and its header.
func segmentsOf(wire []byte) (header []byte, segments [][]byte) {
	header, body := wire[:seal.HeaderSize], wire[seal.HeaderSize:]
	for len(body) > 0 {
		n := min(len(body), sealedSegment)
		segments = append(segments, body[:n])
		body = body[n:]
	}
	return header, segments
}

func segmentSum(segment []byte) []byte {
	sum := sha256.Sum256(segment)
	return sum[:paritySum]
}

// parityCount returns how many parity segments protect segments, at a share in thousandths.
func parityCount(segments, share int) int { return max(1, (segments*share+999)/1000) }

// makeParity returns the parity object for the object wire of multichunk n, at a share in thousandths.
func makeParity(n Name, wire []byte, share int) ([]byte, error) {
	header, data := segmentsOf(wire)
	count := parityCount(len(data), share)
	if len(data) > maxParityData {
		return nil, fmt.Errorf("parity of %d segments: too many", len(data))
	}
	code, err := reedsolomon.New(len(data), count)
	if err != nil {
		return nil, fmt.Errorf("parity: %w", err)
	}
	shards := make([][]byte, len(data)+count)
	for i := range shards {
		shards[i] = make([]byte, paritySegment)
		if i < len(data) {
			copy(shards[i], data[i])
		}
	}
	if err := code.Encode(shards); err != nil {
		return nil, fmt.Errorf("parity: %w", err)
	}
	p := parity{size: len(wire), header: header, data: len(data), segments: shards[len(data):]}
	for _, segment := range data {
		p.sums = append(p.sums, segmentSum(segment))
	}
	for _, segment := range p.segments {
		p.sums = append(p.sums, segmentSum(segment))
	}
	return appendParity(nil, n, &p), nil
}

// appendParity appends the object of p: its head, the parity segments, and its head again.
func appendParity(dst []byte, n Name, p *parity) []byte {
	head := append([]byte("dedupfs"), 1, parityCode(len(p.sums)), 0, 0, 0)
	head = append(head, make([]byte, 12)...) // feature words
	head = binary.BigEndian.AppendUint32(head, uint32(p.size))
	head = binary.BigEndian.AppendUint16(head, uint16(p.data))
	head = binary.BigEndian.AppendUint16(head, uint16(len(p.segments)))
	head = append(append(head, n[:]...), p.header...)
	for _, sum := range p.sums {
		head = append(head, sum...)
	}
	sum := sha256.Sum256(head)
	head = append(head, sum[:]...)
	dst = append(dst, head...)
	for _, segment := range p.segments {
		dst = append(dst, segment...)
	}
	return append(dst, head...)
}

// parityCode tells which code the library uses for a number of segments: 1 is over GF(2^8), 2 is Leopard over GF(2^16).
func parityCode(shards int) byte {
	if shards > 256 {
		return 2
	}
	return 1
}

// parseParity reads the parity object of multichunk n. It is of use as long as one of its two heads is intact; parity segments
// that are damaged are left out.
func parseParity(n Name, wire []byte) (*parity, error) {
	if len(wire) > maxParityObject {
		return nil, corruptf("parity of %d bytes", len(wire))
	}
	p, size, err := parseParityHead(n, wire)
	if err != nil {
		// The length of the head follows from that of the object: two heads are shorter than a segment.
		if half := len(wire) % paritySegment / 2; half > 0 && half < len(wire) {
			p, size, err = parseParityHead(n, wire[len(wire)-half:])
		}
	}
	if err != nil {
		return nil, err
	}
	p.heads = len(wire) == 2*size+len(p.segments)*paritySegment && bytes.Equal(wire[:size], wire[len(wire)-size:])
	body := wire[min(size, len(wire)):]
	for i := range p.segments {
		if len(body) < paritySegment {
			break
		}
		segment := body[:paritySegment]
		body = body[paritySegment:]
		if bytes.Equal(segmentSum(segment), p.sums[p.data+i]) {
			p.segments[i] = segment
		}
	}
	return p, nil
}

// parseParityHead reads a head at the front of b, and returns its length.
func parseParityHead(n Name, b []byte) (*parity, int, error) {
	if len(b) < parityFixed || !bytes.HasPrefix(b, []byte("dedupfs")) {
		return nil, 0, corruptf("parity without a head")
	}
	d := decoder{b: b[7:]}
	format, code := d.byte(), d.byte()
	d.bytes(3 + 8)
	refuse := d.uint32()
	p := &parity{size: int(d.uint32())}
	counts := d.uint32()
	count := int(counts & 0xffff)
	p.data = int(counts >> 16)
	name := Name(d.bytes16())
	shards := p.data + count
	size := parityFixed + seal.HeaderSize + shards*paritySum + sha256.Size
	if p.data > maxParityData || count > maxParityData || p.data < 1 || count < 1 || len(b) < size || name != n ||
		p.size <= seal.HeaderSize+(p.data-1)*sealedSegment || p.size > seal.HeaderSize+p.data*sealedSegment {
		return nil, 0, corruptf("parity with a broken head")
	}
	if sum := sha256.Sum256(b[:size-sha256.Size]); !bytes.Equal(sum[:], b[size-sha256.Size:size]) {
		return nil, 0, corruptf("parity with a damaged head")
	}
	if format != 1 || code != parityCode(shards) || refuse != 0 {
		return nil, 0, fmt.Errorf("parity of format %d: %w", format, ErrFormat)
	}
	p.header = d.bytes(seal.HeaderSize)
	for range shards {
		p.sums = append(p.sums, d.bytes(paritySum))
	}
	p.segments = make([][]byte, count)
	return p, size, nil
}

// intact reports whether p itself is whole.
func (p *parity) intact() bool {
	for _, segment := range p.segments {
		if segment == nil {
			return false
		}
	}
	return p.heads
}

// matches reports whether wire is the object that p was made of.
func (p *parity) matches(wire []byte) bool {
	if len(wire) != p.size || !bytes.Equal(wire[:seal.HeaderSize], p.header) {
		return false
	}
	_, data := segmentsOf(wire)
	for i, segment := range data {
		if !bytes.Equal(segmentSum(segment), p.sums[i]) {
			return false
		}
	}
	return true
}

// mend returns the object that p was made of, from what is left of it: wire may be damaged anywhere, cut short or too long. It
// returns ErrCorrupt if too much is damaged.
func (p *parity) mend(wire []byte) ([]byte, error) {
	whole := make([]byte, p.size)
	copy(whole, wire)
	copy(whole, p.header)
	_, data := segmentsOf(whole)
	shards, left := make([][]byte, p.data+len(p.segments)), 0
	for i, segment := range data {
		if bytes.Equal(segmentSum(segment), p.sums[i]) {
			shards[i] = append(make([]byte, 0, paritySegment), segment...)[:paritySegment]
			left++
		}
	}
	for i, segment := range p.segments {
		shards[p.data+i] = segment
		if segment != nil {
			left++
		}
	}
	if left < p.data {
		return nil, corruptf("%d of %d segments are damaged, and there are %d to compute them from", len(shards)-left, len(shards), len(p.segments))
	}
	code, err := reedsolomon.New(p.data, len(p.segments))
	if err == nil {
		err = code.ReconstructData(shards)
	}
	if err != nil {
		return nil, fmt.Errorf("compute damaged segments: %w", err)
	}
	for i := range data {
		copy(data[i], shards[i])
		if !bytes.Equal(segmentSum(data[i]), p.sums[i]) {
			return nil, corruptf("parity does not give the segments that it was made of")
		}
	}
	return whole, nil
}

// PutMultichunk puts the object of multichunk n, and its parity if the repository has any.
func (r *Repository) PutMultichunk(ctx context.Context, n Name, wire []byte) error {
	if err := r.st.Put(ctx, ObjectName(n), wire); err != nil {
		return err
	}
	return r.putParity(ctx, n, wire, r.Parity())
}

// putParity puts parity for wire at a share in thousandths; none if that is 0.
func (r *Repository) putParity(ctx context.Context, n Name, wire []byte, share int) error {
	if share == 0 {
		return nil
	}
	b, err := makeParity(n, wire, share)
	if err != nil {
		return err
	}
	return r.st.Put(ctx, parityName(n), b)
}

// deleteMultichunk deletes multichunk n, and its parity before it, which is of no use alone.
func (r *Repository) deleteMultichunk(ctx context.Context, n Name) error {
	if r.Parity() > 0 {
		if err := r.st.Delete(ctx, parityName(n)); err != nil {
			return err
		}
	}
	return r.st.Delete(ctx, ObjectName(n))
}

// getParity fetches the parity of multichunk n; nil if there is none.
func (r *Repository) getParity(ctx context.Context, n Name) (*parity, error) {
	b, err := r.st.Get(ctx, parityName(n), 0, -1)
	if errors.Is(err, remote.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", parityName(n), err)
	}
	p, err := parseParity(n, b)
	if err != nil {
		return nil, &ObjectError{parityName(n), err}
	}
	return p, nil
}

// checkParity compares the parity of multichunk n with the object that it is for, which is intact. In a repair it is put anew if
// it is damaged, or if there is none and there shall be.
func (c *checker) checkParity(ctx context.Context, n Name, wire []byte) error {
	var wrong error
	if c.parity[n] {
		p, err := c.r.getParity(ctx, n)
		switch {
		case err != nil && !aboutObject(err):
			return err
		case p == nil && err == nil:
			return nil // deleted since it was listed
		case err != nil:
			wrong = err
		case !p.intact() || !p.matches(wire):
			wrong = &ObjectError{parityName(n), corruptf("parity")}
		default:
			return nil
		}
	}
	share := c.shareOf(n)
	if !c.mending || share == 0 {
		if wrong != nil {
			c.damaged(parityName(n), wrong)
		}
		return nil
	}
	if wrong != nil {
		if err := c.r.st.Delete(ctx, parityName(n)); err != nil {
			c.damaged(parityName(n), errors.Join(wrong, err))
			return nil
		}
	}
	if err := c.r.putParity(ctx, n, wire, share); err != nil {
		return fmt.Errorf("put %s: %w", parityName(n), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paritied++
	return nil
}

// shareOf returns how much parity multichunk n shall have, in thousandths.
func (c *checker) shareOf(n Name) int {
	share := max(c.share, c.r.Parity())
	if share == 0 && c.parity[n] {
		return defaultParity
	}
	return share
}

// defaultParity is the share of parity that is put in the place of what is damaged, if nothing tells what it was.
const defaultParity = 50

// dropStrayParity deletes parity whose multichunk is not there and not needed. It was left by a collection that stopped half-way,
// or by a program that does not know of parity.
func (c *checker) dropStrayParity(ctx context.Context) error {
	for n := range c.parity {
		if _, there := c.sizes[n]; there || c.broken[n] != nil {
			continue
		}
		_, err := c.r.st.Get(ctx, ObjectName(n), 0, seal.HeaderSize)
		if !errors.Is(err, remote.ErrNotExist) {
			continue // listed late, or the storage is not well
		}
		// Where deleting is refused it stays, and does no harm.
		_ = c.r.st.Delete(ctx, parityName(n))
	}
	return ctx.Err()
}

// Mend returns the object of multichunk n as it was, from its parity and what is left of it: wire, or what is on the remote if wire is
// nil. It returns an error that IsLost knows if that cannot be done.
func (r *Repository) Mend(ctx context.Context, n Name, wire []byte) ([]byte, error) {
	p, err := r.getParity(ctx, n)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return nil, fmt.Errorf("parity of multichunk %v: %w", n, ErrNotFound)
	}
	if wire == nil {
		if wire, err = r.st.Get(ctx, ObjectName(n), 0, -1); err != nil {
			return nil, err
		}
	}
	whole, err := p.mend(wire)
	if err == nil {
		err = r.VerifyMultichunk(n, whole)
	}
	return whole, err
}

// ParityReport is what CheckParity has found.
type ParityReport struct {
	Objects int64    // parity objects looked at
	Damages []Damage // multichunks that are not what their parity was made of, and parity that is damaged
}

// CheckParity compares all multichunks on st that have parity with it. It needs no key: it finds damage, but nobody's ill will. What
// is damaged is repairable if there is enough parity. Progress may be nil.
func CheckParity(ctx context.Context, st remote.Storage, progress func(done int64)) (*ParityReport, error) {
	report := &ParityReport{}
	r := &Repository{st: st}
	for i := range 256 {
		dir := fmt.Sprintf("%s/%02x", parityDir, i)
		var names []Name
		_, err := listIDs(ctx, st, dir, false, func(id [16]byte, _ remote.Entry) { names = append(names, id) })
		if err != nil && !(errors.Is(err, remote.ErrNotExist) && i > 0) {
			return nil, fmt.Errorf("check parity: list %s: %w", dir, err)
		}
		for _, n := range names {
			d, err := r.compareParity(ctx, n)
			if err != nil {
				return nil, fmt.Errorf("check parity: %w", err)
			}
			if d != nil {
				report.Damages = append(report.Damages, *d)
			}
			if report.Objects++; progress != nil {
				progress(report.Objects)
			}
		}
	}
	return report, nil
}

// compareParity returns what is damaged of multichunk n or its parity, nil if nothing is.
func (r *Repository) compareParity(ctx context.Context, n Name) (*Damage, error) {
	p, err := r.getParity(ctx, n)
	if err != nil && !aboutObject(err) {
		return nil, err
	}
	wire, getErr := r.st.Get(ctx, ObjectName(n), 0, -1)
	switch {
	case errors.Is(getErr, remote.ErrNotExist):
		return nil, nil // collected; its parity is cleared up by a repair
	case getErr != nil:
		return nil, getErr
	case err != nil:
		return &Damage{Object: parityName(n), Err: err, Repairable: true}, nil
	case p == nil:
		return nil, nil
	case !p.matches(wire):
		_, err := p.mend(wire)
		return &Damage{Object: ObjectName(n), Multichunk: n, Err: corruptf("not what its parity was made of"), Repairable: err == nil}, nil
	case !p.intact():
		return &Damage{Object: parityName(n), Err: corruptf("parity"), Repairable: true}, nil
	}
	return nil, nil
}
