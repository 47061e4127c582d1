package fs

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/dedupfs/dedupfs/store"
)

// learner makes what others have stored known to this client by its hooks, in the background, whenever heads have been found.
// New data waits a little for its first round, so that what is there already is not stored again (cache.ExpectHooks).
type learner struct {
	v    *Volume
	wake chan struct{} // one place
	stop context.CancelFunc
	done sync.WaitGroup
}

func newLearner(v *Volume) *learner { return &learner{v: v, wake: make(chan struct{}, 1)} }

func (l *learner) start() {
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	l.v.ca.ExpectHooks()
	l.done.Go(func() { l.loop(ctx) })
	l.poke()
}

func (l *learner) close() {
	if l.stop != nil {
		l.stop()
	}
	l.done.Wait()
}

// poke lets the learner look at the heads as they were last seen.
func (l *learner) poke() { signal(l.wake) }

func (l *learner) loop(ctx context.Context) {
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		f := l.v.follower
		f.mu.Lock()
		heads := slices.Clone(f.heads)
		f.mu.Unlock()
		err := l.v.ca.LearnHooks(ctx, heads)
		if ctx.Err() != nil {
			return
		}
		var damaged *store.ObjectError
		if err != nil && (!failing || errors.As(err, &damaged)) {
			l.v.opt.Logger.Warn("learning what the repository has: some of it is stored again if it is written again", "err", err)
		}
		failing = err != nil
	}
}
