package cache

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
)

// The layout of segments and records is in FORMAT.md.

const (
	segmentHeaderSize = 64
	headerSize        = 32
	markSize          = headerSize + 8
	alignment         = 8
)

var (
	segmentMagic = [8]byte{'d', 'f', 's', 'l', 'o', 'g', 0, 1}
	recordMagic  = [4]byte{'d', 'f', 'R', '1'}
	castagnoli   = crc32.MakeTable(crc32.Castagnoli)
	zeros        [alignment]byte
)

func randomSalt() uint32 {
	var b [4]byte
	rand.Read(b[:])
	return binary.BigEndian.Uint32(b[:])
}

func appendSegmentHeader(dst []byte, s *segment) []byte {
	start := len(dst)
	dst = append(dst, segmentMagic[:]...)
	dst = binary.BigEndian.AppendUint32(dst, s.number)
	dst = binary.BigEndian.AppendUint32(dst, s.salt)
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.prev))
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.synced))
	dst = append(dst, make([]byte, segmentHeaderSize-4-(len(dst)-start))...)
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// parseSegmentHeader fills in what the header of s says.
func parseSegmentHeader(b []byte, s *segment) error {
	if len(b) != segmentHeaderSize || [8]byte(b) != segmentMagic {
		return corruptf("log segment %08x has no header", s.number)
	}
	sum := binary.BigEndian.Uint32(b[segmentHeaderSize-4:])
	if crc32.Checksum(b[:segmentHeaderSize-4], castagnoli) != sum || binary.BigEndian.Uint32(b[8:]) != s.number {
		return corruptf("header of log segment %08x", s.number)
	}
	s.salt = binary.BigEndian.Uint32(b[12:])
	s.prev = Pos(binary.BigEndian.Uint64(b[16:]))
	s.synced = Pos(binary.BigEndian.Uint64(b[24:]))
	return nil
}

// padded returns how many bytes data takes behind a body, with the padding that aligns the next record.
func padded(data, body int) int64 {
	end := int64(headerSize) + int64(body) + int64(data)
	return (end+alignment-1)/alignment*alignment - headerSize - int64(body)
}

// recordSize returns how many bytes a record takes.
func recordSize(body, data int) int64 { return headerSize + int64(body) + padded(data, body) }

func appendRecordHeader(dst []byte, salt uint32, pos Pos, typ byte, body []byte, data int, sum uint32) []byte {
	start := len(dst)
	dst = append(dst, recordMagic[:]...)
	dst = append(dst, typ, 0, 0, 0)
	dst = binary.BigEndian.AppendUint64(dst, uint64(pos))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(body)))
	dst = binary.BigEndian.AppendUint32(dst, uint32(data))
	dst = binary.BigEndian.AppendUint32(dst, sum)
	return binary.BigEndian.AppendUint32(dst, headerSum(salt, dst[start:], body))
}

// headerSum covers a header up to its checksum, and the body.
func headerSum(salt uint32, header, body []byte) uint32 {
	return crc32.Update(crc32.Update(salt, castagnoli, header), castagnoli, body)
}

// A record as it is found in a segment.
type record struct {
	off     int64
	typ     byte
	body    []byte // valid during the call it is passed to
	dataOff int64
	dataLen int
	dataSum uint32
	next    int64 // offset of the next record
}

// walk calls fn for each record of s from off on, and returns the offset at
// which no valid record stands, at most end. Data is checked in records from
// check on. An error is one of fn or of the disk.
func (s *segment) walk(off, end, check int64, fn func(record) error) (int64, error) {
	w := window{file: s.file, end: end}
	var buf []byte
	for {
		r, ok, err := s.record(&w, off)
		if err == nil && ok && off >= check {
			if buf == nil {
				buf = make([]byte, 256<<10)
			}
			ok, err = s.dataValid(r, buf)
		}
		if err != nil {
			return off, fmt.Errorf("read log segment %08x: %w", s.number, err)
		}
		if !ok {
			return off, nil
		}
		if err := fn(r); err != nil {
			return off, err
		}
		off = r.next
	}
}

// record reads the record at off; ok is false if there is none.
func (s *segment) record(w *window, off int64) (r record, ok bool, err error) {
	h, err := w.at(off, headerSize)
	if h == nil || [4]byte(h) != recordMagic || Pos(binary.BigEndian.Uint64(h[8:])) != makePos(s.number, off) {
		return r, false, err
	}
	var header [headerSize]byte
	copy(header[:], h)
	body := binary.BigEndian.Uint32(header[16:])
	data := binary.BigEndian.Uint32(header[20:])
	if body > MaxBody || data > MaxData {
		return r, false, nil
	}
	r = record{off: off, typ: header[4], dataOff: off + headerSize + int64(body), dataLen: int(data)}
	r.dataSum = binary.BigEndian.Uint32(header[24:])
	r.next = off + recordSize(int(body), int(data))
	if r.next > w.end {
		return r, false, nil
	}
	if r.body, err = w.at(off+headerSize, int64(body)); r.body == nil {
		return r, false, err
	}
	sum := binary.BigEndian.Uint32(header[28:])
	return r, headerSum(s.salt, header[:28], r.body) == sum, nil
}

// dataValid reports whether the data of r is what was appended. It reads through buf.
func (s *segment) dataValid(r record, buf []byte) (bool, error) {
	sum := uint32(0)
	for off, left := r.dataOff, r.dataLen; left > 0; {
		b := buf[:min(left, len(buf))]
		if err := readFull(s.file, b, off); err != nil {
			return false, ignoreEOF(err)
		}
		sum = crc32.Update(sum, castagnoli, b)
		off += int64(len(b))
		left -= len(b)
	}
	return sum == r.dataSum, nil
}

// A window reads small pieces of a file one after the other.
type window struct {
	file File
	end  int64 // nothing beyond is read
	buf  []byte
	off  int64
	step int64 // bytes read at once: few where records with much data are passed over, more and more where there are none
}

const (
	leastStep = 4 << 10
	mostStep  = 128 << 10
)

// at returns n bytes at off, valid until the next call, or nil if the file ends before them.
func (w *window) at(off, n int64) ([]byte, error) {
	if off+n > w.end {
		return nil, nil
	}
	if off >= w.off && off+n <= w.off+int64(len(w.buf)) {
		return w.buf[off-w.off:][:n:n], nil
	}
	if off <= w.off+int64(len(w.buf)) {
		w.step = min(2*w.step, mostStep)
	} else {
		w.step = leastStep
	}
	size := min(max(n, w.step, leastStep), w.end-off)
	if int64(cap(w.buf)) < size {
		w.buf = make([]byte, size)
	}
	w.buf, w.off = w.buf[:size], off
	if err := readFull(w.file, w.buf, off); err != nil {
		w.buf = w.buf[:0]
		return nil, ignoreEOF(err)
	}
	return w.buf[:n:n], nil
}

// readFull fills p, or returns an error; io.ErrUnexpectedEOF if the file is too short.
func readFull(r io.ReaderAt, p []byte, off int64) error {
	if off < 0 || off > math.MaxInt64-int64(len(p)) {
		return io.ErrUnexpectedEOF
	}
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}
