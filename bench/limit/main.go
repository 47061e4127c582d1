//go:build linux

// Limit measures what processor time a mount takes under --cpu-limit. For each limit, kind of data and chunker it mounts a fresh
// repository in a local directory, writes files into it as fast as they are taken, and looks at what the process of the mount has
// used, twenty times a second.
//
//	limit -dedupfs COMMAND [flags] [DATA...]
//
// DATA are directories whose files are written over and over, changed a little each time; "random" and "text" are made here.
//
// With -pauses it does the same for what the multichunk thesis had instead of a limit: a process that stores DATA, a directory with a
// directory for each version, in one configuration of the thesis, and after each multichunk pauses for a fixed time.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dedupfs/dedupfs/experiment"
)

// config says what is measured.
type config struct {
	dedupfs     string
	work        string
	limits      string
	pauses      string
	chunkers    string
	compression string
	charts      string
	each        time.Duration
	read        bool
	data        []string
}

func parseFlags(args []string) (*config, error) {
	c := &config{}
	set := flag.NewFlagSet("limit", flag.ContinueOnError)
	set.StringVar(&c.dedupfs, "dedupfs", "dedupfs", "the command")
	set.StringVar(&c.work, "work", os.TempDir(), "directory to work in")
	set.StringVar(&c.limits, "limits", "5%,10%,30%,50%,100%", "limits, separated by commas")
	set.StringVar(&c.pauses, "pauses", "", "pauses after each multichunk, in ms, separated by commas")
	set.StringVar(&c.chunkers, "chunkers", "", "chunkers, separated by commas; - is the default")
	set.StringVar(&c.compression, "compression", "zstd-better", "compression of the repository")
	set.StringVar(&c.charts, "charts", "", "directory for a chart of each kind of data, as SVG; made if it is not there")
	set.DurationVar(&c.each, "each", 30*time.Second, "how long each run takes")
	set.BoolVar(&c.read, "read", false, "read as well, as fast as possible, and tell how much")
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	if c.chunkers == "" {
		c.chunkers = "-"
	}
	if c.data = set.Args(); len(c.data) == 0 {
		c.data = []string{"random", "text"}
	}
	return c, nil
}

func main() {
	if len(os.Args) == 4 && os.Args[1] == storeCommand {
		log.Fatal(storeForever(os.Args[2], os.Args[3]))
	}
	c, err := parseFlags(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = measureAll(c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "limit:", err)
		os.Exit(1)
	}
}

func measureAll(c *config) error {
	fmt.Println("| data | chunker | limit | over all | most in any 5 s | least | written, MB/s | read, MB/s |")
	fmt.Println("|---|---|---|---|---|---|---|---|")
	for _, data := range c.data {
		var series []experiment.Series
		add := func(name, chunker string, r *result) {
			least, most := r.extremes()
			fmt.Printf("| %s | %s | %s | %.1f%% | %.1f%% | %.1f%% | %.1f | %.1f |\n", filepath.Base(data), chunker, name, 100*r.mean(), 100*most, 100*least, r.written, r.read)
			series = append(series, experiment.Series{Name: strings.Trim(name+" "+chunker, " -"), Points: r.curve()})
		}
		for _, pause := range list(c.pauses) {
			r, err := measurePause(c, data, pause)
			if err != nil {
				return fmt.Errorf("%s with a pause of %s ms: %w", data, pause, err)
			}
			add("pause of "+pause+" ms", "-", r)
		}
		for _, chunker := range list(c.chunkers) {
			for _, limit := range list(c.limits) {
				r, err := measure(c, data, chunker, limit)
				if err != nil {
					return fmt.Errorf("%s under %s: %w", data, limit, err)
				}
				add(limit, chunker, r)
			}
		}
		if err := draw(c.charts, filepath.Base(data), series); err != nil {
			return err
		}
	}
	return nil
}

// list returns what stands between commas.
func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

func draw(dir, data string, series []experiment.Series) error {
	if dir == "" {
		return nil
	}
	axes := experiment.Axes{Title: "processor time: " + data, X: "seconds", Y: "% of a core, over 5 s", Zero: true}
	chart, err := experiment.Draw("cpu-limit-"+data, axes, series)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, chart.Name+".svg"), chart.SVG, 0o666)
}
