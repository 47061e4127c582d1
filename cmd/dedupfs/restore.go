package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/dedupfs/dedupfs/fs"
	"github.com/dedupfs/dedupfs/remote"
)

// restoreOptions are the flags of restore.
type restoreOptions struct {
	dryRun  bool
	delete  bool
	verify  bool
	workers int
}

func (a *app) restoreCommand() *cobra.Command {
	o := restoreOptions{workers: defaultRestoreWorkers}
	cmd := &cobra.Command{
		Use:   "restore SNAPSHOT[:PATH] TARGET",
		Short: "Copy a snapshot, or a part of one, out of the repository",
		Long: "Make TARGET a copy of a directory or file of a snapshot: content with its holes, modes, owners (as root), times to\n" +
			"the nanosecond, extended attributes, symbolic and hard links. `latest` is the newest snapshot, `current` the state\n" +
			"as it is now.\n\n" +
			"Nothing is ever written through a symbolic link, or outside TARGET. What lies in TARGET already and is not in the\n" +
			"snapshot stays, unless --delete is given. Run again after it was interrupted, it does not copy again what is there\n" +
			"with the same size and time, and goes on in the files that it was in: what is there of them is compared with the\n" +
			"snapshot, chunk by chunk, and only the rest is fetched. Until a file is complete its name is .dedupfs-restore-...;\n" +
			"--delete removes those that are no longer wanted. What cannot be restored is listed, and the exit code is 3.",
		Example: "  dedupfs restore latest:letters ~/letters-of-yesterday\n  dedupfs restore monday /srv/data --delete --dry-run",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.inSnapshot(cmd.Context(), args[0], func(ctx context.Context, v *fs.Volume, p snapshotPath, at fs.Attr) error {
				return a.restore(ctx, v, p, at, args[1], o)
			})
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.dryRun, "dry-run", "n", false, "only say what would be restored and deleted")
	f.BoolVar(&o.delete, "delete", false, "delete what lies in TARGET and is not in the snapshot")
	f.BoolVar(&o.verify, "verify", false, "read every file back and compare it, those too that were there already")
	f.IntVar(&o.workers, "workers", defaultRestoreWorkers, "restore this many files at the same time")
	return cmd
}

// defaultRestoreWorkers is how many files are restored at the same time: they
// wait for the remote and for the disk in turn.
const defaultRestoreWorkers = 8

// restorer copies files out of a volume. It goes on after what fails, and
// counts it.
type restorer struct {
	*app
	v    *fs.Volume
	o    restoreOptions
	bar  *bar
	jobs chan func() // for the workers

	mu      sync.Mutex       // guards what follows
	links   map[fs.Ino]link  // files with several names that are there already
	sum     restoreSummary   //
	total   int64            // bytes of files that were seen
	partly  map[fs.Ino]int64 // bytes that were copied of files that are not through
	copied  int64            // sum of these
	stopped error            // what nothing can go on after
}

// restoreSummary is what --json prints of a restore.
type restoreSummary struct {
	Entries int      `json:"entries"`
	Bytes   int64    `json:"bytes"`   // of files that are through
	Written int64    `json:"written"` // of those, files that were not there yet
	Deleted int      `json:"deleted"`
	Failed  []string `json:"failed"` // paths of what is not as it should be
}

// link is where a file with several names was restored first.
type link struct{ dir, name string }

func (a *app) restore(ctx context.Context, v *fs.Volume, p snapshotPath, at fs.Attr, target string, o restoreOptions) error {
	target, err := filepath.Abs(target)
	if err != nil {
		return err
	}
	if o.workers < 1 {
		return usageError("--workers is at least 1")
	}
	unix.Umask(0)
	r := &restorer{app: a, v: v, o: o, bar: a.newBar("restoring"), links: map[fs.Ino]link{}, partly: map[fs.Ino]int64{}, jobs: make(chan func(), 4*o.workers)}
	r.sum.Failed = []string{}
	var workers sync.WaitGroup
	for range o.workers {
		workers.Go(func() {
			for job := range r.jobs {
				job()
			}
		})
	}
	err = r.restoreTop(ctx, p, at, target)
	close(r.jobs)
	workers.Wait()
	r.bar.done()
	if err == nil {
		err = r.stopped
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("run it again to go on from here: %w", ctx.Err())
	case err != nil:
		return err
	}
	return r.conclude(p, target)
}

func (r *restorer) conclude(p snapshotPath, target string) error {
	if r.g.json {
		if err := r.printJSON(r.sum); err != nil {
			return err
		}
	}
	if failed := len(r.sum.Failed); failed > 0 {
		return fmt.Errorf("%w: %d of %d entries of %s were not restored as they were", errPartly, failed, r.sum.Entries, escape(p.String()))
	}
	verb := "restored"
	if r.o.dryRun {
		verb = "would restore"
	}
	r.say("%s %d entries, %s, to %s; %s of it was not there yet, %d entries deleted", verb, r.sum.Entries, humanSize(r.sum.Bytes),
		escape(target), humanSize(r.sum.Written), r.sum.Deleted)
	return nil
}

// restoreTop restores what was asked for. A directory becomes target; anything
// else too, unless target is a directory, which then gets it.
func (r *restorer) restoreTop(ctx context.Context, p snapshotPath, at fs.Attr, target string) error {
	if at.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		return r.restoreTree(ctx, p, at, target)
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
	if err := r.keepOut(dir, unix.LOCK_SH); err != nil {
		return err
	}
	r.seen(at)
	return r.leaf(ctx, dir, name, at, p.path)
}

// keepOut keeps other runs out of the target: two that go on with the same file would mix what they restore. Where the file system has
// no locks it does nothing.
func (r *restorer) keepOut(target *targetDir, how int) error {
	if r.o.dryRun || !errors.Is(unix.Flock(target.fd, how|unix.LOCK_NB), unix.EWOULDBLOCK) {
		return nil
	}
	return fail(exitInUse, "another restore writes to %s; wait until it is done", escape(target.path))
}

func (r *restorer) restoreTree(ctx context.Context, p snapshotPath, at fs.Attr, target string) error {
	var dir *targetDir
	_, err := os.Stat(target)
	if err == nil || !r.o.dryRun {
		if err := os.MkdirAll(target, 0o700); err != nil {
			return fmt.Errorf("make target: %w", err)
		}
		if dir, err = openTarget(target); err != nil {
			return err
		}
		dir.fresh = false
		if err := r.keepOut(dir, unix.LOCK_EX); err != nil {
			dir.close()
			return err
		}
	}
	r.seen(at)
	done := make(chan struct{})
	r.contents(ctx, &dirJob{dir: dir, at: at, path: p.path, over: func() { close(done) }})
	<-done
	return nil
}

// dirJob is a directory that is being restored. Its attributes come last, as
// they may forbid writing and as writing changes the times.
type dirJob struct {
	dir  *targetDir // nil in a dry run, if it is not there
	at   fs.Attr
	path string
	open atomic.Int64 // what is still to be done in it, and the listing of it
	over func()
}

// done says that one thing in the directory is done; with the last one the
// directory is.
func (r *restorer) done(ctx context.Context, j *dirJob) {
	if j.open.Add(-1) > 0 {
		return
	}
	if j.dir != nil {
		if !r.o.dryRun {
			r.note(ctx, j.path, r.attributes(ctx, j.dir, ".", j.at))
		}
		j.dir.close()
	}
	j.over()
}

// contents restores all that lies in a directory, some of it later.
func (r *restorer) contents(ctx context.Context, j *dirJob) {
	j.open.Add(1)
	defer r.done(ctx, j)
	entries, err := readDir(ctx, r.v, j.at.Ino)
	if r.note(ctx, j.path, err) {
		return
	}
	if r.o.delete && j.dir != nil && !j.dir.fresh {
		r.note(ctx, j.path, r.deleteOthers(j, entries))
	}
	for _, e := range entries {
		if r.over(ctx) {
			r.v.Forget(e.Ino, 1)
			continue
		}
		r.entry(ctx, j, string(e.Name), *e.Attr)
	}
}

// over reports whether nothing more is to be begun.
func (r *restorer) over(ctx context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped == nil {
		r.stopped = ctx.Err()
	}
	return r.stopped != nil
}

// note reports what has failed for path, if anything has, and lets the rest go
// on; an interrupt and a full disk stop it.
func (r *restorer) note(ctx context.Context, path string, err error) bool {
	if err == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil || errors.Is(err, syscall.ENOSPC) {
		if r.stopped == nil {
			r.stopped = err
		}
		return true
	}
	r.sum.Failed = append(r.sum.Failed, "/"+path)
	fmt.Fprintf(r.stderr, "dedupfs: %s: %v\n", escape("/"+path), err)
	return true
}

// seen counts an entry.
func (r *restorer) seen(at fs.Attr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sum.Entries++
	if at.Mode&syscall.S_IFMT == syscall.S_IFREG {
		r.total += int64(at.Size)
	}
}

// through counts a file that is as it should be; written says whether it was not there before.
func (r *restorer) through(at fs.Attr, written bool) {
	if at.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sum.Bytes += int64(at.Size)
	if written {
		r.sum.Written += int64(at.Size)
	}
	r.dropCopiedLocked(at.Ino)
	r.bar.set(r.sum.Bytes+r.copied, r.total)
}

// copiedPart counts bytes of a file on its way: one large file must not look like one that hangs.
func (r *restorer) copiedPart(ino fs.Ino, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.partly[ino] += n
	r.copied += n
	r.bar.set(r.sum.Bytes+r.copied, r.total)
}

// dropCopied takes back what was counted of a file that came to nothing.
func (r *restorer) dropCopied(ino fs.Ino) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropCopiedLocked(ino)
}

func (r *restorer) dropCopiedLocked(ino fs.Ino) {
	r.copied -= r.partly[ino]
	delete(r.partly, ino)
}

// entry restores one name in the directory of j, or has it restored.
func (r *restorer) entry(ctx context.Context, j *dirJob, name string, at fs.Attr) {
	r.seen(at)
	path := filepath.Join(j.path, name)
	forget := func() { r.v.Forget(at.Ino, 1) }
	if r.note(ctx, path, checkEntryName(name)) {
		forget()
		return
	}
	switch {
	case at.Mode&syscall.S_IFMT == syscall.S_IFDIR:
		sub, err := r.directory(j.dir, name, path)
		if r.note(ctx, path, err) {
			forget()
			return
		}
		j.open.Add(1)
		r.contents(ctx, &dirJob{dir: sub, at: at, path: path, over: func() {
			forget()
			r.done(ctx, j)
		}})
	case at.Nlink > 1: // here and now, so that the next name finds it
		defer forget()
		r.note(ctx, path, r.linked(ctx, j.dir, name, at, path))
	default:
		j.open.Add(1)
		r.jobs <- func() {
			if !r.over(ctx) {
				r.note(ctx, path, r.leaf(ctx, j.dir, name, at, path))
			}
			forget()
			r.done(ctx, j)
		}
	}
}

// linked restores a file with several names: the first as any other, the rest as
// links to it.
func (r *restorer) linked(ctx context.Context, dir *targetDir, name string, at fs.Attr, path string) error {
	if first, ok := r.links[at.Ino]; ok && dir != nil && !r.o.dryRun {
		r.through(at, false)
		return dir.link(first, name)
	}
	if err := r.leaf(ctx, dir, name, at, path); err != nil {
		return err
	}
	if dir != nil {
		r.links[at.Ino] = link{dir.path, name}
	}
	return nil
}

// deleteOthers removes what is in the target and not in the snapshot.
func (r *restorer) deleteOthers(j *dirJob, entries []fs.DirEntry) error {
	wanted := map[string]bool{}
	for _, e := range entries {
		wanted[string(e.Name)] = true
		if e.Type == syscall.S_IFREG { // begun by a run that was interrupted
			wanted[tempName(string(e.Name))] = true
		}
	}
	names, err := j.dir.list()
	if err != nil {
		return fmt.Errorf("list target: %w", err)
	}
	var failed error
	for _, name := range names {
		if wanted[name] {
			continue
		}
		r.mu.Lock()
		r.sum.Deleted++
		r.mu.Unlock()
		if r.o.dryRun {
			r.tell("delete", filepath.Join(j.path, name))
		} else if err := j.dir.removeAll(name); err != nil {
			failed = errors.Join(failed, fmt.Errorf("delete %s: %w", escape(name), err))
		}
	}
	return failed
}

// tell prints what a dry run would do.
func (r *restorer) tell(what, path string) {
	if r.g.json {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.stdout, "%s %s\n", what, escape("/"+path))
}

// checkEntryName refuses what is not one name: a damaged or forged directory
// must not lead out of the target.
func checkEntryName(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > fs.NameMax || filepath.Base(name) != name {
		return fmt.Errorf("%q is not a file name", name)
	}
	return nil
}

// directory opens a directory in dir, and makes it if need be; nil in a dry run, if it is not there.
func (r *restorer) directory(dir *targetDir, name, path string) (*targetDir, error) {
	if !r.o.dryRun {
		if r.o.delete && dir.isOther(name, syscall.S_IFDIR) {
			if err := dir.removeAll(name); err != nil {
				return nil, fmt.Errorf("make room: %w", err)
			}
		}
		return dir.makeDir(name)
	}
	if dir != nil {
		if sub, err := dir.openDir(name); err == nil {
			return sub, nil
		}
	}
	r.tell("restore", path)
	return nil, nil
}

// leaf restores anything but a directory: under a name of its own first, which
// then takes the place of whatever had the name.
func (r *restorer) leaf(ctx context.Context, dir *targetDir, name string, at fs.Attr, path string) error {
	there := dir != nil && !dir.fresh && dir.holds(name, at)
	if there && r.o.verify {
		there = r.sameContent(ctx, dir, name, at) == nil
	}
	if r.o.dryRun {
		if !there {
			r.tell("restore", path)
		}
		r.through(at, !there)
		return nil
	}
	temp := tempName(name)
	if there {
		dir.remove(temp)
		r.through(at, false)
		return r.attributes(ctx, dir, name, at)
	}
	keep := false
	defer func() {
		r.dropCopied(at.Ino)
		if !keep {
			dir.remove(temp)
		}
	}()
	if err := r.make(ctx, dir, temp, at); err != nil {
		keep = ctx.Err() != nil || errors.Is(err, remote.ErrUnreachable)
		return err
	}
	if r.o.verify {
		if err := r.sameContent(ctx, dir, temp, at); err != nil {
			return err
		}
	}
	// What belongs to a file that others see must be right before they see it.
	attrErr := r.attributes(ctx, dir, temp, at)
	if r.o.delete && dir.isOther(name, at.Mode&syscall.S_IFMT) {
		if err := dir.removeAll(name); err != nil {
			return errors.Join(fmt.Errorf("make room: %w", err), attrErr)
		}
	}
	if err := dir.rename(temp, name); err != nil {
		return errors.Join(err, attrErr)
	}
	keep = true
	r.through(at, true)
	return attrErr
}

// sameContent compares a file that was restored with what it should be.
func (r *restorer) sameContent(ctx context.Context, dir *targetDir, name string, at fs.Attr) error {
	if at.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return nil
	}
	got, err := dir.openFile(name)
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	defer got.Close()
	want, err := openFile(ctx, r.v, at)
	if err != nil {
		return err
	}
	defer want.Close()
	a, b := make([]byte, verifyBuffer), make([]byte, verifyBuffer)
	for off := int64(0); ; off += verifyBuffer {
		n, err := want.h.Read(ctx, a, off)
		if err != nil {
			return err
		}
		m, err := io.ReadFull(io.NewSectionReader(got, off, verifyBuffer), b)
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return fmt.Errorf("verify: %w", err)
		}
		if !bytes.Equal(a[:n], b[:m]) {
			return fmt.Errorf("verify: what was written differs from the snapshot after byte %d", off)
		}
		if n < verifyBuffer {
			return nil
		}
	}
}

const verifyBuffer = 1 << 20 // bytes

// make makes the entry without its attributes.
func (r *restorer) make(ctx context.Context, dir *targetDir, name string, at fs.Attr) error {
	if at.Mode&syscall.S_IFMT == syscall.S_IFREG {
		return r.content(ctx, dir, name, at)
	}
	if !dir.fresh {
		dir.remove(name)
	}
	if at.Mode&syscall.S_IFMT != syscall.S_IFLNK {
		return dir.mknod(name, at)
	}
	target, err := r.v.Readlink(ctx, at.Ino)
	if err != nil {
		return err
	}
	return dir.symlink(string(target), name)
}

// content copies the bytes of a file, and leaves out its holes. It goes on with what an earlier run has left of the same name.
func (r *restorer) content(ctx context.Context, dir *targetDir, name string, at fs.Attr) error {
	out, begun, err := dir.begin(name)
	if err != nil {
		return err
	}
	defer out.Close()
	in, err := openFile(ctx, r.v, at)
	if err != nil {
		return err
	}
	defer in.Close()
	buf := make([]byte, min(1<<20, int64(at.Size)))
	for off := int64(0); ; {
		start, end, err := in.nextData(off)
		if err != nil {
			return err
		}
		last := start == end
		if last {
			start = int64(at.Size)
		}
		if begun {
			if err := clearRange(out, off, start); err != nil {
				return err
			}
		}
		if last { // the size comes last, so that what was left of an earlier run ends where that was interrupted
			return out.Truncate(int64(at.Size))
		}
		if err := r.copyData(out, in, start, end, buf, begun); err != nil {
			return err
		}
		off = end
	}
}

// copyData copies a range without holes, or of a file that was begun before what it does not have.
func (r *restorer) copyData(out *os.File, in *file, off, end int64, buf []byte, begun bool) error {
	if !begun {
		return r.copyRange(out, in, off, end, buf)
	}
	for off < end {
		from, to, err := in.h.Missing(in.ctx, out, off, end)
		if err != nil {
			return err
		}
		if err := r.copyRange(out, in, from, to, buf); err != nil {
			return err
		}
		off = to
	}
	return nil
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
		r.copiedPart(in.ino, int64(n))
	}
	return nil
}

// attributes sets owner, mode, extended attributes and times of name, in an
// order in which none undoes another.
func (r *restorer) attributes(ctx context.Context, dir *targetDir, name string, at fs.Attr) error {
	// A change of owner takes capabilities away, and who may not write to a file may not set its attributes.
	return errors.Join(dir.chown(name, at), r.xattrs(ctx, dir, name, at), dir.chmod(name, at), dir.utimes(name, at))
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
