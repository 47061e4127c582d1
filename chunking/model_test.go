package chunking

import (
	"testing"
	"time"
)

func TestMachinePlan(t *testing.T) {
	m := Machine{Procs: 8, Rate: 1e9, Total: 8e9, Start: 10 * time.Microsecond, Join: 64 << 10}
	if p := m.Plan(4 << 10); p.Workers != 1 {
		t.Errorf("4 KiB: %+v, want one worker", p)
	}
	if p := m.Plan(1 << 30); p.Workers != 8 || p.Segment > 1<<27 {
		t.Errorf("1 GiB: %+v, want all workers busy", p)
	}
	m.Total = m.Rate // memory is the limit
	if p := m.Plan(1 << 30); p.Workers != 1 {
		t.Errorf("1 GiB at the limit of memory: %+v, want one worker", p)
	}
	if p := m.Plan(0); p.Workers != 1 || p.Segment < 1 {
		t.Errorf("nothing: %+v", p)
	}
}
