package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/fs"
)

func (a *app) cacheCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cache",
		Short: "Say what stays on this machine",
		Long: "A mount keeps what it has read, and what is not uploaded yet, in its local state, up to --cache-size. These commands say\n" +
			"what has to stay there, fetch it, or give the space back. What waits for upload is never touched.",
		Example: "  dedupfs cache pin ~/Cloud/work    # can be read off line from now on\n" +
			"  dedupfs cache info ~/Cloud",
		Args: cobra.NoArgs,
		RunE: showHelp,
	}
	cmd.AddCommand(
		&cobra.Command{
			Use:     "info [DIR]",
			Short:   "Show what the local disk is used for, and what is pinned",
			Example: "  dedupfs cache info ~/Cloud",
			Args:    cobra.MaximumNArgs(1),
			RunE:    func(cmd *cobra.Command, args []string) error { return a.cacheInfo(cmd.Context(), args) },
		},
		a.cachePathCommand("pin", "Fetch a file or a directory and never evict it",
			"Fetch PATH, with all that is below it, and keep it on this machine, over remounts too, as it changes. Changes made\n"+
				"elsewhere are fetched within half a minute of being seen. Pins may take three quarters of --cache-size.", "/cache/pin"),
		a.cachePathCommand("unpin", "Take a pin back", "Let what `cache pin` has kept be evicted when its space is needed.", "/cache/unpin"),
		a.cachePathCommand("warm", "Fetch a file or a directory once",
			"Fetch PATH, with all that is below it. It may be in a snapshot. It stays until its space is needed.", "/cache/warm"),
		a.cachePathCommand("drop", "Remove from this machine what can be fetched again",
			"Remove the local copies of PATH and all below it, or of everything if PATH is the root of the mount. What is pinned, or not\n"+
				"uploaded yet, stays. What else lies in the same multichunks goes with it.", "/cache/drop"),
		&cobra.Command{
			Use:     "resize SIZE [DIR]",
			Short:   "Change how much the local state of a mount may take",
			Long:    "Change --cache-size of a running mount, until it is unmounted. What is too much is evicted at once.",
			Example: "  dedupfs cache resize 50G ~/Cloud",
			Args:    cobra.RangeArgs(1, 2),
			RunE:    func(cmd *cobra.Command, args []string) error { return a.cacheResize(cmd.Context(), args[0], args[1:]) },
		},
	)
	return cmd
}

// cacheTarget is the body of requests about a place in a mount.
type cacheTarget struct {
	Ino fs.Ino `json:"ino"`
}

func (a *app) cachePathCommand(use, short, long, request string) *cobra.Command {
	return &cobra.Command{
		Use: use + " PATH", Short: short, Long: long,
		Example: "  dedupfs cache " + use + " ~/Cloud/photos",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, ino, err := inMount(args[0])
			if err != nil {
				return err
			}
			if err := syncMount(m.dir); err != nil {
				return err
			}
			var freed int64
			if err := a.callWithBar(cmd.Context(), m, "POST", request, cacheTarget{ino}, &freed); err != nil {
				return err
			}
			if request == "/cache/drop" {
				a.say("freed %s", humanSize(freed))
			}
			return nil
		},
	}
}

// inMount returns the running mount that holds path, and the inode number of path in it.
func inMount(path string) (*mounted, fs.Ino, error) {
	m, err := mountOf(path)
	if err != nil {
		return nil, 0, err
	}
	fi, err := os.Lstat(path)
	if err != nil {
		return nil, 0, err
	}
	return m, fs.Ino(fi.Sys().(*syscall.Stat_t).Ino), nil
}

// cacheInfo is what `cache info` prints.
type cacheInfo struct {
	cache.Info
	Pins []string `json:"pins"` // paths in the volume
}

func (a *app) cacheInfo(ctx context.Context, dir []string) error {
	m, err := a.theMount(ctx, dir)
	if err != nil {
		return err
	}
	var i cacheInfo
	if err := m.call(ctx, "GET", "/cache", nil, &i, nil); err != nil {
		return err
	}
	if a.g.json {
		return a.printJSON(i)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "size\t%s\nused\t%s\n", humanSize(i.Size), humanSize(i.Used))
	fmt.Fprintf(w, "fetched, may be evicted\t%s\npinned\t%s\n", humanSize(i.Multichunks-i.Pinned), humanSize(i.Pinned))
	fmt.Fprintf(w, "log\t%s, of which %s are needed\nwaits for upload\t%s\n", humanSize(i.Log), humanSize(i.LogHeld), humanSize(i.Spool))
	if i.Missing > 0 {
		fmt.Fprintf(w, "pinned, not here yet\t%d objects\n", i.Missing)
	}
	for _, p := range i.Pins {
		fmt.Fprintf(w, "pin\t%s\n", escape(p))
	}
	return w.Flush()
}

func (a *app) cacheResize(ctx context.Context, arg string, dir []string) error {
	var size sizeFlag
	if err := size.Set(arg); err != nil {
		return usageError("%w", err)
	}
	m, err := a.theMount(ctx, dir)
	if err != nil {
		return err
	}
	return m.call(ctx, "POST", "/cache/resize", int64(size), nil, nil)
}

func (s *session) serveCacheInfo(ctx context.Context, _ *http.Request, _ func(progress)) (any, error) {
	return cacheInfo{s.volume.CacheInfo(), s.volume.Pinned(ctx)}, nil
}

func (s *session) serveCacheResize(_ context.Context, r *http.Request, _ func(progress)) (any, error) {
	var size int64
	if err := readJSON(r, &size); err != nil {
		return nil, err
	}
	return nil, s.volume.ResizeCache(size)
}

// cacheAnswer serves a request about a place in the mount.
func cacheAnswer(fn func(ctx context.Context, ino fs.Ino, progress func(fs.Progress)) (any, error)) answer {
	return func(ctx context.Context, r *http.Request, report func(progress)) (any, error) {
		var t cacheTarget
		if err := readJSON(r, &t); err != nil {
			return nil, err
		}
		return fn(ctx, t.Ino, func(p fs.Progress) { report(progress{"fetching", p.Done, p.Total}) })
	}
}

// handleCache serves what is asked about the cache.
func (s *session) handleCache(mux *http.ServeMux) {
	mux.Handle("GET /cache", answer(s.serveCacheInfo))
	mux.Handle("POST /cache/resize", answer(s.serveCacheResize))
	mux.Handle("POST /cache/pin", cacheAnswer(func(ctx context.Context, ino fs.Ino, progress func(fs.Progress)) (any, error) {
		return nil, s.volume.Pin(ctx, ino, progress)
	}))
	mux.Handle("POST /cache/unpin", cacheAnswer(func(ctx context.Context, ino fs.Ino, _ func(fs.Progress)) (any, error) {
		return nil, s.volume.Unpin(ctx, ino)
	}))
	mux.Handle("POST /cache/warm", cacheAnswer(func(ctx context.Context, ino fs.Ino, progress func(fs.Progress)) (any, error) {
		return nil, s.volume.Warm(ctx, ino, progress)
	}))
	mux.Handle("POST /cache/drop", cacheAnswer(func(ctx context.Context, ino fs.Ino, _ func(fs.Progress)) (any, error) {
		return s.volume.DropCached(ctx, ino)
	}))
}
