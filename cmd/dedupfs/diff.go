package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/fs"
)

type diffRequest struct {
	From string `json:"from"`
	To   string `json:"to"`
}

var diffQuery = question[diffRequest, fs.Change]{
	path: "/diff",
	answer: func(ctx context.Context, v *fs.Volume, in diffRequest, item func(fs.Change) error, _ func(progress)) error {
		return each(item)(v.Diff(ctx, in.From, in.To))
	},
}

// changeJSON is how --json shows a change, one per line.
type changeJSON struct {
	fs.Change
	Type string `json:"type"`
	Raw  []byte `json:"path_base64,omitempty"` // if the path is not UTF-8
}

// diffCommand is `diff` and `snapshot diff`.
func (a *app) diffCommand() *cobra.Command {
	var nameOnly bool
	cmd := &cobra.Command{
		Use:   "diff A [B] [DIR|REPO]",
		Short: "Show what has changed from one snapshot to another",
		Long: "Show what has changed from snapshot A to B; `current`, also in place of B, is the state as it is now, `latest` the\n" +
			"newest snapshot. It takes as long as there is difference, however large the volume is: a directory that was moved is\n" +
			"one line. The letters say what happened:\n\n" +
			"  + added   - removed   M other content   R moved   U other mode or owner   X other extended attributes\n\n" +
			"Times alone are no change.",
		Example: "  dedupfs diff latest current ~/Cloud\n  dedupfs diff monday tuesday --json",
		Args:    cobra.RangeArgs(1, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := diffRequest{args[0], fs.CurrentState}
			args = args[1:]
			if len(args) > 0 {
				if _, err := mountOf(args[0]); err != nil || len(args) > 1 {
					in.To, args = args[0], args[1:]
				}
			}
			return a.diff(cmd.Context(), args, in, nameOnly)
		},
	}
	cmd.Flags().BoolVar(&nameOnly, "name-only", false, "print paths alone")
	return cmd
}

func (a *app) diff(ctx context.Context, args []string, in diffRequest, nameOnly bool) error {
	counts := map[string]int{}
	out, flush := a.buffered()
	err := ask(ctx, a, args, diffQuery, in, func(c fs.Change) error {
		for _, what := range c.What {
			counts[what]++
		}
		if a.g.json {
			return printLine(out, changeJSON{c, typeName(c.Mode), rawPath(c.Path)})
		}
		if nameOnly {
			_, err := fmt.Fprintln(out, escape(c.Path))
			return err
		}
		_, err := fmt.Fprintln(out, changeLine(c))
		return err
	})
	if err := flush(err); err != nil {
		return err
	}
	if !a.g.json && !nameOnly {
		a.say("%d added, %d removed, %d modified, %d moved, %d mode, %d xattr", counts[fs.Added], counts[fs.Removed],
			counts[fs.Modified], counts[fs.Moved], counts[fs.ModeOf], counts[fs.XattrOf])
	}
	return nil
}

// changeLine writes a change for people: letters, and the path.
func changeLine(c fs.Change) string {
	letters := ""
	for _, l := range []struct{ what, letter string }{
		{fs.Added, "+"}, {fs.Removed, "-"}, {fs.Moved, "R"}, {fs.Modified, "M"}, {fs.ModeOf, "U"}, {fs.XattrOf, "X"},
	} {
		if slices.Contains(c.What, l.what) {
			letters += l.letter
		}
	}
	line := letters + strings.Repeat(" ", max(1, 5-len(letters)))
	if c.From != "" {
		line += escape(c.From) + " -> "
	}
	return line + escape(c.Path)
}
