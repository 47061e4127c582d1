//go:build long

package chunking

import (
	"fmt"
	"testing"
	"time"
)

// TestPlanSweep compares the plan of the model with the fastest of a sweep over
// workers and segment sizes. All run in turns, and the shortest run of each
// counts: what else the machine does only makes runs longer.
func TestPlanSweep(t *testing.T) {
	const rounds = 100
	data := randomBytes(1, 64<<20)
	for _, name := range []string{"GFD-8", "GFD-64", "Typed-8"} {
		c := newChunker(t, name, make([]byte, keySize))
		m := MeasureMachine(c)
		t.Logf("%s: %+v", name, m)
		for _, n := range []int{1 << 20, 8 << 20, len(data)} {
			plans := []Plan{m.Plan(n), {1, n}}
			for w := 2; w <= m.Procs+1; w++ {
				for seg := 128 << 10; seg <= n/2; seg *= 4 {
					plans = append(plans, Plan{w, seg})
				}
			}
			took := make([]time.Duration, len(plans))
			var ends []int
			for round := range rounds {
				for i, p := range plans {
					start := time.Now()
					ends = p.Ends(c, ends[:0], data[:n], true)
					if d := time.Since(start); round == 0 || d < took[i] {
						took[i] = d
					}
				}
			}
			best := 0
			for i := range took {
				if took[i] < took[best] {
					best = i
				}
			}
			ratio := float64(took[0]) / float64(took[best])
			line := fmt.Sprintf("%s, %d MiB: the model takes %+v, %v; best of the sweep is %+v, %v; one worker %v: ratio %.2f", name, n>>20, plans[0], took[0], plans[best], took[best], took[1], ratio)
			t.Log(line)
			if ratio > 1.1 {
				t.Errorf("more than 10%% above the best")
			}
		}
	}
}
