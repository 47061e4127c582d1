package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/fs"
)

type duRequest struct {
	Place string `json:"place"` // SNAPSHOT[:PATH]
	Depth int    `json:"depth"`
}

var duQuery = question[duRequest, fs.DirUsage]{
	path: "/du",
	answer: func(ctx context.Context, v *fs.Volume, in duRequest, item func(fs.DirUsage) error, _ func(progress)) error {
		return v.DiskUsage(ctx, in.Place, in.Depth, item)
	},
}

func (a *app) duCommand() *cobra.Command {
	in := duRequest{Depth: 1}
	var whatIf []string
	cmd := &cobra.Command{
		Use:   "du [PATH | SNAPSHOT[:PATH]]",
		Short: "Show what directories hold, and what that takes",
		Long: "Show what each directory holds, with all below it: the sizes of files; what of that is no hole; unique chunks, each\n" +
			"counted for the first directory that has it; and these compressed, as they lie on the remote. PATH lies in a mount;\n" +
			"SNAPSHOT:PATH, or `current`, in the repository named by --repo. Hard links count once.",
		Example: "  dedupfs du ~/Cloud/photos --depth 2\n  dedupfs du --repo gdrive:home latest:photos",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(whatIf) > 0 {
				return a.stats(cmd.Context(), args, whatIf)
			}
			where, place, err := a.placeIn(args)
			if err != nil {
				return err
			}
			in.Place = place
			return a.du(cmd.Context(), where, in)
		},
	}
	cmd.Flags().IntVarP(&in.Depth, "depth", "d", 1, "show directories this many `LEVELS` down; 0 for the sum alone")
	cmd.Flags().StringSliceVar(&whatIf, "what-if-forgotten", nil, "say what would come back without these `SNAPSHOTS`, as `dedupfs stats` does")
	return cmd
}

// placeIn returns where a question about a path or a place in a snapshot goes,
// and the place.
func (a *app) placeIn(args []string) (where []string, place string, err error) {
	if len(args) == 0 {
		return nil, fs.CurrentState, nil
	}
	if where, path, err := a.fileIn(args[0]); err == nil && where != nil {
		return where, fs.CurrentState + ":" + path, nil
	}
	p, err := parseSnapshotPath(args[0])
	return nil, p.snapshot + ":" + p.path, err
}

func (a *app) du(ctx context.Context, where []string, in duRequest) error {
	out, flush := a.buffered()
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	if !a.g.json {
		fmt.Fprintln(w, "SIZE\tNO HOLES\tUNIQUE\tCOMPRESSED\tFILES\t PATH")
	}
	size := func(n uint64) string { return humanSize(int64(n)) }
	err := ask(ctx, a, where, duQuery, in, func(u fs.DirUsage) error {
		if a.g.json {
			return printLine(out, u)
		}
		_, err := fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t %s\n", size(u.Logical), size(u.Allocated), size(u.Unique), size(u.Stored), u.Files, escape(u.Path))
		return err
	})
	if err == nil {
		err = w.Flush()
	}
	return flush(err)
}
