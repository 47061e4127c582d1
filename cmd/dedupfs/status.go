package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/fs"
)

// mountStatus is what a mount tells of itself.
type mountStatus struct {
	Dir        string    `json:"dir"`
	Repository string    `json:"repository"` // where it lies, without secrets
	ID         string    `json:"id"`         // of the repository
	PID        int       `json:"pid"`
	Since      time.Time `json:"since"`
	fs.Status
	Downloaded int64 `json:"downloaded_bytes"` // since the mount
	Retries    int64 `json:"retries"`          // of operations on the storage
}

// repositoryStatus is what can be told of a repository that is not mounted.
type repositoryStatus struct {
	Repository  string         `json:"repository"`
	ID          string         `json:"id"`
	Created     time.Time      `json:"created"`
	Compression string         `json:"compression"`
	Multichunk  int            `json:"multichunk_bytes"`
	ReadOnly    string         `json:"read_only,omitempty"` // why it can only be read
	Clients     []clientStatus `json:"clients"`
}

// clientStatus is one registered client.
type clientStatus struct {
	Client string    `json:"client"`
	Host   string    `json:"host"`
	Since  time.Time `json:"since"`
}

func (a *app) statusCommand() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "status [DIR|REPO]",
		Short: "Show how far mounts are with their uploads, or what a repository is",
		Long: "Show the mount that holds DIR, or the repository REPO. Without an argument: all mounts of this machine, or the\n" +
			"repository named by --repo if there are none.",
		Example: "  dedupfs status ~/Cloud --watch\n  dedupfs status --json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !watch {
				return a.status(cmd.Context(), args)
			}
			return a.watchStatus(cmd.Context(), args)
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "show it again every second, until interrupted")
	return cmd
}

func (a *app) watchStatus(ctx context.Context, args []string) error {
	for {
		if !a.g.json && isTerminal(a.stdout) {
			fmt.Fprint(a.stdout, "\x1b[H\x1b[2J")
		}
		if err := a.status(ctx, args); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil // an interrupt is how one ends it
		case <-time.After(time.Second):
		}
	}
}

func (a *app) status(ctx context.Context, args []string) error {
	mounts, err := mountsForStatus(args)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return a.showMounts(ctx, mounts)
	}
	url, err := a.repoURL(args)
	if err != nil {
		return errors.New("nothing is mounted; `dedupfs mount REPO DIR` does")
	}
	return a.showRepository(ctx, url)
}

// mountsForStatus returns the mounts that are meant; none if args name something else.
func mountsForStatus(args []string) ([]*mounted, error) {
	if len(args) == 0 {
		return allMounts(), nil
	}
	m, err := mountOf(args[0])
	if errors.Is(err, errDeadMount) {
		return nil, err
	}
	if err != nil {
		return nil, nil
	}
	return []*mounted{m}, nil
}

func (a *app) showMounts(ctx context.Context, mounts []*mounted) error {
	var list []mountStatus
	for _, m := range mounts {
		s := mountStatus{}
		if err := m.call(ctx, "GET", "/status", nil, &s, nil); err != nil {
			return err
		}
		s.Dir = m.dir // as this process sees it
		list = append(list, s)
	}
	if err := a.printMounts(list); err != nil {
		return err
	}
	for _, s := range list {
		if s.History != "" {
			return fail(exitHistory, "%s: %s; `dedupfs clients accept` goes on from what is there", escape(s.Dir), s.History)
		}
	}
	for _, s := range list {
		if s.Conflicts > 0 {
			return fail(exitConflicts, "%d conflicts in %s; see `dedupfs conflicts list`", s.Conflicts, escape(s.Dir))
		}
	}
	return nil
}

func (a *app) printMounts(list []mountStatus) error {
	if a.g.json {
		return json.NewEncoder(a.stdout).Encode(list)
	}
	for i, s := range list {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		if err := printMount(a.stdout, s); err != nil {
			return err
		}
	}
	return nil
}

func printMount(out io.Writer, s mountStatus) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "mount\t%s\n", escape(s.Dir))
	fmt.Fprintf(w, "repository\t%s\n", escape(s.Repository))
	fmt.Fprintf(w, "state\t%s\n", stateOf(s.Status))
	fmt.Fprintf(w, "to upload\t%s in %d objects\n", humanSize(s.PendingBytes+s.StagedBytes), s.PendingObjects)
	fmt.Fprintf(w, "uploaded\t%s\n", humanSize(s.Uploaded))
	fmt.Fprintf(w, "downloaded\t%s\n", humanSize(s.Downloaded))
	fmt.Fprintf(w, "all was on the remote\t%s\n", ago(s.LastSynced))
	fmt.Fprintf(w, "others were looked for\t%s\n", ago(s.LastPoll))
	fmt.Fprintf(w, "clients\t%d\n", len(s.Clients))
	fmt.Fprintf(w, "local disk\t%s\n", humanSize(s.CacheBytes))
	fmt.Fprintf(w, "process\t%d, for %s\n", s.PID, humanDuration(time.Since(s.Since)))
	for _, e := range s.Errors {
		fmt.Fprintf(w, "trouble\t%s\n", escape(e))
	}
	return w.Flush()
}

// stateOf says in a few words how a volume is doing.
func stateOf(s fs.Status) string {
	var words []string
	if s.ReadOnly {
		words = append(words, "read-only")
	}
	if s.Behind {
		words = append(words, "behind: other machines have changes that are not shown here yet")
	}
	switch {
	case s.Dirty:
		words = append(words, "changes that are not committed yet")
	case s.Unpublished:
		words = append(words, "uploading")
	default:
		words = append(words, "all is on the remote")
	}
	return strings.Join(words, "; ")
}

// ago says how long ago t was.
func ago(t time.Time) string {
	if t.IsZero() {
		return "not since the mount"
	}
	return humanDuration(time.Since(t)) + " ago"
}

func (s *session) serveStatus(ctx context.Context, _ *http.Request, _ func(progress)) (any, error) {
	stats := s.storage.Stats()
	return mountStatus{
		Dir: s.server.Dir(), Repository: s.storage.String(), ID: s.id, PID: os.Getpid(), Since: s.since,
		Status: s.volume.Status(ctx), Downloaded: stats.Downloaded, Retries: stats.Retries,
	}, nil
}

func (a *app) showRepository(ctx context.Context, url string) error {
	password, err := a.password(ctx, false)
	if err != nil {
		return err
	}
	r, err := a.openRepository(ctx, url, password)
	if err != nil {
		return err
	}
	s, err := newRepositoryStatus(ctx, r)
	if err != nil {
		return err
	}
	if a.g.json {
		return a.printJSON(s)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "repository\t%s\nid\t%s\ncreated\t%s\ncompression\t%s\nmultichunks\t%s\n", escape(s.Repository), s.ID,
		s.Created.Local().Format(time.DateTime), s.Compression, humanSize(int64(s.Multichunk)))
	if s.ReadOnly != "" {
		fmt.Fprintf(w, "read-only\t%s\n", s.ReadOnly)
	}
	for _, c := range s.Clients {
		fmt.Fprintf(w, "client\t%s %s, since %s\n", c.Client, escape(c.Host), c.Since.Local().Format(time.DateTime))
	}
	return w.Flush()
}

func newRepositoryStatus(ctx context.Context, r *repository) (repositoryStatus, error) {
	c := r.Config()
	s := repositoryStatus{
		Repository: r.storage.String(), ID: c.Repository.String(), Created: c.Created, Compression: c.Compression,
		Multichunk: c.MultichunkSize, Clients: []clientStatus{},
	}
	if err := r.ReadOnly(); err != nil {
		s.ReadOnly = err.Error()
	}
	registered, err := r.Registrations(ctx)
	for _, g := range registered {
		s.Clients = append(s.Clients, clientStatus{g.Client.String(), g.Host, g.Time})
	}
	return s, err
}
