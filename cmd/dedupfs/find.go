package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/fs"
)

var findQuery = question[fs.Query, fs.Match]{
	path: "/find",
	answer: func(ctx context.Context, v *fs.Volume, in fs.Query, item func(fs.Match) error, _ func(progress)) error {
		return v.Find(ctx, &in, item)
	},
}

// matchJSON is how --json shows what was found, one per line.
type matchJSON struct {
	fs.Match
	Mode string `json:"mode"` // permissions, octal
	Type string `json:"type"`
	Raw  []byte `json:"path_base64,omitempty"`
}

// findOptions are the flags of find.
type findOptions struct {
	fs.Query
	types                string
	minSize, maxSize     sizeFlag
	newerThan, olderThan string
}

func (a *app) findCommand() *cobra.Command {
	var o findOptions
	cmd := &cobra.Command{
		Use:   "find PATTERN [DIR|REPO]",
		Short: "Find files in snapshots",
		Long: "Find files by their names in all snapshots and in the state as it is now, or in those that --in names. PATTERN is a\n" +
			"glob as in a shell, of a name, or of a whole path if it has a slash. What is found is printed as SNAPSHOT:PATH, as\n" +
			"`dedupfs cat` and `dedupfs restore` take it.",
		Example: "  dedupfs find '*.odt' ~/Cloud --newer 30d\n  dedupfs find 'photos/2025-*' --in latest --type d\n" +
			"  dedupfs find '*' --in monday:/big --min-size 1G --json",
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Patterns = args[:1]
			if err := o.complete(); err != nil {
				return err
			}
			return a.find(cmd.Context(), args[1:], o.Query)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.In, "in", nil, "look only in this `SNAPSHOT[:PATH]`; may be given several times")
	f.BoolVarP(&o.IgnoreCase, "ignore-case", "i", false, "take large and small letters as equal")
	f.StringVarP(&o.types, "type", "t", "", "only these `TYPES`, letters as in find(1): f, d, l, p, s, b, c")
	f.Var(&o.minSize, "min-size", "only files of this size or more")
	f.Var(&o.maxSize, "max-size", "only files of this size or less")
	f.StringVar(&o.newerThan, "newer", "", "only what was modified after this `TIME`: 2026-01-31, 2026-01-31T15:04:05, or 7d for seven days ago")
	f.StringVar(&o.olderThan, "older", "", "only what was modified before this `TIME`")
	return cmd
}

var typeLetters = map[rune]uint32{
	'f': syscall.S_IFREG, 'd': syscall.S_IFDIR, 'l': syscall.S_IFLNK, 'p': syscall.S_IFIFO,
	's': syscall.S_IFSOCK, 'b': syscall.S_IFBLK, 'c': syscall.S_IFCHR,
}

// complete checks the flags and makes the query of them.
func (o *findOptions) complete() error {
	o.MinSize, o.MaxSize = int64(o.minSize), int64(o.maxSize)
	for _, letter := range o.types {
		if letter == ',' {
			continue
		}
		mode, ok := typeLetters[letter]
		if !ok {
			return usageError("--type %s: use the letters f, d, l, p, s, b and c", o.types)
		}
		o.Types = append(o.Types, mode)
	}
	var err error
	if o.Newer, err = parseTime(o.newerThan, time.Now()); err != nil {
		return usageError("--newer: %w", err)
	}
	if o.Older, err = parseTime(o.olderThan, time.Now()); err != nil {
		return usageError("--older: %w", err)
	}
	if err := o.Check(); err != nil {
		return usageError("%w", err)
	}
	return nil
}

// parseTime reads a date, a date with a time of day, or how long before now; "" is no time.
func parseTime(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.DateOnly, time.DateTime, "2006-01-02T15:04:05", "2006-01-02 15:04"} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return t, nil
		}
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	if d, err := parseDuration(s); err == nil {
		return now.Add(-d), nil
	}
	return time.Time{}, fmt.Errorf("%q is no time; write 2026-01-31, 2026-01-31T15:04:05, or 7d for seven days ago", s)
}

func (a *app) find(ctx context.Context, args []string, q fs.Query) error {
	out, flush := a.buffered()
	err := ask(ctx, a, args, findQuery, q, func(m fs.Match) error {
		if a.g.json {
			return printLine(out, matchJSON{m, fmt.Sprintf("%04o", m.Mode&0o7777), typeName(m.Mode), rawPath(m.Path)})
		}
		_, err := fmt.Fprintln(out, escape(m.Snapshot+":"+m.Path))
		return err
	})
	return flush(err)
}
