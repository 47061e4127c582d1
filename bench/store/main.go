// Store measures how many bytes the versions of a directory take on the remote. For each data set, a directory with the
// versions v00, v01, ..., it makes a fresh repository in a local directory and feeds it version after version, as
// `rsync -a --delete` into a mount would, with a snapshot and a sync after each. All files on the remote count. The last
// version is restored by the dedupfs command and compared with what went in. With -peers, restic and borg do the same.
//
//	store [flags] DATA    DATA holds the data sets: DATA/office/v00, ...
//
// What is measured runs in a process of its own, so that its processor time and peak memory are its own. The file system is
// driven without a mount: what the kernel and FUSE take is not in the figures.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dedupfs/dedupfs/store"
)

// config says what is measured.
type config struct {
	data    string // directory of the data sets
	sets    string // names, separated by commas; all by default
	work    string // directory to work in
	json    string // file that results are appended to
	charts  string // directory for charts; "" draws none
	dedupfs string // the command, which restores; "" restores nothing
	peers   bool
	inPlace bool
	repo    store.Config
	feed    string // the repository to feed the versions in data into; only in the process that does it
}

func parseFlags(args []string) (*config, error) {
	c := &config{repo: store.Config{SettleTime: store.NoSettleTime}}
	set := flag.NewFlagSet("store", flag.ContinueOnError)
	set.StringVar(&c.sets, "sets", "", "data sets, separated by commas (default all)")
	set.StringVar(&c.work, "work", os.TempDir(), "directory to work in")
	set.StringVar(&c.json, "json", "", "`file` that results are appended to, a line of JSON each")
	set.StringVar(&c.charts, "charts", "", "directory for a chart of each data set, and one of all, as SVG; made if it is not there")
	set.StringVar(&c.dedupfs, "dedupfs", "", "dedupfs command, to restore with")
	set.BoolVar(&c.peers, "peers", false, "measure restic and borg too, where they are installed (needs rsync)")
	set.BoolVar(&c.inPlace, "inplace", false, "write only the blocks that differ into files that are there, as rsync --inplace")
	set.IntVar(&c.repo.MultichunkSize, "multichunk", 0, "multichunk size in `bytes` (default that of init)")
	set.IntVar(&c.repo.GroupSize, "group", 0, "group size in `bytes` (default that of init)")
	set.StringVar(&c.repo.Compression, "compression", "", "compression (default that of init)")
	set.Func("chunkers", "chunkers `DEFAULT,PAGES,MEDIA` (default those of init)", func(s string) error {
		names := strings.Split(s, ",")
		if len(names) != 3 {
			return errors.New("want three names")
		}
		c.repo.Chunkers.Default, c.repo.Chunkers.Pages, c.repo.Chunkers.Media = names[0], names[1], names[2]
		return nil
	})
	set.StringVar(&c.feed, feedFlag, "", "for internal use")
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	if set.NArg() != 1 {
		return nil, errors.New("want one directory, which holds the data sets")
	}
	c.data = set.Arg(0)
	var err error
	c.work, err = filepath.Abs(c.work)
	return c, err
}

// feedFlag makes the program feed one data set into one repository, instead of starting another process that does.
const feedFlag = "feed"

func main() {
	c, err := parseFlags(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err == nil && c.feed != "":
		err = feed(context.Background(), c)
	case err == nil:
		err = measureAll(c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "store:", err)
		os.Exit(1)
	}
}

func measureAll(c *config) error {
	sets, err := dataSets(c)
	if err != nil {
		return err
	}
	var all []*result
	for _, set := range sets {
		for _, p := range programs(c) {
			r, err := measure(c, p, set)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", set, p.name(), err)
			}
			fmt.Fprintf(os.Stderr, "%s: %s: %.2f MB\n", r.Set, r.Program, mb(r.last()))
			if err := appendJSON(c.json, r); err != nil {
				return err
			}
			all = append(all, r)
		}
	}
	fmt.Print(table(all))
	return drawCharts(c.charts, all)
}

// dataSets returns the names of the data sets to measure.
func dataSets(c *config) ([]string, error) {
	if c.sets != "" {
		return strings.Split(c.sets, ","), nil
	}
	dirs, err := filepath.Glob(filepath.Join(c.data, "*", "v00"))
	if err != nil {
		return nil, err
	}
	if len(dirs) == 0 {
		return nil, fmt.Errorf("%s: no data sets there", c.data)
	}
	var sets []string
	for _, d := range dirs {
		sets = append(sets, filepath.Base(filepath.Dir(d)))
	}
	return sets, nil
}

// versions returns the directories of the versions of a data set, oldest first.
func versions(dir string) ([]string, error) {
	dirs, err := filepath.Glob(filepath.Join(dir, "v[0-9]*"))
	if err == nil && len(dirs) == 0 {
		err = fmt.Errorf("%s: no versions there", dir)
	}
	return dirs, err
}

func appendJSON(name string, r *result) error {
	if name == "" {
		return nil
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(f).Encode(r); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
