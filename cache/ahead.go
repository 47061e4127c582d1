package cache

import (
	"context"

	"github.com/dedupfs/dedupfs/store"
)

// ahead does before a reader comes what he would have to wait for. Whoever asks
// never waits: what does not fit into a queue is not done.
type ahead struct {
	near  chan []store.Ref // chunks to be brought to this machine
	fetch chan store.Name  // multichunks to be fetched
	open  chan store.Ref   // chunks whose groups are to be opened
}

const (
	aheadFetchers = 3 // downloads at a time; each holds a multichunk in memory
	aheadOpeners  = 2 // groups that are opened at a time
)

func newAhead() *ahead {
	return &ahead{near: make(chan []store.Ref, 16), fetch: make(chan store.Name, 16), open: make(chan store.Ref, 64)}
}

// startAhead starts who works off the queues.
func (c *Cache) startAhead() error {
	workers := []func(context.Context){c.bringer}
	for range aheadFetchers {
		workers = append(workers, c.fetcher)
	}
	for range aheadOpeners {
		workers = append(workers, c.opener)
	}
	for _, w := range workers {
		if _, err := c.start(w); err != nil {
			return err
		}
	}
	return nil
}

// Prefetch has chunks brought to this machine in the background: multichunks are
// fetched, and the disk reads what lies in the log. Of chunks that lie in one
// group one is enough. It keeps refs.
func (c *Cache) Prefetch(refs []store.Ref) {
	select {
	case c.ahead.near <- refs:
	default:
	}
}

// Preopen has the groups of chunks that are here, or on their way, opened in the
// background. They are kept until others have been opened that take OpenBudget:
// a reader should not ask for more than half of it.
func (c *Cache) Preopen(refs []store.Ref) {
	for _, ref := range refs {
		select {
		case c.ahead.open <- ref:
		default:
			return
		}
	}
}

// OpenBudget is how much opened groups take, in bytes.
func (c *Cache) OpenBudget() int64 { return c.recent.budget }

func (c *Cache) bringer(ctx context.Context) {
	for {
		select {
		case refs := <-c.ahead.near:
			c.bring(refs)
		case <-ctx.Done():
			return
		}
	}
}

// bring asks the disk for what the log has, and queues the multichunks of the rest.
func (c *Cache) bring(refs []store.Ref) {
	ids := make([]store.ID, len(refs))
	for i := range refs {
		ids[i] = refs[i].ID
	}
	var last store.Name
	var asked Pos // of the log, up to here
	for i, at := range c.inLogs(ids) {
		if place := at.place; len(place) > 0 && c.log.has(place[0].Pos) {
			// Of chunks that lie in one group one is enough, and they were mostly written together.
			from, size := place[0].Pos, Pos(c.repo.Config().GroupSize)
			end := from + size
			if from < asked && asked <= end {
				from = asked
			}
			if end-from >= size/4 {
				c.log.readAhead(from, int64(end-from))
				asked = end
			}
			continue
		}
		if hints := c.hintsOf(refs[i]); len(hints) > 0 && hints[0].Multichunk != last {
			last = hints[0].Multichunk
			c.fetchSoon(last)
		}
	}
}

// fetchSoon queues a multichunk unless it is here.
func (c *Cache) fetchSoon(n store.Name) {
	if c.isHere(n) {
		return
	}
	select {
	case c.ahead.fetch <- n:
	default:
	}
}

// isHere reports whether a multichunk need not be fetched.
func (c *Cache) isHere(n store.Name) bool {
	if c.disk != nil && c.disk.has(n) || c.uploads != nil && c.uploads.has(n) {
		return true
	}
	_, ok := c.wires.get(n)
	return ok
}

func (c *Cache) fetcher(ctx context.Context) {
	for {
		select {
		case n := <-c.ahead.fetch:
			if !c.isHere(n) && !c.fetchFile(ctx, n) {
				c.download(ctx, n) // the error comes again when somebody reads it
			}
		case <-ctx.Done():
			return
		}
	}
}

func (c *Cache) opener(ctx context.Context) {
	for {
		select {
		case ref := <-c.ahead.open:
			if place := c.placeOf(ref.ID); len(place) > 0 && c.log.has(place[0].Pos) {
				continue
			}
			if hints := c.hintsOf(ref); len(hints) > 0 {
				c.group(ctx, hints[0]) // likewise
			}
		case <-ctx.Done():
			return
		}
	}
}
