package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// subject is a file system that is measured.
type subject struct {
	name   string
	dir    string   // where it is mounted
	argv   []string // serves the mount until it is unmounted; nil for the native file system
	output io.Writer
	drain  string

	process *os.Process
}

// subjects returns what is measured, each in directories of its own below dir.
func subjects(c *config, dir string) (ss []*subject) {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	all := []*subject{
		{name: "native", dir: at("native")},
		{name: "loopback", dir: at("loopback"), argv: []string{self, "loopback", at("below"), at("loopback")}},
		{name: "loopback-copy", dir: at("copy"), argv: []string{self, "loopback", "-copy", at("below"), at("copy")}},
	}
	if c.mount != "" {
		all = append(all, &subject{name: "mount", dir: at("mount"), argv: []string{"sh", "-c", c.mount}, drain: c.drained})
	}
	skip := strings.Split(c.skip, ",")
	for _, s := range all {
		if c.verbose {
			s.output = os.Stderr
		}
		if !slices.Contains(skip, s.name) {
			ss = append(ss, s)
		}
	}
	return ss
}

// start mounts s. stop unmounts it and waits for its process.
func (s *subject) start() (stop func() error, err error) {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, err
	}
	if s.argv == nil {
		return func() error { return os.RemoveAll(s.dir) }, nil
	}
	before := device(s.dir)
	cmd := exec.Command(s.argv[0], s.argv[1:]...)
	cmd.Env = append(os.Environ(), "DIR="+s.dir)
	cmd.Stdout, cmd.Stderr = s.output, s.output
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.process = cmd.Process
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for end := time.Now().Add(time.Minute); device(s.dir) == before; time.Sleep(20 * time.Millisecond) {
		select {
		case err := <-ended:
			return nil, fmt.Errorf("the mount command ended at once (%v); -v shows what it says", err)
		default:
		}
		if time.Now().After(end) {
			cmd.Process.Kill()
			return nil, errors.New("nothing is mounted after a minute")
		}
	}
	return func() error { return s.stop(ended) }, nil
}

func (s *subject) stop(ended <-chan error) error {
	for range 50 {
		if err := unmount(s.dir); err == nil {
			return <-ended
		}
		time.Sleep(100 * time.Millisecond)
	}
	s.process.Kill()
	return errors.Join(errors.New("cannot unmount, killed"), <-ended)
}

func unmount(dir string) error {
	if err := syscall.Unmount(dir, 0); err == nil || os.Getuid() == 0 {
		return err
	}
	return exec.Command("fusermount3", "-u", dir).Run()
}

// device returns the number of the file system at dir.
func device(dir string) uint64 {
	var st syscall.Stat_t
	if syscall.Stat(dir, &st) != nil {
		return 0
	}
	return uint64(st.Dev)
}

// peakMemory returns the most memory that the process of s has ever used, in MiB, or 0.
func (s *subject) peakMemory() float64 {
	if s.process == nil {
		return 0
	}
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.process.Pid))
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	if fields := strings.Fields(rest); len(fields) > 0 {
		kib, _ := strconv.ParseFloat(fields[0], 64)
		return kib / 1024
	}
	return 0
}

// serveLoopback mounts a directory at another until it is unmounted, with the options that serve dedupfs best.
func serveLoopback(args []string) error {
	set := flag.NewFlagSet("loopback", flag.ContinueOnError)
	copies := set.Bool("copy", false, "do not let the kernel read and write the files below by itself")
	if err := set.Parse(args); err != nil || set.NArg() != 2 {
		return errors.New("usage: fs loopback [-copy] FROM DIR")
	}
	from, dir := set.Arg(0), set.Arg(1)
	if err := os.MkdirAll(from, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(from)
	syscall.Umask(0)
	root, err := gofs.NewLoopbackRoot(from)
	if err != nil {
		return err
	}
	keep := time.Hour
	o := &gofs.Options{EntryTimeout: &keep, AttrTimeout: &keep, NegativeTimeout: &keep, NullPermissions: true}
	o.MountOptions = fuse.MountOptions{
		MaxWrite: 1 << 20, MaxBackground: 64, FsName: "loopback", Name: "loopback",
		DirectMount: true, Options: []string{"default_permissions"}, ExtraCapabilities: loopbackCapabilities,
	}
	if *copies {
		o.DisabledCapabilities = fuse.CAP_PASSTHROUGH
	}
	server, err := gofs.Mount(dir, root, o)
	if err != nil {
		return err
	}
	server.Wait()
	return nil
}
