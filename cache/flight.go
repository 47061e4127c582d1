package cache

import (
	"context"
	"sync"
)

// flights lets callers that want the same thing at the same time share the work.
// The work goes on as long as one of them waits for it, and no longer.
type flights[K comparable, V any] struct {
	mu      sync.Mutex
	running map[K]*flight[V]
}

type flight[V any] struct {
	cancel  context.CancelFunc
	waiting int // guarded by flights.mu
	done    chan struct{}
	value   V // set before done is closed, like err
	err     error
}

// do returns what fn returns, which runs on its own in the context that the
// function start gives a goroutine.
func (f *flights[K, V]) do(ctx context.Context, key K, start starter, fn func(context.Context) (V, error)) (V, error) {
	c, err := f.join(key, start, fn)
	if err != nil {
		var zero V
		return zero, err
	}
	select {
	case <-c.done:
		f.leave(key, c)
		return c.value, c.err
	case <-ctx.Done():
		f.leave(key, c)
		var zero V
		return zero, ctx.Err()
	}
}

// A starter runs a function in a goroutine that is waited for, with a context of
// its own, and returns what cancels it.
type starter func(func(context.Context)) (context.CancelFunc, error)

func (f *flights[K, V]) join(key K, start starter, fn func(context.Context) (V, error)) (*flight[V], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.running[key]; c != nil {
		c.waiting++
		return c, nil
	}
	c := &flight[V]{waiting: 1, done: make(chan struct{})}
	cancel, err := start(func(ctx context.Context) {
		c.value, c.err = fn(ctx)
		f.forget(key, c)
		close(c.done)
	})
	if err != nil {
		return nil, err
	}
	c.cancel = cancel
	if f.running == nil {
		f.running = make(map[K]*flight[V])
	}
	f.running[key] = c
	return c, nil
}

// forget lets the next caller start anew.
func (f *flights[K, V]) forget(key K, c *flight[V]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running[key] == c {
		delete(f.running, key)
	}
}

// leave ends the work if nobody waits any more.
func (f *flights[K, V]) leave(key K, c *flight[V]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.waiting--; c.waiting == 0 {
		c.cancel()
		if f.running[key] == c {
			delete(f.running, key)
		}
	}
}
