package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// run runs a program in the work directory.
func (b *bench) run(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = b.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// missing says that rows are left out because there is no such tool.
func missing(tool, rows string) error {
	fmt.Fprintf(os.Stderr, "  no %s here: skipping %s\n", tool, rows)
	return nil
}

// trees unpacks, lists, packs and removes a tree of source files.
func (b *bench) trees() error {
	if b.tar == "" {
		return missing("tar (or tree to pack)", "the tree workload")
	}
	files, top := float64(b.tars), filepath.Join(b.root, "tree")
	if err := os.Mkdir(top, 0o755); err != nil {
		return err
	}
	walk := func() error { return walkStat(top, b.tars) }
	unpack := func() error { return b.run("sh", "-c", `tar -xf "$1" -C "$2" && sync -f "$2"`, "sh", b.tar, top) }
	if err := b.rate("untar", "files/s", files, unpack); err != nil {
		return err
	}
	if err := b.waitDrained(); err != nil {
		return err
	}
	if b.dropCaches() {
		if err := b.rate("walk and stat, cold", "files/s", files, walk); err != nil {
			return err
		}
	}
	if err := b.rate("walk and stat, again", "files/s", files, walk); err != nil {
		return err
	}
	if b.dropCaches() {
		pack := func() error { return b.run("sh", "-c", `tar -cf - -C "$1" . | cat >/dev/null`, "sh", top) }
		if err := b.rate("tar, cold", "files/s", files, pack); err != nil {
			return err
		}
	}
	return b.rate("rm -r", "files/s", files, func() error { return b.run("rm", "-r", top) })
}

// walkStat looks at every file below top, and fails if there are not want.
func walkStat(top string, want int) error {
	n := 0
	err := filepath.WalkDir(top, func(_ string, d fs.DirEntry, err error) error {
		if err == nil {
			n++
			_, err = d.Info()
		}
		return err
	})
	if err == nil && n != want {
		err = fmt.Errorf("%d files found, %d are there", n, want)
	}
	return err
}

// clone clones a git repository and checks it.
func (b *bench) clone() error {
	if !has("git") {
		return missing("git", "the git workload")
	}
	repo, err := filepath.Abs(b.git)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		args []string
	}{
		{"git clone", []string{"clone", "-q", "--no-hardlinks", repo, "clone"}},
		{"git status", []string{"-C", "clone", "status", "-s"}},
		{"git fsck", []string{"-C", "clone", "fsck", "--no-progress"}},
	} {
		if err := b.seconds(step.name, func() error { return b.run("git", step.args...) }); err != nil {
			return err
		}
	}
	return os.RemoveAll(filepath.Join(b.root, "clone"))
}

// transactions commits many small transactions to a database, with either kind of journal.
func (b *bench) transactions() error {
	if !has("sqlite3") {
		return missing("sqlite3", "the sqlite workload")
	}
	const n = 200
	for _, journal := range []string{"DELETE", "WAL"} {
		var sql strings.Builder
		fmt.Fprintf(&sql, "PRAGMA journal_mode=%s; PRAGMA synchronous=FULL; CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);\n", journal)
		for i := range n {
			fmt.Fprintf(&sql, "INSERT INTO t VALUES(%d, hex(randomblob(100)));\n", i)
		}
		sql.WriteString("SELECT count(*) FROM t; PRAGMA integrity_check;\n")
		cmd := exec.Command("sqlite3", filepath.Join(b.root, journal+".db"))
		cmd.Stdin = strings.NewReader(sql.String())
		err := b.rate("sqlite "+journal, "tx/s", n, func() error {
			out, err := cmd.CombinedOutput()
			if err == nil && !strings.HasSuffix(string(out), fmt.Sprintf("%d\nok\n", n)) {
				err = fmt.Errorf("sqlite3 said %q", out)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
