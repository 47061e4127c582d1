package cache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"
)

// Pos is a place in the log: the number of a segment and an offset in it. Later
// records have larger positions. The zero Pos lies before all of them.
type Pos uint64

func makePos(segment uint32, off int64) Pos { return Pos(segment)<<32 | Pos(off) }

func (p Pos) segment() uint32 { return uint32(p >> 32) }
func (p Pos) offset() int64   { return int64(p & 0xffffffff) }

// String returns the position as segment:offset in hex, as in names of segment files.
func (p Pos) String() string { return fmt.Sprintf("%08x:%x", p.segment(), p.offset()) }

// FirstType is the smallest type of a record that Log.Append takes; those below
// belong to this package and are not seen by Replay.
const FirstType = 16

const (
	typeMark  = 1 // body: position up to which the log had been synced
	typeChunk = 2 // body: chunk id; data: a chunk whose bytes lie nowhere else in the log
)

// The largest body and data of a record, in bytes.
const (
	MaxBody = 16 << 20
	MaxData = 64 << 20
)

const (
	segmentSize   = 64 << 20 // bytes, unless options say otherwise
	writeOutBytes = 8 << 20  // written since the last write-out; bounds what an fsync waits for
	markEvery     = 16 << 20 // synced since the newest mark, after which one is written behind the end
)

// Small syncs, one after the other, have zeros written ahead of the records: a
// sync of bytes that are written over others is a flush of the disk and nothing
// more, while one that makes a file longer, or uses space that was only reserved,
// waits for the journal of the file system too.
const (
	smallSync  = 64 << 10  // bytes
	smallSyncs = 3         // in a row
	zerosAhead = 256 << 10 // bytes
)

var aheadZeros [zerosAhead]byte

// Log is one append-only log of checksummed records. What Sync has acknowledged
// survives a crash; of what came later a prefix does.
//
// The log lies in segment files. Space in them is reserved ahead of the bytes,
// so that a full disk is met before a record is accepted, and a part of it is
// kept for records without data, so that files can be removed when it is full.
//
// A process never appends to a segment of an earlier one: it starts a new
// segment that names the position where the readable log ended. So bytes beyond
// a torn tail can never be taken for records again.
type Log struct {
	fsys     Files
	space    *space
	size     int64            // of a full segment, bytes
	now      func() time.Time // for the age of segments
	onGrowth func(held int64) // told how many bytes cannot be given up when a segment grows
	damage   error            // found while opening: acknowledged records that are not there any more

	appendMu sync.Mutex // held by the one who appends, also while waiting for space
	buf      []byte     // guarded by appendMu: encoding of a record up to its data
	marked   Pos        // guarded by appendMu: what the newest mark says
	noted    Pos        // guarded by appendMu: what the newest mark behind the end says

	mu       sync.Mutex // guards all below; taken after appendMu
	segments map[uint32]*segment
	active   *segment // appended to; nil until the first append of this process
	last     uint32   // largest number of a segment that was ever seen
	end      Pos      // where the next record goes if it fits there
	written  Pos      // end of the newest record
	synced   Pos      // everything before it lasts
	replayed Pos      // end of what was found when the log was opened
	cut      Pos      // records before it are not replayed any more
	newest   Pos      // the newest record that is replayed, or somewhere behind it
	dirty    []*segment
	flight   *flush
	small    int   // small syncs since the last other one
	broken   error // of a failed sync, until its bytes have been written again
}

// A segment is one file of the log.
type segment struct {
	number uint32
	file   File
	salt   uint32 // start value of checksums, so that no user data looks like a record
	prev   Pos    // where the log ended when the segment was started
	synced Pos    // what had been synced then
	torn   bool   // its header cannot be read; bytes in it can be

	zeroed int64 // zeros have been written up to here; guarded by Log.appendMu

	// Guarded by Log.mu, except that end and alloc are changed by the holder of appendMu.
	end    int64 // of the newest record, bytes
	alloc  int64 // bytes of disk taken
	outset int64 // written out up to here
	live   int64 // bytes that are retained
	used   time.Time
}

// A flush is a running sync that others wait for.
type flush struct {
	done   chan struct{}
	target Pos
	err    error // set before done is closed
}

func (l *Log) name(number uint32) string { return fmt.Sprintf("log/%08x", number) }

// Append adds a record and returns its position and that of its data. When it
// returns, the record is part of the log for ReadAt, and lasts after the next
// Sync. If the disk or the budget is full it returns an error that wraps
// syscall.ENOSPC, and the log is as it was before; Cache.WithRoom waits.
func (l *Log) Append(typ byte, body, data []byte) (rec, dataPos Pos, err error) {
	if typ < FirstType {
		panic("cache: append of a reserved type of record")
	}
	return l.append(typ, body, data)
}

func (l *Log) append(typ byte, body, data []byte) (rec, dataPos Pos, err error) {
	if len(body) > MaxBody || len(data) > MaxData {
		return 0, 0, fmt.Errorf("append to log: record of %d and %d bytes: %w", len(body), len(data), syscall.EFBIG)
	}
	sum := crc32.Checksum(data, castagnoli)
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	if err := l.repaired(); err != nil {
		return 0, 0, fmt.Errorf("append to log: %w", err)
	}
	seg, err := l.room(markSize+recordSize(len(body), len(data)), claimOf(typ, data))
	if err != nil {
		return 0, 0, fmt.Errorf("append to log: %w", err)
	}
	off := seg.end
	b := l.appendMark(l.buf[:0], seg)
	rec = makePos(seg.number, off+int64(len(b)))
	b = appendRecordHeader(b, seg.salt, rec, typ, body, len(data), sum)
	l.buf = append(b, body...)
	next := off + int64(len(l.buf)) + padded(len(data), len(body))
	pad := next - off - int64(len(l.buf)) - int64(len(data))
	ahead := l.ahead(seg, next)
	if err := seg.file.WriteAt(off, l.buf, data, zeros[:pad], ahead); err != nil {
		l.cutOff(seg)
		return 0, 0, fmt.Errorf("append to log segment %08x: %w", seg.number, err)
	}
	dataPos = rec + Pos(headerSize+len(body))
	l.appended(seg, next, rec, typ)
	return rec, dataPos, nil
}

// cutOff takes back what a write behind the end of seg has left that failed: it is no record, or lies beyond the end and is overwritten
// by the next one, so that not being able to cut it off does no harm. The caller holds appendMu.
func (l *Log) cutOff(seg *segment) {
	seg.file.Truncate(seg.end)
	seg.zeroed = 0
	l.shrink(seg)
}

// ahead returns the zeros that are to be written behind a record that ends at end.
// The caller holds appendMu.
func (l *Log) ahead(seg *segment, end int64) []byte {
	l.mu.Lock()
	few := l.small < smallSyncs
	l.mu.Unlock()
	if few || end <= seg.zeroed {
		return nil
	}
	n := min(zerosAhead, seg.alloc-end)
	if n <= 0 {
		return nil
	}
	seg.zeroed = end + n
	return aheadZeros[:n]
}

// claimOf returns what the space of a record is for.
func claimOf(typ byte, data []byte) claim {
	switch {
	case typ == typeChunk:
		return forCommit
	case len(data) == 0:
		return forRecord
	}
	return forData
}

// appendMark puts a mark in front of the next record if more has been synced
// than the newest mark says. So marks cost no write of their own.
func (l *Log) appendMark(b []byte, seg *segment) []byte {
	l.mu.Lock()
	synced := l.synced
	l.mu.Unlock()
	if synced <= l.marked {
		return b
	}
	l.marked = synced
	return encodeMark(b, seg, synced)
}

// encodeMark appends to b the mark that goes to the end of seg.
func encodeMark(b []byte, seg *segment, synced Pos) []byte {
	body := binary.BigEndian.AppendUint64(nil, uint64(synced))
	b = appendRecordHeader(b, seg.salt, makePos(seg.number, seg.end), typeMark, body, 0, 0)
	return append(b, body...)
}

// appended makes the bytes up to off of seg, with a record at rec, part of the log.
func (l *Log) appended(seg *segment, off int64, rec Pos, typ byte) {
	l.mu.Lock()
	if typ >= FirstType {
		l.newest = rec
	}
	seg.end = off
	seg.used = l.now()
	l.end = makePos(seg.number, off)
	l.written = l.end
	if len(l.dirty) == 0 || l.dirty[len(l.dirty)-1] != seg {
		l.dirty = append(l.dirty, seg)
	}
	from := seg.outset
	out := off-from >= writeOutBytes
	if out {
		seg.outset = off
	}
	l.mu.Unlock()
	if out {
		seg.file.WriteOut(from, off-from)
	}
}

// room returns the segment that takes the next n bytes, which have disk space.
// Only data leaves the reserve alone. The caller holds appendMu.
func (l *Log) room(n int64, what claim) (*segment, error) {
	seg := l.active
	if seg == nil || seg.end+n > l.size && seg.end > segmentHeaderSize {
		next, err := l.nextSegment(n, what)
		if err == nil {
			return next, nil
		}
		if seg == nil || what == forData || seg.end+n > seg.alloc {
			return nil, err
		}
		return seg, nil
	}
	want := seg.end + n
	if what == forData {
		want += l.reserve()
	}
	if want <= seg.alloc {
		return seg, nil
	}
	err := l.grow(seg, want, what)
	if isNoSpace(err) && l.retire(seg) {
		return l.nextSegment(n, what)
	}
	if err != nil && what != forData && seg.end+n <= seg.alloc {
		err = nil
	}
	return seg, err
}

// reserve is what is kept allocated for records without data, in bytes.
func (l *Log) reserve() int64 { return min(256<<10, l.size/16) }

// step is by how much the space of a segment grows, in bytes.
func (l *Log) step() int64 { return max(l.size/16, 64<<10) }

// nextSegment starts a segment with space for n bytes of records.
func (l *Log) nextSegment(n int64, what claim) (*segment, error) {
	l.mu.Lock()
	number, prev, synced := l.last+1, l.end, l.synced
	l.mu.Unlock()
	if number == 0 {
		return nil, errors.New("log has used up its numbers")
	}
	seg := &segment{number: number, prev: prev, synced: synced, end: segmentHeaderSize, salt: randomSalt(), used: l.now()}
	var err error
	if seg.file, err = l.fsys.Create(l.name(number)); err != nil {
		return nil, fmt.Errorf("start log segment %08x: %w", number, err)
	}
	want := segmentHeaderSize + n
	if what == forData {
		want += l.reserve()
	}
	if err = l.grow(seg, want, what); err == nil {
		err = l.writeHeader(seg)
	}
	if err != nil {
		l.abandon(seg)
		return nil, fmt.Errorf("start log segment %08x: %w", number, err)
	}
	l.activate(seg)
	return seg, nil
}

// writeHeader makes the header of a new segment last before any record is in it,
// so that records behind a header that cannot be read are known to be damage.
func (l *Log) writeHeader(seg *segment) error {
	if err := seg.file.WriteAt(0, appendSegmentHeader(nil, seg)); err != nil {
		return err
	}
	if err := seg.file.Sync(); err != nil {
		return err
	}
	return l.fsys.SyncDir("log")
}

// abandon removes a segment that could not be started. Its number is not used
// again if the file might still be there.
func (l *Log) abandon(seg *segment) {
	seg.file.Close()
	l.space.give(seg.alloc)
	if l.fsys.Remove(l.name(seg.number)) != nil {
		l.mu.Lock()
		l.last = seg.number
		l.mu.Unlock()
	}
}

// activate makes seg the one that is appended to.
func (l *Log) activate(seg *segment) {
	l.mu.Lock()
	old := l.active
	l.segments[seg.number] = seg
	l.active, l.last = seg, seg.number
	l.end = makePos(seg.number, seg.end)
	l.mu.Unlock()
	if old != nil {
		old.file.Truncate(old.end) // gives back what was reserved and not used
		l.shrink(old)
	}
}

// retire ends a segment that nothing needs although it is the active one, so that
// its space can be given up. It reports whether it did. The caller holds appendMu.
func (l *Log) retire(seg *segment) bool {
	l.mu.Lock()
	idle := l.removable(seg)
	if idle {
		l.active = nil
	}
	l.mu.Unlock()
	if idle {
		seg.file.Truncate(seg.end)
		l.shrink(seg)
	}
	return idle
}

// shrink accounts for a segment that has been truncated to its end.
func (l *Log) shrink(seg *segment) {
	l.mu.Lock()
	n := seg.alloc - seg.end
	if n > 0 {
		seg.alloc = seg.end
	}
	l.mu.Unlock()
	if n > 0 {
		l.space.give(n)
	}
}

// grow reserves disk space of seg up to want bytes, rounded up if there is enough.
func (l *Log) grow(seg *segment, want int64, what claim) error {
	to := min((want+l.step()-1)/l.step()*l.step(), max(want, l.size))
	if !l.space.take(to-seg.alloc, what) {
		to = want
		if !l.space.take(to-seg.alloc, what) {
			return errNoSpace
		}
	}
	n := to - seg.alloc
	err := l.allocate(seg, n)
	if err != nil {
		l.space.give(n)
		return err
	}
	l.mu.Lock()
	seg.alloc = to
	held := l.heldLocked()
	l.mu.Unlock()
	l.onGrowth(held)
	return nil
}

// allocate asks the disk for n more bytes of seg, and makes place for them by
// evicting what is only cache.
func (l *Log) allocate(seg *segment, n int64) error {
	for {
		err := seg.file.Allocate(seg.alloc, n)
		if errors.Is(err, errors.ErrUnsupported) {
			return nil
		}
		if !isNoSpace(err) {
			return err
		}
		if !l.space.evict(n) {
			return err
		}
	}
}

// End returns where the next record goes, unless it starts a new segment.
func (l *Log) End() Pos {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// Sync returns when all records up to the one at pos last: Sync(rec) for a
// record, Sync(End()) for all. Callers share flushes. After an error nothing
// is promised about unsynced records, and appends are refused until a later
// Sync or Append has read them back, checked them and written them again.
func (l *Log) Sync(pos Pos) error {
	l.mu.Lock()
	need := min(pos+1, l.written)
	for l.synced < need || l.broken != nil {
		running := l.flight
		if running == nil {
			err := l.lead()
			if err == nil {
				l.markSynced()
			}
			return err
		}
		l.mu.Unlock()
		<-running.done
		if running.err != nil && running.target >= need {
			return running.err
		}
		l.mu.Lock()
	}
	l.mu.Unlock()
	return nil
}

// lead flushes for all that wait. It is called with mu held, and releases it.
func (l *Log) lead() error {
	f := &flush{done: make(chan struct{}), target: l.written}
	l.flight = f
	segments := append([]*segment(nil), l.dirty...)
	broken, from := l.broken != nil, l.synced
	l.mu.Unlock()

	err := syncSegments(segments, f.target, from, broken)

	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		f.err = fmt.Errorf("sync log: %w", err)
		l.broken = f.err
	} else {
		l.broken = nil
		if f.target-from <= smallSync { // a position in another segment is further away
			l.small++
		} else {
			l.small = 0
		}
		l.synced = max(l.synced, f.target)
		l.dirty = cleaned(l.dirty, f.target)
	}
	l.flight = nil
	close(f.done)
	return f.err
}

// markSynced writes a mark behind the end when much has been synced since the newest one, unless somebody appends just now: until
// there is one, the data of all that was synced is read and checked when the log is opened. It is no part of the log yet: the next
// record is written over it, with a mark of its own.
func (l *Log) markSynced() {
	if !l.appendMu.TryLock() {
		return
	}
	defer l.appendMu.Unlock()
	l.mu.Lock()
	seg, synced := l.active, l.synced
	due := seg != nil && l.broken == nil && synced-max(l.marked, l.noted) >= markEvery && seg.end+markSize <= seg.alloc
	l.mu.Unlock()
	if !due {
		return
	}
	l.noted = synced
	if err := seg.file.WriteAt(seg.end, encodeMark(nil, seg, synced)); err != nil {
		l.cutOff(seg)
	}
}

// cleaned returns those of dirty that have records beyond synced.
func cleaned(dirty []*segment, synced Pos) []*segment {
	kept := dirty[:0]
	for _, s := range dirty {
		if makePos(s.number, s.end) > synced {
			kept = append(kept, s)
		}
	}
	return kept
}

func syncSegments(segments []*segment, target, from Pos, broken bool) error {
	for _, s := range segments {
		if broken {
			if err := s.rewrite(from, target); err != nil {
				return err
			}
		}
		if err := s.file.Sync(); err != nil {
			return err
		}
	}
	return nil
}

// rewrite writes the records between from and target again. A kernel that could
// not write a page may take it for clean afterwards: another sync alone would
// promise what is not so.
func (s *segment) rewrite(from, target Pos) error {
	start, end := int64(segmentHeaderSize), s.end
	if from.segment() == s.number {
		start = max(start, from.offset())
	}
	if target.segment() == s.number {
		end = target.offset()
	}
	got, err := s.walk(start, end, 0, func(record) error { return nil })
	if err != nil {
		return err
	}
	if got < end {
		return corruptf("log segment %08x: records that were not yet synced are lost from %x on", s.number, got)
	}
	buf := make([]byte, 1<<20)
	for off := start; off < end; off += int64(len(buf)) {
		b := buf[:min(int64(len(buf)), end-off)]
		if err := readFull(s.file, b, off); err != nil {
			return err
		}
		if err := s.file.WriteAt(off, b); err != nil {
			return err
		}
	}
	return nil
}

// repaired returns nil if the log may be appended to.
func (l *Log) repaired() error {
	l.mu.Lock()
	broken := l.broken
	l.mu.Unlock()
	if broken == nil {
		return nil
	}
	return l.Sync(l.End())
}

// ReadAt fills p with the bytes at position at, which are those of one record,
// and does not check them. It returns an error that wraps fs.ErrNotExist if
// their segment has been removed.
func (l *Log) ReadAt(p []byte, at Pos) error {
	return l.readVec(at, [][]byte{p})
}

// readVec is ReadAt for bytes that go to several places.
func (l *Log) readVec(at Pos, parts [][]byte) error {
	size := int64(0)
	for _, p := range parts {
		size += int64(len(p))
	}
	l.mu.Lock()
	seg := l.segments[at.segment()]
	inside := seg != nil && at.offset()+size <= seg.end
	if inside {
		seg.used = l.now()
	}
	l.mu.Unlock()
	if !inside {
		return fmt.Errorf("read log at %v: %w", at, fs.ErrNotExist)
	}
	err := readParts(seg.file, parts, at.offset())
	if errors.Is(err, os.ErrClosed) {
		err = fs.ErrNotExist // removed just now
	}
	if err != nil {
		return fmt.Errorf("read log at %v: %w", at, err)
	}
	return nil
}

// readParts fills parts one behind the other from off on.
func readParts(f File, parts [][]byte, off int64) error {
	if v, ok := f.(interface {
		ReadVec(off int64, parts [][]byte) (int, error)
	}); ok && len(parts) > 1 {
		size := 0
		for _, p := range parts {
			size += len(p)
		}
		if n, err := v.ReadVec(off, parts); n == size && err == nil {
			return nil
		} // else one part after the other tells what is wrong
	}
	for _, p := range parts {
		if err := readFull(f, p, off); err != nil {
			return err
		}
		off += int64(len(p))
	}
	return nil
}

// has reports whether the segment of at is there.
func (l *Log) has(at Pos) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.segments[at.segment()] != nil
}

// readAhead asks the disk for n bytes from at on before somebody reads them.
func (l *Log) readAhead(at Pos, n int64) {
	l.mu.Lock()
	seg := l.segments[at.segment()]
	l.mu.Unlock()
	if seg == nil {
		return
	}
	if f, ok := seg.file.(interface{ ReadAhead(off, n int64) }); ok {
		f.ReadAhead(at.offset(), n)
	}
}

// Retain keeps n bytes at pos from being removed until Release has been called
// for as many. The bytes of one call lie in one record; what was retained at once
// may be released in pieces.
func (l *Log) Retain(pos Pos, n int64) { l.hold(pos, n) }

// Release gives up n bytes at pos that were retained.
func (l *Log) Release(pos Pos, n int64) {
	if l.hold(pos, -n) {
		l.space.wake()
	}
}

// hold reports whether the segment at pos could be removed now.
func (l *Log) hold(pos Pos, n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	seg := l.segments[pos.segment()]
	if seg == nil {
		return false // damaged or removed by hand: reads of it fail
	}
	seg.live += n
	if seg.live < 0 {
		panic(fmt.Sprintf("cache: log segment %08x released more often than retained", seg.number))
	}
	return l.removable(seg)
}

// cutAfter moves a cut behind the records that the cache itself has appended since.
// Without that they would keep the segment, and a log that nobody else appends to
// because it is full would stay full.
func (l *Log) cutAfter(cut Pos) Pos {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.newest >= cut {
		return cut
	}
	return l.end
}

// setCut says that records before pos are not replayed any more.
func (l *Log) setCut(pos Pos) {
	l.mu.Lock()
	l.cut = max(l.cut, pos)
	l.mu.Unlock()
	l.space.wake()
}

// removable reports whether nothing needs seg but as a cache.
func (l *Log) removable(seg *segment) bool {
	return seg.live == 0 && makePos(seg.number, seg.end) <= min(l.cut, l.synced)
}

// idle returns when the removable segment that has been unused for longest was
// used, and how to remove it.
func (l *Log) idle() (at time.Time, remove func() (int64, error), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var oldest *segment
	for _, s := range l.segments {
		if l.removable(s) && (oldest == nil || s.used.Before(oldest.used)) {
			oldest = s
		}
	}
	if oldest == nil {
		return time.Time{}, nil, false
	}
	return oldest.used, func() (int64, error) { return l.remove(oldest) }, true
}

// remove removes a segment and returns the bytes that this has freed. The active
// one stays if somebody appends to it, perhaps the caller of this.
func (l *Log) remove(seg *segment) (int64, error) {
	l.mu.Lock()
	active := seg == l.active
	l.mu.Unlock()
	if active {
		if !l.appendMu.TryLock() {
			return 0, nil
		}
		defer l.appendMu.Unlock()
	}
	l.mu.Lock()
	if l.segments[seg.number] != seg || !l.removable(seg) || seg == l.active && !active {
		l.mu.Unlock()
		return 0, nil
	}
	delete(l.segments, seg.number)
	if active {
		l.active = nil
	}
	l.mu.Unlock()
	seg.file.Close()
	err := l.fsys.Remove(l.name(seg.number))
	l.space.give(seg.alloc)
	return seg.alloc, err
}

// heldLocked returns how many bytes of the log cannot be given up. The caller holds mu.
func (l *Log) heldLocked() (n int64) {
	for _, s := range l.segments {
		if !l.removable(s) {
			n += s.alloc
		}
	}
	return n
}

// stats returns the bytes of disk that the log takes, and how many of them are needed.
func (l *Log) stats() (total, held int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.segments {
		total += s.alloc
	}
	return total, l.heldLocked()
}

func (l *Log) close() error {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	err := l.Sync(l.End())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.active != nil {
		l.active.file.Truncate(l.active.end)
	}
	for _, s := range l.segments {
		s.file.Close()
	}
	return err
}
