package chunking

import (
	"math/rand/v2"
	"runtime"
	"time"
)

// A Machine is what the performance model knows of a machine and a chunker.
//
// After the model of MUCH, the time to cut n bytes in segments of s bytes by w
// workers is
//
//	w*Start + (n/w + s/2)/min(Rate, Total/w) + (n/s-1)*Join/Rate
//
// that is: starting the workers; cutting, at the speed of one worker or at that
// worker's share of what all can do, and waiting for the last, which ends half a
// segment after the others; and joining the segments, which one worker does
// alone. Long segments are waited for, and short ones joined more often.
type Machine struct {
	Procs int           // workers that can run at once
	Rate  float64       // bytes per second that one worker cuts
	Total float64       // bytes per second that all workers cut together
	Start time.Duration // time to start a worker and to wait for it
	Join  int           // bytes that are cut again between two segments
}

// MeasureMachine measures how fast this machine cuts with c. It takes a third of
// a second, or as long as cutting 160 MiB.
func MeasureMachine(c Chunker) Machine {
	const sample = 16 << 20
	data := make([]byte, sample)
	rand.NewChaCha8([32]byte{}).Read(data)
	_, most := c.Bounds()
	m := Machine{Procs: runtime.GOMAXPROCS(0), Join: 4 * min(most, 1<<20)}
	m.Rate = sample / fastest(50*time.Millisecond, func() { c.Ends(nil, data, true) }).Seconds()
	m.Total = m.Rate
	if m.Procs > 1 {
		p := Plan{Workers: m.Procs}
		share := sample / m.Procs
		m.Total = max(m.Rate, sample/fastest(200*time.Millisecond, func() {
			p.each(m.Procs, func(i int) { c.Ends(nil, data[i*share:(i+1)*share], true) })
		}).Seconds())
		const starts = 100
		m.Start = fastest(10*time.Millisecond, func() {
			for range starts {
				p.each(m.Procs, func(int) {})
			}
		}) / time.Duration(starts*m.Procs)
	}
	return m
}

// fastest returns the shortest of several runs of f: what else the machine
// does only makes runs longer.
func fastest(budget time.Duration, f func()) time.Duration {
	const runs = 5
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
		for segments := w; segments <= 64*w && n/segments >= m.Join; segments += w {
			p := Plan{Workers: w, Segment: (n + segments - 1) / segments}
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
	w, s := float64(p.Workers), float64(p.Segment)
	return w*m.Start.Seconds() +
		(float64(n)/w+s/2)/min(m.Rate, m.Total/w) +
		(float64(n)/s-1)*float64(m.Join)/m.Rate
}
