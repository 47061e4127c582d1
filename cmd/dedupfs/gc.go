package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/fs"
)

// gcOptions are the flags of gc.
type gcOptions struct {
	dryRun, wait, most, reseal bool
	maxTime                    durationFlag
	maxBytes                   sizeFlag
	maxUnused                  shareFlag
}

func (a *app) gcCommand() *cobra.Command {
	o := gcOptions{maxUnused: 0.05}
	cmd := &cobra.Command{
		Use:     "gc [DIR|REPO]",
		Aliases: []string{"prune"},
		Short:   "Remove what nobody needs any more",
		Long: "Find what no machine and no snapshot needs, say so to all machines, and delete it when each of them has answered. Mounted\n" +
			"machines answer by themselves within seconds and go on working; one that was unmounted in good order is not asked. Nothing\n" +
			"is locked: it may be stopped at any time, and run on several machines. What could not be deleted yet, the next run does.\n\n" +
			"On a storage that shows new objects late (see `dedupfs init --settle-time`), what is condemned can be deleted when a process has\n" +
			"run for twice that time after all have answered: --wait stays for it, and a mount that is asked again later has run meanwhile.\n\n" +
			"On a storage that is full it works too: half a megabyte is kept free for it. Delete files and forget snapshots first, then run it.\n\n" +
			"Multichunks that are mostly unused, and small ones, are regrouped: what is needed of them is stored anew, together.",
		Example: "  dedupfs gc --dry-run\n" +
			"  dedupfs gc ~/Cloud\n" +
			"  dedupfs gc gdrive:home --wait --max-time 3h",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.gc(cmd.Context(), args, &o)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.dryRun, "dry-run", "n", false, "only say what would be removed, and when")
	f.BoolVar(&o.wait, "wait", false, "stay until all is deleted that can be")
	f.Var(&o.maxTime, "max-time", "stop after this long; the next run goes on")
	f.Var(&o.maxBytes, "max-bytes", "store at most this much anew by regrouping")
	f.Var(&o.maxUnused, "max-unused", "regroup until at most this `SHARE` of the data is unused; \"unlimited\" regroups nothing")
	f.BoolVar(&o.reseal, "reseal", false, "store anew what is sealed under older keys than that of the last `dedupfs key rotate`")
	f.BoolVar(&o.most, "unsafe-allow-delete-most", false, "go on even if more than half of the repository would be deleted")
	return cmd
}

// shareFlag is a part of a whole, written 5% or unlimited.
type shareFlag float64

func (f *shareFlag) Type() string { return "share" }

func (f *shareFlag) String() string {
	if *f < 0 {
		return "unlimited"
	}
	return strconv.FormatFloat(float64(*f)*100, 'g', -1, 64) + "%"
}

func (f *shareFlag) Set(s string) error {
	if s == "unlimited" {
		*f = -1
		return nil
	}
	number, ok := strings.CutSuffix(s, "%")
	percent, err := strconv.ParseFloat(number, 64)
	if err != nil || percent < 0 || percent > 100 || !ok && percent > 0 {
		return fmt.Errorf("%q is not a share; write a percentage, as in 5%%, or unlimited", s)
	}
	*f = shareFlag(percent / 100)
	return nil
}

// gcQuery asks a volume to collect garbage.
var gcQuery = question[fs.CollectOptions, fs.Collected]{
	path: "/gc", writes: true,
	answer: func(ctx context.Context, v *fs.Volume, in fs.CollectOptions, item func(fs.Collected) error, report func(progress)) error {
		c, err := v.Collect(ctx, in, func(what string, done, total int64) { report(progress{what, done, total}) })
		if err != nil {
			return err
		}
		return item(*c)
	},
}

func (a *app) gc(ctx context.Context, args []string, o *gcOptions) error {
	in := fs.CollectOptions{DryRun: o.dryRun, Wait: o.wait, MaxTime: time.Duration(o.maxTime), MaxBytes: int64(o.maxBytes),
		MaxUnused: float64(o.maxUnused), AllowMost: o.most, Reseal: o.reseal}
	var done fs.Collected
	err := ask(ctx, a, args, gcQuery, in, func(c fs.Collected) error {
		done = c
		return nil
	})
	if err != nil {
		return err
	}
	if a.g.json {
		return a.printJSON(done)
	}
	a.tellCollected(&done)
	return nil
}

// tellCollected says what was done, and what is left and why.
func (a *app) tellCollected(c *fs.Collected) {
	out := func(format string, args ...any) { fmt.Fprintf(a.stdout, format+"\n", args...) }
	if c.DryRun {
		out("%d of %d multichunks would be removed: %s of %s", c.Garbage, c.Multichunks, humanSize(c.GarbageSize), humanSize(c.Bytes))
		if c.Most {
			out("that is more than half, and needs --unsafe-allow-delete-most")
		}
	} else {
		out("deleted %d multichunks, %s", c.Deleted, humanSize(c.DeletedSize))
	}
	if c.Full {
		out("the storage was full; what waits for room goes on uploading by itself, see `dedupfs status`")
	}
	if r := c.Regrouped; r.From > 0 {
		verb := "regrouped"
		if c.DryRun {
			verb = "would regroup"
		}
		out("%s %d multichunks of %s: %s of them is needed, %s comes back", verb, r.From, humanSize(r.FromBytes), humanSize(r.Live),
			humanSize(max(r.FromBytes-r.Live, 0)))
	}
	if r := c.Regrouped; r.Old > 0 && !c.DryRun {
		out("%s were sealed under older keys; run `dedupfs gc --reseal` until none is", count(r.Old, "multichunk"))
	}
	if c.DryRun && c.Old > 0 {
		out("%d old commits and registrations are not needed any more", c.Old)
	}
	if n := c.Commits + c.Moves; n > 0 {
		out("deleted %d small objects that nobody needs to know of any more", n)
	}
	if c.Behind {
		out("more may go when all machines have seen the newest state, which the first run asks them for")
	}
	if c.Pending > 0 && c.DryRun {
		out("%d more have been condemned before: %s of them will go", c.Pending, humanSize(c.PendingSize))
	}
	if n := c.Garbage + c.Pending; n > 0 && len(c.Waiting) > 0 && !c.DryRun {
		out("condemned %d multichunks, %s", n, humanSize(c.GarbageSize+c.PendingSize))
	}
	if c.Unreadable > 0 {
		out("%d multichunks cannot be read and are left alone; see `dedupfs check`", c.Unreadable)
	}
	a.tellWaiting(c)
	if c.Automatic > 0 {
		out("states without a name that are kept: %d, see `dedupfs snapshots --all`; `dedupfs forget --keep-last 1` lets go of them", c.Automatic)
	}
	if c.TimeUp {
		out("the time was up; the next `dedupfs gc` goes on")
	}
}

// tellWaiting says what is in the way of the rest.
func (a *app) tellWaiting(c *fs.Collected) {
	if len(c.Waiting) > 0 {
		fmt.Fprintf(a.stdout, "waiting for %s to answer, which it does when it is mounted and can reach the storage:\n", count(len(c.Waiting), "machine"))
	}
	for _, w := range c.Waiting {
		seen := "never heard of"
		if w.Seen != nil {
			seen = "last heard of " + w.Seen.Local().Format(time.DateTime)
		}
		fmt.Fprintf(a.stdout, "  %s (%s, %s)\n", escape(w.Host), w.Client[:8], seen)
	}
	if len(c.Waiting) > 0 && !c.DryRun {
		fmt.Fprintf(a.stdout, "run `dedupfs gc` again then; one that will never come back is given up with `dedupfs clients evict %s`\n", c.Waiting[0].Client[:8])
	}
	if c.ReadyIn > 0 {
		fmt.Fprintf(a.stdout, "what is condemned can go when a process has run for %s since: use --wait, or ask the same mount again then\n", humanDuration(c.ReadyIn))
	}
}

// count returns a number of things as people read it.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
