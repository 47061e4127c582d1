package fusefs

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

// skipped are tests that the suite itself leaves out.
var skipped = map[string]string{
	"FcntlFlockLocksFile": "marked as broken in the suite",
}

func TestPosix(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		mnt, _, _ := mountMem(t, nil)
		runPosix(t, mnt)
	})
	t.Run("volume", func(t *testing.T) {
		_, repo := newRepository(t)
		runPosix(t, newMachine(t, repo).mnt)
	})
}

func runPosix(t *testing.T, mnt string) {
	for _, name := range slices.Sorted(maps.Keys(posixtest.All)) {
		t.Run(name, func(t *testing.T) {
			if why, ok := skipped[name]; ok {
				t.Skip(why)
			}
			dir := filepath.Join(mnt, name)
			must(t, os.Mkdir(dir, 0o755))
			posixtest.All[name](t, dir)
		})
	}
}
