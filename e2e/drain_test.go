//go:build linux

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// umount waits until all is on the remote, however slow that is, and shows how
// far it is.
func TestUmountWaits(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	size, rate := 24<<20, "8M"
	if long {
		size, rate = 256<<20, "20M"
	}
	data := randomBytes(randomOf(t), size)
	m.mount("--limit-upload=" + rate)
	m.write("big", data)
	start := time.Now()
	screen := m.onTerminal("umount", m.mnt)
	took := time.Since(start)
	m.ended(0)
	if took < time.Second {
		t.Errorf("umount took %s: nothing was at stake", took)
	}
	if !strings.Contains(screen, "uploading") || !strings.Contains(screen, "%") {
		t.Errorf("umount has shown no progress: %q", screen)
	}
	m.wipe()
	m.mount()
	m.sees("big", data)
	m.umount()
	m.checkPeak()
}

// umount --no-wait returns at once, and the next mount uploads the rest.
func TestUmountNoWait(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	data := randomBytes(randomOf(t), 8<<20)
	m.mount("--limit-upload=500K")
	m.write("big", data)
	start := time.Now()
	m.umount("--no-wait")
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("umount --no-wait took %s", took)
	}
	if got := w.remoteBytes(); got > int64(len(data))/2 {
		t.Errorf("the storage has %d bytes already: nothing was at stake", got)
	}
	m.mount()
	m.sees("big", data)
	m.umount()
	m.wipe()
	m.mount()
	m.sees("big", data)
	m.umount()
}

// umount --timeout gives up with a code of its own, and the mount stays.
func TestUmountTimeout(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.mount("--limit-upload=500K")
	data := randomBytes(randomOf(t), 6<<20)
	m.write("big", data)
	m.fails(30, "umount", "--timeout=1s", m.mnt)
	m.sees("big", data)
	m.kill()
	m.must("umount", m.mnt) // what a killed process has left
}

// A second interrupt stops the upload at once; nothing is lost.
func TestInterruptTwice(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.mount("--limit-upload=200K")
	data := randomBytes(randomOf(t), 6<<20)
	m.write("big", data)
	m.daemon.Process.Signal(syscall.SIGINT)
	m.eventually(20*time.Second, "the unmount", func() bool { return !isMounted(m.mnt) })
	m.daemon.Process.Signal(syscall.SIGINT)
	m.ended(130)
	m.mount()
	m.sees("big", data)
	m.umount()
}

// A remote that is away: a repository that was opened before can be mounted,
// read where it is known, and written to.
func TestOffline(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	server := newServer(t, w.url)
	m.url = server.url()
	m.mount()
	m.write("known", []byte("known"))
	m.umount()

	server.stop()
	m.fails(15, "check", m.url)
	m.mount("--offline=1s")
	m.sees("known", []byte("known"))
	m.write("made off line", []byte("new"))
	m.umount("--no-wait")

	other := w.machine("other")
	other.url = m.url
	other.fails(15, "mount", other.url, other.mnt)

	server.start()
	m.mount()
	m.umount()
	other.mount()
	other.sees("made off line", []byte("new"))
	other.umount()
}

// onTerminal runs a command whose output is a terminal, and returns what it
// shows there.
func (m *machine) onTerminal(args ...string) string {
	m.t.Helper()
	ours, theirs := newTerminal(m.t)
	cmd := m.command(args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	theirs.Close()
	var screen bytes.Buffer
	screen.ReadFrom(ours) // ends with EIO when the command has
	ours.Close()
	if err := cmd.Wait(); err != nil {
		m.t.Fatalf("%v\n%s", err, screen.String())
	}
	return screen.String()
}

// newTerminal returns both ends of a pseudo-terminal.
func newTerminal(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(ours.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return ours, theirs
}
