//go:build linux

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const password = "correct horse battery staple"

// world is a storage and the machines that use it.
type world struct {
	t   *testing.T
	dir string
	url string // of the repository
}

// newWorld makes a directory with a repository in it.
func newWorld(t *testing.T, initFlags ...string) *world {
	t.Helper()
	needFUSE(t)
	w := emptyWorld(t)
	w.machine("init").must(append([]string{"init", "-q", w.url}, initFlags...)...)
	return w
}

// emptyWorld makes a directory and no repository.
func emptyWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	return &world{t: t, dir: dir, url: filepath.Join(dir, "repository")}
}

// remoteBytes returns what the objects on the storage take, in bytes.
func (w *world) remoteBytes() int64 {
	w.t.Helper()
	var sum int64
	for _, name := range w.objects() {
		fi, err := os.Stat(name)
		if err != nil {
			w.t.Fatal(err)
		}
		sum += fi.Size()
	}
	return sum
}

// objects returns the paths of all objects.
func (w *world) objects() []string {
	w.t.Helper()
	var names []string
	err := filepath.WalkDir(w.url, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return names
}

// machine is one computer: a cache directory and a mount point.
type machine struct {
	*world
	cache, mnt string
	extra      []string // environment

	daemon *exec.Cmd
	stderr *tail
	exited chan struct{}
	peak   int64 // most resident memory of all daemons so far, bytes
}

// machine returns a machine with this name, whose mounts end with the test.
func (w *world) machine(name string) *machine {
	w.t.Helper()
	m := &machine{world: w, cache: filepath.Join(w.dir, name+"-cache"), mnt: filepath.Join(w.dir, name)}
	if err := os.MkdirAll(m.mnt, 0o755); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(m.cleanup)
	return m
}

// cleanup ends what a failed test has left, and fails one that left something
// without having failed.
func (m *machine) cleanup() {
	left := isMounted(m.mnt)
	if left && !m.t.Failed() {
		m.t.Errorf("%s is left mounted", m.mnt)
	}
	if m.running() {
		if m.t.Failed() {
			m.t.Logf("last words of the daemon:\n%s", m.stderr)
		}
		m.kill()
	}
	for isMounted(m.mnt) {
		if err := syscall.Unmount(m.mnt, syscall.MNT_DETACH); err != nil {
			m.t.Errorf("clear %s: %v", m.mnt, err)
			return
		}
	}
}

// result is what came of a command.
type result struct {
	code           int
	stdout, stderr string
}

// run runs the command with the machine's cache directory.
func (m *machine) run(args ...string) result {
	m.t.Helper()
	cmd := m.command(args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		m.t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func (m *machine) command(args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Env = environment(append([]string{
		"DEDUPFS_PASSWORD=" + password, "DEDUPFS_CACHE_DIR=" + m.cache, "DEDUPFS_REPOSITORY=" + m.url,
	}, m.extra...)...)
	return cmd
}

// must runs a command that has to succeed, and returns what it prints.
func (m *machine) must(args ...string) string {
	m.t.Helper()
	r := m.run(args...)
	if r.code != 0 {
		m.t.Fatalf("dedupfs %s: exit code %d\n%s", strings.Join(args, " "), r.code, r.stderr)
	}
	return r.stdout
}

// fails runs a command that has to fail with code, and returns its message.
func (m *machine) fails(code int, args ...string) string {
	m.t.Helper()
	r := m.run(args...)
	if r.code != code {
		m.t.Fatalf("dedupfs %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), r.code, code, r.stdout, r.stderr)
	}
	return r.stderr
}

// mount mounts in the foreground and returns when the mount can be used.
func (m *machine) mount(flags ...string) {
	m.t.Helper()
	m.daemon = m.command(append([]string{"mount", m.url, m.mnt}, flags...)...)
	m.stderr = &tail{}
	m.daemon.Stderr = m.stderr
	if err := m.daemon.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.exited = make(chan struct{})
	go func() {
		m.daemon.Wait()
		close(m.exited)
	}()
	m.eventually(30*time.Second, "mount", func() bool {
		select {
		case <-m.exited:
			m.t.Fatalf("mount ended with code %d:\n%s", m.daemon.ProcessState.ExitCode(), m.stderr)
		default:
		}
		return strings.Contains(m.stderr.String(), "mounted at")
	})
}

// eventually waits until ok says so.
func (w *world) eventually(within time.Duration, what string, ok func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(within); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: not within %s", what, within)
		}
	}
}

// umount unmounts, and checks that the daemon has ended well.
func (m *machine) umount(flags ...string) {
	m.t.Helper()
	m.notePeak()
	m.must(append([]string{"umount", m.mnt}, flags...)...)
	m.ended(0)
}

// ended waits for the end of the daemon and checks its exit code.
func (m *machine) ended(code int) {
	m.t.Helper()
	select {
	case <-m.exited:
	case <-time.After(60 * time.Second):
		m.t.Fatalf("the daemon has not ended:\n%s", m.stderr)
	}
	if got := m.daemon.ProcessState.ExitCode(); got != code {
		m.t.Fatalf("the daemon ended with code %d, want %d:\n%s", got, code, m.stderr)
	}
	if isMounted(m.mnt) {
		m.t.Fatalf("%s is still mounted after the end of the daemon", m.mnt)
	}
}

func (m *machine) running() bool {
	if m.daemon == nil {
		return false
	}
	select {
	case <-m.exited:
		return false
	default:
		return true
	}
}

// kill kills the daemon. The dead mount stays, for the next mount to clear.
func (m *machine) kill() {
	m.notePeak()
	m.daemon.Process.Kill()
	<-m.exited
}

// wipe deletes the local state: what is not on the remote is gone.
func (m *machine) wipe() {
	m.t.Helper()
	if m.running() {
		m.t.Fatal("wipe under a running daemon")
	}
	if err := os.RemoveAll(m.cache); err != nil {
		m.t.Fatal(err)
	}
}

var vmHWM = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// notePeak remembers the most memory that the daemon has had.
func (m *machine) notePeak() {
	if !m.running() {
		return
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.daemon.Process.Pid))
	if err != nil {
		return
	}
	if match := vmHWM.FindSubmatch(status); match != nil {
		kib, _ := strconv.ParseInt(string(match[1]), 10, 64)
		m.peak = max(m.peak, kib<<10)
	}
}

// maxMemory is what a daemon may take, in bytes.
const maxMemory = 300 << 20

// checkPeak reports how much memory the daemons took, and fails if it was too much.
func (m *machine) checkPeak() {
	m.t.Helper()
	m.t.Logf("peak memory of the daemon: %d MiB", m.peak>>20)
	if m.peak == 0 || m.peak > maxMemory {
		m.t.Errorf("peak memory of the daemon = %d MiB, want at most %d MiB", m.peak>>20, maxMemory>>20)
	}
}

// isMounted reports whether something is mounted at dir, alive or dead.
func isMounted(dir string) bool {
	b, err := os.ReadFile("/proc/self/mountinfo")
	return err == nil && bytes.Contains(b, []byte(" "+dir+" "))
}

// path returns the path of a file in the mount.
func (m *machine) path(name string) string { return filepath.Join(m.mnt, name) }

// write writes a file in the mount.
func (m *machine) write(name string, data []byte) {
	m.t.Helper()
	if err := os.WriteFile(m.path(name), data, 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// sees checks that a file in the mount has this content.
func (m *machine) sees(name string, want []byte) {
	m.t.Helper()
	got, err := os.ReadFile(m.path(name))
	if err != nil {
		m.t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		m.t.Fatalf("%s: %d bytes differ from the %d that were written", name, len(got), len(want))
	}
}

// tail keeps what a process writes.
type tail struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

var _ io.Writer = (*tail)(nil)

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.Write(p)
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}
