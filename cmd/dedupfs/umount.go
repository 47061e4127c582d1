package main

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/fs/fusefs"
)

func (a *app) umountCommand() *cobra.Command {
	var noWait bool
	var timeout durationFlag
	cmd := &cobra.Command{
		Use:     "umount [DIR]",
		Aliases: []string{"unmount"},
		Short:   "Unmount, when all is on the remote",
		Long: "Upload all that is not yet on the remote, with progress, then unmount. While it waits the mount can be used; an\n" +
			"interrupt leaves it mounted. A mount whose process has died is cleared.",
		Example: "  dedupfs umount ~/Cloud\n  dedupfs umount --timeout 5m ~/Cloud",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if noWait && timeout != 0 {
				return usageError("--no-wait and --timeout exclude each other")
			}
			return a.umount(cmd.Context(), args, umountOptions{NoWait: noWait, Timeout: time.Duration(timeout)})
		},
	}
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not wait for the upload; the next mount goes on with it")
	cmd.Flags().Var(&timeout, "timeout", "give up after this time, with exit code 30; the mount stays")
	return cmd
}

func (a *app) umount(ctx context.Context, args []string, o umountOptions) error {
	m, err := a.theMount(ctx, args)
	if errors.Is(err, errDeadMount) {
		if !fusefs.ClearDead(deadDir(args[0]), a.log) {
			return err
		}
		a.say("cleared the mount of a process that has died")
		return nil
	}
	if err != nil {
		return err
	}
	if err := syncMount(m.dir); err != nil {
		return err
	}
	return a.callWithBar(ctx, m, "POST", "/umount", o, nil)
}

// deadDir returns the mount point that dir names, as mountinfo has it. Links on
// the way are followed; the dead mount itself cannot be looked at.
func deadDir(dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return dir
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return abs
	}
	return filepath.Join(parent, filepath.Base(abs))
}

// callWithBar sends a request that may take long, and shows how far it is.
func (a *app) callWithBar(ctx context.Context, m *mounted, method, path string, in, out any) error {
	bar := a.newBar("uploading")
	defer bar.done()
	return m.call(ctx, method, path, in, out, func(p progress) {
		bar.describe("%s", p.What)
		bar.set(p.Done, p.Total)
	})
}

func (a *app) syncCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "sync [DIR]",
		Short:   "Commit, upload and fetch now; return when all is on the remote",
		Example: "  dedupfs sync ~/Cloud",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := a.theMount(cmd.Context(), args)
			if err != nil {
				return err
			}
			if err := syncMount(m.dir); err != nil {
				return err
			}
			return a.callWithBar(cmd.Context(), m, "POST", "/sync", nil, nil)
		},
	}
}
