//go:build linux

package e2e

import (
	"bytes"
	"crypto/sha256"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// randomBytes returns n bytes that do not compress.
func randomBytes(r *rand.Rand, n int) []byte {
	var key [32]byte
	for i := range key {
		key[i] = byte(r.Uint32())
	}
	b := make([]byte, n)
	rand.NewChaCha8(key).Read(b)
	return b
}

// bigFile is the size of a big file, in bytes: what must hold for 256 MiB holds
// for less.
func bigFile() int {
	if long {
		return 256 << 20
	}
	return 64 << 20
}

// An insertion at the front of a big file costs little, and so does an overwrite
// in its middle.
func TestGrowthOfBigFile(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	data := randomBytes(randomOf(t), bigFile())
	m.write("big", data)
	m.must("sync", m.mnt)
	before := w.remoteBytes()
	t.Logf("%d MiB of random bytes take %d bytes", len(data)>>20, before)

	shifted := append([]byte{'!'}, data...)
	m.write("big", shifted)
	m.must("sync", m.mnt)
	w.grewBy(before, 2<<20, "one byte at the front")

	before = w.remoteBytes()
	f, err := os.OpenFile(m.path("big"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	patch := bytes.Repeat([]byte("patch..."), 512)
	copy(shifted[len(shifted)/2:], patch)
	if _, err := f.WriteAt(patch, int64(len(shifted)/2)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	m.must("sync", m.mnt)
	w.grewBy(before, 1<<20, "4 KiB in the middle")
	m.umount()

	m.wipe()
	m.mount()
	got, err := os.ReadFile(m.path("big"))
	if err != nil || sha256.Sum256(got) != sha256.Sum256(shifted) {
		t.Errorf("after a remount the file has %d bytes, %v, and is not what was written", len(got), err)
	}
	m.umount()
	m.checkPeak()
}

// grewBy checks that the storage holds at most limit bytes more than before.
func (w *world) grewBy(before, limit int64, what string) {
	w.t.Helper()
	grown := w.remoteBytes() - before
	w.t.Logf("%s: the storage grew by %d bytes", what, grown)
	if grown <= 0 || grown >= limit {
		w.t.Errorf("%s: the storage grew by %d bytes, want more than 0 and less than %d", what, grown, limit)
	}
}

// A second copy of a tree, with one line changed in one file, costs next to nothing.
func TestGrowthOfSecondCopy(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	src := sourceTree(t)
	copyTree(t, src, m.path("one"))
	m.must("sync", m.mnt)
	before := w.remoteBytes()
	size := treeBytes(t, src)
	t.Logf("a tree of %d bytes takes %d", size, before)

	copyTree(t, src, m.path("two"))
	changeALine(t, m.path("two"))
	m.must("sync", m.mnt)
	w.grewBy(before, size*15/1000, "a second copy with one line changed")
	m.umount()
	m.checkPeak()
}

func treeBytes(t *testing.T, root string) int64 {
	t.Helper()
	var sum int64
	for _, e := range describe(t, root) {
		if e.sameAs == "" || e.nlink < 2 {
			sum += e.size
		}
	}
	return sum
}

// changeALine changes one line of one source file below root.
func changeALine(t *testing.T, root string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		changed := strings.Replace(string(b), "\n", " // changed\n", 1)
		if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
			return err
		}
		return filepath.SkipAll
	})
	if err != nil {
		t.Fatal(err)
	}
}
