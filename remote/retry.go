package remote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// RetryOptions say how often and how fast to try again. Nil is the defaults.
type RetryOptions struct {
	Attempts int           // tries per operation, default 5
	MinDelay time.Duration // before the second try, default 250ms; doubles each time, with jitter
	MaxDelay time.Duration // default 30s; a storage that asks for more gets it, up to 5 min
	Timeout  time.Duration // of each attempt; default none
	Patience time.Duration // how long a storage may be away before an operation is not tried again, default 5s

	Now     func() time.Time                                  // default time.Now
	Sleep   func(ctx context.Context, d time.Duration) error  // default waits; returns early if ctx ends
	Rand    func() float64                                    // jitter in [0,1); default math/rand
	OnRetry func(op, name string, err error, d time.Duration) // called before each wait
}

// maxRetryAfter bounds what a storage may ask for.
const maxRetryAfter = 5 * time.Minute

// WithRetry returns s with each operation tried again where that may help: not
// if access is refused, there is no space, the object is not there, or nothing
// has reached the storage for some time. A put
// that answered an error is looked for before it is put again, where s can do
// that cheaply. A listing that is tried again calls fn again for what it had
// already shown. The result is a Syncer, which does nothing if s is none.
func WithRetry(s Storage, o *RetryOptions) Storage {
	r := &retrier{s: s}
	if o != nil {
		r.o = *o
	}
	r.o.setDefaults()
	return r
}

func (o *RetryOptions) setDefaults() {
	if o.Attempts <= 0 {
		o.Attempts = 5
	}
	if o.MinDelay <= 0 {
		o.MinDelay = 250 * time.Millisecond
	}
	if o.MaxDelay <= 0 {
		o.MaxDelay = 30 * time.Second
	}
	if o.Patience <= 0 {
		o.Patience = 5 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Sleep == nil {
		o.Sleep = sleep
	}
	if o.Rand == nil {
		o.Rand = rand.Float64
	}
	if o.OnRetry == nil {
		o.OnRetry = func(string, string, error, time.Duration) {}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type retrier struct {
	s Storage
	o RetryOptions

	outage outage
}

var _ Syncer = (*retrier)(nil)

func (r *retrier) Put(ctx context.Context, name string, data []byte) error {
	holder, _ := r.s.(interface {
		holds(ctx context.Context, name string, data []byte) bool
	})
	if err := CheckName(name); err != nil {
		return fmt.Errorf("put: %w", err)
	}
	return r.do(ctx, "put", name, func(ctx context.Context) error {
		err := r.s.Put(ctx, name, data)
		if err != nil && holder != nil && ctx.Err() == nil && !permanent(err) && holder.holds(ctx, name, data) {
			return nil
		}
		return err
	})
}

func (r *retrier) Get(ctx context.Context, name string, off, n int64) (data []byte, err error) {
	if err := CheckName(name); err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	if err := CheckRange(off, n); err != nil {
		return nil, fmt.Errorf("get %s: %w", name, err)
	}
	err = r.do(ctx, "get", name, func(ctx context.Context) (err error) {
		data, err = r.s.Get(ctx, name, off, n)
		return err
	})
	return data, err
}

func (r *retrier) List(ctx context.Context, dir string, fn func(Entry) error) error {
	if err := CheckName(dir); dir != "" && err != nil {
		return fmt.Errorf("list: %w", err)
	}
	var stopped error // what fn said, which is no fault of the storage
	err := r.do(ctx, "list", dir, func(ctx context.Context) error {
		err := r.s.List(ctx, dir, func(e Entry) error {
			stopped = fn(e)
			return stopped
		})
		if stopped != nil {
			return nil
		}
		return err
	})
	if stopped != nil {
		return stopped
	}
	return err
}

func (r *retrier) Delete(ctx context.Context, name string) error {
	if err := CheckName(name); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return r.do(ctx, "delete", name, func(ctx context.Context) error { return r.s.Delete(ctx, name) })
}

// RemoveDir implements DirRemover, if s does.
func (r *retrier) RemoveDir(ctx context.Context, name string) error {
	d, ok := r.s.(DirRemover)
	if !ok {
		return nil
	}
	if err := CheckName(name); err != nil {
		return fmt.Errorf("remove directory: %w", err)
	}
	return r.do(ctx, "remove directory", name, func(ctx context.Context) error { return d.RemoveDir(ctx, name) })
}

// Sync is not tried again: a second fsync after a failed one proves nothing.
func (r *retrier) Sync(ctx context.Context) error {
	if s, ok := r.s.(Syncer); ok {
		return wrap("sync", "", s.Sync(ctx))
	}
	return nil
}

// do calls try until it works or is not worth trying any more.
func (r *retrier) do(ctx context.Context, op, name string, try func(context.Context) error) error {
	for attempt := 1; ; attempt++ {
		err := r.attempt(ctx, try)
		if err == nil {
			r.outage.note(nil, r.o.Now())
			return nil
		}
		err = wrap(op, name, err)
		if ctx.Err() != nil {
			return err
		}
		if away := r.outage.note(err, r.o.Now()); away >= r.o.Patience || attempt == r.o.Attempts || permanent(err) {
			return err
		}
		d := r.delay(attempt, err)
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < d {
			return err // it says more than that the time was up
		}
		r.o.OnRetry(op, name, err, d)
		if r.o.Sleep(ctx, d) != nil {
			return errors.Join(ctx.Err(), err)
		}
	}
}

func (r *retrier) attempt(ctx context.Context, try func(context.Context) error) error {
	if r.o.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.o.Timeout)
		defer cancel()
	}
	return try(ctx)
}

// delay returns how long to wait after the given attempt: between half of the
// back-off and all of it, or what the storage asks for.
func (r *retrier) delay(attempt int, err error) time.Duration {
	d := min(r.o.MinDelay<<min(attempt-1, 20), r.o.MaxDelay)
	d = d/2 + time.Duration(r.o.Rand()*float64(d/2))
	return max(d, min(retryAfter(err), maxRetryAfter))
}

// An outage is a time in which no operation has reached the storage. Operations
// share what they learn of it: the first of them are patient, the others are not.
type outage struct {
	mu          sync.Mutex // guards what follows
	since, last time.Time  // of the first and the last attempt that came to nothing; zero if there is no outage
}

// oneOutage is how long an outage is remembered that nobody has looked at.
const oneOutage = time.Minute

// note takes in how an attempt went, and returns for how long the storage has
// been away.
func (o *outage) note(err error, now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil || kindOf(err) != ErrUnreachable {
		o.since, o.last = time.Time{}, time.Time{}
		return 0
	}
	if o.since.IsZero() || now.Sub(o.last) > oneOutage {
		o.since = now
	}
	o.last = now
	return now.Sub(o.since)
}
