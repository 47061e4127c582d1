package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/dedupfs/dedupfs/chunking"
	"github.com/dedupfs/dedupfs/store"
)

// benchmarkRow is how fast one stage is.
type benchmarkRow struct {
	Stage     string  `json:"stage"`
	Workers   int     `json:"workers"`
	Bytes     int64   `json:"bytes"`           // of each run
	PerSecond float64 `json:"bytes_per_s"`     // of time on the wall, median
	PerCPU    float64 `json:"bytes_per_cpu_s"` // of processor time, median
	OfMemory  float64 `json:"of_read_bandwidth,omitempty"`
	Note      string  `json:"note,omitempty"`
}

// benchmarkReport is what `benchmark --json` prints.
type benchmarkReport struct {
	Data        string         `json:"data"`
	Chunker     string         `json:"chunker"`
	Kernel      string         `json:"kernel"` // of GFD's first stage
	Compression string         `json:"compression"`
	Processors  int            `json:"processors"`
	Rows        []benchmarkRow `json:"rows"`
}

type benchmarkOptions struct {
	chunker, compression, file string
	size                       sizeFlag
	runs                       int
}

func (a *app) benchmarkCommand() *cobra.Command {
	o := &benchmarkOptions{size: 64 << 20}
	cmd := &cobra.Command{
		Use:   "benchmark",
		Short: "Measure how fast this machine is at every stage of storing",
		Long: "Measure, in memory, every stage that the bytes of a new file go through: reading them, marking and cutting, naming, compressing,\n" +
			"sealing, and all together; with one worker and with one for each processor. Nothing is stored. What a worker reads at most is shown\n" +
			"first: no stage can be faster.",
		Example: "  dedupfs benchmark\n  dedupfs benchmark --file /usr/bin/git --compression zstd-better --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.runs < 1 || o.size < 1<<20 {
				return usageError("--runs must be at least 1 and --size at least 1M")
			}
			return a.benchmark(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.chunker, "chunker", "", "`NAME` of the chunker (default that of new repositories)")
	f.StringVar(&o.compression, "compression", "", "`METHOD` of compression (default that of new repositories)")
	f.StringVar(&o.file, "file", "", "take the bytes of this `FILE`, again and again (default random bytes)")
	f.Var(&o.size, "size", "how many bytes a run takes")
	f.IntVar(&o.runs, "runs", 5, "how many runs the median is taken of")
	return cmd
}

func (a *app) benchmark(ctx context.Context, o *benchmarkOptions) error {
	cfg := store.Config{Compression: o.compression}
	if o.chunker != "" {
		cfg.Chunkers = chunking.Set{Default: o.chunker, Pages: o.chunker, Media: o.chunker}
	}
	stages, err := store.NewStages(cfg)
	if err != nil {
		return usageError("%v", err)
	}
	data, name, err := benchmarkData(o)
	if err != nil {
		return err
	}
	b := &benchmarker{ctx: ctx, stages: stages, data: data, ends: stages.Chunker().Ends(nil, data, true), runs: o.runs}
	report := benchmarkReport{Data: name, Chunker: stages.Chunker().Name(), Kernel: chunking.Kernels()[0],
		Compression: stages.Compression(), Processors: runtime.GOMAXPROCS(0)}
	for _, workers := range slices.Compact([]int{1, report.Processors}) {
		rows, err := b.all(workers)
		if err != nil {
			return err
		}
		report.Rows = append(report.Rows, rows...)
	}
	if a.g.json {
		return a.printJSON(report)
	}
	return report.print(a.stdout)
}

// benchmarkData returns the bytes to work on, and what to call them.
func benchmarkData(o *benchmarkOptions) ([]byte, string, error) {
	data := make([]byte, o.size)
	if o.file == "" {
		rand.NewChaCha8([32]byte{}).Read(data)
		return data, "random", nil
	}
	f, err := os.Open(o.file)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	n, err := io.ReadFull(f, data)
	if n == 0 {
		return nil, "", fmt.Errorf("read %s: %w", o.file, err)
	}
	return bytes.Repeat(data[:n], (len(data)+n-1)/n)[:len(data)], o.file, nil
}

// benchmarker measures one stage after the other.
type benchmarker struct {
	ctx    context.Context
	stages *store.Stages
	data   []byte
	ends   []int
	runs   int
}

// all measures every stage with a number of workers, each of which does all the work that one worker does.
func (b *benchmarker) all(workers int) ([]benchmarkRow, error) {
	c := b.stages.Chunker()
	packed, err := b.stages.Compress(b.data)
	if err != nil {
		return nil, err
	}
	steps := []struct {
		name string
		run  func() error
		note func() string
	}{
		{"read", func() error { chunking.ReadMemory(b.data); return nil }, nil},
		{"scan", func() error {
			if chunking.Scan(c, b.data) < 0 {
				return errNoStage
			}
			return nil
		}, nil},
		{"cut", func() error { c.Ends(nil, b.data, true); return nil }, func() string { return fmt.Sprintf("%d chunks", len(b.ends)) }},
		{"hash", func() error { b.stages.Hash(b.data, b.ends); return nil }, nil},
		{"compress", func() error { _, err := b.stages.Compress(b.data); return err },
			func() string { return fmt.Sprintf("to %.0f%%", 100*float64(packed)/float64(len(b.data))) }},
		{"seal", func() error { return b.stages.Seal(b.data) }, nil},
		{"all", func() error { _, err := b.stages.Pack(b.ctx, b.data); return err }, nil},
	}
	var rows []benchmarkRow
	for _, s := range steps {
		row, err := b.measure(s.name, workers, s.run)
		if err == errNoStage {
			continue
		}
		if err != nil {
			return nil, err
		}
		if s.note != nil && workers == 1 {
			row.Note = s.note()
		}
		if len(rows) > 0 {
			row.OfMemory = row.PerSecond / rows[0].PerSecond
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// errNoStage says that a chunker has no such stage.
var errNoStage = errors.New("no such stage")

// measure runs a stage by several workers at once, and takes medians.
func (b *benchmarker) measure(name string, workers int, run func() error) (benchmarkRow, error) {
	row := benchmarkRow{Stage: name, Workers: workers, Bytes: int64(len(b.data)) * int64(workers)}
	var wall, cpu []float64
	for range b.runs {
		if err := b.ctx.Err(); err != nil {
			return row, err
		}
		start, used := time.Now(), processorTime()
		var g errgroup.Group
		for range workers {
			g.Go(run)
		}
		if err := g.Wait(); err != nil {
			return row, err
		}
		wall = append(wall, float64(row.Bytes)/time.Since(start).Seconds())
		cpu = append(cpu, float64(row.Bytes)/max(processorTime()-used, time.Microsecond).Seconds())
	}
	row.PerSecond, row.PerCPU = median(wall), median(cpu)
	return row, nil
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// processorTime is what this process has used of all processors.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (r *benchmarkReport) print(w io.Writer) error {
	fmt.Fprintf(w, "%s bytes, chunker %s, kernel %s, compression %s, %d processors\n\n", r.Data, r.Chunker, r.Kernel, r.Compression, r.Processors)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "stage\tworkers\tMB/s\tMB per processor second\tof reading\t\t")
	for _, row := range r.Rows {
		fmt.Fprintf(t, "%s\t%d\t%.0f\t%.0f\t", row.Stage, row.Workers, row.PerSecond/1e6, row.PerCPU/1e6)
		if row.OfMemory > 0 {
			fmt.Fprintf(t, "%.0f%%", 100*row.OfMemory)
		}
		fmt.Fprintf(t, "\t%s\t\n", row.Note)
	}
	return t.Flush()
}
