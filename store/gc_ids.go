package store

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
)

// idRuns is a set of ids by their fingerprints, so that it may seem to have what it has not, and never the other way round. What does
// not fit into memory lies in sorted runs on the disk, in files without a name, which the system removes whatever becomes of the
// process. After an error, which is kept in err, it seems to have everything. It is not safe for concurrent use.
type idRuns struct {
	room int // fingerprints in memory; default idsHeld

	added  []fingerprint // not in a run yet
	sorted bool          // added is, and has none twice
	runs   []*idRun
	err    error
}

const (
	idsHeld  = 8 << 20 // fingerprints in memory, 64 MiB
	idsPage  = 512     // fingerprints that are read from a run at a time
	runsHeld = 8       // runs, before they are merged into one
)

// idRun is a sorted run in a file.
type idRun struct {
	file  *os.File
	n     int
	first []fingerprint // of each page

	page [idsPage * 8]byte // read last
	at   int               // its number, plus 1
}

func (s *idRuns) add(id ID) {
	if s.room == 0 {
		s.room = idsHeld
	}
	s.added, s.sorted = append(s.added, fingerprintOf(id)), false
	if len(s.added) < s.room {
		return
	}
	s.sort()
	if len(s.added) > s.room/2 { // else most were there twice
		s.spill()
	}
}

func (s *idRuns) sort() {
	if !s.sorted {
		slices.Sort(s.added)
		s.added, s.sorted = slices.Compact(s.added), true
	}
}

func (s *idRuns) has(id ID) bool {
	s.sort()
	f := fingerprintOf(id)
	if _, found := slices.BinarySearch(s.added, f); found || s.err != nil {
		return true
	}
	for _, r := range s.runs {
		found, err := r.has(f)
		if err != nil {
			s.err = err
		}
		if found || err != nil {
			return true
		}
	}
	return false
}

func (s *idRuns) close() {
	for _, r := range s.runs {
		r.file.Close()
	}
	s.runs, s.added = nil, nil
}

// spill writes what was added into a run of its own, and merges the runs if there are many.
func (s *idRuns) spill() {
	if s.err != nil {
		s.added = s.added[:0]
		return
	}
	i := 0
	s.err = s.write(func() (fingerprint, bool, error) {
		if i == len(s.added) {
			return 0, false, nil
		}
		i++
		return s.added[i-1], true, nil
	})
	s.added = s.added[:0]
	if s.err == nil && len(s.runs) == runsHeld {
		s.err = s.merge()
	}
}

// settle makes look-ups fast, when all is there.
func (s *idRuns) settle() {
	s.sort()
	if len(s.runs) > 0 && len(s.added) > 0 {
		s.spill()
	}
	if len(s.runs) > 1 && s.err == nil {
		s.err = s.merge()
	}
}

// write makes a run of what next gives, in order.
func (s *idRuns) write(next func() (fingerprint, bool, error)) error {
	file, err := scratchFile()
	if err != nil {
		return err
	}
	r := &idRun{file: file}
	page := make([]byte, 0, 64*idsPage*8)
	flush := func() error {
		_, err := file.Write(page)
		page = page[:0]
		return err
	}
	for {
		f, ok, err := next()
		if err == nil && !ok {
			err = flush()
		}
		if err != nil {
			file.Close()
			return fmt.Errorf("write scratch file: %w", err)
		}
		if !ok {
			s.runs = append(s.runs, r)
			return nil
		}
		if r.n%idsPage == 0 {
			r.first = append(r.first, f)
		}
		r.n++
		if page = binary.BigEndian.AppendUint64(page, uint64(f)); len(page) == cap(page) {
			if err := flush(); err != nil {
				file.Close()
				return fmt.Errorf("write scratch file: %w", err)
			}
		}
	}
}

// merge makes one run of all.
func (s *idRuns) merge() error {
	old := s.runs
	s.runs = nil
	at := make([]int, len(old))
	err := s.write(func() (least fingerprint, ok bool, err error) {
		for i, r := range old {
			if at[i] == r.n {
				continue
			}
			f, err := r.get(at[i])
			if err != nil {
				return 0, false, err
			}
			if !ok || f < least {
				least, ok = f, true
			}
		}
		for i, r := range old {
			if at[i] < r.n {
				if f, _ := r.get(at[i]); f == least {
					at[i]++
				}
			}
		}
		return least, ok, nil
	})
	for _, r := range old {
		r.file.Close()
	}
	return err
}

// get returns fingerprint number i.
func (r *idRun) get(i int) (fingerprint, error) {
	if err := r.read(i / idsPage); err != nil {
		return 0, err
	}
	return fingerprint(binary.BigEndian.Uint64(r.page[i%idsPage*8:])), nil
}

// read makes page number p the one that is in memory.
func (r *idRun) read(p int) error {
	if r.at == p+1 {
		return nil
	}
	r.at = 0
	n := min(idsPage, r.n-p*idsPage) * 8
	if _, err := r.file.ReadAt(r.page[:n], int64(p)*idsPage*8); err != nil && err != io.EOF {
		return fmt.Errorf("read scratch file: %w", err)
	}
	r.at = p + 1
	return nil
}

func (r *idRun) has(f fingerprint) (bool, error) {
	p, exact := slices.BinarySearch(r.first, f)
	if exact {
		return true, nil
	}
	if p == 0 {
		return false, nil
	}
	p--
	if err := r.read(p); err != nil {
		return false, err
	}
	low, high := 0, min(idsPage, r.n-p*idsPage)
	for low < high {
		mid := (low + high) / 2
		switch g := fingerprint(binary.BigEndian.Uint64(r.page[mid*8:])); {
		case g == f:
			return true, nil
		case g < f:
			low = mid + 1
		default:
			high = mid
		}
	}
	return false, nil
}

// scratchFile returns a file without a name: it is gone when it is closed, or the process ends in any way.
func scratchFile() (*os.File, error) {
	dir := os.Getenv("TMPDIR")
	if info, err := os.Stat("/var/tmp"); dir == "" && err == nil && info.IsDir() {
		dir = "/var/tmp" // the other one may lie in memory
	}
	file, err := os.CreateTemp(dir, "dedupfs-gc-")
	if err != nil {
		return nil, fmt.Errorf("make scratch file: %w", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, fmt.Errorf("make scratch file: %w", err)
	}
	return file, nil
}
