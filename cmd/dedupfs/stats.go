package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/fs"
)

var usageQuery = question[[]string, *fs.Usage]{
	path: "/usage",
	answer: func(ctx context.Context, v *fs.Volume, whatIf []string, item func(*fs.Usage) error, report func(progress)) error {
		u, err := v.Usage(ctx, whatIf, func(done, total int64, what string) { report(progress{what, done, total}) })
		if err != nil {
			return err
		}
		return item(u)
	},
}

func (a *app) statsCommand() *cobra.Command {
	var whatIf []string
	cmd := &cobra.Command{
		Use:   "stats [DIR|REPO]",
		Short: "Show what a repository holds, and what that takes",
		Long: "Show what a repository holds: sizes of files, unique chunks, compressed, on the remote, what nothing needs any more;\n" +
			"what each snapshot has for itself alone; and who wrote it. All metadata is read, and the tables of all multichunks.\n\n" +
			"--what-if-forgotten says how much would come back if snapshots were forgotten together, once `dedupfs gc` has run and\n" +
			"every machine has seen that.",
		Example: "  dedupfs stats ~/Cloud\n  dedupfs stats --what-if-forgotten monday,tuesday",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			place, more, err := splitWhatIf(args, len(whatIf) > 0)
			if err != nil {
				return err
			}
			return a.stats(cmd.Context(), place, append(whatIf, more...))
		},
	}
	cmd.Flags().StringSliceVar(&whatIf, "what-if-forgotten", nil, "say what would come back without these `SNAPSHOTS`; more may follow as arguments")
	return cmd
}

// splitWhatIf takes arguments apart: the last one may be a place, and with asking
// those before it are snapshots.
func splitWhatIf(args []string, asking bool) (place, snapshots []string, err error) {
	if len(args) > 1 && !asking {
		return nil, nil, usageError("one directory or repository at a time")
	}
	if len(args) == 0 {
		return nil, nil, nil
	}
	last := len(args) - 1
	if _, err := os.Stat(args[last]); err == nil || !asking {
		return args[last:], args[:last], nil
	}
	return nil, args, nil
}

func (a *app) stats(ctx context.Context, place, whatIf []string) error {
	var u *fs.Usage
	err := ask(ctx, a, place, usageQuery, whatIf, func(got *fs.Usage) error {
		u = got
		return nil
	})
	if err != nil {
		return err
	}
	if a.g.json {
		return a.printJSON(u)
	}
	return printUsage(a.stdout, u)
}

func printUsage(out io.Writer, u *fs.Usage) error {
	size := func(n uint64) string { return humanSize(int64(n)) }
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	if u.WhatIf != nil {
		fmt.Fprintf(w, "would come back\t%s\tin %d multichunks of which nothing would be needed\n", humanSize(u.WhatIf.Bytes), u.WhatIf.Objects)
		fmt.Fprintf(w, "and\t%s\tin multichunks that stay: regrouping may bring it back\n", size(u.WhatIf.Unused))
		fmt.Fprintf(w, "besides\t%s\tof which nothing is needed already\n", humanSize(u.Garbage))
		return w.Flush()
	}
	fmt.Fprintf(w, "files now\t%s\tin %d files and %d directories\n", size(u.Logical), u.Files, u.Dirs)
	fmt.Fprintf(w, "unique\t%s\tin %d chunks, with all snapshots\n", size(u.Unique), u.Chunks)
	fmt.Fprintf(w, "compressed\t%s\tand %s of metadata\n", size(u.Stored), size(u.Metadata))
	fmt.Fprintf(w, "on the remote\t%s\tin %d multichunks, and small objects\n", humanSize(u.Remote), u.Objects)
	fmt.Fprintf(w, "unused\t%s\tin multichunks that are needed for something else\n", size(u.Unused))
	fmt.Fprintf(w, "garbage\t%s\tin multichunks of which nothing is needed\n", humanSize(u.Garbage))
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	fmt.Fprintln(w, "STATE\tSIZE\tFILES\tALONE HAS\tCOMPRESSED")
	for _, s := range u.States {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", escape(s.Name), size(s.Logical), s.Files, size(s.Unique), size(s.Stored))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	fmt.Fprintln(w, "WRITTEN BY\tSIZE\tFILES")
	for _, c := range u.Clients {
		fmt.Fprintf(w, "%s\t%s\t%d\n", c.Client[:8], size(c.Logical), c.Files)
	}
	return w.Flush()
}
