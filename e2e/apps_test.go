//go:build linux

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What people run on a mount without knowing what lies beneath.

// needTools skips a test where a program is missing, except in CI, which has to install it.
func needTools(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err == nil {
			continue
		} else if os.Getenv("CI") != "" {
			t.Fatal(err)
		} else {
			t.Skip(err)
		}
	}
}

// cold unmounts and mounts again with nothing but the remote.
func (m *machine) cold(flags ...string) {
	m.t.Helper()
	m.umount()
	m.wipe()
	m.mount(flags...)
}

// TestGit has a repository of git's on the mount, with a clone, a repack and a merge, and checks it cold.
func TestGit(t *testing.T) {
	needTools(t, "git")
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	m.sh(`
		export HOME=$PWD GIT_CONFIG_NOSYSTEM=1
		git config --global user.name A; git config --global user.email a@example.org
		git init -q -b main one; cd one
		for i in $(seq 40); do seq $i 500 >f$i; git add -A; git commit -q -m "commit $i"; done
		git gc -q; cd ..
		git clone -q --no-hardlinks one two; cd two
		echo two >f1; git commit -q -a -m two; git push -q origin HEAD:other; cd ../one
		echo one >f2; git commit -q -a -m one; git merge -q other -m merge
		git gc -q --prune=now; git fsck --strict --no-dangling; test -z "$(git status --porcelain)"`)
	m.cold()
	m.sh(`
		export HOME=$PWD GIT_CONFIG_NOSYSTEM=1
		for r in one two; do
			git -C $r fsck --strict --no-dangling
			test -z "$(git -C $r status --porcelain)"
		done
		test "$(git -C one rev-list --count HEAD)" = 43
		test "$(cat one/f1) $(cat one/f2)" = "two one"`)
	m.umount()
}

// TestSQLite has four processes write to one database, kills the daemon beneath them, and looks for what each of them was told to be
// safe.
func TestSQLite(t *testing.T) {
	needTools(t, "sqlite3")
	for _, mode := range []string{"DELETE", "WAL"} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t)
			m := w.machine("m")
			m.mount()
			runTool(t, "sqlite3", m.path("db"), "PRAGMA journal_mode="+mode+"; CREATE TABLE t(writer INTEGER, n INTEGER, fill TEXT);")
			const writers = 4
			var told [writers]int // each is changed by one goroutine only
			var wg sync.WaitGroup
			for i := range writers {
				wg.Go(func() { told[i] = insertUntilDead(t, m.path("db"), i) })
			}
			time.Sleep(3 * time.Second)
			m.kill()
			wg.Wait()
			m.mount()
			for when := range 2 {
				if got := strings.TrimSpace(runTool(t, "sqlite3", m.path("db"), "PRAGMA integrity_check;")); got != "ok" {
					t.Fatalf("integrity_check: %s", got)
				}
				total := 0
				for i, n := range told {
					got, err := strconv.Atoi(strings.TrimSpace(runTool(t, "sqlite3", m.path("db"),
						fmt.Sprintf("SELECT count(*) FROM t WHERE writer=%d AND n<%d;", i, n))))
					if err != nil || got != n {
						t.Errorf("writer %d: %d transactions of the %d that it was told are safe, %v", i, got, n, err)
					}
					total += n
				}
				if total == 0 {
					t.Error("nothing was written before the kill")
				}
				if when == 0 {
					m.cold()
				}
			}
			m.umount()
		})
	}
}

// insertUntilDead inserts rows, each in a transaction of its own, and returns how many of them the shell has said are done.
func insertUntilDead(t *testing.T, db string, writer int) int {
	var script strings.Builder
	script.WriteString(".timeout 20000\nPRAGMA synchronous=FULL;\n")
	for n := range 2000 {
		fmt.Fprintf(&script, "INSERT INTO t VALUES(%d,%d,hex(randomblob(200)));\nSELECT 'done';\n", writer, n)
	}
	cmd := exec.Command("sqlite3", "-bail", db)
	cmd.Stdin = strings.NewReader(script.String())
	out, _ := cmd.Output() // it ends when the mount dies
	return bytes.Count(out, []byte("done\n"))
}

// TestSnapshotsOfDatabase makes snapshots while a database is written to in WAL mode: each must be a sound database.
func TestSnapshotsOfDatabase(t *testing.T) {
	needTools(t, "sqlite3")
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	runTool(t, "sqlite3", m.path("db"), "PRAGMA journal_mode=WAL; CREATE TABLE t(n INTEGER, fill TEXT); CREATE INDEX i ON t(fill);")
	stop := make(chan struct{})
	writer := exec.Command("sqlite3", m.path("db"))
	in, err := writer.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Start(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer in.Close()
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := fmt.Fprintf(in, "INSERT INTO t VALUES(%d,hex(randomblob(500)));\n", n); err != nil {
				return
			}
		}
	})
	rounds := 8
	if long {
		rounds = 200
	}
	for i := range rounds {
		m.must("snapshot", "create", fmt.Sprint("s", i), m.mnt)
	}
	close(stop)
	wg.Wait()
	if err := writer.Wait(); err != nil {
		t.Fatal(err)
	}
	last := -1
	for i := range rounds {
		copied := t.TempDir()
		for _, name := range []string{"db", "db-wal"} {
			data, err := os.ReadFile(m.path(fmt.Sprintf(".snapshots/s%d/%s", i, name)))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(copied, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		out := strings.Fields(runTool(t, "sqlite3", filepath.Join(copied, "db"), "PRAGMA integrity_check; SELECT count(*) FROM t;"))
		if len(out) != 2 || out[0] != "ok" {
			t.Fatalf("snapshot %d: %v", i, out)
		}
		n, err := strconv.Atoi(out[1])
		if err != nil || n < last {
			t.Errorf("snapshot %d has %d rows, and the one before %d", i, n, last)
		}
		last = n
	}
	if last <= 0 {
		t.Error("no snapshot has any row")
	}
	m.umount()
}

// TestAppendIsPrefix appends to a log on one machine under a loop of sync: another machine never sees anything but a beginning of it.
func TestAppendIsPrefix(t *testing.T) {
	w := newWorld(t)
	a, b := w.machine("a"), w.machine("b")
	a.mount("--poll=1h")
	b.mount("--poll=100ms")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		f, err := os.OpenFile(a.path("log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := f.Write(logLine(i)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	seen := 0
	for range 15 {
		a.must("sync", a.mnt)
		data, err := os.ReadFile(b.path("log"))
		if err != nil {
			continue // it has not come yet
		}
		if len(data) < seen {
			t.Errorf("%d bytes after %d", len(data), seen)
		}
		seen = len(data)
		for i := 0; len(data) > 0; i++ {
			line := logLine(i)
			n := min(len(line), len(data))
			if !bytes.Equal(data[:n], line[:n]) {
				t.Fatalf("line %d is %q", i, data[:n])
			}
			data = data[n:]
		}
	}
	close(stop)
	wg.Wait()
	if seen == 0 {
		t.Error("the other machine has seen nothing")
	}
	end(a, b)
}

func logLine(i int) []byte {
	return fmt.Appendf(nil, "%08d the quick brown fox jumps over the lazy dog %x\n", i, i*2654435761)
}

// TestArchives takes a tree with all that a file system can hold through tar and rsync, both ways. Without a window of -1 rsync takes
// times within one second to be the same.
func TestArchives(t *testing.T) {
	needTools(t, "tar", "rsync")
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	src, back := filepath.Join(w.dir, "src"), filepath.Join(w.dir, "back")
	varied(t, src)
	want := describe(t, src)
	runTool(t, "rsync", "-aHAX", "--modify-window=-1", src+"/", m.path("rsync")+"/")
	runTool(t, "sh", "-euc", `mkdir "$1"; tar --xattrs --acls -C "$0" -cf - . | tar --xattrs --xattrs-include='*' --acls -C "$1" -xpf -`, src, m.path("tar"))
	m.cold()
	for _, name := range []string{"rsync", "tar"} {
		if out := runTool(t, "rsync", "-aHAXn", "--modify-window=-1", "--checksum", "--itemize-changes", "--delete", src+"/", m.path(name)+"/"); out != "" {
			t.Errorf("%s: rsync would change\n%s", name, out)
		}
		sameTree(t, want, describe(t, m.path(name)))
	}
	runTool(t, "rsync", "-aHAX", "--modify-window=-1", m.path("tar")+"/", back+"/")
	sameTree(t, want, describe(t, back))
	m.umount()
}

// TestAtomicSave saves a file as editors do, by a rename over it: who reads gets one whole version or the other.
func TestAtomicSave(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	version := func(i int) []byte { return bytes.Repeat(fmt.Appendf(nil, "version %d\n", i), 3000+i) }
	m.write("doc", version(0))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			data, err := os.ReadFile(m.path("doc"))
			var i int
			if err == nil {
				_, err = fmt.Sscanf(string(data), "version %d\n", &i)
			}
			if err != nil || !bytes.Equal(data, version(i)) {
				t.Errorf("%d bytes that are no version: %v", len(data), err)
				return
			}
		}
	})
	const saves = 100
	for i := 1; i <= saves; i++ {
		f, err := os.CreateTemp(m.mnt, ".doc-*")
		if err != nil {
			t.Fatal(err)
		}
		if _, err = f.Write(version(i)); err == nil {
			err = f.Sync()
		}
		if err = errors.Join(err, f.Close()); err == nil {
			err = os.Link(m.path("doc"), m.path("doc~"))
		}
		if err = errors.Join(err, os.Rename(f.Name(), m.path("doc")), os.Remove(m.path("doc~"))); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	m.cold()
	m.sees("doc", version(saves))
	m.umount()
}

// TestMappedWriters has two shared mappings and write(2) change one file, which is synced and committed meanwhile.
func TestMappedWriters(t *testing.T) {
	const size = 4 << 20
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	m.write("f", make([]byte, size))
	f, err := os.OpenFile(m.path("f"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	var maps [2][]byte
	for i := range maps {
		if maps[i], err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
			t.Fatal(err)
		}
	}
	want := make([]byte, size)
	r := randomOf(t)
	for round := range 400 {
		off, n := r.IntN(size-10_000), 1+r.IntN(10_000)
		block := bytes.Repeat([]byte{byte(1 + round)}, n)
		copy(want[off:], block)
		if way := r.IntN(3); way < 2 {
			copy(maps[way][off:], block)
		} else if _, err := f.WriteAt(block, int64(off)); err != nil {
			t.Fatal(err)
		}
		switch r.IntN(40) {
		case 0:
			err = unix.Msync(maps[0], unix.MS_SYNC)
		case 1:
			m.must("sync", m.mnt)
		case 2:
			err = f.Sync()
		}
		if err != nil {
			t.Fatal(err)
		}
		if other := maps[r.IntN(2)][off : off+n]; !bytes.Equal(other, block) {
			t.Fatalf("round %d: a mapping does not show what was written", round)
		}
	}
	for _, mapped := range maps {
		if err := errors.Join(unix.Msync(mapped, unix.MS_SYNC), unix.Munmap(mapped)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	m.sees("f", want)
	m.cold()
	m.sees("f", want)
	m.umount()
}

// lockEnv makes the test program count in a file under a lock: KIND PATH.
const lockEnv = "E2E_COUNT_UNDER_LOCK"

const locksEach = 100

// countUnderLock adds one to the number in a file, many times, under a lock of some kind.
func countUnderLock(kind, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	set := func(how int16) error {
		if kind == "flock" {
			op := map[int16]int{unix.F_WRLCK: unix.LOCK_EX, unix.F_UNLCK: unix.LOCK_UN}[how]
			return unix.Flock(int(f.Fd()), op)
		}
		cmd := map[string]int{"posix": unix.F_SETLKW, "ofd": unix.F_OFD_SETLKW}[kind]
		return unix.FcntlFlock(f.Fd(), cmd, &unix.Flock_t{Type: how, Start: 0, Len: 8})
	}
	for range locksEach {
		if err := set(unix.F_WRLCK); err != nil {
			return err
		}
		var b [8]byte
		if _, err := f.ReadAt(b[:], 0); err != nil {
			return err
		}
		n, err := strconv.Atoi(string(b[:]))
		if err != nil {
			return err
		}
		if _, err := f.WriteAt(fmt.Appendf(nil, "%08d", n+1), 0); err != nil {
			return err
		}
		if err := set(unix.F_UNLCK); err != nil {
			return err
		}
	}
	return nil
}

// TestLocks has four processes count in one file under each kind of lock.
func TestLocks(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	for _, kind := range []string{"flock", "posix", "ofd"} {
		m.write(kind, []byte("00000000"))
		const processes = 4
		var wg sync.WaitGroup
		for range processes {
			wg.Go(func() {
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), lockEnv+"="+kind+" "+m.path(kind))
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s: %v\n%s", kind, err, out)
				}
			})
		}
		wg.Wait()
		m.sees(kind, fmt.Appendf(nil, "%08d", processes*locksEach))
	}
	m.umount()
}

// TestCopies copies a file with holes, and a stored one, as cp can.
func TestCopies(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	r := randomOf(t)
	data := make([]byte, 6<<20)
	for off := 0; off < len(data); off += 2 << 20 {
		for i := range 1 << 20 {
			data[off+i] = byte(r.Uint32())
		}
	}
	m.write("f", data)
	m.must("sync", m.mnt)
	before := w.remoteBytes()
	m.sh(`
		cp --sparse=always f sparse; cp --reflink=auto f copy; cp --sparse=never --reflink=never f plain
		cmp f sparse; cmp f copy; cmp f plain
		test $(stat -c %b sparse) -lt $(($(stat -c %s f) / 512 * 3 / 4))
		if cp --reflink=always f never 2>/dev/null; then exit 1; fi; rm -f never`)
	m.must("sync", m.mnt)
	if grew := w.remoteBytes() - before; grew > 1<<20 {
		t.Errorf("three copies of %d bytes took %d more on the remote", len(data), grew)
	}
	m.cold()
	for _, name := range []string{"f", "sparse", "copy", "plain"} {
		m.sees(name, data)
	}
	m.umount()
}

// TestBuild builds this project on the mount, with the build cache there in the long run.
func TestBuild(t *testing.T) {
	needTools(t, "git", "go")
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	top, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	m.sh(`
		mkdir src cache tmp; cd '` + top + `'
		git ls-files -z --cached --others --exclude-standard '*.go' '*.s' '*.md' go.mod go.sum | tar --null -T - -cf - | tar -C '` + m.mnt + `/src' -xf -
		cd '` + m.mnt + `/src'; export GOFLAGS=-tags=slim GOTMPDIR=` + m.mnt + `/tmp ` + goCache(m) + `
		go build -o ../program ./cmd/dedupfs; ../program version`)
	m.cold()
	m.sh("./program version")
	if long {
		m.sh("cd src; export GOFLAGS=-tags=slim " + goCache(m) + "; go build -o ../again ./cmd/dedupfs; cmp ../program ../again")
	}
	m.umount()
}

// goCache sets the build cache, one on the mount in the long run.
func goCache(m *machine) string {
	if long {
		return "GOCACHE=" + m.path("cache")
	}
	return ""
}

// TestBackupRepositories keeps repositories of restic and borg on the mount and lets them check themselves, the second time cold.
func TestBackupRepositories(t *testing.T) {
	needTools(t, "restic", "borg")
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	src := filepath.Join(w.dir, "src")
	varied(t, src)
	home := t.TempDir()
	env := `export HOME=` + home + ` XDG_CACHE_HOME=` + home + `/c RESTIC_PASSWORD=x RESTIC_REPOSITORY=$PWD/restic BORG_REPO=$PWD/borg \
		BORG_PASSPHRASE=x BORG_RELOCATED_REPO_ACCESS_IS_OK=yes BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes; `
	m.sh(env + `
		restic init -q; borg init -e repokey
		for i in 1 2 3; do
			seq $i 20000 >` + src + `/numbers; restic backup -q ` + src + `; borg create ::$i ` + src + `
		done
		restic forget -q --keep-last 2 --prune; borg delete ::1; borg compact
		restic check -q --read-data; borg check --verify-data`)
	m.cold()
	m.sh(env + `
		restic check -q --read-data; borg check --verify-data
		restic restore -q latest --target ` + home + `/restic; cd ` + home + `; borg extract ::3
		cmp ` + home + `/restic` + src + `/numbers ` + src + `/numbers
		cmp ` + home + `/` + strings.TrimPrefix(src, "/") + `/numbers ` + src + `/numbers`)
	m.umount()
}

// TestStopped checks that a daemon which is suspended and goes on has lost nothing and says nothing wrong.
func TestStopped(t *testing.T) {
	w := newWorld(t)
	m := w.machine("m")
	m.mount()
	m.write("f", []byte("before"))
	if err := m.daemon.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := os.ReadDir(m.mnt)
		read <- errors.Join(err, os.WriteFile(m.path("g"), []byte("during"), 0o644))
	}()
	time.Sleep(time.Second)
	if err := m.daemon.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil {
		t.Error(err)
	}
	m.cold()
	m.sees("f", []byte("before"))
	m.sees("g", []byte("during"))
	m.umount()
}
