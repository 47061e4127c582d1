package fusefs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/dedupfs/dedupfs/fs"
)

// mountMem mounts an empty volume in memory until the test ends.
func mountMem(t *testing.T, o *Options) (mnt string, v *memVolume, s *Server) {
	t.Helper()
	v = newMemVolume()
	mnt = t.TempDir()
	return mnt, v, mount(t, v, mnt, o)
}

func mount[H Handle](t *testing.T, v Volume[H], dir string, o *Options) *Server {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("this system has no FUSE")
	}
	if o == nil {
		o = &Options{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := Mount(ctx, v, dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Unmount(); err != nil {
			t.Error(err)
			s.Detach()
		}
	})
	return s
}

// counter counts operations of a volume.
type counter struct {
	mu  sync.Mutex
	ops map[string]int
}

func (c *counter) fail(_ context.Context, op string, _ fs.Ino) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ops == nil {
		c.ops = map[string]int{}
	}
	c.ops[op]++
	return nil
}

func (c *counter) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	ops := c.ops
	c.ops = nil
	return ops
}

func TestKernelCaches(t *testing.T) {
	v := newMemVolume()
	var asked counter
	v.fail = asked.fail
	mnt := t.TempDir()
	mount(t, v, mnt, nil)
	file := filepath.Join(mnt, "f")
	content := bytes.Repeat([]byte("x"), 64*os.Getpagesize()) // whole pages: of others the kernel has only a part
	must(t, os.WriteFile(file, content, 0o644))
	must(t, os.Symlink("f", filepath.Join(mnt, "l")))

	t.Run("what was written", func(t *testing.T) {
		asked.take()
		for range 3 {
			if got := read(t, filepath.Join(mnt, "l")); got != string(content) {
				t.Fatal("content differs")
			}
		}
		if ops := asked.take(); ops["read"] > 0 || ops["lookup"] > 0 || ops["readlink"] > 1 || ops["flush"] > 0 {
			t.Errorf("reading three times what was just written asked for %v", ops)
		}
	})
	t.Run("names that do not exist", func(t *testing.T) {
		for range 3 {
			if _, err := os.Lstat(filepath.Join(mnt, "none")); !errors.Is(err, syscall.ENOENT) {
				t.Fatalf("Lstat = %v, want ENOENT", err)
			}
		}
		if n := asked.take()["lookup"]; n != 1 {
			t.Errorf("three look-ups in vain asked %d times, want 1", n)
		}
	})
	t.Run("until a change is announced", func(t *testing.T) {
		ino := inode(t, file)
		v.mu.Lock()
		i := v.inodes[ino]
		copy(i.data, "changed")
		v.inodes[fs.Root].entries = append(v.inodes[fs.Root].entries, memEntry{"none", ino, 1 << 20})
		v.mu.Unlock()
		if got := read(t, file); strings.HasPrefix(got, "changed") {
			t.Fatal("content is not cached: nothing is tested here")
		}
		v.notifier.InvalInode(ino, 0, -1)
		v.notifier.InvalEntry(fs.Root, []byte("none"))
		if got := read(t, file); !strings.HasPrefix(got, "changed") {
			t.Error("old content after InvalInode")
		}
		if got := inode(t, filepath.Join(mnt, "none")); got != ino {
			t.Errorf("new name after InvalEntry is inode %d, want %d", got, ino)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	must(t, err)
	return string(b)
}

func stat(t *testing.T, file string) (st unix.Stat_t) {
	t.Helper()
	must(t, unix.Lstat(file, &st))
	return st
}

func inode(t *testing.T, file string) fs.Ino {
	t.Helper()
	return fs.Ino(stat(t, file).Ino)
}

// TestLookupsBalance checks that the kernel takes back as many look-ups as the volume has counted: with too few, inodes stay
// in memory for ever; with too many, they go while they are in use.
func TestLookupsBalance(t *testing.T) {
	mnt, v, _ := mountMem(t, nil)
	for i := range 300 {
		name := filepath.Join(mnt, fmt.Sprint("f", i))
		must(t, os.WriteFile(name, nil, 0o644))
		must(t, os.Link(name, name+"l"))
		must(t, os.Mkdir(name+"d", 0o755))
		must(t, os.Symlink("x", name+"s"))
	}
	for range 3 {
		out, err := exec.Command("ls", "-lR", mnt).Output() // with attributes, hence READDIRPLUS
		if err != nil || bytes.Count(out, []byte("\n")) < 1200 {
			t.Fatalf("ls: %v, %d lines", err, bytes.Count(out, []byte("\n")))
		}
	}
	must(t, os.RemoveAll(filepath.Join(mnt, "f0")))
	dropCaches(t)
	waitFor(t, "all look-ups to be taken back", func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		for _, i := range v.inodes {
			if i.Ino != fs.Root && i.lookups != 0 {
				return false
			}
		}
		return true
	})
}

// dropCaches makes the kernel forget what nobody uses.
func dropCaches(t *testing.T) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0); err != nil {
		t.Skip(err)
	}
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func TestAttributes(t *testing.T) {
	mnt, v, _ := mountMem(t, nil)
	file := filepath.Join(mnt, "f")
	must(t, os.WriteFile(file, []byte("12345"), 0o644))
	for _, ts := range []unix.Timespec{{Sec: -2177452800, Nsec: 1}, {Sec: -1, Nsec: 999_999_999}, {Sec: 1 << 33, Nsec: 7}} {
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, file, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, ts}, 0))
		v.notifier.InvalInode(inode(t, file), -1, 0)
		if got := stat(t, file).Mtim; got != ts {
			t.Errorf("mtime = %v, want %v", got, ts)
		}
	}
	must(t, os.Lchown(file, 4294967294, 3000000000))
	must(t, unix.Chmod(file, 0o7751))
	st := stat(t, file)
	if st.Uid != 4294967294 || st.Gid != 3000000000 || st.Mode != unix.S_IFREG|0o7751 {
		t.Errorf("owner %d:%d mode %o, want 4294967294:3000000000 107751", st.Uid, st.Gid, st.Mode)
	}
	must(t, unix.Mknod(filepath.Join(mnt, "dev"), unix.S_IFCHR|0o600, int(unix.Mkdev(0x123, 0x45678))))
	if got := stat(t, filepath.Join(mnt, "dev")).Rdev; got != unix.Mkdev(0x123, 0x45678) {
		t.Errorf("device number %#x, want %#x", got, unix.Mkdev(0x123, 0x45678))
	}
	var sx unix.Statx_t
	must(t, unix.Statx(unix.AT_FDCWD, file, 0, unix.STATX_BTIME|unix.STATX_SIZE, &sx))
	if born := time.Unix(sx.Btime.Sec, int64(sx.Btime.Nsec)); sx.Mask&unix.STATX_BTIME == 0 || time.Since(born).Abs() > time.Minute || sx.Size != 5 {
		t.Errorf("statx: mask %#x, born %v, size %d; want a time of birth just now, size 5", sx.Mask, born, sx.Size)
	}
}

// TestKillPriv checks that a write, a truncation and an opening with O_TRUNC by somebody who is not root clear set-user-id.
func TestKillPriv(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	mnt, _, _ := mountMem(t, &Options{AllowOther: true})
	must(t, os.Chmod(filepath.Dir(mnt), 0o755))
	must(t, os.Chmod(filepath.Dir(filepath.Dir(mnt)), 0o755))
	file := filepath.Join(mnt, "f")
	for _, script := range []string{"printf x >>f", ": >f", "truncate -s 3 f", "dd if=/dev/zero of=f bs=1 count=1 conv=notrunc"} {
		must(t, os.WriteFile(file, []byte("123456"), 0o666))
		must(t, unix.Chmod(file, 0o4777))
		// Not cmd.Dir: between fork and exec the child would wait for this process, which cannot go on before exec.
		cmd := exec.Command("sh", "-c", `cd "$1" && `+script, "sh", mnt)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
		if mode := stat(t, file).Mode & 0o7777; mode != 0o777 {
			t.Errorf("after %q mode is %o, want 777", script, mode)
		}
	}
}

func TestXattrSizes(t *testing.T) {
	mnt, _, _ := mountMem(t, nil)
	file := filepath.Join(mnt, "f")
	must(t, os.WriteFile(file, nil, 0o644))
	for _, size := range []int{0, 1, 4095, 65535, 65536} {
		value := bytes.Repeat([]byte{7}, size)
		must(t, unix.Setxattr(file, "user.a", value, 0))
		if n, err := unix.Getxattr(file, "user.a", nil); n != size || err != nil {
			t.Errorf("size of %d bytes: %d, %v", size, n, err)
		}
		got := make([]byte, 65536)
		if n, err := unix.Getxattr(file, "user.a", got); err != nil || !bytes.Equal(got[:n], value) {
			t.Errorf("%d bytes: got %d, %v", size, n, err)
		}
	}
	if _, err := unix.Getxattr(file, "user.a", make([]byte, 100)); err != unix.ERANGE {
		t.Errorf("short buffer: %v, want ERANGE", err)
	}
	if err := unix.Setxattr(file, "user.a", make([]byte, 65537), 0); err != unix.E2BIG {
		t.Errorf("65537 bytes: %v, want E2BIG", err)
	}
	if _, err := unix.Getxattr(file, "user.b", nil); err != unix.ENODATA {
		t.Errorf("no such attribute: %v, want ENODATA", err)
	}
}

// TestInterrupt checks that a program that waits for a slow remote can be stopped, and the work for it too.
func TestInterrupt(t *testing.T) {
	v := newMemVolume()
	started, ended := make(chan struct{}), make(chan struct{})
	v.fail = func(ctx context.Context, op string, _ fs.Ino) error {
		if op != "open" {
			return nil
		}
		close(started)
		<-ctx.Done()
		close(ended)
		return fmt.Errorf("fetch: %w", ctx.Err())
	}
	mnt := t.TempDir()
	mount(t, v, mnt, nil)
	must(t, unix.Mknod(filepath.Join(mnt, "f"), unix.S_IFREG|0o644, 0))
	cmd := exec.Command("cat", filepath.Join(mnt, "f"))
	must(t, cmd.Start())
	<-started
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	if err := cmd.Wait(); err == nil {
		t.Error("cat has succeeded")
	}
	<-ended
}

// TestSignals sends a program that waits signals that it handles, and some that do nothing: on a file system that is not remote it
// would see none of them before the call has ended.
func TestSignals(t *testing.T) {
	v := newMemVolume()
	var broken atomic.Bool
	started := make(chan struct{}, 100)
	v.fail = func(ctx context.Context, op string, _ fs.Ino) error {
		if op != "mkdir" {
			return nil
		}
		started <- struct{}{}
		select {
		case <-ctx.Done():
			broken.Store(true)
			return fmt.Errorf("fetch: %w", ctx.Err())
		case <-time.After(3 * signalsEvery):
			return nil
		}
	}
	mnt := t.TempDir()
	mount(t, v, mnt, nil)
	handled := make(chan os.Signal, 100)
	signal.Notify(handled, syscall.SIGALRM, syscall.SIGUSR1)
	defer signal.Stop(handled)
	for i, sig := range []syscall.Signal{syscall.SIGALRM, syscall.SIGUSR1, syscall.SIGCHLD, syscall.SIGURG, syscall.SIGCONT, syscall.SIGWINCH} {
		thread, made := make(chan int, 1), make(chan error, 1)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			thread <- unix.Gettid()
			made <- unix.Mkdir(filepath.Join(mnt, fmt.Sprint(i)), 0o755)
		}()
		<-started
		must(t, unix.Tgkill(os.Getpid(), <-thread, sig))
		if err := <-made; err != nil {
			t.Errorf("mkdir with %v: %v", sig, err)
		}
	}
	if broken.Load() {
		t.Error("a request was given up")
	}
	// What comes after a harmless one counts even so, although the kernel tells of the first alone.
	cmd := exec.Command("mkdir", filepath.Join(mnt, "d"))
	must(t, cmd.Start())
	<-started
	must(t, cmd.Process.Signal(syscall.SIGSTOP))
	time.Sleep(signalsEvery)
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	must(t, cmd.Process.Signal(syscall.SIGCONT))
	if err := cmd.Wait(); err == nil || !broken.Load() {
		t.Errorf("mkdir with SIGTERM after SIGSTOP: %v, given up %v", err, broken.Load())
	}
}

// TestPendingIsLogged checks that a request that hangs is named, and that unmounting by force does not wait for it.
func TestPendingIsLogged(t *testing.T) {
	v := newMemVolume()
	v.fail = func(ctx context.Context, op string, _ fs.Ino) error {
		if op == "mkdir" {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	var text syncBuffer
	mnt := t.TempDir()
	mount(t, v, mnt, &Options{Pending: 50 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&text, nil))})
	cmd := exec.Command("mkdir", filepath.Join(mnt, "d"))
	must(t, cmd.Start())
	waitFor(t, "a line about mkdir", func() bool {
		return strings.Contains(text.String(), `msg="request pending" op=mkdir inode=1 age=`)
	})
	must(t, cmd.Process.Kill())
	cmd.Wait()
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// TestPanic checks that a fault of ours in one request is EIO there and nothing elsewhere.
func TestPanic(t *testing.T) {
	v := newMemVolume()
	v.fail = func(_ context.Context, op string, _ fs.Ino) error {
		if op == "mkdir" {
			panic("test")
		}
		return nil
	}
	mnt := t.TempDir()
	var text syncBuffer
	mount(t, v, mnt, &Options{Log: slog.New(slog.NewTextHandler(&text, nil))})
	if err := os.Mkdir(filepath.Join(mnt, "d"), 0o755); !errors.Is(err, syscall.EIO) {
		t.Errorf("mkdir = %v, want EIO", err)
	}
	if !strings.Contains(text.String(), "panic in FS handler: test") {
		t.Errorf("logged %q, want the panic", text.String())
	}
	must(t, os.WriteFile(filepath.Join(mnt, "f"), []byte("x"), 0o644))
}

func TestMountFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o644))
	broken := newMemVolume()
	broken.fail = func(context.Context, string, fs.Ino) error { return errors.New("no root") }
	live, _, _ := mountMem(t, nil)
	for _, tc := range []struct {
		name string
		v    *memVolume
		dir  string
		want error
		text string
	}{
		{"no directory", newMemVolume(), filepath.Join(t.TempDir(), "none"), syscall.ENOENT, "does not exist; create it first"},
		{"a file", newMemVolume(), file, syscall.ENOTDIR, "not a directory"},
		{"mounted already", newMemVolume(), live, syscall.EBUSY, "unmount it first"},
		{"broken root", broken, t.TempDir(), nil, "read the root directory: no root"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := mounts(t)
			_, err := Mount(t.Context(), tc.v, tc.dir, nil)
			if err == nil || tc.want != nil && !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("Mount = %v, want %q", err, tc.text)
			}
			if after := mounts(t); after != before {
				t.Errorf("%d mounts after, %d before", after, before)
			}
		})
	}
}

// mounts returns how many file systems of ours are mounted.
func mounts(t *testing.T) int {
	return strings.Count(read(t, "/proc/self/mountinfo"), " - fuse.dedupfs ")
}

func TestMountPointNames(t *testing.T) {
	for _, name := range []string{"a,b:c=d e\n\"'", `back\slash\040`, "-o", "bad\xffutf8", "täst#"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), name)
			must(t, os.Mkdir(dir, 0o755))
			source := `local:"x",y z\`
			mount(t, newMemVolume(), dir, &Options{Source: source})
			if kind, mounted := topMount(dir); !mounted || kind != "fuse.dedupfs" {
				t.Errorf("topMount = %q, %v; want fuse.dedupfs", kind, mounted)
			}
			must(t, os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o644))
		})
	}
}

func TestMountFlags(t *testing.T) {
	for _, tc := range []struct {
		options []string
		want    []string
	}{
		{nil, []string{"rw", "nosuid", "nodev"}},
		{[]string{"noexec", "noatime"}, []string{"nosuid", "nodev", "noexec", "noatime"}},
		{[]string{"dev", "suid"}, []string{"!nosuid", "!nodev"}},
		{[]string{"ro"}, []string{"ro"}},
		{[]string{"ro", "rw"}, []string{"rw"}},
		{[]string{"allow_other"}, []string{"allow_other", "default_permissions"}},
	} {
		t.Run(strings.Join(tc.options, ","), func(t *testing.T) {
			if os.Getuid() != 0 {
				t.Skip("needs root")
			}
			mnt, _, _ := mountMem(t, &Options{Mount: tc.options})
			got := shownOptions(t, mnt)
			for _, want := range tc.want {
				name, not := strings.CutPrefix(want, "!")
				if slices.Contains(got, name) == not {
					t.Errorf("mounted with %v, want %s", got, want)
				}
			}
			err := os.WriteFile(filepath.Join(mnt, "f"), nil, 0o644)
			if readOnly := slices.Contains(tc.want, "ro"); readOnly != errors.Is(err, syscall.EROFS) {
				t.Errorf("write = %v on a mount that is read-only: %v", err, readOnly)
			}
		})
	}
}

// shownOptions returns the options of the mount at dir as /proc/mounts shows them.
func shownOptions(t *testing.T, dir string) []string {
	for line := range strings.Lines(read(t, "/proc/mounts")) {
		if fields := strings.Fields(line); fields[1] == dir {
			return strings.Split(fields[3], ",")
		}
	}
	t.Fatalf("%s is not mounted", dir)
	return nil
}

func TestAllowsOther(t *testing.T) {
	for conf, want := range map[string]bool{
		"":                                   false,
		"# user_allow_other\n":               false,
		"mount_max = 10\nuser_allow_other\n": true,
		"user_allow_other # everybody":       true,
		"user_allow_other_things\n":          false,
	} {
		if got := allowsOther(conf); got != want {
			t.Errorf("allowsOther(%q) = %v, want %v", conf, got, want)
		}
	}
}

func TestReadAhead(t *testing.T) {
	mnt, _, _ := mountMem(t, nil)
	dev := stat(t, mnt).Dev
	path := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(dev), unix.Minor(dev))
	if f, err := os.OpenFile(path, os.O_WRONLY, 0); err != nil {
		t.Skip(err)
	} else {
		f.Close()
	}
	if got := strings.TrimSpace(read(t, path)); got != "1024" {
		t.Errorf("read_ahead_kb = %s, want 1024", got)
	}
}

func TestUnmount(t *testing.T) {
	t.Run("busy", func(t *testing.T) {
		mnt, v, s := mountMem(t, nil)
		f, err := os.Create(filepath.Join(mnt, "f"))
		must(t, err)
		if err := s.Unmount(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("Unmount = %v, want EBUSY", err)
		}
		must(t, f.Close())
		waitFor(t, "the mount to be free", func() bool { return s.Unmount() == nil })
		must(t, s.Unmount())
		if v.open != 0 {
			t.Errorf("%d files were not released", v.open)
		}
	})
	t.Run("from outside", func(t *testing.T) {
		mnt, _, s := mountMem(t, nil)
		must(t, unmount(mnt))
		s.Wait()
		must(t, s.Unmount())
	})
	t.Run("detach", func(t *testing.T) {
		mnt, v, s := mountMem(t, nil)
		f, err := os.Create(filepath.Join(mnt, "f"))
		must(t, err)
		must(t, s.Detach())
		if _, mounted := topMount(mnt); mounted {
			t.Error("still mounted after Detach")
		}
		if _, err := f.WriteString("still here"); err != nil {
			t.Error(err)
		}
		must(t, f.Close())
		s.Wait()
		if v.open != 0 {
			t.Errorf("%d files were not released", v.open)
		}
	})
	t.Run("abort", func(t *testing.T) {
		mnt, v, s := mountMem(t, nil)
		f, err := os.Create(filepath.Join(mnt, "f"))
		must(t, err)
		defer f.Close()
		control := t.TempDir()
		if err := unix.Mount("none", control, "fusectl", 0, ""); err != nil {
			t.Skip(err)
		}
		defer unix.Unmount(control, 0)
		must(t, os.WriteFile(fmt.Sprintf("%s/%d/abort", control, unix.Minor(stat(t, mnt).Dev)), []byte("1"), 0))
		s.Wait()
		if v.open != 0 {
			t.Errorf("%d files were not released", v.open)
		}
		must(t, detach(mnt))
	})
}

// bareMount mounts a file system of the given type that nobody serves. It is dead once fd is closed, and hangs before.
func bareMount(t *testing.T, dir, kind string) (fd int) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip(err)
	}
	must(t, unix.Mount("test", dir, kind, 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)))
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return fd
}

func TestDeadMount(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a b")
	must(t, os.Mkdir(dir, 0o755))
	for range 2 { // one on the other
		unix.Close(bareMount(t, dir, "fuse.dedupfs"))
	}
	if _, err := os.Stat(dir); !errors.Is(err, syscall.ENOTCONN) {
		t.Fatalf("stat of a dead mount = %v, want ENOTCONN", err)
	}
	mount(t, newMemVolume(), dir, nil)
	must(t, os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o644))
	if got := strings.Count(read(t, "/proc/self/mountinfo"), filepath.Dir(dir)+"/"); got != 1 {
		t.Errorf("%d mounts at %s, want 1", got, dir)
	}
}

func TestDeadMountOfOthers(t *testing.T) {
	dir := t.TempDir()
	unix.Close(bareMount(t, dir, "fuse.other"))
	if _, err := Mount(t.Context(), newMemVolume(), dir, nil); err == nil || !strings.Contains(err.Error(), "another program") {
		t.Errorf("Mount = %v, want it to be refused", err)
	}
	if kind, _ := topMount(dir); kind != "fuse.other" {
		t.Errorf("on %s is %q now", dir, kind)
	}
}

// TestHungMount checks that mounting does not wait for ever for a mount whose process hangs.
func TestHungMount(t *testing.T) {
	dir := t.TempDir()
	defer unix.Close(bareMount(t, dir, "fuse.dedupfs"))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := Mount(ctx, newMemVolume(), dir, nil); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("Mount = %v, want it to give up", err)
	}
}

// TestConcurrent lists, creates and removes in one directory from several goroutines while the kernel forgets: no entry that
// stays may be missing from a listing, and nothing may hang.
func TestConcurrent(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		mnt, _, _ := mountMem(t, nil)
		runConcurrent(t, mnt)
	})
	t.Run("volume", func(t *testing.T) {
		_, repo := newRepository(t)
		runConcurrent(t, newMachine(t, repo).mnt)
	})
}

func runConcurrent(t *testing.T, mnt string) {
	for i := range 200 {
		must(t, os.WriteFile(filepath.Join(mnt, fmt.Sprint("stays", i)), []byte("x"), 0o644))
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	for g := range 3 {
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				name := filepath.Join(mnt, fmt.Sprintf("goes%d.%d", g, i%50))
				if err := os.WriteFile(name, []byte(name), 0o644); err != nil {
					t.Error(err)
				}
				if got, err := os.ReadFile(name); string(got) != name {
					t.Errorf("%s has %q, %v", name, got, err)
				}
				if err := os.Remove(name); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 50 {
		if i%10 == 0 {
			os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0)
		}
		if n := countStaying(t, mnt); n != 200 {
			t.Errorf("listing has %d of the 200 files that stay", n)
		}
	}
	stop.Store(true)
	wg.Wait()
}

func countStaying(t *testing.T, dir string) (n int) {
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "stays") {
			n++
		}
	}
	return n
}

func TestEIOIsLogged(t *testing.T) {
	var text bytes.Buffer
	r := newRaw(newMemVolume(), (&Options{Log: slog.New(slog.NewTextHandler(&text, nil))}).withDefaults())
	h := &fuse.InHeader{NodeId: 42}
	c := r.begin("read", h, nil)
	defer c.end()

	if got := r.answer(c, syscall.ENOENT); got != fuse.ENOENT || text.Len() > 0 {
		t.Errorf("answer(ENOENT) = %v, logged %q; want no line", got, text.String())
	}
	if got := r.answer(c, errors.New("surprise")); got != fuse.EIO {
		t.Errorf("answer(surprise) = %v, want EIO", got)
	}
	if !strings.Contains(text.String(), "read of inode 42: surprise") {
		t.Errorf("logged %q, want operation, inode and cause", text.String())
	}
}
