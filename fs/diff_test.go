package fs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// diff returns what has changed, a line each.
func (e *env) diff(from, to string) (lines []string) {
	e.t.Helper()
	changes, err := e.v.Diff(ctx, from, to)
	if err != nil {
		e.t.Fatal(err)
	}
	for _, c := range changes {
		line := strings.Join(c.What, " ") + " " + c.Path
		if c.From != "" {
			line += " from " + c.From
		}
		lines = append(lines, line)
	}
	return lines
}

func (e *env) rename(from, to string) {
	e.t.Helper()
	if err := e.v.Rename(ctx, Root, []byte(from), Root, []byte(to), 0); err != nil {
		e.t.Fatal(err)
	}
}

func TestDiff(t *testing.T) {
	e := newEnv(t)
	dir := e.mkdir(Root, "dir")
	e.fill(dir, "inside", "x")
	for _, name := range []string{"edited", "saved", "gone", "moved", "mode", "xattr", "touched", "linked"} {
		e.write(name, 0, []byte("content of "+name))
	}
	e.snapshotTagged("a")
	e.write("edited", 0, []byte("other"))
	e.write("temp", 0, []byte("saved by an editor"))
	e.rename("temp", "saved")
	if err := e.v.Unlink(ctx, Root, []byte("gone")); err != nil {
		t.Fatal(err)
	}
	e.rename("moved", "elsewhere")
	e.rename("dir", "folder")
	mode := uint32(0o600)
	if _, err := e.v.Setattr(ctx, e.walk("mode"), nil, SetAttr{Mode: &mode}, Cred{}); err != nil {
		t.Fatal(err)
	}
	if err := e.v.Setxattr(ctx, e.walk("xattr"), "user.x", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := e.v.Link(ctx, e.walk("linked"), Root, []byte("link")); err != nil {
		t.Fatal(err)
	}
	e.fill(e.mkdir(Root, "new"), "file", "y")
	e.snapshotTagged("b")
	want := []string{"modified /edited", "moved /elsewhere from /moved", "moved /folder from /dir", "removed /gone", "added /link",
		"mode /mode", "added /new", "added /new/file", "modified /saved", "xattr /xattr"}
	for _, to := range []string{"b", CurrentState} {
		if got := e.diff("a", to); !slices.Equal(got, want) {
			t.Errorf("from a to %s:\n%s\nwant\n%s", to, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	if got := e.diff("b", CurrentState); len(got) != 0 {
		t.Errorf("nothing has changed, and the difference is %q", got)
	}
	back := e.diff("b", "a")
	if !slices.Contains(back, "added /gone") || !slices.Contains(back, "moved /dir from /folder") || !slices.Contains(back, "removed /link") {
		t.Errorf("backwards the difference is %q", back)
	}
	if _, err := e.v.Diff(ctx, "a", "none"); !errors.Is(err, ErrNoSnapshot) {
		t.Errorf("to no snapshot: %v, want ErrNoSnapshot", err)
	}
}

func TestHistory(t *testing.T) {
	e := newEnv(t)
	e.write("f", 0, []byte("one"))
	e.snapshotTagged("s1")
	e.rename("f", "g")
	e.snapshotTagged("s2") // the same content
	e.write("g", 0, []byte("three"))
	e.sync() // a commit without a name
	e.write("temp", 0, []byte("four"))
	e.rename("temp", "g") // as editors save
	e.snapshotTagged("s4")
	e.sync()
	versions := func(path string, commits int) (lines []string) {
		t.Helper()
		list, err := e.v.History(ctx, path, commits)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range list {
			lines = append(lines, fmt.Sprint(f.Path, f.Others, f.Size, f.States))
		}
		return lines
	}
	want := []string{"/g[] 4 [s4 current]", "/g[] 5 []", "/g[/f] 3 [s1 s2]"}
	if got := versions("g", 10); !slices.Equal(got, want) {
		t.Errorf("versions are %q, want %q", got, want)
	}
	if got := versions("/g", 0); !slices.Equal(got, []string{want[0], want[2]}) {
		t.Errorf("versions in snapshots are %q, want the first and last of %q", got, want)
	}
	if err := e.v.Unlink(ctx, Root, []byte("g")); err != nil {
		t.Fatal(err)
	}
	want[0] = "/g[] 4 [s4]"
	if got := versions("g", 10); !slices.Equal(got, want) {
		t.Errorf("versions of a file that is gone are %q, want %q", got, want)
	}
	if _, err := e.v.History(ctx, "never", 10); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("of what never was: %v, want ENOENT", err)
	}
}

func TestFind(t *testing.T) {
	e := newEnv(t)
	dir := e.mkdir(Root, "dir")
	e.fill(dir, "Inside.txt", "12345")
	e.write("top.txt", 0, []byte("1"))
	e.snapshotTagged("s")
	e.write("late.txt", 0, []byte("123"))
	for _, c := range []struct {
		q    Query
		want string
	}{
		{Query{Patterns: []string{"*.txt"}}, "s/dir/Inside.txt s/top.txt current/dir/Inside.txt current/late.txt current/top.txt"},
		{Query{Patterns: []string{"inside*"}, In: []string{"s"}}, ""},
		{Query{Patterns: []string{"inside*"}, In: []string{"s"}, IgnoreCase: true}, "s/dir/Inside.txt"},
		{Query{Patterns: []string{"dir/*"}, In: []string{"s"}}, "s/dir/Inside.txt"},
		{Query{In: []string{"s:dir"}}, "s/dir/Inside.txt"},
		{Query{Types: []uint32{syscall.S_IFDIR}, In: []string{CurrentState}}, "current/dir"},
		{Query{Patterns: []string{"*.txt"}, MinSize: 2, MaxSize: 4}, "current/late.txt"},
		{Query{Patterns: []string{"*.txt"}, Newer: e.v.opt.Now().Add(1e12)}, ""},
	} {
		var got []string
		err := e.v.Find(ctx, &c.q, func(m Match) error {
			got = append(got, m.Snapshot+m.Path)
			return nil
		})
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%+v finds %q, %v, want %q", c.q, got, err, c.want)
		}
	}
}
