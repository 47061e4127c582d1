//go:build linux

package e2e

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// entry is all that a user can see of a file, but its inode number and ctime.
type entry struct {
	mode     uint32
	uid, gid uint32
	nlink    uint64
	size     int64
	mtime    unix.Timespec
	sum      [sha256.Size]byte // of the content, or of the target of a link
	xattrs   string
	sameAs   string // first path with the same inode
}

// describe returns what lies below root, by path.
func describe(t *testing.T, root string) map[string]entry {
	t.Helper()
	all := map[string]entry{}
	first := map[uint64]string{}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		e, ino, err := describeOne(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if name == "." {
			e = entry{mode: e.mode} // the root of a mount has a life of its own
		} else if e.mode&unix.S_IFMT != unix.S_IFDIR && e.nlink > 1 {
			if first[ino] == "" {
				first[ino] = name
			}
			e.sameAs = first[ino]
		}
		all[name] = e
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func describeOne(path string) (entry, uint64, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return entry{}, 0, err
	}
	e := entry{mode: st.Mode, uid: st.Uid, gid: st.Gid, nlink: uint64(st.Nlink), mtime: st.Mtim}
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.size = st.Size
		e.sum, err = sumFile(path)
	case unix.S_IFLNK:
		var target string
		target, err = os.Readlink(path)
		e.sum = sha256.Sum256([]byte(target))
	case unix.S_IFDIR:
		e.nlink = 0 // ext4 counts subdirectories up to a limit, others never
	}
	if err == nil {
		e.xattrs, err = xattrsOf(path)
	}
	return e, st.Ino, err
}

func sumFile(path string) (sum [sha256.Size]byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return sum, err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return [sha256.Size]byte(h.Sum(nil)), err
}

// xattrsOf returns the user's extended attributes as text.
func xattrsOf(path string) (string, error) {
	list := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, list)
	if err != nil {
		return "", err
	}
	var out []string
	for _, name := range strings.Split(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
		if !strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "user.dedupfs.") {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return "", err
		}
		out = append(out, fmt.Sprintf("%s=%x", name, value[:n]))
	}
	slices.Sort(out)
	return strings.Join(out, " "), nil
}

// sameTree checks that two directories hold the same.
func sameTree(t *testing.T, want, got map[string]entry) {
	t.Helper()
	bad := 0
	for _, name := range slices.Sorted(maps.Keys(want)) {
		g, ok := got[name]
		switch {
		case !ok:
			t.Errorf("%s is missing", name)
		case g != want[name]:
			t.Errorf("%s = %+v, want %+v", name, g, want[name])
		default:
			continue
		}
		if bad++; bad == 10 {
			t.Fatal("and more")
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s is there and should not be", name)
		}
	}
}

// copyTree copies with cp, all that it can.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	runTool(t, "cp", "-a", from, to)
}

// diffTrees compares contents with diff, which shares no code with us.
func diffTrees(t *testing.T, a, b string) {
	t.Helper()
	runTool(t, "diff", "-r", "--no-dereference", a, b)
}

func runTool(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		out = out[:min(len(out), 4096)]
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// varied fills dir with a file of every kind that a file system has trouble with.
func varied(t *testing.T, dir string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	text := bytes.Repeat([]byte("all work and no play makes jack a dull boy\n"), 5000)

	must(os.MkdirAll(at("a/b/c"), 0o755))
	must(os.WriteFile(at("empty"), nil, 0o600))
	must(os.WriteFile(at("a/text"), text, 0o640))
	must(os.Link(at("a/text"), at("a/b/hard link")))
	must(os.Link(at("a/text"), at("another")))
	must(os.Symlink("../text", at("a/b/soft")))
	must(os.Symlink(strings.Repeat("x", 4000), at("dangling")))
	must(os.WriteFile(at("bad\xff\xfename"), []byte("bytes"), 0o644))
	must(os.WriteFile(at("new\nline"), []byte("\n"), 0o644))
	must(os.WriteFile(at("-rf"), []byte("-"), 0o644))
	must(os.WriteFile(at(strings.Repeat("n", 255)), []byte("long"), 0o644))
	must(os.WriteFile(at("suid"), []byte("x"), 0o755))
	must(os.Chmod(at("suid"), 0o755|os.ModeSetuid|os.ModeSetgid|os.ModeSticky))
	must(unix.Mkfifo(at("fifo"), 0o644))

	sparse, err := os.Create(at("sparse"))
	must(err)
	_, err = sparse.WriteAt([]byte("in the middle"), 40<<20)
	must(err)
	must(sparse.Truncate(64 << 20))
	must(sparse.Close())

	must(unix.Setxattr(at("a/text"), "user.comment", []byte("kept"), 0))
	must(unix.Setxattr(at("a"), "user.big", bytes.Repeat([]byte{7}, 3000), 0))
	must(unix.Setxattr(at("a"), "user.empty", nil, 0))
	if os.Geteuid() == 0 {
		must(os.Lchown(at("a/text"), 4294967294, 3000000000))
	}
	for name, sec := range map[string]int64{"empty": -1, "a/text": -2147483000, "suid": 1 << 33, "a/b/c": 12345} {
		times := []unix.Timespec{{Sec: sec, Nsec: 1}, {Sec: sec, Nsec: 987654321}}
		must(unix.UtimesNanoAt(unix.AT_FDCWD, at(name), times, unix.AT_SYMLINK_NOFOLLOW))
	}
	must(unix.UtimesNanoAt(unix.AT_FDCWD, at("dangling"), []unix.Timespec{{Sec: 5}, {Sec: 6, Nsec: 7}}, unix.AT_SYMLINK_NOFOLLOW))
}
