package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/fs"
)

func (a *app) clientsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "clients",
		Short: "Show and manage the machines that use a repository",
		Long: "A client is one cache directory of one machine; each life of it is an incarnation, with a history of its own. A cache\n" +
			"directory that was copied, or put back from a backup, begins another one.",
		Example: "  dedupfs clients list ~/Cloud\n  dedupfs clients rename laptop",
		Args:    cobra.NoArgs,
		RunE:    showHelp,
	}
	cmd.AddCommand(a.clientsListCommand(), a.clientsRenameCommand(), a.clientsEvictCommand(), a.clientsAcceptCommand())
	return cmd
}

var clientsQuery = question[struct{}, fs.Client]{
	path: "/clients",
	answer: func(ctx context.Context, v *fs.Volume, _ struct{}, item func(fs.Client) error, _ func(progress)) error {
		return each(item)(v.Clients(ctx))
	},
}

// each gives all items of a list.
func each[T any](item func(T) error) func([]T, error) error {
	return func(list []T, err error) error {
		for _, one := range list {
			err = errors.Join(err, item(one))
		}
		return err
	}
}

func (a *app) clientsListCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "list [DIR|REPO]",
		Short: "List the clients",
		Long: "List who uses the repository: when its newest commit was made, by its own clock; how many commits of others that has not\n" +
			"seen; and, of this machine, what waits for upload. A client that waits for nothing in the last column holds up no\n" +
			"garbage collection.",
		Example: "  dedupfs clients list\n  dedupfs clients list gdrive:home --json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			list := []fs.Client{}
			err := ask(cmd.Context(), a, args, clientsQuery, struct{}{}, func(c fs.Client) error {
				if all || c.State == "active" || a.g.json {
					list = append(list, c)
				}
				return nil
			})
			if err != nil {
				return err
			}
			return a.printClients(list)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also those that have retired or were evicted")
	return cmd
}

func (a *app) printClients(list []fs.Client) error {
	if a.g.json {
		return a.printJSON(list)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tCLIENT\tINCARNATION\tSTATE\tLAST SEEN\tCOMMITS\tLAG\tPENDING\tNOTICES TO ANSWER")
	for _, c := range list {
		state, seen, pending := c.State, "never", "-"
		if c.Self {
			state, pending = "this machine", humanSize(c.Pending)
		}
		if c.Seen != nil {
			seen = c.Seen.Local().Format(time.DateTime)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%d\n", escape(c.Host), c.Client[:8], c.Incarnation[:8], state, seen,
			c.Seq, c.Lag, pending, c.Unheard)
	}
	return w.Flush()
}

var renameQuery = question[string, struct{}]{
	path: "/clients/rename", writes: true,
	answer: func(ctx context.Context, v *fs.Volume, name string, _ func(struct{}) error, _ func(progress)) error {
		return v.SetName(ctx, name)
	},
}

func (a *app) clientsRenameCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rename NAME [DIR|REPO]",
		Short: "Give this machine another name",
		Long: "Give this machine another name in the repository: in lists, snapshots, and the names of conflicts. Without it a client\n" +
			"goes by its host name.",
		Example: "  dedupfs clients rename laptop",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask(cmd.Context(), a, args[1:], renameQuery, args[0], nil)
		},
	}
}

type evictRequest struct {
	Name   string `json:"name"`
	DryRun bool   `json:"dry_run"`
}

var evictQuery = question[evictRequest, fs.Client]{
	path: "/clients/evict",
	answer: func(ctx context.Context, v *fs.Volume, in evictRequest, item func(fs.Client) error, _ func(progress)) error {
		return each(item)(v.EvictClients(ctx, in.Name, in.DryRun))
	},
}

func (a *app) clientsEvictCommand() *cobra.Command {
	var dry bool
	cmd := &cobra.Command{
		Use:   "evict CLIENT [DIR|REPO]",
		Short: "Give up a client that will not come back",
		Long: "Give up a client that will not come back, so that garbage collection does not wait for it. CLIENT is its name, or the\n" +
			"beginning of its id or incarnation. Commits that it publishes later count for nothing; should it come back after\n" +
			"all, it stores what it still has again, under a new incarnation.",
		Example: "  dedupfs clients list\n  dedupfs clients evict old-laptop --dry-run",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			list := []fs.Client{}
			err := ask(cmd.Context(), a, args[1:], evictQuery, evictRequest{args[0], dry}, func(c fs.Client) error {
				list = append(list, c)
				return nil
			})
			if err != nil {
				return err
			}
			if a.g.json {
				return a.printJSON(list)
			}
			verb := "evicted"
			if dry {
				verb = "would evict"
			}
			for _, c := range list {
				fmt.Fprintf(a.stdout, "%s %s, client %s, incarnation %s: its last commit that counts is %d\n",
					verb, escape(c.Host), c.Client, c.Incarnation, c.Seq)
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&dry, "dry-run", "n", false, "only say who would be evicted")
	return cmd
}

var acceptQuery = question[struct{}, fs.Acceptance]{
	path: "/clients/accept", writes: true, anyHistory: true,
	answer: func(ctx context.Context, v *fs.Volume, _ struct{}, item func(fs.Acceptance) error, _ func(progress)) error {
		return each(item)(v.AcceptHistory(ctx))
	},
}

func (a *app) clientsAcceptCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "accept [DIR|REPO]",
		Short: "Go on from a history that was rolled back or forked",
		Long: "Go on from the history that is on the remote now, although this machine has seen another one, or two of one client.\n" +
			"Find out first why that is so: somebody may have put back an old copy of the storage, or of a cache directory.\n" +
			"What was accepted is recorded on the remote, for all machines. Whose history it was goes on as a new incarnation;\n" +
			"what it has that the remote has not is published again.",
		Example: "  dedupfs clients accept gdrive:home",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			list := []fs.Acceptance{}
			err := ask(cmd.Context(), a, args, acceptQuery, struct{}{}, func(one fs.Acceptance) error {
				list = append(list, one)
				return nil
			})
			if err != nil {
				return err
			}
			if a.g.json {
				return a.printJSON(list)
			}
			for _, one := range list {
				fmt.Fprintf(a.stdout, "accepted: client %s goes on from commit %d (%s)\n", one.Client, one.Kept, escape(one.Told))
			}
			if len(list) == 0 {
				a.say("the history on the remote is what was seen before; there is nothing to accept")
			}
			return nil
		},
	}
}
