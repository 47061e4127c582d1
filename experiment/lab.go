package experiment

import (
	"context"
	"encoding/binary"
	"errors"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/dedupfs/dedupfs/chunking"
	"github.com/dedupfs/dedupfs/store"
	"github.com/dedupfs/dedupfs/store/tree"
)

// A lab stores the versions of a data set one after the other, as a repository does, and keeps account of all of it instead of
// the bytes. A file that is equal to one that was there before is read, and not cut again.
type lab struct {
	ctx     context.Context
	repo    *store.Repository
	cutters [3]cutter
	buf     []byte

	data  *store.Packer
	nodes *store.Packer
	saved map[store.ID]bool         // nodes
	place map[store.ID]store.Hint   // of all chunks that are in multichunks
	known map[store.ID]bool         // chunks, those in work too
	files map[uint64][]store.ID     // chunks of each content, by its hash
	size  map[store.Name]multichunk // of data

	lengths map[store.ID]int            // of chunks; nil if nobody wants to know
	pace    func(context.Context) error // called before each chunk; nil holds nothing back
	pause   time.Duration               // slept after each multichunk, before the next chunk
	unslept atomic.Int64                // multichunks after which no pause has been yet

	now     Account // of the version in work
	fresh   []*freshFile
	current *freshFile
	version []uint64 // contents of the version in work
}

// multichunk is what is kept of one.
type multichunk struct {
	wire  int   // bytes
	plain int64 // bytes of the chunks in it
}

// freshFile is a content that was not there before.
type freshFile struct {
	lengths []int
	ids     []store.ID
}

// An Account says what storing one version takes.
type Account struct {
	Files       int64 `json:"files"`
	Bytes       int64 `json:"bytes"`
	Chunks      int64 `json:"chunks"`
	NewChunks   int64 `json:"new_chunks"`
	NewBytes    int64 `json:"new_bytes"` // of chunks, before compression
	Multichunks int64 `json:"multichunks"`
	Multichunk  int64 `json:"multichunk_bytes"` // on the storage, with tables and padding
	Index       int64 `json:"index_bytes"`      // lists of chunks and files, and the tables in the multichunks
	Nodes       int64 `json:"node_bytes"`       // of them, what is beside the multichunks of data

	Cutting float64 `json:"chunking_cpu_seconds"`
	CPU     float64 `json:"cpu_seconds"`
	Seconds float64 `json:"seconds"` // on the wall, with the pauses of the multichunker
}

// Stored returns all that the version adds on the storage.
func (a *Account) Stored() int64 { return a.Multichunk + a.Nodes }

func newLab(ctx context.Context, cfg Config) (*lab, error) {
	stages, err := store.NewStages(cfg.store)
	if err != nil {
		return nil, err
	}
	l := &lab{ctx: ctx, repo: stages.Repository(), buf: make([]byte, readBlock), saved: map[store.ID]bool{},
		place: map[store.ID]store.Hint{}, known: map[store.ID]bool{}, files: map[uint64][]store.ID{}, size: map[store.Name]multichunk{}}
	for kind, c := range l.repo.Chunkers() {
		if cfg.unbounded != nil {
			c = cfg.unbounded
		}
		l.cutters[kind] = cutter{chunker: c, emit: l.add}
	}
	l.data = l.repo.NewPacker(store.KindData, l.sealed)
	l.nodes = l.repo.NewPacker(store.KindNodes, func(_ context.Context, m *store.Sealed) error {
		l.now.Nodes += int64(len(m.Wire))
		m.Release()
		return nil
	})
	return l, nil
}

// store stores one version, and returns what it took.
func (l *lab) store(dir string, pause time.Duration) (Account, error) {
	l.now, l.fresh, l.version = Account{}, nil, nil
	start, cpu := time.Now(), processorTime()
	w := &walker{ctx: l.ctx, entry: l.file}
	if err := l.walk(w, dir); err != nil {
		return l.now, err
	}
	if err := l.data.Flush(l.ctx); err != nil {
		return l.now, err
	}
	for _, f := range l.fresh {
		if err := l.list(f); err != nil {
			return l.now, err
		}
	}
	if err := l.nodes.Flush(l.ctx); err != nil {
		return l.now, err
	}
	l.now.Nodes += listFile * int64(len(l.fresh))
	l.now.Index = l.now.Nodes + listUnique*l.now.NewChunks
	l.now.CPU = (processorTime() - cpu).Seconds()
	l.now.Seconds = time.Since(start).Seconds() + pause.Seconds()*float64(l.now.Multichunks)
	return l.now, nil
}

// walk walks over a version. A data set must be read as a whole, or its figures mean nothing.
func (l *lab) walk(w *walker, dir string) error {
	var failed error
	w.failed = func(path string, err error) { failed = errors.Join(failed, err) }
	return errors.Join(w.walk(dir), failed)
}

func (l *lab) file(path string, st *syscall.Stat_t) error {
	if !isRegular(st) {
		return nil
	}
	l.now.Files++
	l.now.Bytes += st.Size
	h := xxhash.New()
	head := []byte(nil)
	err := readFile(l.ctx, path, l.buf, func(b []byte) error {
		if head == nil && st.Size >= chunking.DetectSize {
			head = slices.Clone(b[:min(len(b), chunking.DetectSize)])
		}
		_, err := h.Write(b)
		return err
	}, func() error { _, err := h.Write([]byte("hole")); return err })
	if err != nil {
		return err
	}
	sum := h.Sum64()
	l.version = append(l.version, sum)
	if ids, ok := l.files[sum]; ok {
		l.now.Chunks += int64(len(ids))
		return nil
	}
	kind := chunking.KindDefault
	if head != nil {
		kind = chunking.Detect(head)
	}
	return l.cut(path, kind, sum)
}

func (l *lab) cut(path string, kind chunking.Kind, sum uint64) error {
	l.current = &freshFile{}
	write := func(b []byte, eof bool) error { return l.cutters[kind].write(b, eof) }
	cut := &l.cutters[kind]
	start := cut.spent
	err := readFile(l.ctx, path, l.buf, func(b []byte) error { return write(b, false) }, func() error { return write(nil, true) })
	if err == nil {
		err = write(nil, true)
	}
	l.now.Cutting += (cut.spent - start).Seconds()
	l.fresh = append(l.fresh, l.current)
	l.files[sum] = l.current.ids
	return err
}

// add names a chunk and packs it if it is new. Chunks that no repository takes are packed in pieces.
func (l *lab) add(chunk []byte) error {
	if l.pace != nil {
		if err := l.pace(l.ctx); err != nil {
			return err
		}
	}
	time.Sleep(time.Duration(l.unslept.Swap(0)) * l.pause)
	l.now.Chunks++
	if chunking.IsZero(chunk) {
		return nil
	}
	id := l.repo.ChunkID(chunk)
	l.current.ids = append(l.current.ids, id)
	l.current.lengths = append(l.current.lengths, len(chunk))
	if l.known[id] {
		return nil
	}
	l.known[id] = true
	l.now.NewChunks++
	l.now.NewBytes += int64(len(chunk))
	for piece := id; ; {
		n := min(len(chunk), store.MaxChunk)
		if err := l.data.Add(l.ctx, piece, chunk[:n]); err != nil {
			return err
		}
		if chunk = chunk[n:]; len(chunk) == 0 {
			return nil
		}
		piece = l.repo.ChunkID(chunk)
	}
}

// sealed takes account of a multichunk.
func (l *lab) sealed(_ context.Context, m *store.Sealed) error {
	l.now.Multichunks++
	l.unslept.Add(1)
	l.now.Multichunk += int64(len(m.Wire))
	mc := multichunk{wire: len(m.Wire)}
	for i := range m.Table {
		e := &m.Table[i]
		l.place[e.ID] = e.Hint
		mc.plain += int64(e.Len)
		if l.lengths != nil {
			l.lengths[e.ID] = int(e.Len)
		}
	}
	l.size[m.Name] = mc
	m.Release()
	return nil
}

// list makes the list of a file's chunks, as the file system does: nothing of its own for one chunk.
func (l *lab) list(f *freshFile) error {
	if len(f.ids) < 2 {
		return nil
	}
	_, err := tree.New(l, store.Ref{}, tree.Options{Key: l.repo.TreeKey()}).Apply(l.ctx, func(yield func(tree.Edit) bool) {
		off := uint64(0)
		for i, id := range f.ids {
			key := binary.BigEndian.AppendUint64(nil, off)
			ref := store.Ref{ID: id, Kind: store.RefChunk, Hint: l.place[id]}
			e := &store.Entry{Key: key, Value: binary.AppendUvarint(nil, uint64(f.lengths[i])), Refs: []store.Ref{ref}}
			if !yield(tree.Edit{Key: key, Entry: e}) {
				return
			}
			off += uint64(f.lengths[i])
		}
	})
	return err
}

// Load implements tree.Store. Lists are made at once, and nothing is ever loaded.
func (l *lab) Load(context.Context, store.Ref) (*store.Node, error) { return nil, store.ErrNotFound }

// Save implements tree.Store.
func (l *lab) Save(ctx context.Context, n *store.Node) (store.Ref, error) {
	id := l.repo.NodeID(store.AppendCanonical(nil, n))
	ref := store.Ref{ID: id, Kind: store.RefNode}
	if l.saved[id] {
		return ref, nil
	}
	l.saved[id] = true
	return ref, l.nodes.Add(ctx, id, store.AppendNode(nil, n))
}

// versionsIn returns the versions of the data set in dir, oldest first.
func versionsIn(dir string) ([]string, error) {
	a := &analyzer{o: AnalyzeOptions{Versions: true}}
	dirs, err := a.versions(filepath.Clean(dir))
	slices.Sort(dirs)
	return dirs, err
}
