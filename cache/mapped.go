package cache

import (
	"context"
	"os"
	"path/filepath"
	"time"
)

// Badger maps its tables, and each compaction reads them from end to end, so that before long the whole database counts as memory of
// the process. The kernel would take it back when it needs it; who reads the figures, or has set a limit, can't know. Of the program
// itself half of what is in memory after the start is never used again.

const (
	// What of the database and the program may be in memory through their mappings before it is given back, in bytes: what
	// the heap leaves of Options.Resident, within these bounds. Less than the least is needed all the time.
	mappedMost  = 80 << 20
	mappedLeast = 32 << 20
	mappedRoom  = 8 << 20 // for what comes until it is looked at again

	mappedEvery = time.Second      // is that looked at
	groupsIdle  = 10 * time.Second // after which opened groups are given back
)

// keepSmall gives back what lies in memory and is not needed there: what is mapped, and groups that were opened for a reader who
// has gone.
func (c *Cache) keepSmall(ctx context.Context, dir string) {
	m := newMappings(dir, c.o.Resident)
	t := time.NewTicker(mappedEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		c.recent.expire(c.o.Now().Add(-groupsIdle))
		m.shrink()
	}
}

// mappings are what this process has mapped of the database's tables and of its own program.
type mappings struct {
	dir, program string // empty if it is not known
	resident     int64  // as Options.Resident
}

// newMappings gives the program's pages back, and returns those of the database in dir with them.
func newMappings(dir string, resident int64) *mappings {
	m := &mappings{resident: resident}
	if dir, err := filepath.EvalSymlinks(dir); err == nil {
		m.dir, _ = filepath.Abs(dir)
	}
	m.program, _ = os.Executable()
	pageOut(m.program)
	return m
}

// shrink gives pages back if there are too many: those of the database, and if that is not enough the program's too.
func (m *mappings) shrink() {
	for _, path := range []string{m.dir, m.program} {
		if all, mapped := residentBytes(); mapped > m.limit(all-mapped) {
			pageOut(path)
		}
	}
}

// limit returns what of mapped files may be in memory when everything else takes so many bytes.
func (m *mappings) limit(others int64) int64 {
	return min(max(m.resident-others-mappedRoom, mappedLeast), mappedMost)
}
