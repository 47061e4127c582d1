package cache

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dgraph-io/badger/v4"
)

// ErrNotLocal says that a node is not on this machine: the remote has to be asked.
var ErrNotLocal = errors.New("not on this machine")

// ErrInUse says that another process has the cache directory open.
type ErrInUse struct {
	Dir string
	PID int // 0 if it did not say
}

func (e ErrInUse) Error() string {
	return fmt.Sprintf("cache directory %s is in use by process %d; unmount it first or give another --cache-dir", e.Dir, e.PID)
}

// corruptf returns an error about local data that wraps store.ErrCorrupt.
func corruptf(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), store.ErrCorrupt)
}

// Options say how a cache is used; nil and zero fields mean the defaults.
type Options struct {
	Size      int64         // disk that log, spool and multichunks may take together, bytes; default 20 GiB
	Memory    int64         // decoded chunks in memory, bytes; default 48 MiB
	Uploads   int           // parallel uploads; default 4
	Offline   time.Duration // how long a writer waits for space, and a reader for the remote; default 30 s
	Files     Files         // the local disk; default is the operating system's
	Segment   int64         // of a segment of the log, bytes; default 64 MiB, less for a small Size
	RetryMin  time.Duration // first pause after an upload that failed, doubled up to RetryMax; default 1 s
	RetryMax  time.Duration // default 1 min
	Pressure  func()        // called, perhaps often, when the log takes so much space that a commit and publication should free some; must not wait
	Now       func() time.Time
	OnTrouble func(err error) // told of damage that was found and dealt with; default logs it
}

// Cache is what one machine keeps of a repository.
type Cache struct{}

// A Piece is a run of bytes in the log, all of one record.
type Piece struct {
	Pos Pos
	Len uint32 // bytes
}

// A Place says where the bytes of a chunk lie in the log, in order. A place that
// is shorter than the chunk is none: the cache then keeps the bytes itself.
type Place []Piece

// PendingStats tell what is not yet on the remote.
type PendingStats struct {
	Bytes    int64 // plaintext of chunks that are not verified on the remote
	Chunks   int
	Objects  int       // multichunks that wait for upload, in memory and in the spool
	Spool    int64     // bytes of those in the spool
	Uploaded int64     // bytes on the wire uploaded and verified since Open
	Log      int64     // bytes of disk that the log takes
	LogHeld  int64     // of those that cannot be given up
	Used     int64     // bytes of the disk budget in use
	Err      error     // of the newest upload if it failed; nil if uploads work
	Since    time.Time // when uploads began to fail
}

// Publication is what a commit needs of the cache.
type Publication struct {
	N           uint64    // number of the local commit
	Root        store.Ref // with a hint
	Snapshots   store.Ref
	Multichunks []MultichunkInfo
	Cut         Pos
}

// Base is a state of the volume, as LastCommit tells it.
type Base struct {
	N               uint64
	Root, Snapshots store.Ref
	Cut             Pos
	Meta            []byte
	Published       bool
}

func Open(ctx context.Context, dir string, repo *store.Repository, o *Options) (*Cache, error) {
	panic("cache: not yet")
}
func OpenReader(ctx context.Context, repo *store.Repository, o *Options) (*Cache, error) {
	panic("cache: not yet")
}
func (c *Cache) Close() error                                             { panic("cache: not yet") }
func (c *Cache) DB() *badger.DB                                           { panic("cache: not yet") }
func (c *Cache) Log() *Log                                                { panic("cache: not yet") }
func (c *Cache) Chunk(ctx context.Context, ref store.Ref) ([]byte, error) { panic("cache: not yet") }
func (c *Cache) Node(ctx context.Context, ref store.Ref) (*store.Node, error) {
	panic("cache: not yet")
}
func (c *Cache) LocalNode(ref store.Ref) (*store.Node, error) { panic("cache: not yet") }
func (c *Cache) Prefetch(refs []store.Ref)                    { panic("cache: not yet") }

// Admit waits until the budget has room for n more bytes of the log. Callers
// that take locks call it before them, so that Append need not wait under them.
func (c *Cache) Admit(ctx context.Context, n int64) error { panic("cache: not yet") }
func (c *Cache) AddChunk(ctx context.Context, id store.ID, data []byte, place Place) (dup bool, err error) {
	panic("cache: not yet")
}
func (c *Cache) Hint(id store.ID) store.Hint { panic("cache: not yet") }
func (c *Cache) LastCommit() (root, snapshots store.Ref, cut Pos, meta []byte, n uint64, published bool, ok bool) {
	panic("cache: not yet")
}
func (c *Cache) PackForPublication(ctx context.Context, progress func(done, total int64)) (*Publication, error) {
	panic("cache: not yet")
}
func (c *Cache) Published(p *Publication) error                            { panic("cache: not yet") }
func (c *Cache) AdoptBase(root, snapshots store.Ref) error                 { panic("cache: not yet") }
func (c *Cache) Pending() PendingStats                                     { panic("cache: not yet") }
func (c *Cache) LearnTables(ctx context.Context, names []store.Name) error { panic("cache: not yet") }

type LocalCommit struct{}

func (c *Cache) NewLocalCommit() *LocalCommit { panic("cache: not yet") }
func (lc *LocalCommit) Load(ctx context.Context, ref store.Ref) (*store.Node, error) {
	panic("cache: not yet")
}
func (lc *LocalCommit) Save(ctx context.Context, n *store.Node) (store.Ref, error) {
	panic("cache: not yet")
}
func (lc *LocalCommit) Finish(root, snapshots store.Ref, cut Pos, meta []byte) error {
	panic("cache: not yet")
}
func (lc *LocalCommit) Discard() { panic("cache: not yet") }

// MultichunkInfo stands in until package store has it.
type MultichunkInfo struct {
	Name  store.Name
	Kind  store.Kind
	Hooks []store.ID
}
