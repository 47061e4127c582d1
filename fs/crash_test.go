package fs

import (
	"fmt"
	"math/rand"
	"os"
	"testing"
)

// TestPowerCut does random operations, now and then an fsync, a commit or a publication, and cuts the power: what the
// disk did not sync is dropped, torn and reordered. Afterwards the volume is what it was after some operation, not
// before the last that was acknowledged as durable: guarantees G2 and G3. The database is lost each time.
func TestPowerCut(t *testing.T) {
	runs, cuts := 40, 25
	if os.Getenv("DEDUPFS_LONG") != "" {
		runs = 4000
	}
	r := newRand(t)
	atStake := 0
	for run := range runs {
		seed := r.Int63()
		t.Run(fmt.Sprint(run), func(t *testing.T) {
			m := &model{t: t, e: newEnv(t), r: rand.New(rand.NewSource(seed)), root: newDirNode()}
			for range cuts {
				atStake += m.cutPower()
			}
		})
	}
	if atStake < runs*cuts {
		t.Errorf("%d operations were not yet durable at %d power cuts: too few to show anything", atStake, runs*cuts)
	}
}

// cutPower does operations up to a power cut, checks what is there afterwards, and goes on from it. It returns how many
// operations were at stake.
func (m *model) cutPower() int {
	states := []*modelNode{m.snapshot()} // that the volume may have afterwards: from the last durable one on
	m.halfway = func() { states = append(states, m.snapshot()) }
	for range 1 + m.r.Intn(16) {
		m.step()
		states = append(states, m.snapshot())
		durable := true
		switch m.r.Intn(20) {
		case 0, 1:
			m.check("fsync", m.e.v.fsync(ctx, Root), nil)
		case 2:
			m.note("commit")
			m.e.commit()
		case 3:
			m.note("sync")
			m.e.sync()
		default:
			durable = false
		}
		if durable {
			states = states[len(states)-1:]
		}
	}
	m.note("power cut")
	m.e.powerCut(m.r)
	var errs []error
	for i := len(states) - 1; i >= 0; i-- {
		err := m.diff(Root, states[i], "")
		if err == nil {
			m.root = states[i]
			return len(states) - 1
		}
		errs = append(errs, err)
	}
	for i, err := range errs {
		m.t.Logf("not the state %d before the cut: %v", i, err)
	}
	m.fatalf("after the power cut the volume is none of the %d states that it may be", len(states))
	return 0
}

func (m *model) snapshot() *modelNode { return m.root.clone(map[*modelNode]*modelNode{}) }
