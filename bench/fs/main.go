// Fs measures file systems against each other: the native one below a directory, go-fuse's loopback on top of it, and a mount
// made by a command, usually dedupfs. All do the same work in turns, several times; medians are printed, and ratios to the
// native file system. The loopback does nothing but pass on, so it is the ceiling of what a FUSE file system in Go can reach:
// compare with that one.
//
//	fs [flags] [-mount COMMAND]    COMMAND serves a mount at $DIR until it is unmounted, as in
//	                               -mount 'exec dedupfs mount /tmp/repo "$DIR"' -drain 'dedupfs sync "$DIR"'
//	fs loopback [-copy] FROM DIR   only the loopback; with -copy it hands no file descriptors to the kernel
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
)

// config says what is measured, and how much of it.
type config struct {
	work    string // directory on the native file system; everything lies in it
	mount   string // shell command that mounts at $DIR
	drained string // shell command that returns when all written to $DIR is on its remote
	rounds  int
	mib     int // size of the big file
	files   int // in the metadata workload
	ops     int // random reads and writes
	only    string
	skip    string // subjects to leave out
	tree    string // directory whose copy is unpacked, listed, read and removed
	git     string // repository to clone
	cold    bool   // empty the kernel's caches where a step wants that
	turns   bool   // compare call by call
	verbose bool
}

func parseFlags(args []string) (*config, error) {
	c := &config{}
	set := flag.NewFlagSet("fs", flag.ContinueOnError)
	set.StringVar(&c.work, "work", os.TempDir(), "directory to work in, on the native file system")
	set.StringVar(&c.mount, "mount", "", "shell `command` that serves a mount at $DIR")
	set.StringVar(&c.drained, "drain", "", "shell `command` that returns when all written to $DIR is on its remote")
	set.IntVar(&c.rounds, "rounds", 3, "how often each subject does everything")
	set.IntVar(&c.mib, "mib", 256, "size of the big file, `MiB`")
	set.IntVar(&c.files, "files", 2000, "files in the metadata workload")
	set.IntVar(&c.ops, "ops", 5000, "random reads and writes of 4 KiB")
	set.StringVar(&c.only, "only", "", "workloads, separated by commas: "+strings.Join(workloadNames(), ", "))
	set.StringVar(&c.skip, "skip", "", "subjects to leave out, separated by commas: native, loopback, loopback-copy, mount")
	set.StringVar(&c.tree, "tree", defaultTree(), "directory whose copy is unpacked, listed, read and removed")
	set.StringVar(&c.git, "git", ".", "git repository to clone")
	set.BoolVar(&c.cold, "cold", true, "also measure with the kernel's caches emptied (needs root)")
	set.BoolVar(&c.turns, "turns", false, "only compare the mount with the loopback that copies, call by call in turns: for a busy machine")
	set.BoolVar(&c.verbose, "v", false, "show the output of the mount command")
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	if set.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	return c, nil
}

func main() {
	var err error
	if len(os.Args) > 1 && os.Args[1] == "loopback" {
		err = serveLoopback(os.Args[2:])
	} else {
		err = measure(os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func measure(args []string) error {
	c, err := parseFlags(args)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(c.work, "bench-fs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	data, err := prepare(c, dir)
	if err != nil {
		return err
	}
	if c.turns {
		return measureTurns(c, subjects(c, dir), data)
	}
	table := &table{}
	for round := range c.rounds {
		for _, s := range subjects(c, dir) {
			fmt.Fprintf(os.Stderr, "round %d of %d: %s\n", round+1, c.rounds, s.name)
			if err := runSubject(c, s, data, table); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	fmt.Print(table)
	return nil
}

// runSubject mounts s, lets it do all workloads, and unmounts it.
func runSubject(c *config, s *subject, data *inputs, t *table) (err error) {
	stop, err := s.start()
	if err != nil {
		return err
	}
	defer func() {
		if stopErr := stop(); err == nil {
			err = stopErr
		}
	}()
	b := &bench{inputs: data, config: c, subject: s, table: t}
	return b.runAll()
}
