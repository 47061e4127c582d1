package cache_test

import (
	"flag"
	"log/slog"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

var (
	seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0 draws one")

	// long asks for the counts that a release needs instead of those of every run.
	long = os.Getenv("DEDUPFS_LONG") != ""
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // damage is what many tests are about
	os.Exit(m.Run())
}

// newRand returns a source of random numbers whose seed is printed if the test fails.
func newRand(t testing.TB) *rand.Rand {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("repeat with -seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// randomBytes returns n bytes that do not compress.
func randomBytes(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}
