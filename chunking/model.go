package chunking

import (
	"math/rand/v2"
	"runtime"
	"time"
)

// A Machine is what the performance model knows of a machine and a chunker.
//
// After the model of MUCH, the time to cut n bytes in k segments by w workers is
//
//	w*Start + ceil(k/w)*n/k / min(Rate, Total/w) + (k-1)*Join/Rate
//
// that is: starting the workers; cutting, by rounds of w segments, at the speed
// of one worker or at that worker's share of what all can do; and joining the
// segments, which one worker does alone. Few segments leave workers idle in the
// last round, many need more joins.
type Machine struct {
	Procs int           // workers that can run at once
	Rate  float64       // bytes per second that one worker cuts
	Total float64       // bytes per second that all workers cut together
	Start time.Duration // time to start a worker and to wait for it
	Join  int           // bytes that are cut again between two segments
}

// MeasureMachine measures how fast this machine cuts with c. It takes a tenth of
// a second, or as long as cutting 300 MiB.
func MeasureMachine(c Chunker) Machine {
	const sample = 32 << 20 // more than a worker's share of the caches
	data := make([]byte, sample)
	rand.NewChaCha8([32]byte{}).Read(data)
	_, most := c.Bounds()
	m := Machine{Procs: runtime.GOMAXPROCS(0), Join: 4 * min(most, 1<<20)}
	m.Rate = sample / fastest(func() { c.Ends(nil, data, true) }).Seconds()
	m.Total = m.Rate
	if m.Procs > 1 {
		p := Plan{Workers: m.Procs}
		share := sample / m.Procs
		m.Total = max(m.Rate, sample/fastest(func() {
			p.each(m.Procs, func(i int) { c.Ends(nil, data[i*share:(i+1)*share], true) })
		}).Seconds())
		const starts = 100
		m.Start = fastest(func() {
			for range starts {
				p.each(m.Procs, func(int) {})
			}
		}) / time.Duration(starts*m.Procs)
	}
	return m
}

// fastest returns the shortest of several runs of f: what else the machine
// does only makes runs longer.
func fastest(f func()) time.Duration {
	const runs, budget = 5, 30 * time.Millisecond
	best := time.Duration(1<<63 - 1)
	begin := time.Now()
	for i := 0; i < runs || time.Since(begin) < budget; i++ {
		start := time.Now()
		f()
		best = min(best, time.Since(start))
	}
	return max(best, 1)
}

// Plan returns the number of workers and the segment size that the model finds
// fastest for n bytes.
func (m Machine) Plan(n int) Plan {
	best := Plan{Workers: 1, Segment: max(n, 1)}
	least := m.seconds(best, n)
	for w := 2; w <= m.Procs; w++ {
		// Whole rounds of equal segments only: others leave workers idle.
		for rounds := 1; rounds <= 64; rounds *= 2 {
			p := Plan{Workers: w, Segment: (n + w*rounds - 1) / (w * rounds)}
			if p.Segment < m.Join {
				break
			}
			if s := m.seconds(p, n); s < least {
				best, least = p, s
			}
		}
	}
	return best
}

// seconds is the model's time for n bytes.
func (m Machine) seconds(p Plan, n int) float64 {
	if p.Workers == 1 {
		return float64(n) / m.Rate
	}
	k := (n + p.Segment - 1) / p.Segment
	rounds := (k + p.Workers - 1) / p.Workers
	return float64(p.Workers)*m.Start.Seconds() +
		float64(rounds*p.Segment)/min(m.Rate, m.Total/float64(p.Workers)) +
		float64((k-1)*m.Join)/m.Rate
}
