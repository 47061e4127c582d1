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
		Args: cobra.NoArgs,
		RunE: showHelp,
	}
	cmd.AddCommand(a.snapshotCreateCommand(), a.snapshotListCommand("list"), a.snapshotShowCommand(), a.snapshotForgetCommand())
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
		Long:  "Make a snapshot of the volume as it is now. It returns when the snapshot is safe on this machine.",
		Args:  cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
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
	m, err := theMount(dir)
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
	return &cobra.Command{
		Use:   use + " [DIR]",
		Short: "List the snapshots",
		Long:  "List the snapshots of a mounted volume, or of the repository named by --repo.",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := a.listSnapshots(cmd.Context(), args)
			if err != nil {
				return err
			}
			return a.printSnapshots(list)
		},
	}
}

// listSnapshots asks the mount that is meant, or the repository if one is named
// and no directory.
func (a *app) listSnapshots(ctx context.Context, dir []string) ([]fs.Snapshot, error) {
	list := []fs.Snapshot{} // never null in JSON
	if len(dir) > 0 || a.g.repo == "" {
		m, err := theMount(dir)
		if err != nil {
			return nil, err
		}
		return list, m.call(ctx, "GET", "/snapshots", nil, &list, nil)
	}
	return list, a.withVolume(ctx, func(v *fs.Volume) (err error) {
		list, err = v.Snapshots(ctx)
		return err
	})
}

func (s *session) serveSnapshots(ctx context.Context, _ *http.Request, _ func(progress)) (any, error) {
	return s.volume.Snapshots(ctx)
}

func (a *app) printSnapshots(list []fs.Snapshot) error {
	if a.g.json {
		return a.printJSON(list)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tTIME\tHOST\tTAGS\tMESSAGE")
	for _, s := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", escape(s.Name), s.Time.Local().Format(time.DateTime), escape(s.Host),
			escape(strings.Join(s.Tags, ",")), escape(s.Message))
	}
	return w.Flush()
}

func (a *app) snapshotShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show NAME [DIR]",
		Short: "Show one snapshot",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := a.listSnapshots(cmd.Context(), args[1:])
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
	return w.Flush()
}

func (a *app) snapshotForgetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "forget NAME [DIR]",
		Short: "Forget a snapshot of a mounted volume",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := theMount(args[1:])
			if err != nil {
				return err
			}
			return m.call(cmd.Context(), "POST", "/snapshots/forget", args[0], nil, nil)
		},
	}
}

func (s *session) serveForgetSnapshot(ctx context.Context, r *http.Request, _ func(progress)) (any, error) {
	var name string
	if err := readJSON(r, &name); err != nil {
		return nil, err
	}
	return nil, s.volume.ForgetSnapshot(ctx, name)
}
