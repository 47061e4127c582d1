package fs

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/dedupfs/dedupfs/store"
)

// learner makes what the repository already has known to a cache that is new or has lost its index, in the background: until then
// new data is stored that is there already, which costs space and nothing else.
type learner struct {
	v    *Volume
	stop context.CancelFunc
	done sync.WaitGroup
}

func (l *learner) start() {
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	l.done.Go(func() {
		if err := l.learn(ctx); err != nil && ctx.Err() == nil {
			l.v.opt.Logger.Warn("learning what the repository has failed; the next mount goes on", "err", err)
		}
	})
}

func (l *learner) close() {
	if l.stop != nil {
		l.stop()
	}
	l.done.Wait()
}

// learn reads the tables of all data multichunks that the commits of all clients announce, the newest first. A client whose newest
// commits announce nothing new has been learned before.
func (l *learner) learn(ctx context.Context) error {
	f := l.v.follower
	f.mu.Lock()
	heads := slices.Clone(f.heads) // as opening the volume has found them
	f.mu.Unlock()
	for _, h := range heads {
		if err := l.learnChain(ctx, h); err != nil {
			return fmt.Errorf("%s: %w", h, err)
		}
	}
	return nil
}

func (l *learner) learnChain(ctx context.Context, h store.Head) error {
	for {
		c, err := l.v.repo.GetCommit(ctx, h)
		if err != nil {
			return err
		}
		names, known := l.unknown(c)
		if known > 0 && len(names) == 0 {
			return nil
		}
		if err := l.v.ca.LearnTables(ctx, names); err != nil {
			return err
		}
		if c.Seq == 1 {
			return nil
		}
		h.Seq, h.Hash = c.Seq-1, c.Prev
	}
}

// unknown returns the data multichunks of a commit whose tables are not in the index, and how many are.
func (l *learner) unknown(c *store.Commit) (names []store.Name, known int) {
	for _, m := range c.Multichunks {
		if m.Kind != store.KindData {
			continue
		}
		if ok, err := l.v.ca.Index().Known(m.Name); err == nil && ok {
			known++
		} else {
			names = append(names, m.Name)
		}
	}
	return names, known
}
