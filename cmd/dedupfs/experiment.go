package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/experiment"
)

func (a *app) experimentCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "experiment",
		Short: "Repeat the experiments of the multichunk thesis on your own data",
		Long: "Measure what chunkers, multichunks, compression and lines make of your data: the three experiments of the multichunk thesis, with\n" +
			"the chunkers, the packer and the encryption that repositories use. Nothing is stored but results. docs/experiments.md has\n" +
			"what came of it on eleven data sets.",
		Example: "  dedupfs experiment chunking /data/versions --out results",
		Args:    cobra.NoArgs,
		RunE:    showHelp,
	}
	cmd.AddCommand(a.experimentChunkingCommand(), a.experimentReconstructionCommand(), a.experimentUploadCommand(), a.experimentMeasureCommand())
	return cmd
}

type experimentOptions struct {
	out     string
	configs string
	top     int
}

func (a *app) experimentChunkingCommand() *cobra.Command {
	o := &experimentOptions{}
	cmd := &cobra.Command{
		Use:   "chunking DATA...",
		Short: "Measure how many bytes and how much time configurations take (experiment 1)",
		Long: "Store the versions of each data set DATA, which are the directories in it in the order of their names, under each configuration,\n" +
			"and write to the directory of --out: results.jsonl, a line for each configuration and data set; results.csv, a line for each version too;\n" +
			"charts, and index.html with all of it. Interrupted, and run again, it goes on where it stopped.\n\n" +
			"A configuration is written as in the thesis, MULTICHUNKER/CHUNKER/TRANSFORMERS: Custom-250-30/TTTD-4-Adler32/Gzip-Cipher has multichunks of\n" +
			"250 KB and a pause of 30 ms after each, which is added to the time and not slept. --configs takes a list, thesis (its 144), ours, or all.",
		Example: "  dedupfs experiment chunking --out results --configs all data/office data/source\n" +
			"  dedupfs experiment chunking --out results --configs Custom-4096-0/GFD-16/Zstd-Cipher /backups",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.out == "" {
				return usageError("--out must name a directory for the results")
			}
			return a.experimentChunking(cmd.Context(), args, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.out, "out", "", "`DIR` for the results, made if it is not there")
	f.StringVar(&o.configs, "configs", "all", "`LIST` of configurations, separated by commas; thesis, ours or all")
	f.IntVar(&o.top, "top", 10, "how many of the best to print for each data set; the files have all")
	return cmd
}

// experimentMeasureCommand measures one configuration in a process of its own, so that time and memory are its own.
func (a *app) experimentMeasureCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "measure CONFIG DATA",
		Short:  "Measure one configuration and print the result as JSON",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := experiment.ParseConfig(args[0])
			if err != nil {
				return usageError("%v", err)
			}
			r, err := experiment.Chunking(cmd.Context(), args[1], c, a.pace.Background)
			if err != nil {
				return err
			}
			r.Memory = experiment.PeakMemory()
			return json.NewEncoder(a.stdout).Encode(r)
		},
	}
}

// chunkingRun is a run of experiment 1.
type chunkingRun struct {
	*app
	o       *experimentOptions
	configs []experiment.Config
	results []*experiment.Result // those of earlier runs first
	have    map[string]*experiment.Result
}

func (a *app) experimentChunking(ctx context.Context, sets []string, o *experimentOptions) error {
	r := &chunkingRun{app: a, o: o, have: map[string]*experiment.Result{}}
	var err error
	if r.configs, err = parseConfigs(o.configs); err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o777); err != nil {
		return err
	}
	if err := r.load(); err != nil {
		return err
	}
	runErr := r.measureAll(ctx, sets)
	if err := experiment.WriteReport(o.out, r.results); err != nil {
		return errors.Join(runErr, err)
	}
	if runErr != nil {
		return runErr
	}
	if a.g.json {
		return a.printJSON(r.results)
	}
	if err := printRanking(a.stdout, r.results, o.top); err != nil {
		return err
	}
	a.say("tables, charts and all figures are in %s", escape(filepath.Join(o.out, "index.html")))
	return nil
}

func parseConfigs(list string) (configs []experiment.Config, err error) {
	var names []string
	for _, s := range strings.Split(list, ",") {
		switch s {
		case "thesis":
			names = append(names, experiment.ThesisConfigs()...)
		case "ours":
			names = append(names, experiment.OurConfigs()...)
		case "all":
			names = append(append(names, experiment.ThesisConfigs()...), experiment.OurConfigs()...)
		default:
			names = append(names, s)
		}
	}
	// Without pauses first: the others follow from these.
	for _, paused := range []bool{false, true} {
		for _, n := range names {
			c, err := experiment.ParseConfig(n)
			if err != nil {
				return nil, usageError("--configs: %v", err)
			}
			if (c.Pause > 0) == paused {
				configs = append(configs, c)
			}
		}
	}
	return configs, nil
}

const resultsName = "results.jsonl"

func resultKey(set, config string) string { return set + "\x00" + config }

// load reads the results of earlier runs. A last line that is cut short is what an interrupted run left.
func (r *chunkingRun) load() error {
	f, err := os.Open(filepath.Join(r.o.out, resultsName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	for in := json.NewDecoder(f); ; {
		var one experiment.Result
		if err := in.Decode(&one); err != nil {
			break
		}
		r.note(&one)
	}
	return r.rewrite()
}

func (r *chunkingRun) note(one *experiment.Result) {
	key := resultKey(one.Set, one.Config)
	if r.have[key] == nil {
		r.have[key] = one
		r.results = append(r.results, one)
	}
}

// rewrite writes the results that were read, and nothing behind them.
func (r *chunkingRun) rewrite() error {
	name := filepath.Join(r.o.out, resultsName)
	f, err := os.Create(name + ".new")
	if err != nil {
		return err
	}
	out := json.NewEncoder(f)
	for _, one := range r.results {
		err = errors.Join(err, out.Encode(one))
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

func (r *chunkingRun) measureAll(ctx context.Context, sets []string) error {
	out, err := os.OpenFile(filepath.Join(r.o.out, resultsName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer out.Close()
	total, done := len(sets)*len(r.configs), 0
	start := time.Now()
	for _, set := range sets {
		name := filepath.Base(filepath.Clean(set))
		for _, c := range r.configs {
			done++
			if r.have[resultKey(name, c.Name)] != nil {
				continue
			}
			one, err := r.measure(ctx, set, name, c)
			if err != nil {
				return fmt.Errorf("%s under %s: %w", escape(set), c.Name, err)
			}
			r.note(one)
			if err := json.NewEncoder(out).Encode(one); err != nil {
				return err
			}
			r.say("%d of %d, %s: %s under %s: %s stored, ratio %.2f", done, total, humanDuration(time.Since(start)), escape(name), c.Name, humanSize(one.Stored), one.Ratio)
		}
	}
	return nil
}

// measure has another process measure, unless the result follows from one without pauses.
func (r *chunkingRun) measure(ctx context.Context, set, name string, c experiment.Config) (*experiment.Result, error) {
	if err := r.pace.Background(ctx); err != nil {
		return nil, err
	}
	if c.Pause > 0 {
		if base := r.have[resultKey(name, c.WithoutPause())]; base != nil {
			return base.WithPause(c, 0), nil
		}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{"experiment", "measure", c.Name, set}
	if r.g.cpuLimit > 0 {
		args = append(args, "--cpu-limit", r.g.cpuLimit.String())
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), measureVariable+"=1")
	cmd.Stderr = r.stderr
	text, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, errors.New("the process that measured has failed, as it says")
	}
	one := &experiment.Result{}
	return one, json.Unmarshal(text, one)
}

// measureVariable tells a process that it is one of measure's, which matters to tests.
const measureVariable = "DEDUPFS_EXPERIMENT_MEASURE"

// printRanking prints the configurations that store least for each data set, and by processor time.
func printRanking(w io.Writer, results []*experiment.Result, top int) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, set := range experiment.Sets(results) {
		ranked := experiment.Rank(results, set, experiment.ByRatio)
		fastest := experiment.Rank(results, set, experiment.ByCPU)
		fmt.Fprintf(t, "%s\tconfiguration\tstored\tratio\tmetadata\tprocessor\trank by processor\t\n", escape(set))
		for i, r := range ranked[:min(top, len(ranked))] {
			fmt.Fprintf(t, "%d\t%s\t%s\t%.2f\t%.1f%%\t%.2fs\t%d\t\n", i+1, r.Config, humanSize(r.Stored), r.Ratio, 100*r.Overhead, r.Sum.CPU, 1+slices.Index(fastest, r))
		}
		fmt.Fprintln(t, "\t")
	}
	return t.Flush()
}
