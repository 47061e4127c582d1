package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/dedupfs/dedupfs/fs"
)

func (a *app) lsCommand() *cobra.Command {
	l := &lister{app: a}
	cmd := &cobra.Command{
		Use:   "ls SNAPSHOT[:PATH]",
		Short: "List what is in a snapshot",
		Long: "List a directory, or one file, of a snapshot. `latest` is the newest snapshot, `current` the state as it is now.\n" +
			"Characters that are not printable are escaped; --json gives the names as they are.",
		Example: "  dedupfs ls -l --repo gdrive:home latest:photos",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.inSnapshot(cmd.Context(), args[0], l.list)
		},
	}
	cmd.Flags().BoolVarP(&l.long, "long", "l", false, "with mode, links, owner, group, size and time")
	cmd.Flags().BoolVarP(&l.recursive, "recursive", "R", false, "with all that lies below")
	return cmd
}

func (a *app) catCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "cat SNAPSHOT:PATH",
		Short:   "Print a file of a snapshot",
		Example: "  dedupfs cat --repo gdrive:home latest:notes/todo.txt",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.inSnapshot(cmd.Context(), args[0], a.cat)
		},
	}
}

// inSnapshot opens the repository for reading, finds what the argument names
// and calls fn for it.
func (a *app) inSnapshot(ctx context.Context, arg string, fn func(context.Context, *fs.Volume, snapshotPath, fs.Attr) error) error {
	p, err := parseSnapshotPath(arg)
	if err != nil {
		return err
	}
	return a.withVolume(ctx, func(v *fs.Volume) error {
		at, err := p.find(ctx, v)
		if err != nil {
			return err
		}
		return fn(ctx, v, p, at)
	})
}

func (a *app) cat(ctx context.Context, v *fs.Volume, p snapshotPath, at fs.Attr) error {
	if at.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return fmt.Errorf("%s is not a regular file", escape(p.String()))
	}
	f, err := openFile(ctx, v, at)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(a.stdout, f); err != nil {
		return fmt.Errorf("%s: %w", escape(p.String()), err)
	}
	return nil
}

// file reads a file of a volume from its start. It is an io.ReaderAt too.
type file struct {
	ctx context.Context
	ino fs.Ino
	h   *fs.Handle
	off int64
}

func openFile(ctx context.Context, v *fs.Volume, at fs.Attr) (*file, error) {
	h, err := v.Open(ctx, at.Ino, syscall.O_RDONLY, fs.Cred{})
	if err != nil {
		return nil, err
	}
	return &file{ctx: ctx, ino: at.Ino, h: h}, nil
}

func (f *file) Close() { f.h.Release() }

func (f *file) Read(p []byte) (int, error) {
	n, err := f.h.Read(f.ctx, p, f.off)
	f.off += int64(n)
	if n == 0 && err == nil && len(p) > 0 {
		err = io.EOF
	}
	return n, err
}

// lister prints entries of a snapshot.
type lister struct {
	*app
	long, recursive bool
}

func (l *lister) list(ctx context.Context, v *fs.Volume, p snapshotPath, at fs.Attr) error {
	out := bufio.NewWriter(l.stdout)
	err := l.listAt(ctx, out, v, p, at)
	return errors.Join(err, out.Flush())
}

func (l *lister) listAt(ctx context.Context, out *bufio.Writer, v *fs.Volume, p snapshotPath, at fs.Attr) error {
	if at.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return l.print(ctx, out, v, p.path, at)
	}
	return l.listDir(ctx, out, v, "", at.Ino)
}

// listDir prints the directory dir; prefix stands before each of its names.
func (l *lister) listDir(ctx context.Context, out *bufio.Writer, v *fs.Volume, prefix string, dir fs.Ino) error {
	entries, err := readDir(ctx, v, dir)
	if err != nil {
		return fmt.Errorf("list %s: %w", escape("/"+prefix), err)
	}
	for _, e := range entries {
		name := prefix + string(e.Name)
		if err := l.print(ctx, out, v, name, *e.Attr); err != nil {
			return err
		}
		if l.recursive && e.Type == syscall.S_IFDIR {
			if err := l.listDir(ctx, out, v, name+"/", e.Ino); err != nil {
				return err
			}
		}
		v.Forget(e.Ino, 1)
	}
	return nil
}

// readDir returns the entries of dir, with attributes, in the order of their
// names. Each counts one look-up for v.Forget.
func readDir(ctx context.Context, v *fs.Volume, dir fs.Ino) ([]fs.DirEntry, error) {
	var entries []fs.DirEntry
	err := v.Readdir(ctx, dir, 0, true, func(e fs.DirEntry) bool {
		if name := string(e.Name); name != "." && name != ".." {
			e.Name = []byte(name)
			entries = append(entries, e)
		}
		return true
	})
	sort.Slice(entries, func(i, j int) bool { return string(entries[i].Name) < string(entries[j].Name) })
	return entries, err
}

// listing is how --json shows an entry, one per line.
type listing struct {
	Path   string    `json:"path"`
	Raw    []byte    `json:"path_base64,omitempty"` // if the path is not UTF-8
	Type   string    `json:"type"`
	Mode   string    `json:"mode"` // permissions, octal
	Nlink  uint32    `json:"nlink"`
	Uid    uint32    `json:"uid"`
	Gid    uint32    `json:"gid"`
	Size   uint64    `json:"size"`
	Mtime  time.Time `json:"mtime"`
	Ino    uint64    `json:"ino"`
	Target string    `json:"target,omitempty"`
}

func (l *lister) print(ctx context.Context, out *bufio.Writer, v *fs.Volume, name string, at fs.Attr) error {
	if !l.g.json && !l.long {
		_, err := fmt.Fprintln(out, escape(name))
		return err
	}
	target, err := targetOf(ctx, v, at)
	if err != nil {
		return fmt.Errorf("%s: %w", escape(name), err)
	}
	if l.g.json {
		return json.NewEncoder(out).Encode(newListing(name, target, at))
	}
	line := fmt.Sprintf("%s %3d %5d %5d %11d %s %s", modeString(at.Mode), at.Nlink, at.Uid, at.Gid, at.Size,
		at.Mtime.Time().Format(time.DateTime), escape(name))
	if target != "" {
		line += " -> " + escape(target)
	}
	_, err = fmt.Fprintln(out, line)
	return err
}

func newListing(name, target string, at fs.Attr) listing {
	entry := listing{
		Path: name, Type: typeName(at.Mode), Mode: fmt.Sprintf("%04o", at.Mode&0o7777), Nlink: at.Nlink,
		Uid: at.Uid, Gid: at.Gid, Size: at.Size, Mtime: at.Mtime.Time(), Ino: uint64(at.Ino), Target: target,
	}
	if !utf8.ValidString(name) {
		entry.Raw = []byte(name)
	}
	return entry
}

// targetOf returns where a symbolic link points; "" for all else.
func targetOf(ctx context.Context, v *fs.Volume, at fs.Attr) (string, error) {
	if at.Mode&syscall.S_IFMT != syscall.S_IFLNK {
		return "", nil
	}
	target, err := v.Readlink(ctx, at.Ino)
	return string(target), err
}

// fileTypes names the types of st_mode, and the letters of `ls -l`.
var fileTypes = map[uint32]struct{ name, letter string }{
	syscall.S_IFREG:  {"file", "-"},
	syscall.S_IFDIR:  {"directory", "d"},
	syscall.S_IFLNK:  {"symlink", "l"},
	syscall.S_IFIFO:  {"fifo", "p"},
	syscall.S_IFSOCK: {"socket", "s"},
	syscall.S_IFCHR:  {"character device", "c"},
	syscall.S_IFBLK:  {"block device", "b"},
}

func typeName(mode uint32) string { return fileTypes[mode&syscall.S_IFMT].name }

// modeString writes mode as `ls -l` does.
func modeString(mode uint32) string {
	const letters = "rwxrwxrwx"
	b := []byte(fileTypes[mode&syscall.S_IFMT].letter + letters)
	for i := range letters {
		if mode&(0o400>>i) == 0 {
			b[1+i] = '-'
		}
	}
	for _, s := range []struct {
		bit      uint32
		at       int
		letter   byte
		executes uint32
	}{{syscall.S_ISUID, 3, 's', 0o100}, {syscall.S_ISGID, 6, 's', 0o010}, {syscall.S_ISVTX, 9, 't', 0o001}} {
		if mode&s.bit == 0 {
			continue
		}
		b[s.at] = s.letter
		if mode&s.executes == 0 {
			b[s.at] -= 'a' - 'A'
		}
	}
	return string(b)
}
