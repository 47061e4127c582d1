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

// mappedLimit is what of the database and the program may be in memory through their mappings before the database's pages are given
// back, in bytes.
const mappedLimit = 80 << 20

// mappedEvery is how often that is looked at.
const mappedEvery = 2 * time.Second

// keepMappedSmall gives the program's pages back to the kernel once, and those of the database's tables whenever there are too many.
func (c *Cache) keepMappedSmall(ctx context.Context, dir string) {
	dir, err := filepath.EvalSymlinks(dir)
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return
	}
	if program, err := os.Executable(); err == nil {
		pageOut(program)
	}
	t := time.NewTicker(mappedEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if fileBytes() > mappedLimit {
			pageOut(dir)
		}
	}
}
