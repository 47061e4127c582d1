package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/experiment"
	"github.com/dedupfs/dedupfs/experiment/upload"
)

func (a *app) experimentReconstructionCommand() *cobra.Command {
	var out string
	lacks := []int{5, 10, 0}
	sizes := experiment.MultichunkSizes()
	cmd := &cobra.Command{
		Use:   "reconstruction DATA...",
		Short: "Measure what brings a client up to date that lacks versions (experiment 3)",
		Long: "Store the versions of each data set DATA in multichunks of several sizes, and tell how many bytes and requests a client takes that lacks the\n" +
			"last versions: fetching whole multichunks, ranges of them, and whole ones after regrouping (estimated). Times follow from the\n" +
			"speed and the latency of three lines, with four requests at a time.",
		Example: "  dedupfs experiment reconstruction data/office\n  dedupfs experiment reconstruction --lacks 1,5,0 --multichunks 250,8192 --out results data/*",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.experimentReconstruction(cmd.Context(), args, sizes, lacks, out)
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&lacks, "lacks", lacks, "how many of the last versions the client lacks; 0 is all")
	f.IntSliceVar(&sizes, "multichunks", sizes, "sizes of multichunks in KB")
	f.StringVar(&out, "out", "", "`DIR` for reconstruction.json and charts, made if it is not there")
	return cmd
}

func (a *app) experimentReconstruction(ctx context.Context, sets []string, sizes, lacks []int, dir string) error {
	a.tuneMemory()
	var all []*experiment.Reconstruction
	for _, set := range sets {
		for _, kb := range sizes {
			list, err := experiment.Reconstruct(ctx, set, kb, lacks, a.pace.Background)
			if err != nil {
				return err
			}
			all = append(all, list...)
			a.say("%s in multichunks of %d KB", escape(set), kb)
		}
	}
	charts, err := experiment.ReconstructionCharts(all)
	if err != nil {
		return err
	}
	if err := writeExperiment(dir, "reconstruction", all, charts); err != nil {
		return err
	}
	if a.g.json {
		return a.printJSON(all)
	}
	return printReconstructions(a.stdout, all)
}

// writeExperiment writes results and charts into dir, if there is one.
func writeExperiment(dir, name string, results any, charts []experiment.Chart) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	text, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	err = os.WriteFile(filepath.Join(dir, name+".json"), text, 0o666)
	for _, c := range charts {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, c.Name+".svg"), c.SVG, 0o666))
	}
	return err
}

func printReconstructions(w io.Writer, all []*experiment.Reconstruction) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var lines []string
	for _, l := range experiment.Lines() {
		lines = append(lines, l.Name)
	}
	fmt.Fprintf(t, "set\tlacks\tmultichunk\tneeded\twhole\trequests\tby range\trequests\tregrouped\ttime whole / by range: %s\t\n", strings.Join(lines, ", "))
	for _, r := range all {
		var times []string
		for i := range lines {
			times = append(times, seconds(r.Full.Seconds[i])+" / "+seconds(r.Ranged.Seconds[i]))
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%d\t%s\t%d\t%s\t%s\t\n", escape(r.Set), r.Lacks, humanSize(int64(r.Multichunk)), humanSize(r.Needed),
			humanSize(r.Full.Bytes), r.Full.Requests, humanSize(r.Ranged.Bytes), r.Ranged.Requests, humanSize(r.Regrouped.Bytes), strings.Join(times, ", "))
	}
	return t.Flush()
}

type uploadOptions struct {
	protocols []string
	sizes     []int
	parallel  []int
	each      durationFlag
	servers   string
	out       string
}

func (a *app) experimentUploadCommand() *cobra.Command {
	o := &uploadOptions{protocols: upload.Protocols(), sizes: upload.Sizes(), parallel: []int{1, 4}, each: durationFlag(3 * time.Second)}
	cmd := &cobra.Command{
		Use:   "upload",
		Short: "Measure upload speed by object size, on real servers over lines of three kinds (experiment 2)",
		Long: "Start servers of each protocol on this machine, put a line before them that has a speed and a latency, and measure how fast objects of\n" +
			"each size are put, as a repository puts them. Sizes of which one would take over 20 s are left out.\n\n" +
			"The servers are rclone's own, or with --servers installed those that people have: vsftpd, OpenSSH's sshd, nginx with its two WebDAV modules, and\n" +
			"versitygw for S3. They run with configurations, keys and directories of their own, on ports of loopback, and end with the measurement.",
		Example: "  dedupfs experiment upload --protocols webdav,s3 --sizes 4,250,8192 --out results\n" +
			"  dedupfs experiment upload --servers installed --protocols ftp,sftp,webdav",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, p := range o.protocols {
				if !slices.Contains(upload.Protocols(), p) {
					return usageError("--protocols: %q is none of %s", p, strings.Join(upload.Protocols(), ", "))
				}
			}
			if o.servers != "rclone" && o.servers != "installed" {
				return usageError("--servers is rclone or installed, not %q", o.servers)
			}
			for _, n := range append(slices.Clone(o.sizes), o.parallel...) {
				if n < 1 || n > 1<<20 {
					return usageError("%d is neither a size in KB nor a number of objects at a time", n)
				}
			}
			return a.experimentUpload(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.servers, "servers", "rclone", "which servers: rclone or installed")
	f.StringSliceVar(&o.protocols, "protocols", o.protocols, "kinds of server")
	f.IntSliceVar(&o.sizes, "sizes", o.sizes, "sizes of objects in KB")
	f.IntSliceVar(&o.parallel, "parallel", o.parallel, "how many objects are put at a time")
	f.Var(&o.each, "each", "how long each measurement takes at least")
	f.StringVar(&o.out, "out", "", "`DIR` for upload.json and charts, made if it is not there")
	return cmd
}

// longestObject is how long one object may take on a line, in seconds.
const longestObject = 20

func (a *app) experimentUpload(ctx context.Context, o *uploadOptions) error {
	for _, protocol := range o.protocols {
		if _, err := upload.Installed(protocol); err != nil && o.servers == "installed" {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "dedupfs-upload-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var all []*upload.Result
	for _, protocol := range o.protocols {
		for _, line := range experiment.Lines() {
			list, err := a.uploadOver(ctx, protocol, line, dir, o)
			if err != nil {
				return fmt.Errorf("%s over %s: %w", protocol, line.Name, err)
			}
			all = append(all, list...)
		}
	}
	charts, err := upload.Charts(all)
	if err != nil {
		return err
	}
	if err := writeExperiment(o.out, "upload", all, charts); err != nil {
		return err
	}
	if a.g.json {
		return a.printJSON(all)
	}
	t := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "protocol\tline\tobject\tat a time\tobjects\tspeed\t")
	for _, r := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%s/s\t\n", r.Protocol, r.Line, humanSize(int64(r.Size)), r.Parallel, r.Objects, humanSize(int64(r.Rate)))
	}
	return t.Flush()
}

// uploadOver measures all sizes over one line to one server.
func (a *app) uploadOver(ctx context.Context, protocol string, line experiment.Line, dir string, o *uploadOptions) (list []*upload.Result, err error) {
	s, err := upload.Start(ctx, protocol, line, dir, &upload.Options{Installed: o.servers == "installed"})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for _, kb := range o.sizes {
		for _, parallel := range o.parallel {
			if int64(kb)<<10*int64(parallel)/line.Up > longestObject {
				continue
			}
			r, err := s.Measure(ctx, kb<<10, parallel, time.Duration(o.each))
			if err != nil {
				return nil, err
			}
			list = append(list, r)
			a.say("%s over %s: objects of %s, %d at a time: %s/s", protocol, line.Name, humanSize(int64(r.Size)), parallel, humanSize(int64(r.Rate)))
		}
	}
	return list, nil
}
