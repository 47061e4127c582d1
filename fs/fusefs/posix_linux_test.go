package fusefs

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

// skipped are tests of the suite that fail on every file system.
var skipped = map[string]string{
	"FcntlFlockLocksFile": "the suite does not run it itself: it hangs on locks that Linux does not promise",
}

func TestPosix(t *testing.T) {
	mnt, _, _ := mountMem(t, nil)
	for _, name := range slices.Sorted(maps.Keys(posixtest.All)) {
		t.Run(name, func(t *testing.T) {
			if why, ok := skipped[name]; ok {
				t.Skip(why)
			}
			dir := filepath.Join(mnt, name)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			posixtest.All[name](t, dir)
		})
	}
}
