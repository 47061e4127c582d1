package store

import (
	"os"
	"runtime/debug"
	"testing"
	"testing/cryptotest"
)

// TestCollectSimulated runs collectors and clients that are killed, suspended, lost, new and late over a remote whose listings are
// behind, doubled or fail, and whose puts fail after they have worked: nothing that anybody needs is ever deleted, and
// everything else goes in the end.
func TestCollectSimulated(t *testing.T) {
	const steps = 200
	seeds := uint64(300)
	switch {
	case long:
		seeds = 100_000
	case os.Getenv("CI") != "":
		seeds = 2000
	case testing.Short():
		seeds = 50
	}
	defer debug.SetGCPercent(debug.SetGCPercent(800)) // the worlds are small, and make much garbage
	rig, err := newSimRig()
	if err != nil {
		t.Fatal(err)
	}
	var sum simCounts
	for seed := *seedFlag; seed < *seedFlag+seeds; seed++ {
		cryptotest.SetGlobalRandom(t, seed)
		w := newSimWorld(rig, seed, collectRules{}, simFaults{})
		if bad := w.run(steps); bad != "" {
			t.Fatalf("seed %d: %s", seed, bad)
		}
		sum.add(w.counts)
	}
	t.Logf("%d multichunks made by regrouping", sum.moved)
	t.Logf("%d seeds of %d steps: %d multichunks deleted, %d of them before all came to rest, %d clients evicted, %d times one was needed after all",
		seeds, steps, sum.deleted, sum.early, sum.evictions, sum.spared)
	if sum.answers == 0 || sum.early == 0 || sum.evictions == 0 || sum.spared == 0 || sum.moved == 0 {
		t.Error("nothing was at stake")
	}
}

// simMutants are the rules of docs/gc.md, each broken by one mutant, that random steps find. The others are in simStories.
var simMutants = []struct {
	name   string
	rules  collectRules
	faults simFaults
	seed   uint64 // that finds it
}{
	{name: "acknowledgements are not waited for", rules: collectRules{noAcks: true}, seed: 33},
	{name: "the second mark is skipped", rules: collectRules{noSecondMark: true}, seed: 7},
	{name: "merge bases are not marked", rules: collectRules{noBases: true}, seed: 84},
	{name: "snapshots are not marked", rules: collectRules{noSnapshots: true}, seed: 0},
	{name: "deleted before it is published", faults: simFaults{deletesAtOnce: true}, seed: 0},
	{name: "a condemned multichunk stays in the index", faults: simFaults{keepsIndex: true}, seed: 336},
	{name: "nodes found by an index", faults: simFaults{nodesByIndex: true}, seed: 64},
	{name: "merge bases are taken for ended", rules: collectRules{endsBases: true}, seed: 24},
	{name: "commits deleted that somebody has not seen", rules: collectRules{passesUnseen: true}, seed: 11},
	{name: "commits deleted as soon as it is said", rules: collectRules{pastUnsaid: true}, seed: 0},
	{name: "moves deleted that somebody follows", rules: collectRules{forgetsMoves: true}, seed: 0},
	{name: "an ended incarnation merged", faults: simFaults{mergesEnded: true}, seed: 1},
	{name: "heads merged that another head has seen", faults: simFaults{mergesMerged: true}, seed: 327},
}

// TestCollectMutants breaks one rule at a time: the simulator must notice.
func TestCollectMutants(t *testing.T) {
	rig, err := newSimRig()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range simMutants {
		t.Run(m.name, func(t *testing.T) {
			for i := range uint64(400) {
				seed := m.seed + i
				cryptotest.SetGlobalRandom(t, seed)
				w := newSimWorld(rig, seed, m.rules, m.faults)
				if bad := w.run(200); bad != "" {
					t.Logf("seed %d: %s", seed, bad)
					return
				}
			}
			t.Error("not noticed")
		})
	}
}
