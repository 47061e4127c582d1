//go:build linux

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// sourceTree returns a tree of real files: in the long run all of the Go
// toolchain's own source, else a part of it.
func sourceTree(t *testing.T) string {
	t.Helper()
	goroot := strings.TrimSpace(runTool(t, "go", "env", "GOROOT"))
	if long {
		return filepath.Join(goroot, "src")
	}
	return filepath.Join(goroot, "src", "cmd", "compile")
}

// The storage and the password alone bring everything back, to the nanosecond.
func TestRemoteIsEnough(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	src := sourceTree(t)
	copyTree(t, src, m.path("tree"))
	if err := os.Mkdir(m.path("varied"), 0o755); err != nil {
		t.Fatal(err)
	}
	varied(t, m.path("varied"))
	old := time.Unix(-2177452800, 1) // 1901-01-01, which most file systems cannot keep
	if err := os.Chtimes(m.path("varied/suid"), old, old); err != nil {
		t.Fatal(err)
	}
	before := describe(t, m.mnt)
	diffTrees(t, src, m.path("tree"))
	m.umount()

	m.wipe()
	m.mount()
	diffTrees(t, src, m.path("tree"))
	sameTree(t, before, describe(t, m.mnt))
	m.umount()
	m.checkPeak()
}

// Times, modes and owners of a tree that is copied in are those of the source.
func TestCopyKeepsMetadata(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	src := filepath.Join(w.dir, "src")
	varied(t, src)
	copyTree(t, src, m.path("copy"))
	sameTree(t, describe(t, src), describe(t, m.path("copy")))
	m.umount()
}

// A machine that has never been there sees what was committed, and follows.
func TestSecondMachineFollows(t *testing.T) {
	w := newWorld(t)
	a, b := w.machine("a"), w.machine("b")
	a.mount()
	a.write("first", []byte("one"))
	a.must("sync", a.mnt)

	b.mount("--poll=200ms")
	b.sees("first", []byte("one"))
	a.write("second", []byte("two"))
	a.write("first", []byte("changed"))
	a.must("sync", a.mnt)
	b.eventually(20*time.Second, "the second file", func() bool {
		_, err := os.Stat(b.path("second"))
		return err == nil
	})
	b.sees("second", []byte("two"))
	b.sees("first", []byte("changed"))

	if err := os.RemoveAll(a.path("first")); err != nil {
		t.Fatal(err)
	}
	a.must("sync", a.mnt)
	b.must("sync", b.mnt)
	if _, err := os.Stat(b.path("first")); !os.IsNotExist(err) {
		t.Errorf("Stat of a file that the other machine removed = %v, want not exist", err)
	}
	a.umount()
	b.umount()
}

// A snapshot keeps what was there, in the mount and for the command.
func TestSnapshot(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	if err := os.Mkdir(m.path("dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	varied(t, m.path("dir"))
	before := describe(t, m.path("dir"))
	m.must("snapshot", "create", "one", m.mnt)
	if err := os.RemoveAll(m.path("dir")); err != nil {
		t.Fatal(err)
	}
	m.write("later", []byte("later"))

	sameTree(t, before, describe(t, m.path(".snapshots/one/dir")))
	if err := os.WriteFile(m.path(".snapshots/one/new"), nil, 0o644); err == nil {
		t.Error("a file can be made in a snapshot")
	}
	if entries, err := os.ReadDir(m.mnt); err != nil || len(entries) != 1 {
		t.Errorf("ReadDir of the root = %v, %v, want the one file and no .snapshots", entries, err)
	}
	if list := m.must("snapshot", "list", m.mnt); !strings.Contains(list, "one") {
		t.Errorf("snapshot list does not name it:\n%s", list)
	}
	m.umount()

	target := filepath.Join(w.dir, "restored")
	m.must("restore", "one:dir", target)
	sameTree(t, before, describe(t, target))
	m.must("restore", "latest:dir", target) // again, over what is there
	sameTree(t, before, describe(t, target))
	if got := m.must("cat", "one:dir/-rf"); got != "-" {
		t.Errorf("cat = %q, want %q", got, "-")
	}
	if got := m.must("ls", "one:dir"); !strings.Contains(got, `bad\xff\xfename`) || !strings.Contains(got, `new\nline`) {
		t.Errorf("ls does not escape names:\n%s", got)
	}
}

// Restoring goes nowhere through what others have put into the target.
func TestRestoreFollowsNoLinks(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	if err := os.MkdirAll(m.path("dir/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	m.write("dir/file", []byte("restored"))
	m.write("dir/sub/inner", []byte("restored"))
	m.must("snapshot", "create", "s", m.mnt)
	m.umount()

	victim, target := filepath.Join(w.dir, "victim"), filepath.Join(w.dir, "target")
	for _, dir := range []string{victim, target} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(victim, "file"), []byte("untouched"), 0o644); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"file": filepath.Join(victim, "file"), "sub": victim} {
		if err := os.Symlink(to, filepath.Join(target, link)); err != nil {
			t.Fatal(err)
		}
	}
	m.must("restore", "s:dir", target)
	if b, err := os.ReadFile(filepath.Join(target, "file")); err != nil || string(b) != "restored" {
		t.Errorf("restored file = %q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(victim, "file")); err != nil || string(b) != "untouched" {
		t.Errorf("victim = %q, %v, want it untouched", b, err)
	}
	if entries, _ := os.ReadDir(victim); len(entries) != 1 {
		t.Errorf("victim has %d entries, want 1", len(entries))
	}
}

// What cannot be restored is named, the rest is, and the exit code says partly.
func TestRestorePartly(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	m.write("blocked", []byte("x"))
	m.write("free", []byte("y"))
	m.must("snapshot", "create", "s", m.mnt)
	m.umount()
	target := filepath.Join(w.dir, "target")
	if err := os.MkdirAll(filepath.Join(target, "blocked", "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if message := m.fails(3, "restore", "s", target); !strings.Contains(message, "blocked") {
		t.Errorf("message does not name the file: %s", message)
	}
	if b, err := os.ReadFile(filepath.Join(target, "free")); err != nil || string(b) != "y" {
		t.Errorf("the other file = %q, %v", b, err)
	}
}

// Unmounting by the system's own means, or by a signal, loses nothing.
func TestOtherWaysToUnmount(t *testing.T) {
	for name, leave := range map[string]func(*machine){
		"umount": func(m *machine) {
			if err := syscall.Unmount(m.mnt, 0); err != nil {
				m.t.Fatal(err)
			}
		},
		"SIGTERM": func(m *machine) { m.daemon.Process.Signal(syscall.SIGTERM) },
		"SIGINT":  func(m *machine) { m.daemon.Process.Signal(syscall.SIGINT) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			m := w.machine("m")
			m.mount()
			m.write("file", []byte("safe"))
			leave(m)
			m.ended(0)
			m.wipe()
			m.mount()
			m.sees("file", []byte("safe"))
			m.umount()
		})
	}
}

// An open file makes umount fail and changes nothing.
func TestUmountBusy(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	f, err := os.Create(m.path("open"))
	if err != nil {
		t.Fatal(err)
	}
	if message := m.fails(1, "umount", m.mnt); !strings.Contains(message, "in use") {
		t.Errorf("message = %q, want a word about use", message)
	}
	if _, err := f.WriteString("still works"); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	m.sees("open", []byte("still works"))
	m.umount()
}

// mount -d returns when the mount can be used, and its daemon lives on.
func TestDaemon(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.must("mount", "-d", m.url, m.mnt)
	m.write("file", []byte("x"))
	if got := m.must("status", m.mnt); !strings.Contains(got, m.mnt) {
		t.Errorf("status does not name the mount:\n%s", got)
	}
	m.must("umount", m.mnt)
	if isMounted(m.mnt) {
		t.Fatal("umount has returned and it is still mounted")
	}
	if message := m.fails(1, "mount", "-d", m.url, m.mnt+"-missing"); !strings.Contains(message, "missing") {
		t.Errorf("the daemon's error does not reach the user: %q", message)
	}
	m.extra = []string{"DEDUPFS_PASSWORD=wrong"}
	m.fails(12, "mount", "-d", m.url, m.mnt)
}

// A socket path longer than the system allows is put elsewhere.
func TestLongCachePath(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.cache = filepath.Join(w.dir, strings.Repeat("long", 40))
	m.mount()
	m.write("file", []byte("x"))
	m.umount()
}

// A mount whose process was killed is cleared by umount and by the next mount.
func TestDeadMount(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	m.kill()
	if _, err := os.ReadDir(m.mnt); err == nil {
		t.Fatal("the mount of a killed process answers")
	}
	m.must("umount", m.mnt)
	if isMounted(m.mnt) {
		t.Fatal("umount has not cleared the dead mount")
	}
	m.mount()
	m.kill()
	m.mount()
	m.umount()
}
