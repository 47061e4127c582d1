package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/fs"
)

func (a *app) conflictsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "conflicts",
		Short: "Show what two machines have changed at once",
		Long: "Of a file that two machines have changed at once both contents remain, one of them as \"name (conflict HOST DATE).ext\".\n" +
			"Keep the one that you want under the name that you want, by hand or with `conflicts resolve`; what has no such name\n" +
			"any more is no conflict.",
		Example: "  dedupfs conflicts list ~/Cloud\n  dedupfs conflicts resolve ~/Cloud/draft.txt --keep other",
		Args:    cobra.NoArgs,
		RunE:    showHelp,
	}
	cmd.AddCommand(a.conflictsListCommand(), a.conflictsDiffCommand(), a.conflictsResolveCommand())
	return cmd
}

func (a *app) conflictsListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list [DIR]",
		Short:   "List the conflicts of a mounted volume",
		Long:    "List what merges have renamed in a mounted volume. The exit code is 31 if there is anything.",
		Example: "  dedupfs conflicts list ~/Cloud",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := a.theMount(cmd.Context(), args)
			if err != nil {
				return err
			}
			list := []fs.Conflict{} // never null in JSON
			if err := m.call(cmd.Context(), "GET", "/conflicts", nil, &list, nil); err != nil {
				return err
			}
			if err := a.printConflicts(m.dir, list); err != nil || len(list) == 0 {
				return err
			}
			return fail(exitConflicts, "%d conflicts in %s", len(list), escape(m.dir))
		},
	}
}

// conflict is one of a mount, with the paths as this process sees them.
type conflict struct {
	mine, other string // the file as it is called, and what a merge has renamed
}

// conflictAt returns the conflict that a path means: of what was renamed, or of
// the file beside it if that has only one.
func conflictAt(ctx context.Context, path string) (conflict, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return conflict{}, err
	}
	m, err := mountOf(filepath.Dir(abs))
	if err != nil {
		return conflict{}, err
	}
	var list []fs.Conflict
	if err := m.call(ctx, "GET", "/conflicts", nil, &list, nil); err != nil {
		return conflict{}, err
	}
	var found []conflict
	for _, c := range list {
		one := conflict{filepath.Join(m.dir, c.Of), filepath.Join(m.dir, c.Path)}
		if one.other == abs {
			return one, nil
		}
		if one.mine == abs {
			found = append(found, one)
		}
	}
	switch len(found) {
	case 0:
		return conflict{}, fmt.Errorf("%s is in no conflict; see `dedupfs conflicts list`", escape(path))
	case 1:
		return found[0], nil
	default:
		return conflict{}, usageError("%s is in %d conflicts; name the file that a merge has renamed", escape(path), len(found))
	}
}

func (a *app) conflictsDiffCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "diff FILE",
		Short: "Show how the two files of a conflict differ",
		Long: "Show how what was renamed by a merge differs from what has its name now: as diff(1) does, `-` before the lines of the\n" +
			"file as it is called now, `+` before those of the other.",
		Example: "  dedupfs conflicts diff ~/Cloud/draft.txt",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := conflictAt(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.diffFiles(cmd.Context(), c)
		},
	}
}

// diffFiles has diff(1) compare the files of a conflict. That they differ is no failure.
func (a *app) diffFiles(ctx context.Context, c conflict) error {
	cmd := exec.CommandContext(ctx, "diff", "-u", "-r", "-N", "--", c.mine, c.other)
	cmd.Stdout, cmd.Stderr = a.stdout, a.stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 1 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("compare %s and %s: %w", escape(c.mine), escape(c.other), err)
	}
	return nil
}

// What conflicts resolve can keep.
const (
	keepMine  = "mine"
	keepOther = "other"
	keepBoth  = "both"
)

func (a *app) conflictsResolveCommand() *cobra.Command {
	var keep string
	var dry bool
	cmd := &cobra.Command{
		Use:   "resolve FILE...",
		Short: "End conflicts by keeping one of the two files, or both",
		Long: "End conflicts. --keep mine removes what a merge has renamed; --keep other puts it in the place of the file beside it;\n" +
			"--keep both gives it a name of its own, `NAME (2).ext`. Directories can only be kept both: look into them first. What\n" +
			"is removed stays in the snapshots that have it.",
		Example: "  dedupfs conflicts diff ~/Cloud/draft.txt\n  dedupfs conflicts resolve ~/Cloud/draft.txt --keep other",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if keep != keepMine && keep != keepOther && keep != keepBoth {
				return usageError("what shall be kept? --keep is mine, other or both")
			}
			for _, path := range args {
				c, err := conflictAt(cmd.Context(), path)
				if err != nil {
					return err
				}
				if err := a.resolve(c, keep, dry); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&keep, "keep", "", "`WHICH` to keep: mine, the file as it is called now; other; or both")
	cmd.Flags().BoolVarP(&dry, "dry-run", "n", false, "only say what would be done")
	return cmd
}

// resolve ends one conflict.
func (a *app) resolve(c conflict, keep string, dry bool) error {
	fi, err := os.Lstat(c.other)
	if err != nil {
		return err
	}
	if fi.IsDir() && keep != keepBoth {
		return fmt.Errorf("%s is a directory; look into it, or keep both", escape(c.other))
	}
	to := c.mine
	if keep == keepBoth {
		if to, err = freeName(c.mine); err != nil {
			return err
		}
	}
	verb := map[bool]string{true: "would ", false: ""}[dry]
	if keep == keepMine {
		a.say("%sremove %s", verb, escape(c.other))
		if dry {
			return nil
		}
		return os.Remove(c.other)
	}
	a.say("%srename %s to %s", verb, escape(c.other), escape(to))
	if dry {
		return nil
	}
	return os.Rename(c.other, to)
}

// freeName returns the path itself if nothing is there, or with a number that is free.
func freeName(path string) (string, error) {
	ext := filepath.Ext(path)
	stem := strings.TrimSuffix(path, ext)
	for i := 1; i < 1000; i++ {
		name := path
		if i > 1 {
			name = fmt.Sprintf("%s (%d)%s", stem, i, ext)
		}
		if _, err := os.Lstat(name); errors.Is(err, os.ErrNotExist) {
			return name, nil
		}
	}
	return "", fmt.Errorf("%s: no free name beside it", escape(path))
}

func (s *session) serveConflicts(ctx context.Context, _ *http.Request, _ func(progress)) (any, error) {
	return s.volume.Conflicts(ctx)
}

func (a *app) printConflicts(dir string, list []fs.Conflict) error {
	if a.g.json {
		return a.printJSON(list)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	for _, c := range list {
		fmt.Fprintf(w, "%s\t%d\t%s\n", c.Mtime.Local().Format(time.DateTime), c.Size, escape(filepath.Join(dir, c.Path)))
	}
	return w.Flush()
}
