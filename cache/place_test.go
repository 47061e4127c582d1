package cache

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store/storetest"
)

// A copy of a cache directory is one, a renamed one is not.
func TestCopied(t *testing.T) {
	repo := storetest.New(t, remotetest.NewMem())
	dir := filepath.Join(t.TempDir(), "a")
	open := func(dir string) *Cache {
		t.Helper()
		c, err := Open(t.Context(), dir, repo, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	shut := func(c *Cache) {
		t.Helper()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		c := open(dir)
		if c.Copied() {
			t.Error("a new directory, or one opened again, is taken for a copy")
		}
		shut(c)
	}
	copied := dir + "-copy"
	if out, err := exec.Command("cp", "-a", dir, copied).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	moved := dir + "-moved"
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	c := open(moved)
	if c.Copied() {
		t.Error("a renamed directory is taken for a copy")
	}
	shut(c)
	for range 2 { // until somebody has settled
		c = open(copied)
		if !c.Copied() {
			t.Error("a copy is not noticed")
		}
		shut(c)
	}
	c = open(copied)
	if err := c.Settled(); err != nil {
		t.Fatal(err)
	}
	shut(c)
	c = open(copied)
	if c.Copied() {
		t.Error("it has settled, and is taken for a copy again")
	}
	if err := c.Unsettle(); err != nil {
		t.Fatal(err)
	}
	shut(c)
	c = open(copied)
	if !c.Copied() {
		t.Error("it was unsettled, and is not taken for a copy")
	}
	shut(c)
}
