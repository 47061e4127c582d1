//go:build long

package chunking

import (
	"fmt"
	"testing"
	"time"
)

// TestPlanSweep compares the plan of the model with the fastest of a sweep over
// workers and segment sizes. The two run in turns.
func TestPlanSweep(t *testing.T) {
	data := randomBytes(1, 256<<20)
	for _, name := range []string{"GFD-8", "GFD-64", "Gear-8"} {
		c := newChunker(t, name, make([]byte, keySize))
		m := MeasureMachine(c)
		t.Logf("%s: %+v", name, m)
		for _, n := range []int{1 << 20, 16 << 20, len(data)} {
			plans := []Plan{m.Plan(n), {1, n}}
			for w := 2; w <= 2*m.Procs; w++ {
				for seg := 128 << 10; seg <= n/2; seg *= 2 {
					plans = append(plans, Plan{w, seg})
				}
			}
			took := make([]time.Duration, len(plans))
			var ends []int
			for round := range 9 {
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
