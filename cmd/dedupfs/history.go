package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/fs"
)

type historyRequest struct {
	Path    string `json:"path"`
	Commits int    `json:"commits"`
}

var historyQuery = question[historyRequest, fs.FileVersion]{
	path: "/history",
	answer: func(ctx context.Context, v *fs.Volume, in historyRequest, item func(fs.FileVersion) error, _ func(progress)) error {
		return each(item)(v.History(ctx, in.Path, in.Commits))
	},
}

// defaultCommits is how many commits of each client history looks at.
const defaultCommits = 100

func (a *app) historyCommand() *cobra.Command {
	in := historyRequest{Commits: defaultCommits}
	cmd := &cobra.Command{
		Use:   "history FILE",
		Short: "List the versions of a file",
		Long: "List the versions of a file, the newest first: those in snapshots, and those in recent commits that have not been\n" +
			"collected yet. FILE is a path in a mount, or, with --repo, one from the root of the volume. It is followed through\n" +
			"renames; it may have been deleted. `dedupfs cat SNAPSHOT:PATH` prints a version.",
		Example: "  dedupfs history ~/Cloud/letters/draft.txt\n  dedupfs history --repo gdrive:home letters/draft.txt",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			where, path, err := a.fileIn(args[0])
			if err != nil {
				return err
			}
			in.Path = path
			return a.history(cmd.Context(), where, in)
		},
	}
	cmd.Flags().IntVar(&in.Commits, "commits", defaultCommits, "look at the newest `N` commits of each machine; 0 for snapshots alone")
	return cmd
}

// fileIn returns the mount that a path lies in, as an argument of ask, and the path from its root. The file itself may be gone.
// Without a mount there it is a path in the repository of the flags.
func (a *app) fileIn(name string) (where []string, path string, err error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return nil, "", err
	}
	dir := abs
	for {
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			break
		}
		dir = filepath.Dir(dir)
	}
	m, err := mountOf(dir)
	if err != nil {
		if a.g.repo == "" {
			return nil, "", err
		}
		return nil, name, nil
	}
	rel, err := filepath.Rel(m.dir, abs)
	return []string{m.dir}, rel, err
}

func (a *app) history(ctx context.Context, where []string, in historyRequest) error {
	versions := []fs.FileVersion{}
	err := ask(ctx, a, where, historyQuery, in, func(f fs.FileVersion) error {
		versions = append(versions, f)
		return nil
	})
	if err != nil {
		return err
	}
	if a.g.json {
		return a.printJSON(versions)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "MODIFIED\tSIZE\tBY\tPATH\tIN")
	for _, f := range versions {
		in := strings.Join(f.States, ", ")
		if in == "" {
			in = "a commit of " + f.Commit.Local().Format(time.DateTime)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", f.Mtime.Local().Format(time.DateTime), humanSize(int64(f.Size)), f.By[:8], escape(strings.Join(append([]string{f.Path}, f.Others...), ", before ")), escape(in))
	}
	return w.Flush()
}

// buffered returns a writer to standard output, and what ends it: that returns the
// error it is given, or one of writing.
func (a *app) buffered() (w io.Writer, flush func(error) error) {
	out := bufio.NewWriter(a.stdout)
	return out, func(err error) error { return errors.Join(err, out.Flush()) }
}

// printLine prints a value as one line of JSON.
func printLine(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }

// rawPath returns the bytes of a path that JSON cannot hold; nil for others.
func rawPath(path string) []byte {
	if utf8.ValidString(path) {
		return nil
	}
	return []byte(path)
}
