package cache

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPageOut maps a file below the directory and one beside it: the first is given back and reads as before, the second stays.
func TestPageOut(t *testing.T) {
	const size = 16 << 20
	dir := t.TempDir()
	inside, outside := mapped(t, filepath.Join(dir, "db", "000001.sst"), size), mapped(t, filepath.Join(dir, "db.other"), size)
	_, before := residentBytes()
	pageOut(filepath.Join(dir, "db"))
	_, after := residentBytes()
	if got := before - after; got < size*3/4 || got > size*5/4 {
		t.Errorf("%d bytes were given back, want %d", got, size)
	}
	for i, b := range [][]byte{inside, outside} {
		if !bytes.Equal(b, bytes.Repeat([]byte{7}, size)) {
			t.Errorf("mapping %d reads differently", i)
		}
	}
}

// mapped returns a mapping of a new file of n bytes, with all of it in memory and on the disk.
func mapped(t *testing.T, path string, n int) []byte {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err = f.Write(bytes.Repeat([]byte{7}, n)); err == nil {
		err = f.Sync() // pages that are not written yet would stay
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	sum := 0
	for i := 0; i < n; i += 4096 {
		sum += int(b[i])
	}
	if sum == 0 {
		t.Fatal("nothing is mapped")
	}
	return b
}
