package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sync/errgroup"

	"github.com/dedupfs/dedupfs/chunking"
)

// AnalyzeOptions are options of Analyze. Nil is the defaults.
type AnalyzeOptions struct {
	Versions bool  // the directories in the folder are versions of one data set, in the order of their names
	Line     int64 // bytes per second of the line to the storage, for the time that uploading takes; default 2.5 MB/s

	// Pace, unless nil, is called between units of work, which it may hold back.
	Pace func(context.Context) error
	// Progress, unless nil, is told how far a stage is.
	Progress func(stage string, done, total int64)
	// Failed, unless nil, is told what could not be read and is left out.
	Failed func(path string, err error)
}

// Count is a number of files and their bytes.
type Count struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// NamedCount is the Count of a class of files.
type NamedCount struct {
	Name string `json:"name"`
	Count
}

// Estimate is what a folder would cost under one Setting.
type Estimate struct {
	Setting      string  `json:"setting"`
	About        string  `json:"about"`
	Chunks       int64   `json:"chunks"`
	UniqueChunks int64   `json:"unique_chunks"`
	UniqueBytes  int64   `json:"unique_bytes"`   // before compression
	Stored       int64   `json:"stored_bytes"`   // on the storage, lists of chunks and files included
	Lists        int64   `json:"list_bytes"`     // of them
	CPU          float64 `json:"cpu_seconds"`    // to store all, by what a sample took here
	Upload       float64 `json:"upload_seconds"` // of what is stored, over the line
	Exact        bool    `json:"exact"`          // that UniqueChunks and UniqueBytes were counted, not estimated
}

// VersionCost is what one version adds, under the default setting.
type VersionCost struct {
	Name string `json:"name"`
	Count
	New    int64 `json:"new_bytes"`    // in chunks that no version before had
	Stored int64 `json:"stored_bytes"` // on the storage after it
}

// Analysis is what Analyze finds.
type Analysis struct {
	Dir         string        `json:"dir"`
	Files       Count         `json:"files"`
	Directories int64         `json:"directories"`
	Links       int64         `json:"symbolic_links"`
	HardLinks   int64         `json:"hard_links"` // further names of files that were counted
	Special     int64         `json:"special_files"`
	Unreadable  int64         `json:"unreadable"`
	Types       []NamedCount  `json:"types"` // by extension, the largest first
	Sizes       []NamedCount  `json:"size_classes"`
	Kinds       []NamedCount  `json:"kinds"`      // as their first bytes tell, see docs/chunking.md
	Duplicates  Count         `json:"duplicates"` // whole files that are there already
	Versions    []VersionCost `json:"versions,omitempty"`
	Line        int64         `json:"line_bytes_per_second"`
	Estimates   []Estimate    `json:"estimates"`
	Recommended string        `json:"recommended"` // the setting
	Why         string        `json:"why"`
}

// Bytes that metadata takes on the storage, as measured in docs/storage.md.
const (
	listUnique = 35 // of the table of a multichunk, for each chunk
	listChunk  = 36 // of the list of a file, for each chunk: mostly its id
	listFile   = 60 // for each file, name and attributes, compressed
	listCommit = 20 << 10
)

// sizeClasses are those of Analysis.Sizes: files of at most so many bytes.
var sizeClasses = []struct {
	name string
	max  int64
}{
	{"empty", 0}, {"up to 1 KiB", 1 << 10}, {"up to 4 KiB", 4 << 10}, {"up to 16 KiB", 16 << 10}, {"up to 64 KiB", 64 << 10},
	{"up to 256 KiB", 256 << 10}, {"up to 1 MiB", 1 << 20}, {"up to 16 MiB", 16 << 20}, {"up to 256 MiB", 256 << 20},
	{"larger", 1<<63 - 1},
}

// kindNames are the names of chunking.Kind.
var kindNames = [3]string{"other", "pages (databases, disk images)", "media (incompressible)"}

// analyzer carries an analysis out.
type analyzer struct {
	ctx  context.Context
	o    AnalyzeOptions
	out  *Analysis
	buf  []byte
	cuts []*cut

	types   map[string]*Count
	sizes   []Count
	kinds   [3]Count
	links   *filter // inodes with several names, by hash
	content *sketch // whole files

	total int64 // bytes of all files, as the first pass has found
	done  int64 // bytes that are through
}

// Analyze tells what the folder dir would cost under Settings. It goes through it twice: once for names and sizes, and once for
// the bytes. It stores nothing. What it counts in unique chunks is exact up to 100,000 chunks or so and estimated beyond, so that
// memory stays the same for any number of files.
func Analyze(ctx context.Context, dir string, o *AnalyzeOptions) (*Analysis, error) {
	a := &analyzer{ctx: ctx, out: &Analysis{Dir: dir}, buf: make([]byte, readBlock), types: map[string]*Count{},
		sizes: make([]Count, len(sizeClasses)), content: newSketch(sketchLimit)}
	if o != nil {
		a.o = *o
	}
	if a.o.Line <= 0 {
		a.o.Line = 2_500_000
	}
	a.out.Line = a.o.Line
	if err := a.prepare(); err != nil {
		return nil, err
	}
	dirs, err := a.versions(dir)
	if err != nil {
		return nil, err
	}
	if err := a.eachFile(dirs, a.count, nil); err != nil {
		return nil, err
	}
	a.total, a.o.Failed = a.out.Files.Bytes, nil // what is unreadable has been told
	if err := a.eachFile(dirs, a.read, a.versionDone); err != nil {
		return nil, err
	}
	return a.out, a.finish()
}

// prepare makes a cut for all settings that cut alike.
func (a *analyzer) prepare() error {
	for _, s := range Settings() {
		n := len(a.cuts)
		if n == 0 || a.cuts[n-1].set != s.store.Chunkers {
			c, err := newCut(s)
			if err != nil {
				return err
			}
			a.cuts = append(a.cuts, c)
			n++
		}
		if err := a.cuts[n-1].also(s); err != nil {
			return err
		}
	}
	return nil
}

// versions returns the directories to go through.
func (a *analyzer) versions(dir string) ([]string, error) {
	if !a.o.Versions {
		return []string{dir}, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, filepath.Join(dir, e.Name()))
		}
	}
	if len(dirs) == 0 {
		return nil, fmt.Errorf("%s has no directories that could be versions; leave out --versions", dir)
	}
	return dirs, nil
}

// eachFile walks the directories and calls file for all files but further names of one.
func (a *analyzer) eachFile(dirs []string, file func(path string, st *syscall.Stat_t) error, done func(dir string) error) error {
	for _, dir := range dirs {
		a.links = newFilter()
		w := &walker{ctx: a.ctx, failed: a.failed}
		w.entry = func(path string, st *syscall.Stat_t) error {
			if isRegular(st) && st.Nlink > 1 && a.links.seen(xxhash.Sum64String(fmt.Sprint(st.Dev, " ", st.Ino))) {
				if done == nil {
					a.out.HardLinks++
				}
				return nil
			}
			return file(path, st)
		}
		if err := w.walk(dir); err != nil {
			return err
		}
		if done == nil {
			continue
		}
		if err := done(dir); err != nil {
			return err
		}
	}
	return nil
}

func (a *analyzer) failed(path string, err error) {
	if a.o.Failed != nil {
		a.out.Unreadable++
		a.o.Failed(path, err)
	}
}

// count is the first pass: what names and attributes tell.
func (a *analyzer) count(path string, st *syscall.Stat_t) error {
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		a.out.Directories++
	case syscall.S_IFLNK:
		a.out.Links++
	case syscall.S_IFREG:
		a.countFile(path, st.Size)
	default:
		a.out.Special++
	}
	if a.o.Progress != nil && a.out.Files.Files%1024 == 1 {
		a.o.Progress("counting", a.out.Files.Bytes, 0)
	}
	return nil
}

func (a *analyzer) countFile(path string, size int64) {
	a.out.Files.add(size)
	name := typeOf(path)
	t := a.types[name]
	if t == nil {
		if len(a.types) >= maxTypes {
			name = otherTypes
		}
		if t = a.types[name]; t == nil {
			t = &Count{}
			a.types[name] = t
		}
	}
	t.add(size)
	i := slices.IndexFunc(sizeClasses, func(c struct {
		name string
		max  int64
	}) bool {
		return size <= c.max
	})
	a.sizes[i].add(size)
}

func (c *Count) add(size int64) {
	c.Files++
	c.Bytes += size
}

const (
	maxTypes   = 4096 // that are told apart: extensions may be anything
	shownTypes = 20
	otherTypes = "other"
)

// typeOf returns the extension of a file, as far as it looks like one.
func typeOf(path string) string {
	ext := strings.ToLower(strings.TrimPrefix(filepath.Ext(path), "."))
	if ext == "" || len(ext) > 10 || strings.HasPrefix(filepath.Base(path), ".") && strings.Count(filepath.Base(path), ".") == 1 {
		return "none"
	}
	for _, c := range ext {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return "none"
		}
	}
	return ext
}

// read is the second pass: what the bytes of a file tell.
func (a *analyzer) read(path string, st *syscall.Stat_t) error {
	if !isRegular(st) || st.Size == 0 {
		return nil
	}
	whole := xxhash.New()
	first, size := true, int64(0)
	kind := chunking.KindDefault
	err := readFile(a.ctx, path, a.buf, func(block []byte) error {
		if first && st.Size >= chunking.DetectSize {
			kind = chunking.Detect(block)
		}
		first = false
		size += int64(len(block))
		whole.Write(block)
		a.done += int64(len(block))
		a.progress()
		return a.write(kind, block, false)
	}, func() error { return a.write(kind, nil, true) })
	if err != nil && a.ctx.Err() == nil {
		a.failed(path, err)
		err = nil
	}
	err = errors.Join(err, a.write(kind, nil, true))
	a.kinds[kind].add(size)
	a.content.add(whole.Sum64(), st.Size)
	return err
}

func (a *analyzer) progress() {
	if a.o.Progress != nil {
		a.o.Progress("reading", a.done, a.total)
	}
}

// fewBytes is what is rather cut in turn than by several at once.
const fewBytes = 64 << 10

// write gives a block to all cuts.
func (a *analyzer) write(kind chunking.Kind, block []byte, eof bool) error {
	if a.o.Pace != nil {
		if err := a.o.Pace(a.ctx); err != nil {
			return err
		}
	}
	if len(block) < fewBytes {
		for _, c := range a.cuts {
			if err := c.write(kind, block, eof); err != nil {
				return err
			}
		}
		return nil
	}
	var g errgroup.Group
	for _, c := range a.cuts {
		g.Go(func() error { return c.write(kind, block, eof) })
	}
	return g.Wait()
}

// versionDone notes what there is after a version.
func (a *analyzer) versionDone(dir string) error {
	for _, c := range a.cuts { // a version ends with a commit, and so do its groups
		if err := c.closeGroup(); err != nil {
			return err
		}
	}
	if !a.o.Versions {
		return nil
	}
	v := VersionCost{Name: filepath.Base(dir)}
	var before VersionCost
	files, bytes := int64(0), int64(0)
	for _, k := range a.kinds {
		files, bytes = files+k.Files, bytes+k.Bytes
	}
	for _, b := range a.out.Versions {
		files, bytes = files-b.Files, bytes-b.Bytes
		before.New += b.New
	}
	v.Count = Count{files, bytes}
	_, unique := a.cuts[0].chunks.unique()
	v.New = unique - before.New
	v.Stored = a.estimate(a.cuts[0], a.cuts[0].packed[0]).Stored
	a.out.Versions = append(a.out.Versions, v)
	return nil
}

// finish makes the result of what was counted.
func (a *analyzer) finish() error {
	out := a.out
	files, bytes := a.content.unique()
	nonEmpty := Count{}
	for i, k := range a.kinds {
		nonEmpty.Files += k.Files
		nonEmpty.Bytes += k.Bytes
		out.Kinds = append(out.Kinds, NamedCount{kindNames[i], k})
	}
	out.Duplicates = Count{max(0, nonEmpty.Files-files), max(0, nonEmpty.Bytes-bytes)}
	for name, c := range a.types {
		out.Types = append(out.Types, NamedCount{name, *c})
	}
	out.Types = largest(out.Types, shownTypes)
	for i, c := range a.sizes {
		out.Sizes = append(out.Sizes, NamedCount{sizeClasses[i].name, c})
	}
	for _, c := range a.cuts {
		for _, p := range c.packed {
			if err := a.ctx.Err(); err != nil {
				return err
			}
			e := a.estimate(c, p)
			cpu, err := c.time(p)
			if err != nil {
				return err
			}
			e.CPU = cpu.Seconds()
			out.Estimates = append(out.Estimates, e)
		}
	}
	out.Recommended, out.Why = recommend(out)
	return nil
}

// largest returns the n classes with most bytes, and the rest as one.
func largest(all []NamedCount, n int) []NamedCount {
	slices.SortFunc(all, func(a, b NamedCount) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Files, a.Files), cmp.Compare(a.Name, b.Name))
	})
	if len(all) <= n {
		return all
	}
	rest := NamedCount{Name: otherTypes}
	for _, c := range all[n:] {
		rest.Files += c.Files
		rest.Bytes += c.Bytes
	}
	return append(all[:n:n], rest)
}

// estimate tells what has been seen so far would cost.
func (a *analyzer) estimate(c *cut, p *packing) Estimate {
	e := Estimate{Setting: p.setting.Name, About: p.setting.About, Chunks: c.total, Exact: c.chunks.exact()}
	e.UniqueChunks, e.UniqueBytes = c.chunks.unique()
	fresh := 1.0 // share of the bytes that lie in files of which no copy was seen before
	if _, bytes := a.content.unique(); a.done > 0 {
		fresh = min(1, float64(bytes)/float64(a.done))
	}
	e.Lists = listUnique*e.UniqueChunks + int64(listChunk*fresh*float64(e.Chunks)) + listFile*a.files() + listCommit*int64(1+len(a.out.Versions))
	e.Stored = int64(float64(e.UniqueBytes)*p.ratio()) + e.Lists
	e.Upload = float64(e.Stored) / float64(a.o.Line)
	return e
}

// files returns the number of files that have been read.
func (a *analyzer) files() (n int64) {
	for _, k := range a.kinds {
		n += k.Files
	}
	return n
}

// recommend chooses among the settings. A chunker holds for all files of a repository and for ever, so it must save something.
func recommend(out *Analysis) (setting, why string) {
	standard := out.Estimates[0]
	best := standard
	for _, e := range out.Estimates[1:] {
		if strings.Contains(e.Setting, "--chunker") && !strings.Contains(e.Setting, "--compression") && e.Stored < best.Stored {
			best = e
		}
	}
	if float64(best.Stored) < 0.9*float64(standard.Stored) {
		return best.Setting, fmt.Sprintf("it needs %.0f%% less than the default", 100*(1-float64(best.Stored)/float64(standard.Stored)))
	}
	fast, none := out.Estimates[1], out.Estimates[2]
	switch {
	case float64(none.Stored) < 1.01*float64(standard.Stored):
		return none.Setting, "compression would save less than 1%"
	case float64(fast.Stored) < 1.01*float64(standard.Stored) && fast.CPU < 0.8*standard.CPU:
		return fast.Setting, "it needs as little as the default and less processor time"
	}
	return standard.Setting, "no other setting needs 10% less"
}

// processorTime returns what this process has used of all processors.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
