//go:build linux

package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// One flipped bit, in any object at any place, is found and named, and never
// returned as data.
func TestFlippedBit(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	r := randomOf(t)
	files := fewFiles(r)
	m.mount()
	for name, data := range files {
		m.write(name, data)
	}
	m.umount()

	for _, object := range w.objects() {
		name, err := filepath.Rel(w.url, object)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			restore := flipBit(t, object, r)
			defer restore()
			result := m.run("check", "--read-data", "--json", m.url)
			if result.code != 20 && result.code != 21 {
				t.Errorf("check: exit code %d, want 20 or 21\n%s", result.code, result.stderr)
			}
			if said := result.stdout + result.stderr; !strings.Contains(said, name) {
				t.Errorf("check does not name the object:\n%s", said)
			}
			m.wipe()
			m.readsRightOrNot(files)
		})
	}
	m.wipe()
	m.must("check", "--read-data", m.url)
}

func fewFiles(r *rand.Rand) map[string][]byte {
	return map[string][]byte{
		"small": []byte("a few words"),
		"text":  bytes.Repeat([]byte("it was a dark and stormy night. "), 20_000),
		"big":   randomBytes(r, 2<<20),
	}
}

// flipBit flips one bit of a file; what it returns undoes that.
func flipBit(t *testing.T, path string, r *rand.Rand) (restore func()) {
	t.Helper()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := slices.Clone(whole)
	at := r.IntN(len(damaged))
	damaged[at] ^= 1 << r.IntN(8)
	t.Logf("byte %d of %d", at, len(damaged))
	put := func(b []byte) {
		if err := os.WriteFile(path, b, fi.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
	put(damaged)
	return func() { put(whole) }
}

// readsRightOrNot mounts a damaged repository read-only, if that can be done,
// and checks that each file has its content or gives EIO.
func (m *machine) readsRightOrNot(files map[string][]byte) {
	m.t.Helper()
	if r := m.run("mount", "-d", "--read-only", m.url, m.mnt); r.code != 0 {
		if r.code < 10 || r.code > 22 || r.stderr == "" {
			m.t.Errorf("mount: exit code %d, %q", r.code, r.stderr)
		}
		return
	}
	defer m.must("umount", m.mnt)
	for name, want := range files {
		got, err := os.ReadFile(m.path(name))
		switch {
		case err == nil && !bytes.Equal(got, want):
			m.t.Errorf("%s: wrong bytes", name)
		case err != nil && !errors.Is(err, syscall.EIO):
			m.t.Errorf("%s: %v, want EIO", name, err)
		}
	}
}

// check names the files that a damaged object has bytes of, and only those.
func TestCheckNamesFiles(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	r := randomOf(t)
	m.mount()
	m.write("first", randomBytes(r, 1<<20))
	m.must("sync", m.mnt)
	before := w.objects()
	if err := os.Mkdir(m.path("dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	m.write("dir/second", randomBytes(r, 1<<20))
	m.umount()

	victim := largest(t, w.objects(), before)
	defer flipBit(t, victim, r)()
	m.wipe()
	result := m.run("check", "--read-data", m.url)
	if result.code != 21 {
		t.Errorf("exit code %d, want 21", result.code)
	}
	said := result.stdout + result.stderr
	if !strings.Contains(said, "dir/second") || strings.Contains(said, "first") {
		t.Errorf("check names the wrong files:\n%s", said)
	}
}

// largest returns the largest object that is not among those of before.
func largest(t *testing.T, objects, before []string) string {
	t.Helper()
	var name string
	var size int64
	for _, o := range objects {
		fi, err := os.Stat(o)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(before, o) && fi.Size() > size {
			name, size = o, fi.Size()
		}
	}
	return name
}

// A lost object is found too, and what does not need it can still be read.
func TestLostObject(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	r := randomOf(t)
	m.mount()
	first := randomBytes(r, 1<<20)
	m.write("first", first)
	m.must("sync", m.mnt)
	before := w.objects()
	m.write("second", randomBytes(r, 1<<20))
	m.umount()
	if err := os.Remove(largest(t, w.objects(), before)); err != nil {
		t.Fatal(err)
	}
	m.wipe()
	m.fails(21, "check", m.url)
	m.mount()
	m.sees("first", first)
	if _, err := os.ReadFile(m.path("second")); !errors.Is(err, syscall.EIO) {
		t.Errorf("ReadFile of what is lost = %v, want EIO", err)
	}
	m.umount()
}

// A storage that shows yesterday's state is reported to a machine that has seen
// today's.
func TestRollback(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	m.write("file", []byte("yesterday"))
	m.umount()
	yesterday := filepath.Join(w.dir, "yesterday")
	runTool(t, "cp", "-a", w.url, yesterday)
	m.mount()
	m.write("file", []byte("today"))
	m.umount()

	if err := os.RemoveAll(w.url); err != nil {
		t.Fatal(err)
	}
	runTool(t, "cp", "-a", yesterday, w.url)
	if message := m.fails(22, "mount", m.url, m.mnt); !strings.Contains(message, "rolled back") {
		t.Errorf("mount = %q, want a word about the roll-back", message)
	}
	m.mount("--read-only")
	if message := m.fails(22, "status", m.mnt); !strings.Contains(message, "rolled back") {
		t.Errorf("status = %q, want a word about the roll-back", message)
	}
	m.umount()
}

// Nobody who holds the storage finds a name or a content in it.
func TestNothingToSee(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	const canary = "Xylophon-Quagga-Jabberwocky"
	name := "name-of-" + canary
	if err := os.Mkdir(m.path("dir-"+canary), 0o755); err != nil {
		t.Fatal(err)
	}
	m.write("dir-"+canary+"/"+name, []byte("content of "+canary))
	m.write("repeated", bytes.Repeat([]byte(canary), 10_000))
	if err := os.Symlink("target-"+canary, m.path("link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setxattr(m.path("repeated"), "user."+canary, []byte("value "+canary), 0); err != nil {
		t.Fatal(err)
	}
	m.must("snapshot", "create", "snapshot-"+canary, m.mnt, "-m", canary)
	m.umount()

	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	words := encodings(canary, password)
	if len(host) >= 6 {
		words = append(words, []byte(host))
	}
	for _, object := range w.objects() {
		b, err := os.ReadFile(object)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range words {
			if bytes.Contains(b, word) || bytes.Contains([]byte(object), word) {
				t.Errorf("%s contains %q", object, word)
			}
		}
	}
}

// encodings returns words as they might stand in an object.
func encodings(words ...string) [][]byte {
	var all [][]byte
	for _, w := range words {
		half := w[:len(w)/2]
		reversed := []byte(w)
		slices.Reverse(reversed)
		utf16 := []byte(strings.Join(strings.Split(w, ""), "\x00"))
		all = append(all, []byte(w), []byte(half), reversed, utf16, bytes.ToLower([]byte(w)), bytes.ToUpper([]byte(w)),
			[]byte(hex.EncodeToString([]byte(w))), []byte(base64.StdEncoding.EncodeToString([]byte(w)))[:12])
	}
	return all
}
