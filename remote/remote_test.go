package remote_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/rclone/rclone/fs/config/obscure"
)

// TestMain keeps the user's own rclone configuration out of the tests.
func TestMain(m *testing.M) {
	os.Setenv("RCLONE_CONFIG", "/notfound")
	os.Exit(m.Run())
}

func open(t testing.TB, url string, o *remote.Options) *remote.Remote {
	t.Helper()
	r, err := remote.Open(t.Context(), url, o)
	if err != nil {
		t.Fatalf("Open(%s): %v", url, err)
	}
	return r
}

func TestLocal(t *testing.T) {
	remotetest.TestStorage(t, func(t *testing.T) remote.Storage { return open(t, t.TempDir(), nil) })
}

// TestRclone runs the suite against rclone's own local and memory backends, so
// that both ways of uploading are covered without a server.
func TestRclone(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		remotetest.TestStorage(t, func(t *testing.T) remote.Storage {
			return open(t, ":memory:"+strings.ReplaceAll(t.Name(), "/", "-"), nil)
		})
	})
	t.Run("renaming", func(t *testing.T) {
		remotetest.TestStorage(t, func(t *testing.T) remote.Storage {
			return open(t, ":combine,upstreams='sub="+t.TempDir()+"':sub", nil)
		})
	})
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		url  string
		want error
		text string
	}{
		{filepath.Join(dir, "missing"), remote.ErrNotExist, "root of the repository not found"},
		{":local:" + filepath.Join(dir, "missing"), remote.ErrNotExist, ""},
		{file, nil, "not a directory"},
		{":local:" + file, nil, "is a file and not a directory"},
		{"nosuch:path", nil, "this remote is not in the rclone configuration"},
		{":nosuch:path", nil, ""},
		{"", nil, "empty"},
		{":sftp,host=127.0.0.1,port=1,user=u,pass=" + obscure.MustObscure("geheim") + ":x", remote.ErrUnreachable, "refused"},
	} {
		r, err := remote.Open(t.Context(), test.url, &remote.Options{Retries: 1})
		if err == nil {
			t.Errorf("Open(%s) = %v, want an error", test.url, r)
			continue
		}
		if test.want != nil && !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) {
			t.Errorf("Open(%s) = %v, want %v with %q", test.url, err, test.want, test.text)
		}
		if strings.Contains(err.Error(), "geheim") {
			t.Errorf("Open error tells the password: %v", err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "missing")); err == nil {
		t.Error("Open made the missing directory")
	}
}

func TestOpenCreates(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	r := open(t, dir, &remote.Options{Create: true})
	if !r.Local() || r.SettleTimeDefault() != 0 || r.String() != dir || r.HashName() != "" {
		t.Errorf("Local, settle time, String, hash = %v, %v, %s, %q", r.Local(), r.SettleTimeDefault(), r, r.HashName())
	}
	m := open(t, ":memory:creates", &remote.Options{Create: true})
	if m.Local() || m.SettleTimeDefault() != time.Hour || m.HashName() != "md5" {
		t.Errorf("Local, settle time, hash = %v, %v, %q", m.Local(), m.SettleTimeDefault(), m.HashName())
	}
}

func TestOpenRelative(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("repo", 0o700); err != nil {
		t.Fatal(err)
	}
	r := open(t, "repo", nil)
	t.Chdir("/")
	if err := r.Put(t.Context(), "a", nil); err != nil {
		t.Errorf("Put after a change of directory: %v", err)
	}
}

func TestOpenAlias(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("RCLONE_CONFIG_MYDISK_TYPE", "alias")
	t.Setenv("RCLONE_CONFIG_MYDISK_REMOTE", dir)
	r := open(t, "mydisk:", nil)
	if !r.Local() {
		t.Error("an alias of a directory is not local")
	}
	if err := r.Put(t.Context(), "a", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "a")); err != nil {
		t.Error(err)
	}
}

func TestConfigFile(t *testing.T) {
	dir := t.TempDir()
	conf := filepath.Join(dir, "rclone.conf")
	write := func(s string) {
		if err := os.WriteFile(conf, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("plain", func(t *testing.T) {
		t.Setenv("RCLONE_CONFIG", conf)
		write("[here]\ntype = local\n")
		open(t, "here:"+dir, nil)
	})
	t.Run("encrypted", func(t *testing.T) {
		enc := filepath.Join(dir, "encrypted.conf")
		t.Setenv("RCLONE_CONFIG", enc)
		text := "# Encrypted rclone configuration File\n\nRCLONE_ENCRYPT_V0:\n" + strings.Repeat("QUJD", 40) + "\n"
		if err := os.WriteFile(enc, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := remote.Open(t.Context(), "here:x", nil)
		if err == nil || !strings.Contains(err.Error(), "encrypted; set RCLONE_CONFIG_PASS") {
			t.Errorf("Open = %v, want advice to set RCLONE_CONFIG_PASS", err)
		}
		open(t, dir, nil) // needs no configuration
		t.Setenv("RCLONE_CONFIG_PASS", "falsch")
		_, err = remote.Open(t.Context(), "here:x", nil)
		if err == nil || strings.Contains(err.Error(), "falsch") {
			t.Errorf("Open with a wrong password = %v", err)
		}
	})
}

// TestDeferred opens a storage that is away, and uses it when it is back.
func TestDeferred(t *testing.T) {
	r, err := remote.Open(t.Context(), ":sftp,host=127.0.0.1,port=1,user=u,pass="+obscure.MustObscure("geheim")+":x", &remote.Options{Deferred: true, Retries: 1})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if err := r.Put(t.Context(), "a", nil); !errors.Is(err, remote.ErrUnreachable) {
		t.Errorf("Put = %v, want ErrUnreachable", err)
	}
	if _, err := remote.Open(t.Context(), "/no/such/dir", &remote.Options{Deferred: true}); !errors.Is(err, remote.ErrNotExist) {
		t.Errorf("Open of a missing directory = %v, want ErrNotExist", err)
	}
}

func TestLocalRootGone(t *testing.T) {
	ctx := t.Context()
	dir := filepath.Join(t.TempDir(), "repo")
	r := open(t, dir, &remote.Options{Create: true})
	if err := r.Put(ctx, "ab/1", []byte("x")); err != nil {
		t.Fatal(err)
	}
	check := func(state string) {
		t.Helper()
		if err := r.Put(ctx, "ab/2", nil); !errors.Is(err, remote.ErrRootGone) || !errors.Is(err, remote.ErrNotExist) {
			t.Errorf("%s: Put = %v, want ErrRootGone", state, err)
		}
		if _, err := r.Get(ctx, "ab/1", 0, -1); !errors.Is(err, remote.ErrRootGone) {
			t.Errorf("%s: Get = %v, want ErrRootGone", state, err)
		}
		if err := r.List(ctx, "ab", nil); !errors.Is(err, remote.ErrRootGone) {
			t.Errorf("%s: List = %v, want ErrRootGone", state, err)
		}
		if err := r.Delete(ctx, "ab/1"); !errors.Is(err, remote.ErrRootGone) {
			t.Errorf("%s: Delete = %v, want ErrRootGone", state, err)
		}
		if err := r.Sync(ctx); !errors.Is(err, remote.ErrRootGone) {
			t.Errorf("%s: Sync = %v, want ErrRootGone", state, err)
		}
	}
	away := dir + ".away"
	if err := os.Rename(dir, away); err != nil {
		t.Fatal(err)
	}
	check("moved away")
	if _, err := os.Stat(dir); err == nil {
		t.Error("the root was made anew")
	}
	if err := os.Mkdir(dir, 0o700); err != nil { // a bare mount point
		t.Fatal(err)
	}
	check("empty")
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(away, dir); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Get(ctx, "ab/1", 0, -1); err != nil {
		t.Errorf("Get after it is back: %v", err)
	}
	if err := r.Sync(ctx); err != nil {
		t.Errorf("Sync after it is back: %v", err)
	}
}

func TestLocalForeignFiles(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, &remote.Options{Retries: 1})
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Get(t.Context(), "link", 0, -1); err == nil {
		t.Error("Get followed a symbolic link out of the root")
	}
	n := 0
	if err := r.List(t.Context(), "", func(remote.Entry) error { n++; return nil }); err != nil || n != 1 {
		t.Errorf("List = %d entries, %v", n, err)
	}
}

// TestLocalNoTrace checks that a put which fails leaves nothing under the final
// name, nor beside it.
func TestLocalNoTrace(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, &remote.Options{LimitUpload: 1 << 20})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.Put(ctx, "big", make([]byte, 4<<20)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Put = %v, want DeadlineExceeded", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestLimits(t *testing.T) {
	const size = 512 << 10
	for _, url := range []string{t.TempDir(), ":memory:limits"} {
		r := open(t, url, &remote.Options{LimitUpload: 2 * size})
		start := time.Now()
		if err := r.Put(t.Context(), "a", make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d < 350*time.Millisecond {
			t.Errorf("%s: %d bytes at %d B/s took %v", url, size, 2*size, d)
		}
		r.SetLimits(0, 2*size)
		start = time.Now()
		if _, err := r.Get(t.Context(), "a", 0, -1); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d < 350*time.Millisecond {
			t.Errorf("%s: download took %v", url, d)
		}
		r.SetLimits(0, 0)
		start = time.Now()
		if err := r.Put(t.Context(), "b", make([]byte, 8*size)); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d > 3*time.Second {
			t.Errorf("%s: without a limit took %v", url, d)
		}
	}
}

func TestStats(t *testing.T) {
	r := open(t, t.TempDir(), nil)
	_ = r.Put(t.Context(), "a", make([]byte, 100))
	_, _ = r.Get(t.Context(), "a", 10, 50)
	_, _ = r.Get(t.Context(), "missing", 0, -1)
	_ = r.Delete(t.Context(), "a")
	want := remote.Stats{Puts: 1, Gets: 2, Deletes: 1, Uploaded: 100, Downloaded: 50}
	if got := r.Stats(); got != want {
		t.Errorf("Stats = %+v, want %+v", got, want)
	}
}

// TestLog checks that what rclone logs stays at debug level and tells nothing.
func TestLog(t *testing.T) {
	var out bytes.Buffer
	h := remote.NewLogHandler(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	remote.Learn(":webdav,url='http://h/',pass=hunter22:x")
	slog.New(h).Error("cannot log in with hunter22", "object", "hunter22", "header", "Bearer abcdefghijkl")
	if s := out.String(); strings.Contains(s, "hunter22") || strings.Contains(s, "abcdefghijkl") || !strings.Contains(s, "level=DEBUG") {
		t.Errorf("logged %q", s)
	}
}

// BenchmarkLocal compares our way to a local directory with rclone's, and both
// with what the system does at best. Each put is of a new name, and deleted.
func BenchmarkLocal(b *testing.B) {
	const size = 8 << 20
	dir := b.TempDir()
	data := remotetest.Bytes(size, 1)
	for name, url := range map[string]string{"direct": dir, "rclone": ":combine,upstreams='sub=" + dir + "':sub"} {
		r := open(b, url, nil)
		b.Run(name+"/put", func(b *testing.B) { benchmarkPut(b, r, data) })
		b.Run(name+"/put_4K", func(b *testing.B) { benchmarkPut(b, r, data[:4096]) })
		if err := r.Put(b.Context(), "ab/object", data); err != nil {
			b.Fatal(err)
		}
		b.Run(name+"/get", func(b *testing.B) { benchmarkGet(b, r, 0, size) })
		b.Run(name+"/get_4K", func(b *testing.B) { benchmarkGet(b, r, 1<<20, 4096) })
	}
	temp, file := filepath.Join(dir, "temp"), filepath.Join(dir, "file")
	b.Run("os/put", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if err := errors.Join(os.WriteFile(temp, data, 0o600), os.Rename(temp, file), os.Remove(file)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("os/get", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if _, err := os.ReadFile(filepath.Join(dir, "ab", "object")); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func benchmarkPut(b *testing.B, r *remote.Remote, data []byte) {
	b.SetBytes(int64(len(data)))
	for i := 0; b.Loop(); i++ {
		name := fmt.Sprintf("ab/%d", i)
		if err := errors.Join(r.Put(b.Context(), name, data), r.Delete(b.Context(), name)); err != nil {
			b.Fatal(err)
		}
	}
}

func benchmarkGet(b *testing.B, r *remote.Remote, off, n int64) {
	b.SetBytes(n)
	for b.Loop() {
		if _, err := r.Get(b.Context(), "ab/object", off, n); err != nil {
			b.Fatal(err)
		}
	}
}
