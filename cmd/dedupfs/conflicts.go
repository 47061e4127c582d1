package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
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
			"Keep the one that you want under the name that you want; what has no such name any more is no conflict.",
		Args: cobra.NoArgs,
		RunE: showHelp,
	}
	cmd.AddCommand(a.conflictsListCommand())
	return cmd
}

func (a *app) conflictsListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list [DIR]",
		Short: "List the conflicts of a mounted volume",
		Long:  "List what merges have renamed in a mounted volume. The exit code is 31 if there is anything.",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := theMount(args)
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
