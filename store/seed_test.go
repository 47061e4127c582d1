package store

import (
	"flag"
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
	b := make([]byte, 0, n+8)
	for len(b) < n {
		v := rng.Uint64()
		b = append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24), byte(v>>32), byte(v>>40), byte(v>>48), byte(v>>56))
	}
	return b[:n]
}

// randomText returns n bytes that compress well.
func randomText(rng *rand.Rand, n int) []byte {
	words := []string{"chunk ", "node ", "group ", "table ", "multichunk ", "segment ", "hint ", "stream ", "\n", "repository "}
	b := make([]byte, 0, n+16)
	for len(b) < n {
		b = append(b, words[rng.IntN(len(words))]...)
	}
	return b[:n]
}
