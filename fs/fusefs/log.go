package fusefs

import (
	"log/slog"
	"sync"
	"time"
)

// limitedLog writes at most burst errors per period and says how many it has kept back.
type limitedLog struct {
	out    *slog.Logger
	burst  int
	period time.Duration

	mu      sync.Mutex
	start   time.Time // of the current period
	written int       // in the current period
	dropped int       // in the current period
}

func newLimitedLog(out *slog.Logger) *limitedLog {
	return &limitedLog{out: out, burst: 10, period: 10 * time.Second}
}

func (l *limitedLog) log(text string) {
	write, dropped := l.take(time.Now())
	if dropped > 0 {
		l.out.Error("input/output errors not logged", "count", dropped)
	}
	if write {
		l.out.Error(text)
	}
}

// take reports whether a line may be written at now, and how many were dropped in a period that has ended just now.
func (l *limitedLog) take(now time.Time) (write bool, dropped int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.start) >= l.period {
		dropped = l.dropped
		l.start, l.written, l.dropped = now, 0, 0
	}
	if l.written == l.burst {
		l.dropped++
		return false, dropped
	}
	l.written++
	return true, dropped
}
