package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/dedupfs/dedupfs/fs"
)

func (a *app) restoreCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "restore SNAPSHOT[:PATH] TARGET",
		Short: "Copy a snapshot, or a part of one, out of the repository",
		Long: "Make TARGET a copy of a directory or file of a snapshot: content with its holes, modes, owners (as root), times to\n" +
			"the nanosecond, extended attributes, symbolic and hard links. `latest` is the newest snapshot, `current` the state\n" +
			"as it is now.\n\n" +
			"Nothing is ever written through a symbolic link. What lies in TARGET already and is not in the snapshot stays.\n" +
			"Run again after it was interrupted, it does not copy again what is there with the same size and time.\n" +
			"What cannot be restored is listed, and the exit code is 3.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.inSnapshot(cmd.Context(), args[0], func(ctx context.Context, v *fs.Volume, p snapshotPath, at fs.Attr) error {
				return a.restore(ctx, v, p, at, args[1])
			})
		},
	}
}

// restorer copies files out of a volume. It goes on after what fails, and
// counts it.
type restorer struct {
	*app
	v     *fs.Volume
	bar   *bar
	links map[fs.Ino]link // files with several names that are there already

	done   int64 // bytes of files that are through
	total  int64 // bytes of those that were seen
	files  int
	failed int
}

// link is where a file with several names was restored first.
type link struct{ dir, name string }

func (a *app) restore(ctx context.Context, v *fs.Volume, p snapshotPath, at fs.Attr, target string) error {
	target, err := filepath.Abs(target)
	if err != nil {
		return err
	}
	unix.Umask(0)
	r := &restorer{app: a, v: v, bar: a.newBar("restoring"), links: map[fs.Ino]link{}}
	err = r.restoreTop(ctx, p, at, target)
	r.bar.done()
	if err != nil {
		return err
	}
	if r.failed > 0 {
		return fmt.Errorf("%w: %d of %d entries of %s were not restored as they were", errPartly, r.failed, r.files, escape(p.String()))
	}
	a.say("restored %d entries, %s, to %s", r.files, humanSize(r.done), escape(target))
	return nil
}

// restoreTop restores what was asked for. A directory becomes target; anything
// else too, unless target is a directory, which then gets it.
func (r *restorer) restoreTop(ctx context.Context, p snapshotPath, at fs.Attr, target string) error {
	isDir := at.Mode&syscall.S_IFMT == syscall.S_IFDIR
	if isDir {
		if err := os.MkdirAll(target, 0o700); err != nil {
			return fmt.Errorf("make target: %w", err)
		}
		dir, err := openTarget(target)
		if err != nil {
			return err
		}
		defer dir.close()
		r.files++
		return r.contents(ctx, dir, at, p.path)
	}
	parent, name := filepath.Split(target)
	if fi, err := os.Stat(target); err == nil && fi.IsDir() {
		parent, name = target, filepath.Base(p.path)
	}
	dir, err := openTarget(parent)
	if err != nil {
		return err
	}
	defer dir.close()
	return r.entry(ctx, dir, name, at, p.path)
}

// contents restores all that lies in the directory at, and then its attributes:
// they come last, as they may forbid writing and as writing changes the times.
func (r *restorer) contents(ctx context.Context, dir *targetDir, at fs.Attr, path string) error {
	entries, err := readDir(ctx, r.v, at.Ino)
	if err != nil {
		return r.note(ctx, path, err)
	}
	for _, e := range entries {
		child := filepath.Join(path, string(e.Name))
		err := r.entry(ctx, dir, string(e.Name), *e.Attr, child)
		r.v.Forget(e.Ino, 1)
		if err := r.note(ctx, child, err); err != nil {
			return err
		}
	}
	return r.note(ctx, path, r.attributes(ctx, dir, ".", at))
}

// note reports what has failed for path and lets the rest go on; an interrupt
// and a full disk stop it.
func (r *restorer) note(ctx context.Context, path string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil || errors.Is(err, syscall.ENOSPC) {
		return err
	}
	r.failed++
	fmt.Fprintf(r.stderr, "dedupfs: %s: %v\n", escape("/"+path), err)
	return nil
}

// entry restores one name in dir.
func (r *restorer) entry(ctx context.Context, dir *targetDir, name string, at fs.Attr, path string) error {
	r.files++
	if err := checkEntryName(name); err != nil {
		return err
	}
	if at.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		return r.directory(ctx, dir, name, at, path)
	}
	if first, ok := r.links[at.Ino]; ok {
		return dir.link(first, name)
	}
	if err := r.leaf(ctx, dir, name, at); err != nil {
		return err
	}
	if at.Nlink > 1 {
		r.links[at.Ino] = link{dir.path, name}
	}
	return nil
}

// checkEntryName refuses what is not one name: a damaged or forged directory
// must not lead out of the target.
func checkEntryName(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > fs.NameMax || filepath.Base(name) != name {
		return fmt.Errorf("%q is not a file name", name)
	}
	return nil
}

func (r *restorer) directory(ctx context.Context, dir *targetDir, name string, at fs.Attr, path string) error {
	sub, err := dir.makeDir(name)
	if err != nil {
		return err
	}
	defer sub.close()
	return r.contents(ctx, sub, at, path)
}

// leaf restores anything but a directory: under a name of its own first, which
// then takes the place of whatever had the name.
func (r *restorer) leaf(ctx context.Context, dir *targetDir, name string, at fs.Attr) error {
	r.total += int64(at.Size)
	defer func() {
		r.done += int64(at.Size)
		r.bar.set(r.done, r.total)
	}()
	if dir.holds(name, at) {
		return r.attributes(ctx, dir, name, at)
	}
	temp := tempName(name)
	dir.remove(temp)
	defer dir.remove(temp)
	if err := r.make(ctx, dir, temp, at); err != nil {
		return err
	}
	// What belongs to a file that others see must be right before they see it.
	attrErr := r.attributes(ctx, dir, temp, at)
	return errors.Join(dir.rename(temp, name), attrErr)
}

// make makes the entry without its attributes.
func (r *restorer) make(ctx context.Context, dir *targetDir, name string, at fs.Attr) error {
	switch at.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		return r.content(ctx, dir, name, at)
	case syscall.S_IFLNK:
		target, err := r.v.Readlink(ctx, at.Ino)
		if err != nil {
			return err
		}
		return dir.symlink(string(target), name)
	default:
		return dir.mknod(name, at)
	}
}

// content copies the bytes of a file, and leaves out its holes.
func (r *restorer) content(ctx context.Context, dir *targetDir, name string, at fs.Attr) error {
	out, err := dir.create(name)
	if err != nil {
		return err
	}
	defer out.Close()
	in, err := openFile(ctx, r.v, at)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := out.Truncate(int64(at.Size)); err != nil {
		return err
	}
	buf := make([]byte, 1<<20)
	for off := int64(0); ; {
		start, end, err := in.nextData(off)
		if err != nil || start == end {
			return err
		}
		if err := r.copyRange(out, in, start, end, buf); err != nil {
			return err
		}
		off = end
	}
}

// nextData returns the next range with data from off on; an empty one at the end.
func (f *file) nextData(off int64) (start, end int64, err error) {
	start, err = f.h.Lseek(f.ctx, off, unix.SEEK_DATA)
	if errors.Is(err, syscall.ENXIO) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	end, err = f.h.Lseek(f.ctx, start, unix.SEEK_HOLE)
	return start, end, err
}

func (r *restorer) copyRange(out io.WriterAt, in *file, off, end int64, buf []byte) error {
	for off < end {
		n, err := in.h.Read(in.ctx, buf[:min(int64(len(buf)), end-off)], off)
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		if _, err := out.WriteAt(buf[:n], off); err != nil {
			return err
		}
		off += int64(n)
		r.bar.set(r.done+off, r.total)
	}
	return nil
}

// attributes sets owner, mode, extended attributes and times of name, in an
// order in which none undoes another.
func (r *restorer) attributes(ctx context.Context, dir *targetDir, name string, at fs.Attr) error {
	xattrErr := r.xattrs(ctx, dir, name, at)
	return errors.Join(xattrErr, dir.chown(name, at), dir.chmod(name, at), dir.utimes(name, at))
}

func (r *restorer) xattrs(ctx context.Context, dir *targetDir, name string, at fs.Attr) error {
	list, err := r.v.Listxattr(ctx, at.Ino)
	if err != nil {
		return fmt.Errorf("list extended attributes: %w", err)
	}
	var failed error
	for _, attr := range list {
		value, err := r.v.Getxattr(ctx, at.Ino, attr)
		if err == nil {
			err = dir.setxattr(name, attr, value)
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("extended attribute %s: %w", escape(attr), err))
		}
	}
	return failed
}
