package cache

import (
	"context"
	"path/filepath"
	"time"
)

// Badger maps its tables, and each compaction reads them from end to end, so that before long the whole database counts as memory of
// the process. The kernel would take it back when it needs it; who reads the figures, or has set a limit, can't know.

// mappedLimit is what of the database may be in memory through its mappings before it is given back, in bytes.
const mappedLimit = 48 << 20

// mappedEvery is how often that is looked at.
const mappedEvery = 2 * time.Second

// keepMappedSmall gives the pages of the database's tables back to the kernel when there are too many.
func (c *Cache) keepMappedSmall(ctx context.Context, dir string) {
	dir, err := filepath.EvalSymlinks(dir)
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return
	}
	t := time.NewTicker(mappedEvery)
	defer t.Stop()
	start := fileBytes()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if fileBytes() > start+mappedLimit {
			pageOut(dir)
		}
	}
}
