package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/fs"
)

func (a *app) snapshotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Make, list and forget snapshots",
		Long: "A snapshot is the whole volume at one instant, under a name. It costs what has changed since the one before. A\n" +
			"mounted volume shows its snapshots as read-only directories in .snapshots.",
		Example: "  dedupfs snapshot create before-upgrade ~/Cloud\n  dedupfs snapshot list",
		Args:    cobra.NoArgs,
		RunE:    showHelp,
	}
	cmd.AddCommand(a.snapshotCreateCommand(), a.snapshotListCommand("list"), a.snapshotShowCommand(), a.snapshotHoldCommand(),
		a.snapshotTagCommand(), a.diffCommand(), a.snapshotForgetCommand(), a.snapshotRestoreForgottenCommand())
	return cmd
}

// snapshotsCommand is a short form of snapshot list.
func (a *app) snapshotsCommand() *cobra.Command { return a.snapshotListCommand("snapshots") }

// createOptions are the body of POST /snapshots.
type createOptions struct {
	Name    string   `json:"name"` // "" for one made of the time
	Message string   `json:"message,omitempty"`
	Tags    []string `json:"tags,omitempty"`
	Sync    bool     `json:"sync"` // answer when it is on the remote
}

func (a *app) snapshotCreateCommand() *cobra.Command {
	var o createOptions
	cmd := &cobra.Command{
		Use:   "create [NAME] [DIR]",
		Short: "Make a snapshot of a mounted volume",
		Long: "Make a snapshot of the volume as it is now. It returns when the snapshot is safe on this machine. Without a NAME it is\n" +
			"named by the time. A single argument with a / is DIR.",
		Example: "  dedupfs snapshot create before-upgrade ~/Cloud --tag manual\n  dedupfs snapshot create ~/Cloud --sync",
		Args:    cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && !isDir(args) {
				o.Name = args[0]
				if err := checkSnapshotName(o.Name); err != nil {
					return err
				}
				args = args[1:]
			}
			return a.createSnapshot(cmd.Context(), args, o)
		},
	}
	cmd.Flags().BoolVar(&o.Sync, "sync", false, "return when the snapshot is on the remote")
	cmd.Flags().StringVarP(&o.Message, "message", "m", "", "`TEXT` to remember it by")
	cmd.Flags().StringSliceVar(&o.Tags, "tag", nil, "`TAG` to find it by; may be given several times")
	return cmd
}

// isDir reports whether the one argument of NAME and DIR is a directory, which is not a possible name.
func isDir(args []string) bool {
	return len(args) == 1 && (strings.Contains(args[0], "/") || args[0] == "." || args[0] == "..")
}

// checkSnapshotName refuses names that have a meaning of their own.
func checkSnapshotName(name string) error {
	if name == currentState {
		return usageError("%q is the state as it is now; choose another name", name)
	}
	if err := fs.CheckSnapshotName(name); err != nil {
		return usageError("%w", err)
	}
	return nil
}

func (a *app) createSnapshot(ctx context.Context, dir []string, o createOptions) error {
	m, err := a.theMount(ctx, dir)
	if err != nil {
		return err
	}
	if err := syncMount(m.dir); err != nil {
		return err
	}
	var made fs.Snapshot
	if err := a.callWithBar(ctx, m, "POST", "/snapshots", o, &made); err != nil {
		return err
	}
	if a.g.json {
		return a.printJSON(made)
	}
	_, err = fmt.Fprintln(a.stdout, escape(made.Name))
	return err
}

func (s *session) serveCreateSnapshot(ctx context.Context, r *http.Request, report func(progress)) (any, error) {
	var o createOptions
	if err := readJSON(r, &o); err != nil {
		return nil, err
	}
	made, err := s.volume.CreateSnapshot(ctx, fs.Snapshot{Name: o.Name, Message: o.Message, Tags: o.Tags})
	if err != nil {
		return nil, err
	}
	if o.Sync {
		if err := s.upload(ctx, report); err != nil {
			return nil, err
		}
	}
	return made, nil
}

func (a *app) snapshotListCommand(use string) *cobra.Command {
	var which listRequest
	cmd := &cobra.Command{
		Use:     use + " [DIR]",
		Short:   "List the snapshots",
		Long:    "List the snapshots of a mounted volume, or of the repository named by --repo.",
		Example: "  dedupfs snapshots ~/Cloud\n  dedupfs snapshot list --repo gdrive:home --json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := a.listSnapshots(cmd.Context(), args, which)
			if err != nil {
				return err
			}
			return a.printSnapshots(list)
		},
	}
	cmd.Flags().BoolVar(&which.Forgotten, "forgotten", false, "list those that are forgotten, and may still be brought back")
	cmd.Flags().BoolVarP(&which.All, "all", "a", false, "list the states too that a mount keeps without a name")
	return cmd
}

// listRequest says which snapshots are listed: those that have names, unless it says more.
type listRequest struct {
	Forgotten bool `json:"forgotten,omitempty"` // those that are forgotten
	All       bool `json:"all,omitempty"`       // automatic states too
}

// listQuery asks for snapshots.
var listQuery = question[listRequest, fs.Snapshot]{
	path: "/snapshots/list",
	answer: func(ctx context.Context, v *fs.Volume, which listRequest, item func(fs.Snapshot) error, _ func(progress)) error {
		list := v.Snapshots
		switch {
		case which.Forgotten:
			list = v.ForgottenSnapshots
		case which.All:
			list = v.AllSnapshots
		}
		return each(item)(list(ctx))
	},
}

func (a *app) listSnapshots(ctx context.Context, args []string, which listRequest) ([]fs.Snapshot, error) {
	list := []fs.Snapshot{} // never null in JSON
	err := ask(ctx, a, args, listQuery, which, func(s fs.Snapshot) error {
		list = append(list, s)
		return nil
	})
	return list, err
}

func (a *app) printSnapshots(list []fs.Snapshot) error {
	if a.g.json {
		return a.printJSON(list)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tTIME\tHOST\tTAGS\tMESSAGE")
	for _, s := range list {
		if s.Automatic {
			s.Message = "(automatic)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", escape(s.Name), s.Time.Local().Format(time.DateTime), escape(s.Host),
			escape(strings.Join(s.Tags, ",")), escape(s.Message))
	}
	return w.Flush()
}

func (a *app) snapshotShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "show NAME [DIR]",
		Short:   "Show one snapshot",
		Example: "  dedupfs snapshot show before-upgrade ~/Cloud",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := a.listSnapshots(cmd.Context(), args[1:], listRequest{All: true})
			if err != nil {
				return err
			}
			for _, s := range list {
				if s.Name == args[0] {
					return a.printSnapshot(s)
				}
			}
			return fmt.Errorf("%s: %w", escape(args[0]), fs.ErrNoSnapshot)
		},
	}
}

func (a *app) printSnapshot(s fs.Snapshot) error {
	if a.g.json {
		return a.printJSON(s)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "name\t%s\ntime\t%s\nhost\t%s\ntags\t%s\nmessage\t%s\n", escape(s.Name), s.Time.Local().Format(time.RFC3339Nano),
		escape(s.Host), escape(strings.Join(s.Tags, ", ")), escape(s.Message))
	if s.Hold {
		fmt.Fprintln(w, "held\tuntil it is released")
	}
	return w.Flush()
}

// snapshotChange is a change of one snapshot by its name.
type snapshotChange struct {
	Name   string   `json:"name"`
	Forget bool     `json:"forget,omitempty"`
	Revive bool     `json:"revive,omitempty"`
	Hold   *bool    `json:"hold,omitempty"`
	Tag    []string `json:"tag,omitempty"`
	Untag  []string `json:"untag,omitempty"`
}

// changeQuery asks for a change of one snapshot.
var changeQuery = question[snapshotChange, struct{}]{
	path: "/snapshots/change", writes: true,
	answer: func(ctx context.Context, v *fs.Volume, in snapshotChange, _ func(struct{}) error, _ func(progress)) error {
		switch {
		case in.Forget:
			return v.ForgetSnapshot(ctx, in.Name)
		case in.Revive:
			return v.RestoreForgotten(ctx, in.Name)
		case in.Hold != nil:
			return v.HoldSnapshot(ctx, in.Name, *in.Hold)
		default:
			return v.TagSnapshot(ctx, in.Name, in.Tag, in.Untag)
		}
	},
}

// changeCommand completes a command that changes the snapshot of its first
// argument as change says.
func (a *app) changeCommand(cmd *cobra.Command, change func() snapshotChange) *cobra.Command {
	cmd.Use += " NAME [DIR|REPO]"
	cmd.Args = cobra.RangeArgs(1, 2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		in := change()
		in.Name = args[0]
		return ask(cmd.Context(), a, args[1:], changeQuery, in, nil)
	}
	return cmd
}

func (a *app) snapshotForgetCommand() *cobra.Command {
	return a.changeCommand(&cobra.Command{
		Use:   "forget",
		Short: "Forget a snapshot",
		Long: "Forget a snapshot. What only it needs stays until `dedupfs gc` removes it; until then `snapshot restore-forgotten`\n" +
			"brings it back. `dedupfs forget` forgets many by rules.",
		Example: "  dedupfs snapshot forget before-upgrade ~/Cloud",
	}, func() snapshotChange { return snapshotChange{Forget: true} })
}

func (a *app) snapshotRestoreForgottenCommand() *cobra.Command {
	return a.changeCommand(&cobra.Command{
		Use:     "restore-forgotten",
		Short:   "Bring a forgotten snapshot back",
		Long:    "Bring a forgotten snapshot back. It fails when garbage collection has begun to remove what the snapshot needs.",
		Example: "  dedupfs snapshot list --forgotten\n  dedupfs snapshot restore-forgotten before-update",
	}, func() snapshotChange { return snapshotChange{Revive: true} })
}

func (a *app) snapshotHoldCommand() *cobra.Command {
	var off bool
	cmd := a.changeCommand(&cobra.Command{
		Use:     "hold",
		Short:   "Keep a snapshot from being forgotten",
		Long:    "Keep a snapshot from being forgotten, by rules or by name, until it is released with --off.",
		Example: "  dedupfs snapshot hold before-upgrade ~/Cloud\n  dedupfs snapshot hold --off before-upgrade ~/Cloud",
	}, func() snapshotChange {
		hold := !off
		return snapshotChange{Hold: &hold}
	})
	cmd.Flags().BoolVar(&off, "off", false, "release it")
	return cmd
}

func (a *app) snapshotTagCommand() *cobra.Command {
	var add, remove []string
	cmd := a.changeCommand(&cobra.Command{
		Use:     "tag",
		Short:   "Change the tags of a snapshot",
		Example: "  dedupfs snapshot tag --add release --remove test before-update",
	}, func() snapshotChange { return snapshotChange{Tag: add, Untag: remove} })
	cmd.Flags().StringSliceVar(&add, "add", nil, "`TAG` to add; may be given several times")
	cmd.Flags().StringSliceVar(&remove, "remove", nil, "`TAG` to take away; may be given several times")
	return cmd
}
