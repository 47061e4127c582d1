//go:build linux

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestUndo copies back what was removed by mistake, though nobody had made a snapshot, and after the volume was mounted anew.
func TestUndo(t *testing.T) {
	w := newWorld(t)
	m := w.machine("one")
	m.mount()
	m.write("precious", []byte("precious"))
	m.must("sync", m.mnt)
	m.umount()
	m.mount()
	if err := os.Remove(m.path("precious")); err != nil {
		t.Fatal(err)
	}
	m.must("sync", m.mnt)
	m.umount()
	m.mount()
	found, err := filepath.Glob(m.path(".snapshots/*/precious"))
	if err != nil || len(found) != 1 {
		t.Fatalf("it is in the states %q, %v", found, err)
	}
	if out, err := exec.Command("cp", "-a", found[0], m.mnt).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	m.sees("precious", []byte("precious"))
	m.umount()
}
