package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/fs"
)

// forgetOptions are the flags of forget.
type forgetOptions struct {
	policy    fs.Policy
	within    durationFlag
	tags      []string // each one or more tags, separated by commas
	groupBy   string
	dryRun    bool
	prune     bool
	removeAll bool
	automatic automaticFlag
	apart     bool // automatic states have rules of their own
}

func (a *app) forgetCommand() *cobra.Command {
	var o forgetOptions
	cmd := &cobra.Command{
		Use:   "forget [DIR|REPO]",
		Short: "Forget snapshots by rules that say which ones to keep",
		Long: "Forget all snapshots that no rule keeps, in each group by itself: of each machine, unless --group-by says otherwise.\n" +
			"--keep-daily 7 keeps the newest snapshot of each of the last seven days that have one, and so on; what is held is\n" +
			"never forgotten. The same rules thin out the states that nobody has named and that a mount keeps (`dedupfs snapshots --all`),\n" +
			"of all machines together. The volume as it is now counts as the newest of them, so that --keep-last 1 leaves none;\n" +
			"--keep-automatic gives rules of their own, and all leaves them alone.\n\n" +
			"Which snapshot is newer follows from the order in which they were made, not from clocks alone. A forgotten snapshot\n" +
			"can be brought back with `dedupfs snapshot restore-forgotten` until `dedupfs gc` begins to remove what only it needs.",
		Example: "  dedupfs forget --keep-last 3 --keep-daily 7 --keep-weekly 5 --dry-run\n" +
			"  dedupfs forget ~/Cloud --keep-within 30d --keep-tag release --prune",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.apart = cmd.Flags().Changed("keep-automatic")
			if err := o.complete(); err != nil {
				return err
			}
			return a.forget(cmd, args, o)
		},
	}
	f := cmd.Flags()
	for _, rule := range []struct {
		name, what string
		n          *int
	}{
		{"last", "`N` newest snapshots", &o.policy.Last},
		{"hourly", "newest of each of the last `N` hours that have snapshots", &o.policy.Hourly},
		{"daily", "newest of each of the last `N` days that have snapshots", &o.policy.Daily},
		{"weekly", "newest of each of the last `N` weeks that have snapshots", &o.policy.Weekly},
		{"monthly", "newest of each of the last `N` months that have snapshots", &o.policy.Monthly},
		{"yearly", "newest of each of the last `N` years that have snapshots", &o.policy.Yearly},
	} {
		f.Var((*countFlag)(rule.n), "keep-"+rule.name, "keep the "+rule.what+"; \"all\" for no bound")
	}
	f.Var(&o.within, "keep-within", "keep what is at most this much older than the newest snapshot, as in 30d or 1y6w")
	f.StringArrayVar(&o.tags, "keep-tag", nil, "keep snapshots that have all of these `TAGS`, separated by commas; may be given several times")
	f.StringVar(&o.groupBy, "group-by", fs.GroupHost, "what makes a `GROUP`: host, tag, both separated by a comma, or none")
	f.Var(&o.automatic, "keep-automatic", "rules for states without a name, as last=30,hourly=24,daily=30, or default, all or none (default: the same rules)")
	f.BoolVarP(&o.dryRun, "dry-run", "n", false, "only say what would be kept and forgotten")
	f.BoolVar(&o.prune, "prune", false, "then run `dedupfs gc`")
	f.BoolVar(&o.removeAll, "unsafe-allow-remove-all", false, "go on even if no snapshot of a group, or none at all, would be left")
	return cmd
}

// countFlag is how many snapshots a rule keeps.
type countFlag int

func (f *countFlag) Type() string { return "count" }

func (f *countFlag) String() string {
	if *f == fs.AllOf {
		return "all"
	}
	return strconv.Itoa(int(*f))
}

// Set also reads "unlimited" and -1, as other programs of this kind do.
func (f *countFlag) Set(s string) error {
	if slices.Contains([]string{"all", "unlimited", "-1"}, s) {
		*f = fs.AllOf
		return nil
	}
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return fmt.Errorf("%q is not a number of snapshots; write one from 0 on, or all", s)
	}
	*f = countFlag(n)
	return nil
}

// complete checks the flags and makes the policy of them.
func (o *forgetOptions) complete() error {
	o.policy.Within, o.policy.All = time.Duration(o.within), o.removeAll
	if o.apart {
		p := fs.Policy(o.automatic)
		o.policy.Automatic = &p
	}
	for _, tags := range o.tags {
		o.policy.Tags = append(o.policy.Tags, strings.Split(tags, ","))
	}
	for _, by := range strings.Split(o.groupBy, ",") {
		switch by = strings.TrimSuffix(by, "s"); by {
		case fs.GroupHost, fs.GroupTag:
			o.policy.GroupBy = append(o.policy.GroupBy, by)
		case "", "none":
		default:
			return usageError("--group-by %s: group by host, tag, host,tag or none", o.groupBy)
		}
	}
	if o.policy.Empty() && !o.removeAll && !o.apart {
		return usageError("which snapshots shall stay? give a rule, as --keep-last 3; --unsafe-allow-remove-all forgets all")
	}
	return nil
}

// forgetQuery asks to forget by rules.
var forgetQuery = question[forgetRequest, fs.RetentionGroup]{
	path: "/forget", writes: true,
	answer: func(ctx context.Context, v *fs.Volume, in forgetRequest, item func(fs.RetentionGroup) error, _ func(progress)) error {
		return each(item)(v.Retain(ctx, &in.Policy, in.DryRun))
	},
}

type forgetRequest struct {
	Policy fs.Policy `json:"policy"`
	DryRun bool      `json:"dry_run"`
}

func (a *app) forget(cmd *cobra.Command, args []string, o forgetOptions) error {
	query := forgetQuery
	query.writes = !o.dryRun
	groups := []fs.RetentionGroup{}
	err := ask(cmd.Context(), a, args, query, forgetRequest{o.policy, o.dryRun}, func(g fs.RetentionGroup) error {
		groups = append(groups, g)
		return nil
	})
	if err != nil {
		return err
	}
	if err := a.printGroups(groups, o.dryRun); err != nil {
		return err
	}
	if !o.prune || o.dryRun {
		return nil
	}
	return runCommand(cmd, "gc", args)
}

// runCommand runs another command of the program, with the flags that variables
// set for it.
func runCommand(cmd *cobra.Command, name string, args []string) error {
	other, _, err := cmd.Root().Find([]string{name})
	if err != nil {
		return err
	}
	if err := bindEnvironment(other.Flags(), os.LookupEnv); err != nil {
		return err
	}
	other.SetContext(cmd.Context())
	return other.RunE(other, args)
}

func (a *app) printGroups(groups []fs.RetentionGroup, dry bool) error {
	if a.g.json {
		return a.printJSON(groups)
	}
	kept, forgotten := 0, 0
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "\tNAME\tTIME\tHOST\tTAGS\tKEPT AS")
	row := func(what string, s fs.Snapshot, why string) {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", what, escape(s.Name), s.Time.Local().Format(time.DateTime), escape(s.Host),
			escape(strings.Join(s.Tags, ",")), why)
	}
	for _, g := range groups {
		if g.Automatic { // there are many
			continue
		}
		for _, s := range g.Keep {
			row("keep", s.Snapshot, strings.Join(s.Reasons, ", "))
		}
		for _, s := range g.Forget {
			row("forget", s, "")
		}
		kept, forgotten = kept+len(g.Keep), forgotten+len(g.Forget)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	verb := "forgotten"
	if dry {
		verb = "would be forgotten"
	}
	a.say("%d kept, %d %s", kept, forgotten, verb)
	for _, g := range groups {
		if g.Automatic {
			a.say("of states without a name: %d kept, %d %s", len(g.Keep), len(g.Forget), verb)
		}
	}
	return nil
}
