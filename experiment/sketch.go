package experiment

// A sketch counts different ids, and the bytes they stand for, in bounded memory. It keeps the ids that end with a number of
// zero bits, and when these become too many, those with one more (distinct sampling, Gibbons 2001). As long as it has never
// had to let ids go, it is exact; with 2^17 ids kept the error is a few in a thousand.
//
// Ids must be hashes. The zero value is not ready for use.
type sketch struct {
	limit int
	level uint             // ids are kept whose low bits, level of them, are zero
	kept  map[uint64]int64 // bytes of each id that is kept
	bytes int64            // of all that are kept
}

// sketchLimit is how many ids a sketch keeps at most: about 8 MiB.
const sketchLimit = 1 << 17

func newSketch(limit int) *sketch { return &sketch{limit: limit, kept: make(map[uint64]int64)} }

// add counts one id that stands for n bytes.
func (s *sketch) add(id uint64, n int64) {
	if id&(1<<s.level-1) != 0 {
		return
	}
	if _, ok := s.kept[id]; ok {
		return
	}
	s.kept[id] = n
	s.bytes += n
	for len(s.kept) > s.limit {
		s.thin()
	}
}

// thin lets half of the ids go.
func (s *sketch) thin() {
	s.level++
	for id, n := range s.kept {
		if id&(1<<s.level-1) != 0 {
			delete(s.kept, id)
			s.bytes -= n
		}
	}
}

// unique returns how many different ids there were, and how many bytes they stand for.
func (s *sketch) unique() (ids, bytes int64) {
	return int64(len(s.kept)) << s.level, s.bytes << s.level
}

// exact reports whether unique is no estimate.
func (s *sketch) exact() bool { return s.level == 0 }

// A filter remembers hashes that it was shown, and forgets them when others take their places. It takes 8 MiB.
type filter struct{ slots []uint64 }

const filterBits = 20

func newFilter() *filter { return &filter{make([]uint64, 1<<filterBits)} }

// seen reports whether it was shown h, and remembers it.
func (f *filter) seen(h uint64) bool {
	slot := &f.slots[h>>(64-filterBits)]
	known := *slot == h
	*slot = h
	return known
}
