package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/fs"
	"github.com/dedupfs/dedupfs/store"
)

// repairOptions are the flags of repair.
type repairOptions struct {
	quick       bool
	dryRun      bool
	parity      parityFlag
	replaceLost bool
}

// parityFlag is a share in thousandths.
type parityFlag int

func (f *parityFlag) Type() string { return "share" }

func (f *parityFlag) String() string {
	if *f == 0 {
		return ""
	}
	return strconv.FormatFloat(float64(*f)/10, 'g', -1, 64) + "%"
}

func (f *parityFlag) Set(s string) error {
	number, ok := strings.CutSuffix(s, "%")
	percent, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(percent >= 0.1 && percent <= store.MaxParity/10) {
		return fmt.Errorf("%q is no share for parity; write a percentage from 0.1%% to 100%%, such as 5%%", s)
	}
	*f = parityFlag(math.Ceil(percent * 10))
	return nil
}

func (a *app) repairCommand() *cobra.Command {
	var o repairOptions
	cmd := &cobra.Command{
		Use:   "repair [REPO]",
		Short: "Bring back what is damaged or lost in a repository",
		Long: "Check a repository, with every byte of it, and put again what is damaged or lost: from what this machine has kept of it,\n" +
			"from what is intact in the damaged objects, and from other objects. Run it on every machine that has used the repository\n" +
			"until nothing is left. What is intact is never put at risk: it can be interrupted and run again at any time, beside mounts.\n\n" +
			"Files that stay lost are listed. Whoever has them writes them again, anywhere in the volume, and all files that have\n" +
			"held the same bytes can be read again. The exit code is 0 if no damage is left, else 20 or 21 as with check.\n\n" +
			"When nobody has them, --replace-lost gives them up: each becomes \"NAME (damaged).EXT\", with zeros where bytes are lost, and the\n" +
			"attribute user.dedupfs.lost says where that is. What of a lost directory nobody can place goes to /lost+found. Snapshots stay\n" +
			"as they are, lost parts and all: forget those that are not worth it, and `dedupfs gc`. With --dry-run it is only said.",
		Example: "  dedupfs repair --dry-run gdrive:home\n" +
			"  dedupfs repair --replace-lost --dry-run gdrive:home",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			url, err := a.repoURL(args)
			if err != nil {
				return err
			}
			return a.repair(cmd.Context(), url, o)
		},
	}
	cmd.Flags().BoolVar(&o.quick, "quick", false, "do not read all data: only what is missing or cannot be opened is found")
	cmd.Flags().Var(&o.parity, "parity", "put parity, such as 5%, beside all objects of data that have none, and from now on beside new ones, on all machines")
	cmd.MarkFlagsMutuallyExclusive("quick", "parity")
	cmd.Flags().BoolVar(&o.replaceLost, "replace-lost", false, "give up what stays lost: replace files by what is left of them, under another name")
	cmd.Flags().BoolVarP(&o.dryRun, "dry-run", "n", false, "change nothing, and say what would be done")
	return cmd
}

// fixJSON is what repair did, or would do, about one object.
type fixJSON struct {
	Object  string `json:"object"`
	Error   string `json:"error"`             // what was wrong
	How     string `json:"how"`               // copy, pieces, removed, renewed or intact
	Chunks  int    `json:"chunks"`            // that it holds then
	Lost    int    `json:"lost"`              // that stay lost
	Refused string `json:"refused,omitempty"` // by the storage; what was found lies beside it
}

// repairJSON is what `repair --json` prints.
type repairJSON struct {
	DryRun bool         `json:"dry_run"`
	Fixes  []fixJSON    `json:"fixes"`
	Left   []damageJSON `json:"left"`
	Parity int          `json:"parity"` // objects of parity that have been put

	Replaced []fs.Replaced `json:"replaced"` // by --replace-lost
}

func (a *app) repair(ctx context.Context, url string, o repairOptions) error {
	password, err := a.password(ctx, false)
	if err != nil {
		return err
	}
	repo, err := a.openRepository(ctx, url, password)
	if err != nil {
		return err
	}
	spare, err := a.newSpare(ctx, repo.Repository)
	if err != nil {
		return err
	}
	if err := a.setParity(ctx, repo.Repository, spare, o); err != nil {
		return errors.Join(err, spare.close())
	}
	report, err := a.runRepair(ctx, repo.Repository, spare, o, nil)
	if err != nil {
		return errors.Join(err, spare.close())
	}
	if !o.dryRun {
		err = spare.tell(healthAfter(report))
	}
	if err = errors.Join(err, spare.close()); err != nil {
		a.say("this machine could not be told what was found out: %v", err)
	}
	out := &repairJSON{o.dryRun, fixesOf(report), []damageJSON{}, report.Parity, []fs.Replaced{}}
	left, err := a.reportOf(ctx, repo.Repository, &store.CheckReport{Damages: report.Left})
	if err != nil {
		return err
	}
	out.Left = left.Damages
	if o.replaceLost {
		if out.Replaced, err = a.replaceLost(ctx, url, report.Left, o.dryRun); err != nil {
			return errors.Join(err, a.printRepair(out))
		}
	}
	if len(out.Replaced) > 0 && !o.dryRun {
		if report, err = a.repairAgain(ctx, repo.Repository, report, out); err != nil {
			return err
		}
	}
	if err := a.printRepair(out); err != nil {
		return err
	}
	if o.dryRun {
		return damageError(report.Before.Damages)
	}
	return damageError(report.Left)
}

// setParity sets parity for what is new before it is put beside what is old, and has the mount of this machine know at once.
func (a *app) setParity(ctx context.Context, repo *store.Repository, spare *localSpare, o repairOptions) error {
	if o.parity == 0 || o.dryRun {
		return nil
	}
	if err := repo.SetParity(ctx, int(o.parity)); err != nil {
		return err
	}
	a.say("what is new gets parity too, from mounts on other machines within a minute")
	return spare.tell(health{Settings: true})
}

// runRepair repairs. What is known to be intact, unless that is nil, is not read again.
func (a *app) runRepair(ctx context.Context, repo *store.Repository, spare store.Spare, o repairOptions, known func(store.Name) bool) (*store.RepairReport, error) {
	bar := a.newBar("checking")
	defer bar.done()
	check := (&checkOptions{readData: !o.quick}).store(spare, bar)
	check.Known = known
	return repo.Repair(ctx, &store.RepairOptions{Check: *check, DryRun: o.dryRun, Parity: int(o.parity)})
}

// fixesOf returns what a repair did, for out.
func fixesOf(report *store.RepairReport) []fixJSON {
	fixes := []fixJSON{}
	for _, f := range report.Fixes {
		fix := fixJSON{f.Object, f.Damage.Err.Error(), f.How, f.Found, len(f.Left), ""}
		if f.Refused != nil {
			fix.Refused = f.Refused.Error()
		}
		fixes = append(fixes, fix)
	}
	return fixes
}

// replaceQuery asks a volume to replace what is lost.
var replaceQuery = question[fs.ReplaceOptions, fs.Replaced]{
	path: "/replace-lost", writes: true,
	answer: func(ctx context.Context, v *fs.Volume, in fs.ReplaceOptions, item func(fs.Replaced) error, report func(progress)) error {
		report(progress{What: "replacing what is lost"})
		list, err := v.ReplaceLost(ctx, in)
		for _, r := range list {
			err = errors.Join(err, item(r))
		}
		return err
	},
}

// replaceLost gives up what of damages stays lost, in the volume as it is now.
func (a *app) replaceLost(ctx context.Context, url string, damages []store.Damage, dry bool) ([]fs.Replaced, error) {
	replaced := []fs.Replaced{}
	in := fs.ReplaceOptions{DryRun: dry}
	for _, d := range damages {
		in.Lost = append(in.Lost, d.IDs...)
	}
	if len(in.Lost) == 0 {
		return replaced, nil
	}
	err := ask(ctx, a, []string{url}, replaceQuery, in, func(r fs.Replaced) error {
		replaced = append(replaced, r)
		return nil
	})
	return replaced, err
}

// repairAgain clears up what was left damaged, now that files have been replaced: some of it nobody needs any more, and what is left
// then is needed by snapshots and older states, or by states of other machines. Nothing else is read again.
func (a *app) repairAgain(ctx context.Context, repo *store.Repository, before *store.RepairReport, out *repairJSON) (*store.RepairReport, error) {
	damaged := map[store.Name]bool{}
	for _, d := range before.Left {
		damaged[d.Multichunk] = true
	}
	spare, err := a.newSpare(ctx, repo)
	if err != nil {
		return nil, err
	}
	report, err := a.runRepair(ctx, repo, spare, repairOptions{}, func(n store.Name) bool { return !damaged[n] })
	if err == nil {
		err = spare.tell(healthAfter(report))
	}
	if err = errors.Join(err, spare.close()); err != nil {
		return nil, err
	}
	left, err := a.reportOf(ctx, repo, &store.CheckReport{Damages: report.Left})
	if err != nil {
		return nil, err
	}
	out.Fixes, out.Left = append(out.Fixes, fixesOf(report)...), left.Damages
	return report, nil
}

// onlyPast reports whether all that damages take something from are snapshots and states without a name.
func onlyPast(damages []damageJSON) bool {
	for _, d := range damages {
		present := func(file string) bool { return strings.HasPrefix(file, "current:") }
		if len(d.Files) == 0 || slices.ContainsFunc(d.Files, present) {
			return false
		}
	}
	return len(damages) > 0
}

func (a *app) printReplaced(r *repairJSON) {
	for _, f := range r.Replaced {
		fmt.Fprintf(a.stdout, "lost of %s: %s", escape(f.Path), escape(f.What))
		if f.Now != f.Path {
			fmt.Fprintf(a.stdout, "; what is left is in %s", escape(f.Now))
		}
		fmt.Fprintln(a.stdout)
	}
	switch n := len(r.Replaced); {
	case n > 0 && r.DryRun:
		a.say("would replace %s by what is left of them", count(n, "file"))
	case n > 0:
		a.say("replaced %s by what is left of them", count(n, "file"))
	}
}

// healthAfter returns what this machine should know after a repair.
func healthAfter(report *store.RepairReport) health {
	h := health{Lost: multichunksOf(report.Left)}
	for _, f := range report.Fixes {
		if !f.Multichunk.IsZero() && !slices.Contains(h.Lost, f.Multichunk) && f.How != "removed" {
			h.Found = append(h.Found, f.Multichunk)
		}
	}
	return h
}

func (a *app) printRepair(r *repairJSON) error {
	if a.g.json {
		return a.printJSON(r)
	}
	verbs := map[string]string{
		"copy": "put again as it was", "pieces": "put together from what could be found", "removed": "removed, nothing in it is needed",
		"renewed": "removed, and another was put", "intact": "intact on a second look",
	}
	for _, f := range r.Fixes {
		fmt.Fprintf(a.stdout, "%s: %s: %s, with %d chunks", f.Object, escape(f.Error), verbs[f.How], f.Chunks)
		if f.Lost > 0 {
			fmt.Fprintf(a.stdout, "; %d more stay lost", f.Lost)
		}
		if f.Refused != "" {
			fmt.Fprintf(a.stdout, "; beside it, because the storage refuses to replace it (%s)", escape(f.Refused))
		}
		fmt.Fprintln(a.stdout)
	}
	for _, d := range r.Left {
		fmt.Fprintf(a.stdout, "%s: %s (left)\n", d.Object, escape(d.Error))
		for _, f := range d.Files {
			fmt.Fprintf(a.stdout, "  affects %s\n", escape(f))
		}
	}
	a.printReplaced(r)
	if r.Parity > 0 {
		a.say("put parity beside %s", count(r.Parity, "object"))
	}
	did := "repaired"
	if r.DryRun {
		did = "would repair"
	}
	a.say("%s %s; %d damaged left", did, count(len(r.Fixes), "object"), len(r.Left))
	if onlyPast(r.Left) {
		a.say("the newest state is whole; what is left only older states need: `dedupfs snapshot forget NAME`, or `dedupfs forget --keep-last 1` " +
			"for those without a name, and then `dedupfs gc`, give it up")
	}
	return nil
}
