//go:build linux

package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// program is the built command.
var program string

var seed = flag.Uint64("seed", 0, "seed of the random tests; 0 draws one")

// long is set for the soak: whole sizes, many rounds.
var long = os.Getenv("DEDUPFS_LONG") != ""

func TestMain(m *testing.M) {
	if kind, path, ok := strings.Cut(os.Getenv(lockEnv), " "); ok {
		if err := countUnderLock(kind, path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	os.Exit(runTests(m))
}

// runTests builds the command once for all tests.
func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "dedupfs-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "dedupfs")
	build := exec.Command("go", "build", "-tags", "slim", "-o", program, "../cmd/dedupfs")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		return 1
	}
	return m.Run()
}

// needFUSE skips tests where nothing can be mounted, except in CI, which must
// not pass by skipping.
func needFUSE(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		f.Close()
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal(err)
	}
	t.Skip(err)
}

// randomOf returns the random numbers of a test, and prints how to repeat them.
func randomOf(t *testing.T) *rand.Rand {
	t.Helper()
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("random numbers from -seed=%d", s)
	return rand.New(rand.NewPCG(s, 0))
}

// environment is that of the commands: no variable of ours but the given ones.
func environment(extra ...string) []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "DEDUPFS_") && !strings.HasPrefix(v, "RCLONE_") {
			env = append(env, v)
		}
	}
	return append(env, extra...)
}
