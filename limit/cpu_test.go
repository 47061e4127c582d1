package limit

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A machine is a simulated process in a bubble of synctest: working takes time, of the clock and of the processor.
type machine struct {
	used  atomic.Int64
	start time.Time
	log   []point // what was used by when, each 10 ms
}

type point struct{ at, used time.Duration }

func newMachine() *machine { return &machine{start: time.Now()} }

func (m *machine) processor() time.Duration { return time.Duration(m.used.Load()) }

// work uses the processor for d, in steps, so that others see it used while it is.
func (m *machine) work(d time.Duration) {
	const step = 2 * time.Millisecond
	for d > 0 {
		n := min(d, step)
		time.Sleep(n)
		m.used.Add(int64(n))
		d -= n
	}
}

// watch notes what is used until ctx ends.
func (m *machine) watch(ctx context.Context) {
	for ctx.Err() == nil {
		m.log = append(m.log, point{time.Since(m.start), m.processor()})
		time.Sleep(10 * time.Millisecond)
	}
}

// extremes returns the least and the most that was used in any five seconds after the first, in cores.
func (m *machine) extremes() (least, most float64) {
	const window = 500 // points
	least = 1e9
	for i := 0; i+window < len(m.log); i++ {
		a, b := m.log[i], m.log[i+window]
		cores := (b.used - a.used).Seconds() / (b.at - a.at).Seconds()
		most = max(most, cores)
		if a.at > time.Second {
			least = min(least, cores)
		}
	}
	return least, most
}

// TestBackground holds every kind of work to every limit: units of microseconds and of a tenth of a second, some that vary,
// one worker and several.
func TestBackground(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	units := map[string]func() time.Duration{
		"tiny":   func() time.Duration { return 100 * time.Microsecond },
		"chunk":  func() time.Duration { return 300 * time.Microsecond },
		"group":  func() time.Duration { return 3 * time.Millisecond },
		"object": func() time.Duration { return 40 * time.Millisecond },
		"bzip2":  func() time.Duration { return 100 * time.Millisecond },
		"mixed": func() time.Duration {
			if rng.IntN(100) == 0 {
				return 50 * time.Millisecond
			}
			return 400 * time.Microsecond
		},
	}
	for name, unit := range units {
		for _, cores := range []float64{0.3, 0.75, 1.5} {
			for _, workers := range []int{1, 4} {
				if cores >= float64(workers) {
					continue
				}
				synctest.Test(t, func(t *testing.T) {
					m := newMachine()
					c := NewCPU(cores, m.processor)
					ctx, cancel := context.WithTimeout(t.Context(), 11*time.Second)
					defer cancel()
					var all sync.WaitGroup
					for range workers {
						all.Go(func() {
							for c.Background(ctx) == nil {
								m.work(unit())
							}
						})
					}
					m.watch(ctx)
					all.Wait()
					if least, most := m.extremes(); least < 0.9*cores || most > 1.1*cores {
						t.Errorf("%s, %d workers: %.3f to %.3f cores in five seconds, want %v", name, workers, least, most, cores)
					}
				})
			}
		}
	}
}

// TestForegroundFirst has foreground work that comes and goes, and background work that would take all.
func TestForegroundFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		const cores = 0.5
		c := NewCPU(cores, m.processor)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var background, waited time.Duration
		var both sync.WaitGroup
		both.Go(func() {
			for c.Background(ctx) == nil {
				m.work(time.Millisecond)
				background += time.Millisecond
			}
		})
		both.Go(func() { // 40% of a core: less than the limit
			for ctx.Err() == nil {
				before := time.Now()
				if c.Foreground(ctx) != nil {
					return
				}
				waited += time.Since(before)
				m.work(4 * time.Millisecond)
				time.Sleep(6 * time.Millisecond)
			}
		})
		m.watch(ctx)
		both.Wait()
		if _, most := m.extremes(); most > 1.1*cores {
			t.Errorf("%.3f cores in five seconds, want at most %v", most, cores)
		}
		if waited > 300*time.Millisecond {
			t.Errorf("foreground work within the limit has waited %v of 30 s", waited)
		}
		if got := background.Seconds() / 30; got < 0.07 || got > 0.13 {
			t.Errorf("background work got %.3f cores, want the 0.1 that are left", got)
		}
	})
}

// TestNothingStarves has foreground work that would take all.
func TestNothingStarves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		const cores = 0.3
		c := NewCPU(cores, m.processor)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var background, foreground time.Duration
		var both sync.WaitGroup
		both.Go(func() {
			for c.Background(ctx) == nil {
				m.work(time.Millisecond)
				background += time.Millisecond
			}
		})
		both.Go(func() {
			for c.Foreground(ctx) == nil {
				m.work(time.Millisecond)
				foreground += time.Millisecond
			}
		})
		m.watch(ctx)
		both.Wait()
		if _, most := m.extremes(); most > 1.1*cores {
			t.Errorf("%.3f cores in five seconds, want at most %v", most, cores)
		}
		if share := background.Seconds() / (background + foreground).Seconds(); share < 0.1 || share > 0.4 {
			t.Errorf("background work got %.2f of the time, want about a fifth", share)
		}
	})
}

// TestLongUnits has background work in long units beside foreground work that would take all: one is far more than a turn.
func TestLongUnits(t *testing.T) {
	for _, cores := range []float64{0.1, 0.3, 0.5} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine()
			c := NewCPU(cores, m.processor)
			ctx, cancel := context.WithTimeout(t.Context(), 21*time.Second)
			defer cancel()
			var all sync.WaitGroup
			var background, foreground time.Duration
			for range 4 {
				all.Go(func() {
					for {
						done, err := c.Long(ctx)
						if err != nil {
							return
						}
						m.work(100 * time.Millisecond)
						background += 100 * time.Millisecond
						done()
					}
				})
			}
			all.Go(func() {
				for c.Foreground(ctx) == nil {
					m.work(time.Millisecond)
					foreground += time.Millisecond
				}
			})
			m.watch(ctx)
			all.Wait()
			unit := 0.1 / (5 * cores) // of what five seconds allow
			least, most := m.extremes()
			if most > (1.06+unit)*cores || least < (0.94-unit)*cores {
				t.Errorf("%.3f to %.3f cores in five seconds, want %v and at most a unit more or less", least, most, cores)
			}
			if share := background.Seconds() / (background + foreground).Seconds(); share < 0.1 || share > 0.4 {
				t.Errorf("of %v cores background work got %.2f of the time, want about a fifth", cores, share)
			}
		})
	}
}

// TestIdleSavesLittle checks that what was not used before is not made up for.
func TestIdleSavesLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		const cores = 0.5
		c := NewCPU(cores, m.processor)
		time.Sleep(time.Minute)
		m.start = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		var worker sync.WaitGroup
		worker.Go(func() {
			for c.Background(ctx) == nil {
				m.work(time.Millisecond)
			}
		})
		m.watch(ctx)
		worker.Wait()
		if _, most := m.extremes(); most > 1.1*cores {
			t.Errorf("%.3f cores in five seconds after a minute of nothing, want at most %v", most, cores)
		}
	})
}

func TestNoLimit(t *testing.T) {
	var none *CPU
	if none.Background(t.Context()) != nil || none.Foreground(t.Context()) != nil || none.Cores() != 0 {
		t.Error("a nil CPU limits")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if none.Background(ctx) == nil {
		t.Error("Background of a cancelled context has no error")
	}
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		c := NewCPU(0.01, m.processor)
		m.used.Add(int64(time.Second))
		done := make(chan error)
		go func() { done <- c.Background(t.Context()) }()
		synctest.Wait()
		time.Sleep(time.Second)
		c.Set(0) // frees who waits
		before := time.Now()
		if err := <-done; err != nil || time.Since(before) > longest {
			t.Errorf("Background after Set(0) = %v, after %v", err, time.Since(before))
		}
	})
}

// TestDebtIsForgiven checks that one long unit does not stop all for longer than it matters.
func TestDebtIsForgiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		c := NewCPU(0.1, m.processor)
		m.work(10 * time.Second)
		before := time.Now()
		if err := c.Background(t.Context()); err != nil || time.Since(before) > maxDebt+longest {
			t.Errorf("Background after 10 s of work at 10%% = %v, after %v", err, time.Since(before))
		}
	})
}
