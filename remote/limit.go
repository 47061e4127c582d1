package remote

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// A limit is a speed that can be changed while it is in use.
type limit struct{ p atomic.Pointer[rate.Limiter] }

// minBurst is the least number of bytes that pass at once.
const minBurst = 64 << 10

// set makes the limit n bytes per second, or none if n <= 0.
func (l *limit) set(n int64) {
	if n <= 0 {
		l.p.Store(nil)
		return
	}
	l.p.Store(rate.NewLimiter(rate.Limit(n), max(minBurst, int(n/20))))
}

// next returns how many of n bytes may go now, at least one, waiting for their
// turn. It returns n at once if there is no limit.
func (l *limit) next(ctx context.Context, n int) (int, error) {
	lim := l.p.Load()
	if lim == nil || n == 0 {
		return n, ctx.Err()
	}
	n = min(n, minBurst)
	err := lim.WaitN(ctx, n)
	if err != nil && ctx.Err() == nil {
		err = context.DeadlineExceeded // its turn would come too late
	}
	return n, err
}

// An upload reads data at the speed of lim. HTTP transports may go on reading a
// body after the request has returned; after stop they see nothing of data.
type upload struct {
	ctx context.Context
	lim *limit

	mu   sync.Mutex // guards data
	data []byte
}

func (u *upload) Read(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.data) == 0 {
		return 0, io.EOF
	}
	n, err := u.lim.next(u.ctx, min(len(p), len(u.data)))
	if err != nil {
		return 0, err
	}
	n = copy(p[:n], u.data)
	u.data = u.data[n:]
	return n, nil
}

func (u *upload) stop() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.data = nil
}

// readFull fills p from r at the speed of lim.
func readFull(ctx context.Context, r io.Reader, p []byte, lim *limit) (int, error) {
	done := 0
	for done < len(p) {
		n, err := lim.next(ctx, len(p)-done)
		if err != nil {
			return done, err
		}
		n, err = io.ReadFull(r, p[done:done+n])
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}
