package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/fs"
	"github.com/dedupfs/dedupfs/store"
)

// checkOptions are the flags of check.
type checkOptions struct {
	readData bool
	subset   subsetFlag
	repair   bool
	noKey    bool
	anew     bool
}

func (a *app) checkCommand() *cobra.Command {
	var o checkOptions
	cmd := &cobra.Command{
		Use:   "check [REPO]",
		Short: "Look for damage in a repository",
		Long: "Read keys, commits and trees, and see that all they refer to is there; with --read-data, every byte of every object.\n" +
			"What is damaged is named with the files that are lost by it. Nothing is changed. The exit code is 20 if `dedupfs repair`\n" +
			"can bring back from this machine all that is lost, and 21 if it cannot. What was stored again meanwhile is no damage.",
		Example: "  dedupfs check --read-data-subset 5% gdrive:home",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			url, err := a.repoURL(args)
			if err != nil {
				return err
			}
			switch {
			case o.repair:
				return a.repair(cmd.Context(), url, repairOptions{quick: !o.readData})
			case o.noKey:
				return a.checkParity(cmd.Context(), url)
			}
			return a.check(cmd.Context(), url, o)
		},
	}
	cmd.Flags().BoolVar(&o.readData, "read-data", false, "read every byte")
	cmd.Flags().BoolVar(&o.repair, "repair", false, "repair what is found, as dedupfs repair does")
	cmd.Flags().BoolVar(&o.noKey, "without-password", false, "only compare objects with their parity, which takes no password")
	cmd.Flags().Var(&o.subset, "read-data-subset", "read a share: `5%`, drawn anew each time, or 2/7, the second of seven parts")
	cmd.Flags().BoolVar(&o.anew, "anew", false, "do not go on where an interrupted check --read-data was, but read everything")
	cmd.MarkFlagsMutuallyExclusive("repair", "without-password", "read-data-subset")
	cmd.MarkFlagsMutuallyExclusive("without-password", "read-data")
	return cmd
}

// subsetFlag is a share of all multichunks.
type subsetFlag store.Subset

func (f *subsetFlag) Type() string { return "share" }

func (f *subsetFlag) String() string {
	if f.Parts == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", f.Part, f.Parts)
}

// maxParts bounds how small a share can be.
const maxParts = 10_000

func (f *subsetFlag) Set(s string) error {
	bad := fmt.Errorf("%q is not a share; write a percentage, as in 5%%, or a part, as in 2/7", s)
	if number, ok := strings.CutSuffix(s, "%"); ok {
		percent, err := strconv.ParseFloat(number, 64)
		if err != nil || !(percent > 0 && percent <= 100) {
			return bad
		}
		f.Parts = int(min(math.Round(100/percent), maxParts))
		f.Part = 1 + rand.IntN(f.Parts)
		return nil
	}
	part, parts, _ := strings.Cut(s, "/")
	n, err1 := strconv.Atoi(part)
	m, err2 := strconv.Atoi(parts)
	if err1 != nil || err2 != nil || n < 1 || n > m || m > maxParts {
		return bad
	}
	f.Part, f.Parts = n, m
	return nil
}

// reportJSON is what `check --json` prints.
type reportJSON struct {
	Objects int64        `json:"objects"`
	Bytes   int64        `json:"bytes"`
	Nodes   int64        `json:"nodes"`
	Chunks  int64        `json:"chunks"`
	Known   int64        `json:"read_before"` // multichunks that an interrupted check has read
	Foreign []string     `json:"foreign"`
	Damages []damageJSON `json:"damages"`
	Healed  []damageJSON `json:"healed"`
}

// damageJSON is one damaged object.
type damageJSON struct {
	Object     string   `json:"object"`
	Error      string   `json:"error"`
	Repairable bool     `json:"repairable"`
	Files      []string `json:"files"` // SNAPSHOT:PATH of what is lost with it
}

func (a *app) check(ctx context.Context, url string, o checkOptions) error {
	password, err := a.password(ctx, false)
	if err != nil {
		return err
	}
	st, err := a.openRemote(ctx, url, false, false)
	if err != nil {
		return err
	}
	root, err := a.cacheRoot()
	if err != nil {
		return err
	}
	known, _ := os.ReadFile(knownFile(root, url)) // a machine that has not been here before has none
	repo, err := openWithin(ctx, openWait, st, password, &store.OpenOptions{Known: known})
	if err != nil {
		return err
	}
	spare, err := a.newSpare(ctx, repo)
	if err != nil {
		return err
	}
	report, err := a.runCheck(ctx, repo, spare, o)
	if err != nil {
		return errors.Join(err, spare.close())
	}
	damaged := slices.Concat(report.Damages, report.Healed)
	err = errors.Join(spare.tell(health{Lost: multichunksOf(damaged)}), spare.close())
	if err != nil {
		a.say("this machine could not be told what is lost: %v", err)
	}
	out, err := a.reportOf(ctx, repo, report)
	if err != nil {
		return err
	}
	if err := a.printReport(out); err != nil {
		return err
	}
	return damageError(report.Damages)
}

// checkParity checks what can be checked without a password.
func (a *app) checkParity(ctx context.Context, url string) error {
	st, err := a.openRemote(ctx, url, false, false)
	if err != nil {
		return err
	}
	bar := a.newBar("comparing with parity")
	found, err := store.CheckParity(ctx, st, func(done int64) { bar.set(done, 0) })
	bar.done()
	if err != nil {
		return err
	}
	out := &reportJSON{Objects: found.Objects, Foreign: []string{}, Damages: []damageJSON{}, Healed: []damageJSON{}}
	for _, d := range found.Damages {
		out.Damages = append(out.Damages, damageJSON{d.Object, d.Err.Error(), d.Repairable, []string{}})
	}
	if err := a.printReport(out); err != nil {
		return err
	}
	return damageError(found.Damages)
}

// reportOf names the files that damage affects.
func (a *app) reportOf(ctx context.Context, repo *store.Repository, report *store.CheckReport) (*reportJSON, error) {
	out := &reportJSON{report.Objects, report.Bytes, report.Nodes, report.Chunks, report.Known, report.Foreign, []damageJSON{}, []damageJSON{}}
	files, err := a.affected(ctx, repo, report.Damages)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		a.say("which files are affected is not fully known: %v", err)
	}
	if out.Foreign == nil {
		out.Foreign = []string{} // as what is empty is shown
	}
	for i, d := range report.Damages {
		out.Damages = append(out.Damages, damageJSON{d.Object, d.Err.Error(), d.Repairable, files[i]})
	}
	for _, d := range report.Healed {
		out.Healed = append(out.Healed, damageJSON{d.Object, d.Err.Error(), true, []string{}})
	}
	return out, nil
}

func (a *app) runCheck(ctx context.Context, repo *store.Repository, spare store.Spare, o checkOptions) (*store.CheckReport, error) {
	if o.readData && o.subset.Parts == 0 {
		return a.checkOn(ctx, repo, spare, o)
	}
	bar := a.newBar("checking")
	defer bar.done()
	return repo.Check(ctx, o.store(spare, bar))
}

// checkOn reads everything, but for what an interrupted check has read within a day.
func (a *app) checkOn(ctx context.Context, repo *store.Repository, spare store.Spare, o checkOptions) (*store.CheckReport, error) {
	root, err := a.cacheRoot()
	if err != nil {
		return nil, err
	}
	before, err := openChecked(root, repo.Config().Repository, o.anew)
	if err != nil {
		return nil, err
	}
	if n := len(before.done); n > 0 {
		a.say("going on with a check that was interrupted: %s were read within a day (--anew reads them again)", count(n, "object"))
	}
	bar := a.newBar("checking")
	options := o.store(spare, bar)
	options.Known, options.Intact = before.has, before.add
	report, err := repo.Check(ctx, options)
	bar.done()
	if kept := before.close(err == nil); kept != nil {
		a.say("this machine cannot remember what was checked: %v", kept)
	} else if err != nil && before.file != nil {
		a.say("what was read is remembered: run it again within a day to go on")
	}
	return report, err
}

func (o *checkOptions) store(spare store.Spare, bar *bar) *store.CheckOptions {
	return &store.CheckOptions{
		ReadData: o.readData || o.subset.Parts > 0,
		Subset:   store.Subset(o.subset),
		Spare:    spare,
		Progress: func(done, total int64, stage string) {
			bar.describe("checking %s", stage)
			bar.set(done, total)
		},
	}
}

// affected returns for each damage the files that it takes bytes from.
func (a *app) affected(ctx context.Context, repo *store.Repository, damages []store.Damage) ([][]string, error) {
	files := make([][]string, len(damages))
	lost := map[store.ID][]int{}
	for i, d := range damages {
		files[i] = []string{}
		for _, id := range d.IDs {
			lost[id] = append(lost[id], i)
		}
	}
	if len(lost) == 0 {
		return files, nil
	}
	ca, err := cache.OpenReader(ctx, repo, &cache.Options{Memory: int64(a.g.memory) / 2})
	if err != nil {
		return files, err
	}
	defer ca.Close()
	err = fs.Affected(ctx, ca, repo, func(id store.ID) bool { return lost[id] != nil }, func(path string, id store.ID) {
		for _, i := range lost[id] {
			if !slices.Contains(files[i], path) {
				files[i] = append(files[i], path)
			}
		}
	})
	return files, err
}

// printReport prints what was found. Damages are results, so they go to stdout.
func (a *app) printReport(r *reportJSON) error {
	if a.g.json {
		return a.printJSON(r)
	}
	for _, d := range r.Damages {
		verdict := "not repairable"
		if d.Repairable {
			verdict = "repairable"
		}
		fmt.Fprintf(a.stdout, "%s: %s (%s)\n", d.Object, escape(d.Error), verdict)
		for _, f := range d.Files {
			fmt.Fprintf(a.stdout, "  affects %s\n", escape(f))
		}
	}
	for _, d := range r.Healed {
		a.say("%s: %s; all that is needed of it was stored again, `dedupfs repair` clears it up", d.Object, escape(d.Error))
	}
	for _, name := range r.Foreign {
		a.say("not ours, left alone: %s", escape(name))
	}
	a.say("checked %d objects, %s: %d nodes, %d chunks, %d objects damaged", r.Objects, humanSize(r.Bytes), r.Nodes, r.Chunks, len(r.Damages))
	return nil
}

// damageError returns the error for what a check has found.
func damageError(damages []store.Damage) error {
	if len(damages) == 0 {
		return nil
	}
	for _, d := range damages {
		if !d.Repairable {
			return fail(exitLost, "%d objects are damaged, and not all that they held is on this machine; run `dedupfs repair` here, and on others that have used the repository", len(damages))
		}
	}
	return fail(exitDamaged, "%d objects are damaged; `dedupfs repair` can bring back all that they held", len(damages))
}
