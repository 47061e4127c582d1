//go:build linux

package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"syscall"
	"testing"
)

// TestPin keeps a directory on a machine: while others read, over a remount, and as it changes elsewhere.
func TestPin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.machine("a"), w.machine("b")
	r := randomOf(t)
	a.mount("--poll=1s")
	a.sh("mkdir -p pinned/sub other")
	kept, more, other := randomBytes(r, 3<<20), randomBytes(r, 1<<20), randomBytes(r, 20<<20)
	a.write("pinned/sub/f", kept)
	a.must("sync", a.mnt)
	a.write("other/f", other)
	a.must("sync", a.mnt)

	over := *w
	b.world = &over
	s := newServer(t, w.url)
	over.url = s.url()
	b.mount("--poll=1s", "--offline=error", "--cache-size=64M")
	b.must("cache", "pin", b.path("pinned"))
	b.must("cache", "pin", b.path("pinned")) // again is no error
	b.must("cache", "warm", b.path("other"))
	b.must("cache", "drop", b.mnt)
	info := func() (i struct {
		Size, Pinned, Multichunks int64
		Missing                   int `json:"missing_objects"`
		Pins                      []string
	}) {
		t.Helper()
		if err := json.Unmarshal([]byte(b.must("cache", "info", "--json", b.mnt)), &i); err != nil {
			t.Fatal(err)
		}
		return i
	}
	if i := info(); i.Pinned < 3<<20 || i.Multichunks != i.Pinned || i.Missing != 0 || len(i.Pins) != 1 || i.Pins[0] != "/pinned" {
		t.Errorf("after cache drop: %+v", i)
	}
	a.write("pinned/new", more)
	a.must("sync", a.mnt)
	b.must("sync", b.mnt)
	b.umount()
	b.mount("--poll=1s", "--offline=error", "--cache-size=64M") // looks at once for what is missing
	b.eventually(20e9, "fetch what is new", func() bool { i := info(); return i.Missing == 0 && i.Pinned > 4<<20 })
	b.must("cache", "drop", b.mnt)
	s.stop()
	b.sees("pinned/sub/f", kept)
	b.sees("pinned/new", more)
	if _, err := os.ReadFile(b.path("other/f")); !errors.Is(err, syscall.EIO) {
		t.Errorf("what is not pinned was dropped, and reads %v", err)
	}
	s.start()
	b.must("cache", "resize", "40M", b.mnt)
	if i := info(); i.Size != 40<<20 {
		t.Errorf("after cache resize: %+v", i)
	}
	b.fails(1, "cache", "resize", "1", b.mnt)
	b.must("cache", "unpin", b.path("pinned"))
	b.fails(1, "cache", "unpin", b.path("pinned"))
	b.must("cache", "drop", b.mnt)
	if i := info(); i.Multichunks != 0 || len(i.Pins) != 0 {
		t.Errorf("after cache unpin and drop: %+v", i)
	}
	b.umount()
	a.umount()
}
