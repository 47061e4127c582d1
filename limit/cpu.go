package limit

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A CPU holds work back so that the process uses no more processor time than it may. Time that may be used is credited as it
// passes, and what the process has used, by all that it does, is charged.
//
// Background work goes on while there is credit, and waits while there is debt. Foreground work may run into a debt of foregroundDebt
// more, so that it goes first and background work makes room for it. While foreground work keeps up the debt, background work
// gets a turn in each turnEvery, or more seldom if what it does in one takes long, so that neither starves.
//
// Credit and debt are bounded: an idle process saves at most maxCredit, and with the longest debt of foreground work that
// is 4.5% of five seconds. A nil *CPU is no limit. It is safe for concurrent use.
type CPU struct {
	used func() time.Duration // processor time of the process so far
	gate chan struct{}        // holds a token while somebody waits for credit: one at a time looks
	long chan struct{}        // holds a token while a long unit is in work under a low limit

	cores      atomic.Uint64 // bits of a float64; 0 is no limit
	foreground atomic.Int64  // when foreground work last asked, Unix nanoseconds

	mu      sync.Mutex // guards all below
	at      time.Time  // when credit was last brought up to date
	atUsed  time.Duration
	credit  float64 // seconds of processor time; negative is debt
	passed  time.Time
	denied  time.Time // since when background work has not had a turn; zero if it is not waiting
	turn    time.Time // when its turn began
	turnEnd time.Time // until when it has one
	before  float64   // credit when the turn began
	lowest  float64   // credit since then: what units begun in it have used shows late
}

const (
	maxCredit      = 75 * time.Millisecond  // of the limit's time
	foregroundDebt = 150 * time.Millisecond // of the limit's time
	maxDebt        = 5 * time.Second        // of the limit's time: what is older is forgiven
	turnEvery      = 250 * time.Millisecond
	turnShare      = 0.2 // of the limit, for background work while foreground work takes all
	oneByOne       = 0.5 // cores; above, several long units are little beside what five seconds allow

	fresh   = 500 * time.Microsecond // so long credit is believed without measuring
	settle  = 2 * time.Millisecond   // after a unit has begun, until what it uses shows
	longest = 50 * time.Millisecond  // to sleep without looking again: the limit may change
)

// NewCPU returns a CPU that limits to so many cores, 0 being none. used returns the processor time that counts; nil is this
// process's.
func NewCPU(cores float64, used func() time.Duration) *CPU {
	if used == nil {
		used = ProcessorTime
	}
	c := &CPU{used: used, gate: make(chan struct{}, 1), long: make(chan struct{}, 1)}
	c.Set(cores)
	return c
}

// ProcessorTime returns what this process has used of all processors.
func ProcessorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Set changes the limit, in cores; 0 is none. It holds from now on.
func (c *CPU) Set(cores float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cores.Store(math.Float64bits(max(0, cores)))
	c.at, c.atUsed, c.credit = time.Now(), c.used(), 0
}

// Cores returns the limit; 0 is none.
func (c *CPU) Cores() float64 {
	if c == nil {
		return 0
	}
	return math.Float64frombits(c.cores.Load())
}

// Limited reports whether there is a limit.
func (c *CPU) Limited() bool { return c.Cores() > 0 }

// Background is called before each unit of background work and waits until it may go on, or returns the error of ctx.
func (c *CPU) Background(ctx context.Context) error {
	if c.Cores() == 0 {
		return ctx.Err()
	}
	if c.mayPass(time.Now()) {
		return ctx.Err()
	}
	select {
	case c.gate <- struct{}{}:
		defer func() { <-c.gate }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		wait := c.wait(time.Now())
		if wait <= 0 {
			return ctx.Err()
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// Long is Background for a unit that takes long, which done ends. Under a limit of oneByOne or less there is only one at a time:
// what has just begun shows in no measurement yet, and several would be far above the limit together.
func (c *CPU) Long(ctx context.Context) (done func(), err error) {
	done = func() {}
	if cores := c.Cores(); cores > 0 && cores <= oneByOne {
		select {
		case c.long <- struct{}{}:
			done = func() { <-c.long }
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err := c.Background(ctx); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// Foreground is called before each unit of work that somebody waits for.
func (c *CPU) Foreground(ctx context.Context) error {
	if c.Cores() == 0 {
		return ctx.Err()
	}
	for {
		now := time.Now()
		c.foreground.Store(now.UnixNano())
		wait := c.debt(now)
		if wait <= 0 {
			return ctx.Err()
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// mayPass reports whether background work may go on without waiting at the gate.
func (c *CPU) mayPass(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.at) > fresh {
		c.measure(now)
	}
	return c.credit >= 0 || c.inTurn(now)
}

// inTurn reports whether background work has a turn, and has not used more than that. The caller holds mu.
func (c *CPU) inTurn(now time.Time) bool { return now.Before(c.turnEnd) && c.mayTurn() }

// mayTurn reports whether the debt is so small that background work may have a turn. The caller holds mu.
func (c *CPU) mayTurn() bool {
	return -c.credit <= c.Cores()*(foregroundDebt.Seconds()+turnShare*turnEvery.Seconds())
}

// nextTurn returns when background work that is denied gets a turn: when what it has used in the last is no more than its share of the
// time since then. The caller holds mu.
func (c *CPU) nextTurn(cores float64) time.Time {
	paid := c.turn.Add(time.Duration((c.before - c.lowest) / (turnShare * cores) * float64(time.Second)))
	return later(paid, c.denied.Add(turnEvery))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// wait returns how long the one who has the gate waits before it asks again, 0 if it may go on.
func (c *CPU) wait(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	// What has just begun must be seen to use its time before another begins.
	if left := settle - now.Sub(c.passed); left > 0 {
		return left
	}
	c.measure(now)
	cores := c.Cores()
	if cores == 0 || c.credit >= 0 || c.inTurn(now) {
		c.passed, c.denied = now, time.Time{}
		return 0
	}
	if c.denied.IsZero() {
		c.denied = now
	}
	busy := now.UnixNano()-c.foreground.Load() < int64(turnEvery)
	if busy && c.mayTurn() && !now.Before(c.nextTurn(cores)) {
		c.turn, c.turnEnd = now, now.Add(time.Duration(turnShare*cores*float64(turnEvery)))
		c.before, c.lowest = c.credit, c.credit
		c.passed, c.denied = now, time.Time{}
		return 0
	}
	return pause(-c.credit, cores)
}

// debt returns how long foreground work has to wait, 0 if it may go on.
func (c *CPU) debt(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.at) > fresh {
		c.measure(now)
	}
	cores := c.Cores()
	over := -c.credit - cores*foregroundDebt.Seconds()
	if cores == 0 || over <= 0 {
		return 0
	}
	return pause(over, cores)
}

// measure credits the time that has passed and charges what was used. The caller holds mu.
func (c *CPU) measure(now time.Time) {
	used, cores := c.used(), c.Cores()
	c.credit += cores*now.Sub(c.at).Seconds() - (used - c.atUsed).Seconds()
	c.credit = min(c.credit, cores*maxCredit.Seconds())
	c.credit = max(c.credit, -cores*maxDebt.Seconds())
	c.lowest = min(c.lowest, c.credit)
	c.at, c.atUsed = now, used
}

// pause returns how long it takes until so many seconds of debt are paid, or until it is time to look again.
func pause(debt, cores float64) time.Duration {
	return min(longest, max(time.Millisecond, time.Duration(debt/cores*float64(time.Second))))
}

// sleep waits for d, or returns the error of ctx.
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
