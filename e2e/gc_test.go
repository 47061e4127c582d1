//go:build linux

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestCollect deletes 30 MB that 40 MB were stored beside, while the volume is mounted.
func TestCollect(t *testing.T) {
	w := newWorld(t)
	m := w.machine("one")
	m.mount()
	r := randomOf(t)
	kept := map[string][]byte{}
	for i := range 20 { // in turn, so that most multichunks hold some of both
		kept[fmt.Sprint("kept", i)] = randomBytes(r, 2_000_000)
		m.write(fmt.Sprint("kept", i), kept[fmt.Sprint("kept", i)])
		m.write(fmt.Sprint("gone", i), randomBytes(r, 1_500_000))
	}
	m.must("snapshot", "create", "first", m.mnt, "--sync")
	if n := w.remoteBytes(); n < 70_000_000 {
		t.Fatalf("%d bytes on the remote: nothing is at stake", n)
	}
	for i := range 20 {
		if err := os.Remove(m.path(fmt.Sprint("gone", i))); err != nil {
			t.Fatal(err)
		}
	}
	m.must("snapshot", "create", "second", m.mnt, "--sync")
	m.must("forget", m.mnt, "--keep-last", "1")
	told := m.must("gc", m.mnt, "--dry-run")
	if n := w.remoteBytes(); !strings.Contains(told, "would") || n < 70_000_000 {
		t.Fatalf("%d bytes on the remote after a dry run that told: %s", n, told)
	}
	m.must("gc", m.mnt)
	m.must("sync", m.mnt)
	m.must("gc", m.mnt)
	m.must("sync", m.mnt)
	m.must("gc", m.mnt)
	if n := w.remoteBytes(); n > 48_000_000 {
		t.Errorf("%d bytes on the remote, want less than 48 MB", n)
	}
	for name, data := range kept {
		m.sees(name, data)
	}
	m.umount()
	m.must("check", "--read-data", w.url)
	other := w.machine("other")
	other.mount()
	for name, data := range kept {
		other.sees(name, data)
	}
	other.umount()
}

// TestCollectUnmounted collects without a mount, and waits for a machine that has died until it is given up.
func TestCollectUnmounted(t *testing.T) {
	w := newWorld(t)
	one, two := w.machine("one"), w.machine("two")
	r := randomOf(t)
	kept := randomBytes(r, 3_000_000)
	one.mount()
	one.write("kept", kept)
	one.write("gone", randomBytes(r, 2_500_000))
	one.must("sync", one.mnt)
	two.mount()
	two.sees("kept", kept)
	two.write("two", []byte("two"))
	two.must("sync", two.mnt)
	one.must("sync", one.mnt)
	two.kill()
	if err := os.Remove(one.path("gone")); err != nil {
		t.Fatal(err)
	}
	one.umount()
	one.must("forget", w.url, "--keep-last", "1") // the state that still has it
	before := w.remoteBytes()
	told := one.must("gc", w.url)
	if !strings.Contains(told, "waiting for 1 machine") || !strings.Contains(told, "clients evict") {
		t.Errorf("gc tells %s", told)
	}
	if n := w.remoteBytes(); n < before {
		t.Fatalf("%d bytes of %d are left, and a machine has not answered", n, before)
	}
	id := told[strings.Index(told, "evict ")+len("evict "):][:8]
	one.must("clients", "evict", id, w.url)
	one.must("gc", w.url)
	one.must("gc", w.url)
	if n := w.remoteBytes(); n > before-2_000_000 {
		t.Errorf("%d bytes of %d are left", n, before)
	}
	one.must("check", "--read-data", w.url)
	two.mount()
	two.sees("kept", kept)
	two.write("again", kept)
	two.umount()
	one.must("check", "--read-data", w.url)
}
