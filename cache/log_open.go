package cache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// logOptions are what a log is opened with.
type logOptions struct {
	size     int64 // of a segment, bytes
	onGrowth func(held int64)
	now      func() time.Time
}

// openLog opens the log in directory log, and finds its end: the records from
// cut on are followed as far as they are whole and without a gap.
func openLog(fsys Files, sp *space, cut Pos, o logOptions) (*Log, error) {
	l := &Log{
		fsys: fsys, space: sp, cut: cut,
		size: o.size, onGrowth: o.onGrowth, now: o.now,
		segments: make(map[uint32]*segment),
	}
	if err := l.load(); err != nil {
		l.closeFiles()
		return nil, err
	}
	if err := l.recover(); err != nil {
		l.closeFiles()
		return nil, err
	}
	return l, nil
}

func (l *Log) closeFiles() {
	for _, s := range l.segments {
		s.file.Close()
	}
}

// load opens all segment files.
func (l *Log) load() error {
	list, err := l.fsys.List("log")
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	for _, info := range list {
		number, err := strconv.ParseUint(info.Name, 16, 32)
		if err != nil || len(info.Name) != 8 || info.Dir {
			continue // not ours
		}
		if err := l.loadSegment(uint32(number), info); err != nil {
			return fmt.Errorf("open log segment %08x: %w", number, err)
		}
	}
	return nil
}

func (l *Log) loadSegment(number uint32, info FileInfo) error {
	f, err := l.fsys.Open(l.name(number))
	if err != nil {
		return err
	}
	s := &segment{number: number, file: f, end: info.Size, alloc: info.Size, outset: info.Size, used: info.ModTime}
	l.segments[number] = s
	l.last = max(l.last, number)
	l.space.force(s.alloc)
	header := make([]byte, segmentHeaderSize)
	if err := readFull(f, header, 0); err != nil && ignoreEOF(err) != nil {
		return err
	}
	s.torn = parseSegmentHeader(header, s) != nil
	return nil
}

// chain returns the segments from number first to last, by number.
func (l *Log) chain(first, last uint32) []*segment {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []*segment
	for _, s := range l.segments {
		if first <= s.number && s.number <= last {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *segment) int { return int(int64(a.number) - int64(b.number)) })
	return list
}

// recover finds the end of the log and makes what lies before it last.
func (l *Log) recover() error {
	l.last = max(l.last, l.cut.segment())
	end, synced, err := l.follow(l.cut, noCheck, math.MaxUint32, nil)
	if err != nil {
		return err
	}
	// Records after the newest mark may have lost their data while their headers survived.
	if end, _, err = l.follow(l.cut, max(synced, l.cut), math.MaxUint32, nil); err != nil {
		return err
	}
	if err := l.checkLoss(end); err != nil {
		return err
	}
	for _, s := range l.chain(0, math.MaxUint32) {
		if err := l.settle(s, end); err != nil {
			return fmt.Errorf("recover log segment %08x: %w", s.number, err)
		}
	}
	l.end, l.replayed, l.synced, l.written = end, end, end, end
	l.newest = max(end, 1) - 1
	return nil
}

// noCheck makes follow trust the data of all records.
const noCheck = ^Pos(0)

// follow reads records from pos to where they end, at most through segment last,
// checks data from check on, and calls fn for each. It returns the end and what
// the newest mark says.
func (l *Log) follow(pos, check Pos, last uint32, fn func(s *segment, r record) error) (end, synced Pos, err error) {
	end = pos
	segments := l.chain(pos.segment(), last)
	next := successors(segments)
	for _, s := range segments {
		if s.torn || s.number != end.segment() && (s.prev != end || next[end] != s) {
			continue // nothing, or something that was given up: the log went on in a later one
		}
		off, from := int64(segmentHeaderSize), int64(0)
		if s.number == end.segment() {
			off = max(off, end.offset())
		}
		if s.number < check.segment() {
			from = s.end + 1
		} else if s.number == check.segment() {
			from = check.offset()
		}
		synced = max(synced, s.synced)
		last, err := s.left(segments)
		if err != nil {
			return 0, 0, err
		}
		stop, err := s.walk(off, last, from, func(r record) error {
			if r.typ == typeMark && len(r.body) == 8 {
				synced = max(synced, Pos(binary.BigEndian.Uint64(r.body)))
			}
			if fn == nil {
				return nil
			}
			return fn(s, r)
		})
		if err != nil {
			return 0, 0, err
		}
		end = makePos(s.number, stop)
	}
	return end, synced, nil
}

// left returns where the log went on in another segment; the end of s if it did not. What lies behind that in s is what an
// append left that failed: it may look like a record.
func (s *segment) left(segments []*segment) (int64, error) {
	for _, next := range slices.Backward(segments) {
		if next.torn || next.number <= s.number || next.prev.segment() != s.number {
			continue
		}
		_, ok, err := next.record(&window{file: next.file, end: next.end}, segmentHeaderSize)
		if ok || err != nil {
			return min(next.prev.offset(), s.end), err
		}
	}
	return s.end, nil
}

// successors returns for each end of the log the segment that was started there.
// If starting one did not work and it could not be removed either, it is the latest.
func successors(segments []*segment) map[Pos]*segment {
	next := make(map[Pos]*segment)
	for _, s := range segments {
		if !s.torn {
			next[s.prev] = s
		}
	}
	return next
}

// settle makes a segment found on the disk fit the end of the log: what lies
// behind it goes, what may be in memory of the operating system alone is synced.
func (l *Log) settle(s *segment, end Pos) error {
	if s.number > end.segment() && l.damage == nil {
		delete(l.segments, s.number)
		l.space.give(s.alloc)
		s.file.Close()
		return l.fsys.Remove(l.name(s.number))
	}
	if s.number < l.cut.segment() || s.number > end.segment() {
		return nil
	}
	if s.number == end.segment() && s.end > segmentHeaderSize {
		// A torn tail goes before the log goes on elsewhere: some of its records
		// may look whole to the next process, which finds later marks.
		s.end = min(s.end, end.offset())
	}
	if err := s.file.Truncate(s.end); err != nil { // and what was reserved behind it
		return err
	}
	l.space.give(s.alloc - s.end)
	s.alloc = s.end
	return s.file.Sync()
}

// checkLoss sets damage if records are missing that had been synced: a mark or a
// header behind the end tells. A crash cannot do that, a failing disk can.
func (l *Log) checkLoss(end Pos) error {
	for _, s := range l.chain(end.segment(), math.MaxUint32) {
		from := int64(segmentHeaderSize)
		if s.number == end.segment() {
			from = max(from, end.offset())
		}
		promised, err := s.scanMarks(from)
		if err != nil {
			return err
		}
		if max(promised, s.synced) > end || s.torn && s.end > segmentHeaderSize {
			l.damage = corruptf("log segment %08x is damaged at %x: what was synced after that is lost", end.segment(), end.offset())
			return nil
		}
	}
	return nil
}

// scanMarks searches s for marks from off on without following the records.
func (s *segment) scanMarks(off int64) (synced Pos, err error) {
	scan, mark := window{file: s.file, end: s.end}, window{file: s.file, end: s.end}
	for ; ; off += alignment {
		b, err := scan.at(off, alignment)
		if b == nil {
			return synced, err
		}
		if [4]byte(b) != recordMagic || b[4] != typeMark {
			continue
		}
		r, ok, err := s.record(&mark, off)
		if err != nil {
			return synced, err
		}
		if ok && len(r.body) == 8 {
			synced = max(synced, Pos(binary.BigEndian.Uint64(r.body)))
		}
	}
}

// Damage returns what was found wrong when the log was opened: records that had
// been synced and are not there any more. Nil means that there is no sign of any.
func (l *Log) Damage() error { return l.damage }

// errStop ends a walk early.
var errStop = errors.New("stop")

// Replay calls fn for the records from position from on that were in the log
// when it was opened, in the order in which they were appended. Body is valid
// during the call. An error of fn ends it and is returned.
func (l *Log) Replay(from Pos, fn func(rec Pos, typ byte, body []byte, dataPos Pos, dataLen int) error) error {
	_, _, err := l.follow(from, noCheck, l.replayed.segment(), func(s *segment, r record) error {
		rec := makePos(s.number, r.off)
		if rec >= l.replayed {
			return errStop
		}
		if r.typ < FirstType {
			return nil
		}
		return fn(rec, r.typ, r.body, makePos(s.number, r.dataOff), r.dataLen)
	})
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}
