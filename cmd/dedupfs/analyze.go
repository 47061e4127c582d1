package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/experiment"
)

type analyzeOptions struct {
	versions bool
	line     sizeFlag
}

func (a *app) analyzeCommand() *cobra.Command {
	o := &analyzeOptions{line: 2_500_000}
	cmd := &cobra.Command{
		Use:   "analyze DIR",
		Short: "Tell what a folder would cost, before anything is stored",
		Long: "Read a folder and tell the number and size of its files by type and size, how much of it is there twice, how many bytes it\n" +
			"would take on a storage under a few settings of `init`, how long storing would take, and which setting to choose.\n\n" +
			"With --versions the directories in DIR are versions of one data set, stored one after the other in the order of their names.\n" +
			"Nothing is stored, symbolic links are not followed, and other file systems below DIR are left out. Beyond 100,000\n" +
			"chunks what is unique is estimated, to a percent, so that memory does not grow. What cannot be read is listed, and the exit code is 3.",
		Example: "  dedupfs analyze ~/Documents\n  dedupfs analyze --versions /backups --line 10M --json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.line < 1 {
				return usageError("--line must be at least 1")
			}
			return a.analyze(cmd.Context(), args[0], o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.versions, "versions", false, "the directories in DIR are versions of one data set")
	f.Var(&o.line, "line", "bytes per second of the line to the storage")
	return cmd
}

func (a *app) analyze(ctx context.Context, dir string, o *analyzeOptions) error {
	a.tuneMemory()
	bar := a.newBar("counting")
	stage := "counting"
	out, err := experiment.Analyze(ctx, dir, &experiment.AnalyzeOptions{
		Versions: o.versions, Line: int64(o.line), Pace: a.pace.Background,
		Progress: func(now string, done, total int64) {
			if now != stage {
				stage = now
				bar.describe("%s", now)
			}
			bar.set(done, total)
		},
		Failed: func(path string, err error) {
			bar.done()
			fmt.Fprintf(a.stderr, "dedupfs: %s: %v\n", escape(path), plainError(err))
		},
	})
	bar.done()
	if err != nil {
		return err
	}
	if a.g.json {
		err = a.printJSON(out)
	} else {
		err = printAnalysis(a.stdout, out)
	}
	if err == nil && out.Unreadable > 0 {
		err = fmt.Errorf("%w: %d entries could not be read and are not counted", errPartly, out.Unreadable)
	}
	return err
}

// plainError returns what is wrong, without the path that is said beside it.
func plainError(err error) error {
	if p, ok := err.(interface{ Unwrap() error }); ok && p.Unwrap() != nil {
		return p.Unwrap()
	}
	return err
}

func printAnalysis(w io.Writer, out *experiment.Analysis) error {
	fmt.Fprintf(w, "%s: %s in %d files, %d directories, %d symbolic links\n", escape(out.Dir), humanSize(out.Files.Bytes), out.Files.Files, out.Directories, out.Links)
	if out.Files.Files == 0 {
		return nil
	}
	fmt.Fprintf(w, "of them there already as whole files: %s in %d files (%.1f%%)\n\n", humanSize(out.Duplicates.Bytes), out.Duplicates.Files,
		share(out.Duplicates.Bytes, out.Files.Bytes))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	printCounts(t, "type", out.Types, out.Files)
	printCounts(t, "size", out.Sizes, out.Files)
	printCounts(t, "cut as", out.Kinds, out.Files)
	printVersions(t, out.Versions)
	fmt.Fprintf(t, "init with\tunique\tstored\tof all\tprocessor time\tupload at %s/s\t\n", humanSize(out.Line))
	for _, e := range out.Estimates {
		fmt.Fprintf(t, "%s\t%s\t%s\t%.1f%%\t%s\t%s\t%s\n", e.Setting, humanSize(e.UniqueBytes), humanSize(e.Stored), share(e.Stored, out.Files.Bytes),
			seconds(e.CPU), seconds(e.Upload), e.About)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	flags := out.Recommended
	if flags == out.Estimates[0].Setting {
		flags = ""
	} else {
		flags = " " + flags
	}
	_, err := fmt.Fprintf(w, "\nrecommended: dedupfs init%s (%s)\n", flags, out.Why)
	return err
}

func printCounts(w io.Writer, what string, counts []experiment.NamedCount, all experiment.Count) {
	fmt.Fprintf(w, "%s\tfiles\tbytes\tof all\t\n", what)
	for _, c := range counts {
		if c.Files > 0 {
			fmt.Fprintf(w, "%s\t%d\t%s\t%.1f%%\t\n", escape(c.Name), c.Files, humanSize(c.Bytes), share(c.Bytes, all.Bytes))
		}
	}
	fmt.Fprintln(w, "\t")
}

func printVersions(w io.Writer, versions []experiment.VersionCost) {
	if len(versions) == 0 {
		return
	}
	fmt.Fprintln(w, "version\tfiles\tbytes\tnew\tstored after it\t")
	for _, v := range versions {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t\n", escape(v.Name), v.Files, humanSize(v.Bytes), humanSize(v.New), humanSize(v.Stored))
	}
	fmt.Fprintln(w, "\t")
}

// share returns n of all in percent.
func share(n, all int64) float64 { return 100 * float64(n) / float64(max(1, all)) }

// seconds writes a number of seconds for people.
func seconds(s float64) string { return humanDuration(time.Duration(s * float64(time.Second))) }
