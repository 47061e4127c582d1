package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/fs"
	"github.com/dedupfs/dedupfs/remote"
)

// mountOptions are the flags of mount.
type mountOptions struct {
	daemon     bool
	readOnly   bool
	allowOther bool
	fsync      string
	poll       durationFlag
	snapEvery  durationFlag
	automatic  automaticFlag
	cacheSize  sizeFlag
	anyHistory bool // open although the history on the remote is not what was seen before
	indexMem   sizeFlag
	offline    string
	snapshots  string
	rootOnly   bool     // no snapshots below the root
	inOrder    bool     // others see no change before all earlier ones are uploaded
	fuse       []string // -o

	snapshot    string        // the one to mount; "" is the volume as it is
	offlineWait time.Duration // what offline says; negative waits for ever
}

const (
	defaultCacheSize   = 20 << 30  // bytes
	defaultIndexMemory = 128 << 20 // bytes
	leastIndexMemory   = 16 << 20  // bytes
	defaultPoll        = 10 * time.Second

	minSnapshotEvery = time.Second // names of scheduled snapshots have seconds
)

func (a *app) mountCommand() *cobra.Command {
	o := &mountOptions{poll: durationFlag(defaultPoll), automatic: automaticFlag(fs.DefaultAutomatic), cacheSize: defaultCacheSize, indexMem: defaultIndexMemory}
	cmd := &cobra.Command{
		Use:   "mount [REPO[@SNAPSHOT]] DIR",
		Short: "Mount a repository, or one snapshot of it",
		Long: "Mount the file system in REPO at DIR and stay in the foreground until it is unmounted, by `dedupfs umount`, umount(8)\n" +
			"or Ctrl-C, and all is on the remote. A second Ctrl-C stops at once; the rest is uploaded by the next mount.\n\n" +
			"The volume as it was before each of its last changes is in .snapshots, by its time, and thins out with time as\n" +
			"--keep-automatic says; `dedupfs snapshots --all` lists that too, and `dedupfs forget` forgets it.\n\n" +
			"REPO@SNAPSHOT shows that snapshot alone, read-only: one of `dedupfs snapshot list`, latest, or a time, as in\n" +
			"REPO@2026-03-01, for the newest one that is as old. It has to be on the remote. A place whose own name has an @ in its\n" +
			"last part is written with a slash behind it.\n\n" +
			"The options of -o are ro, allow_other, fsync=, poll=, cache_size=, index_memory=, offline=, snapshot_every=, keep_automatic=,\n" +
			"snapshots_dir=, snapshots_root_only and in_order, as the flags of these names, and those of mount(8).",
		Example: "  dedupfs mount -d gdrive:home ~/Cloud\n" +
			"  dedupfs mount gdrive:home@latest /mnt",
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(); err != nil {
				return err
			}
			url, err := a.repoURL(args[:len(args)-1])
			if err != nil {
				return err
			}
			if url, o.snapshot = splitSnapshot(url); o.snapshot != "" {
				o.readOnly = true
			}
			return a.mount(cmd.Context(), url, args[len(args)-1], o)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.daemon, "daemon", "d", false, "go to the background when it is mounted")
	f.BoolVar(&o.readOnly, "read-only", false, "refuse all changes")
	f.BoolVar(&o.allowOther, "allow-other", false, "let other users in; modes and owners decide what they may do")
	f.StringVar(&o.fsync, "fsync", "local", "where data is safe when fsync returns: `local` or remote")
	f.Var(&o.poll, "poll", "how often to look for changes of other machines (0: never)")
	f.Var(&o.snapEvery, "snapshot-every", "make a snapshot for each such time in which something has changed, one for all machines (0: none)")
	f.Var(&o.automatic, "keep-automatic", "which states are kept that nobody names: `RULES` as last=30,hourly=24,daily=30, or all or none")
	f.Var(&o.cacheSize, "cache-size", "most that the local state may take on disk")
	f.Var(&o.indexMem, "index-memory", "most that the index of what is stored may take in memory; a small repository takes little")
	f.StringVar(&o.offline, "offline", "30s", "what a read does while the storage is away: `wait`, error, or a time to wait before the error")
	f.StringVar(&o.snapshots, "snapshots-dir", snapshotsDir, "`NAME` of the unlisted directory of snapshots in every directory; - for none")
	f.BoolVar(&o.rootOnly, "snapshots-root-only", false, "have the directory of snapshots in the root alone")
	f.BoolVar(&o.inOrder, "in-order", false, "let others see no change before all earlier ones are uploaded; what is small waits for what is large then")
	f.StringSliceVarP(&o.fuse, "options", "o", nil, "mount options, separated by commas")
	return cmd
}

// complete takes over what -o says and checks all values.
func (o *mountOptions) complete() error {
	var rest []string
	for _, opt := range o.fuse {
		known, err := o.set(opt)
		if err != nil {
			return usageError("-o %s: %w", opt, err)
		}
		if !known {
			rest = append(rest, opt)
		}
	}
	o.fuse = rest
	if o.indexMem != 0 && o.indexMem < leastIndexMemory {
		return usageError("--index-memory is at least %s", humanSize(leastIndexMemory))
	}
	if o.fsync != "local" && o.fsync != "remote" {
		return usageError("--fsync is local or remote, not %q", o.fsync)
	}
	if o.snapEvery != 0 && time.Duration(o.snapEvery) < minSnapshotEvery {
		return usageError("--snapshot-every: at least %s, or 0 for none", humanDuration(minSnapshotEvery))
	}
	if o.snapshots != "-" && checkEntryName(o.snapshots) != nil {
		return usageError("--snapshots-dir: %q is not a file name", o.snapshots)
	}
	var err error
	if o.offlineWait, err = parseOffline(o.offline); err != nil {
		return usageError("--offline: %w", err)
	}
	return nil
}

// pollInterval returns how often to look for others' changes; negative is never.
func (o *mountOptions) pollInterval() time.Duration {
	if o.poll == 0 {
		return -1
	}
	return time.Duration(o.poll)
}

// set takes over one option of -o if it is ours.
func (o *mountOptions) set(opt string) (known bool, err error) {
	name, value, _ := strings.Cut(opt, "=")
	switch name {
	case "ro":
		o.readOnly = true
	case "rw":
		o.readOnly = false
	case "allow_other":
		o.allowOther = true
	case "fsync":
		o.fsync = value
	case "poll":
		err = o.poll.Set(value)
	case "snapshot_every":
		err = o.snapEvery.Set(value)
	case "keep_automatic":
		err = o.automatic.Set(value)
	case "cache_size":
		err = o.cacheSize.Set(value)
	case "index_memory":
		err = o.indexMem.Set(value)
	case "offline":
		o.offline = value
	case "snapshots_dir":
		o.snapshots = value
	case "snapshots_root_only":
		o.rootOnly = true
	case "in_order":
		o.inOrder = true
	default:
		return false, nil
	}
	return true, err
}

// parseOffline reads the value of --offline, for cache.Options.
func parseOffline(s string) (time.Duration, error) {
	switch s {
	case "wait":
		return -1, nil
	case "error":
		return 1, nil // there is no shorter time
	}
	d, err := parseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is neither wait nor error nor a duration", s)
	}
	return max(d, 1), nil
}

// splitSnapshot splits REPO@SNAPSHOT. What is behind the last @ is a snapshot if it can be one and does not belong to a local
// path that is there. The part of a place in front of its path may have an @ too, as in sftp:user@host:dir.
func splitSnapshot(arg string) (url, snapshot string) {
	i := strings.LastIndexByte(arg, '@')
	if i <= 0 || strings.ContainsAny(arg[i+1:], "/:,") || i == len(arg)-1 {
		return arg, ""
	}
	if _, err := os.Stat(arg); err == nil {
		return arg, ""
	}
	return arg[:i], arg[i+1:]
}

// mount mounts and serves, or has a daemon do it.
func (a *app) mount(ctx context.Context, url, dir string, o *mountOptions) error {
	if err := checkMountPoint(dir); err != nil {
		return err
	}
	password, err := a.password(ctx, false)
	if err != nil {
		return err
	}
	if o.daemon && !isDaemon() {
		word, err := startDaemon(ctx, password)
		if err == nil {
			a.say("mounted %s at %s; the log is %s", escape(remote.Redact(url)), escape(dir), escape(word.Log))
		}
		return err
	}
	a.tuneMemory()
	s, err := a.openSession(ctx, url, password, o)
	if err != nil {
		return err
	}
	if err := s.mountAt(ctx, dir, o); err != nil {
		return errors.Join(err, s.end(ctx, nil))
	}
	return s.serve(ctx)
}

// checkMountPoint finds a mount point that cannot be one before anything is
// asked of anybody. A dead mount will be cleared.
func checkMountPoint(dir string) error {
	fi, err := os.Stat(dir)
	switch {
	case errors.Is(err, syscall.ENOTCONN):
		return nil
	case err != nil:
		return fmt.Errorf("mount point: %w", err)
	case !fi.IsDir():
		return fmt.Errorf("mount point: %s is not a directory", escape(dir))
	}
	if _, err := socketOf(dir); err == nil {
		return fmt.Errorf("%s is mounted already; `dedupfs umount %s` first", escape(dir), escape(dir))
	}
	return nil
}
