package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dedupfs/dedupfs/store"
	"github.com/dgraph-io/badger/v4"
)

var (
	// ErrNotLocal says that a node is not on this machine: the remote has to be asked.
	ErrNotLocal = errors.New("not on this machine")

	// ErrClosed says that the cache was closed.
	ErrClosed = errors.New("cache is closed")
)

// corruptf returns an error about data that wraps store.ErrCorrupt.
func corruptf(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), store.ErrCorrupt)
}

func newerError(name string, format, known int) error {
	return fmt.Errorf("local file %s has format %d, this program knows %d: %w", name, format, known, store.ErrFormat)
}

// Options say how a cache is used; nil and zero fields mean the defaults.
type Options struct {
	Size       int64 // disk that log, spool and multichunks may take together, bytes; default 20 GiB
	Memory     int64 // decoded chunks in memory, bytes; default 48 MiB
	NodeMemory int64 // parsed nodes in memory, bytes; default 24 MiB
	// IndexMemory bounds what the chunk index takes in memory, bytes: a quarter of it for a filter of hooks, a quarter
	// for the caches of the database, and the rest for what that has in work. Default 128 MiB, of which a small
	// repository uses little.
	IndexMemory int64
	// Resident is what the whole process should stay within, bytes; default 200 MiB. Here it decides when mapped files are
	// given back; what the heap may take is the process's own affair.
	Resident int64

	Uploads    int              // parallel uploads, beside one of what is urgent; default 4, none at all if negative
	InFlight   int64            // sealed multichunks in memory, bytes; default 48 MiB, and at least two
	Segment    int64            // of a segment of the log, bytes; default 64 MiB, less for a small Size
	Offline    time.Duration    // how long a reader waits for the remote; default 30 s, negative without end
	SpaceWait  time.Duration    // how long a writer waits for space; default 30 s
	SpoolAfter time.Duration    // how long uploading may be behind before multichunks are spooled; default 2 s
	RetryMin   time.Duration    // pause after the first failure of the remote, doubled up to RetryMax; default 1 s
	RetryMax   time.Duration    // default 1 min
	Files      Files            // the local disk; default is the operating system's
	Now        func() time.Time // default time.Now

	// Pressure is called, perhaps often and from any goroutine, when the log holds
	// so many bytes that a commit and its publication should free some. It must
	// not wait. Default: nothing.
	Pressure func()

	// Trouble is told of damage that was found and dealt with. Default: nothing;
	// it is logged in any case.
	Trouble func(err error)
}

func (o *Options) withDefaults(multichunk int64) Options {
	var d Options
	if o != nil {
		d = *o
	}
	def := func(p *int64, v int64) {
		if *p == 0 {
			*p = v
		}
	}
	wait := func(p *time.Duration, v time.Duration) {
		if *p == 0 {
			*p = v
		}
	}
	def(&d.Size, 20<<30)
	def(&d.Memory, 48<<20)
	def(&d.NodeMemory, 24<<20)
	def(&d.IndexMemory, 128<<20)
	def(&d.Resident, 200<<20)
	def(&d.InFlight, 48<<20)
	def(&d.Segment, max(min(segmentSize, d.Size/16), 64<<10))
	wait(&d.Offline, 30*time.Second)
	wait(&d.SpaceWait, 30*time.Second)
	wait(&d.SpoolAfter, 2*time.Second)
	wait(&d.RetryMin, time.Second)
	wait(&d.RetryMax, time.Minute)
	d.InFlight = max(d.InFlight, 2*multichunk)
	if d.Uploads == 0 {
		d.Uploads = 4
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Pressure == nil {
		d.Pressure = func() {}
	}
	if d.Trouble == nil {
		d.Trouble = func(error) {}
	}
	return d
}

// A Piece is a run of bytes in the log, all of one record.
type Piece struct {
	Pos Pos
	Len uint32 // bytes
}

// A Place says where the bytes of a chunk lie in the log, in order.
type Place []Piece

// PendingStats tell what is not yet on the remote.
type PendingStats struct {
	Commits  int       // local commits that are not published
	Bytes    int64     // plaintext of chunks that are not verified on the remote
	Chunks   int       // number of those
	Objects  int       // multichunks that wait for upload, in memory and in the spool
	Spool    int64     // bytes of those in the spool
	Uploaded int64     // bytes on the wire uploaded and verified since Open
	Log      int64     // bytes of disk that the log takes
	LogHeld  int64     // those of them that cannot be given up
	Used     int64     // bytes of the disk budget in use
	Err      error     // of the newest upload if it failed; nil if uploads work
	Since    time.Time // when uploads began to fail
}

// Publication is what a commit needs of the cache.
type Publication struct {
	N           uint64    // number of the local commit
	Root        store.Ref // with its hint
	Snapshots   store.Ref // with its hint
	Multichunks []store.MultichunkInfo
	Cut         Pos
	Early       bool // it is not all of the local commit: see PackEarly

	hints map[store.ID]store.Hint  // of all nodes packed for it
	nodes map[store.ID]*store.Node // some of them, with hints
	alone bool                     // chunks that wait for upload are not needed by it
}

// Base is a state of the volume that this machine has.
type Base struct {
	N               uint64 // of the local commit
	Root, Snapshots store.Ref
	Cut             Pos
	Meta            []byte
	Published       bool
}

// Cache is what one machine keeps of a repository. It is safe for concurrent use.
type Cache struct {
	repo    *store.Repository
	o       Options
	fsys    Files    // nil for a reader, like all of this block
	lock    *os.File // nil if the cache lies nowhere
	at      place    // where the cache lies
	copied  bool     // the directory is a copy; until Settled
	db      *badger.DB
	index   *store.Index
	log     *Log
	space   *space
	disk    *disk
	uploads *uploads
	share   sharing

	pressure atomic.Pointer[func()]

	chunks       *memory[[]byte]
	nodes        *memory[*store.Node]
	latest       latest[*store.Node]
	places       latest[inLog] // of chunks; not those of pending ones
	recent       *recentGroups
	wires        *wires
	lost         *lost
	heal         *healer
	moved        movedTables
	copies       copies
	sparse       *sparse
	chunkFlights flights[store.ID, []byte]
	nodeFlights  flights[store.ID, *store.Node]
	groupFlights flights[store.Hint, *store.Group]
	downloads    flights[store.Name, []byte]
	fileFetches  flights[store.Name, bool]
	ahead        *ahead
	fetched      atomic.Int64 // bytes

	again  again
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	gate   sync.RWMutex // held shared to start a goroutine, exclusively to close
	closed bool         // guarded by gate

	trimming  atomic.Bool // the index is being trimmed
	publishMu sync.Mutex  // serialises publications; guards packed
	packed    *Publication

	finishMu sync.Mutex // serialises what makes a state the newest; taken after publishMu
	stateMu  sync.Mutex // serialises SaveState
	evictMu  sync.Mutex // serialises evictions

	packMu sync.Mutex // guards data
	data   *store.Packer

	mu           sync.Mutex // guards all below
	state        State
	base         Base         // the newest published state
	commits      []*localFile // not published, by number
	dropped      []*localFile // published, their files are still to be removed
	local        map[store.ID]nodeLoc
	hints        map[store.ID]heldHint // of published nodes that local commits may name without
	early        map[store.ID]bool     // nodes that were published before the local commits that have them
	making       int                   // local commits that are being made
	temps        int                   // local commits ever begun
	pending      map[store.ID]*pendingChunk
	pendingBytes int64
	unlisted     []store.ID // pending chunks that no local commit lists
	waiting      []store.ID // pending chunks that are to be packed anew
	known        int        // pending chunks that have turned out to be stored
	receipts     map[store.Name]*receipt
	damaged      []store.Name // receipts that cannot be read
}

// Open opens the cache directory dir, makes it if it is not there, and starts to
// upload what it holds. It returns ErrInUse if another process has it open. If
// dir is empty, Options.Files holds everything, and the database is in memory.
func Open(ctx context.Context, dir string, repo *store.Repository, o *Options) (*Cache, error) {
	c := newCache(repo, o)
	if least := 4 * int64(repo.Config().MultichunkSize); c.o.Size < least {
		return nil, fmt.Errorf("cache size of %d bytes is too small: four multichunks of this repository take %d", c.o.Size, least)
	}
	if err := c.open(dir); err != nil {
		c.Close()
		return nil, fmt.Errorf("open cache %s: %w", dir, err)
	}
	return c, nil
}

// OpenReader opens a repository for reading alone: everything is kept in memory,
// nothing is locked or written. Of the methods of Cache only Chunk, ReadChunks,
// Node, LocalNode, Prefetch, Preopen, OpenBudget, Fetched, LastCommit, the two for
// the state, and Close can be used; Log and DB return nil.
func OpenReader(ctx context.Context, repo *store.Repository, o *Options) (*Cache, error) {
	c := newCache(repo, o)
	if err := c.openMemory(); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func newCache(repo *store.Repository, o *Options) *Cache {
	multichunk := int64(repo.Config().MultichunkSize)
	c := &Cache{
		repo:     repo,
		o:        o.withDefaults(multichunk),
		local:    make(map[store.ID]nodeLoc),
		hints:    make(map[store.ID]heldHint),
		pending:  make(map[store.ID]*pendingChunk),
		receipts: make(map[store.Name]*receipt),
		early:    make(map[store.ID]bool),
		ahead:    newAhead(),
		latest:   latest[*store.Node]{keep: 256},
		places:   latest[inLog]{keep: 2048},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.recent = &recentGroups{budget: c.o.Memory / 2, now: c.o.Now}
	c.wires = &wires{budget: int(max(32<<20, 2*multichunk))}
	c.lost = &lost{now: c.o.Now}
	c.heal = newHealer()
	c.sparse = newSparse()
	return c
}

// openMemory makes what every cache has, and starts who uses it.
func (c *Cache) openMemory() (err error) {
	if c.chunks, err = newMemory[[]byte](c.o.Memory-c.o.Memory/2, 8<<10); err != nil {
		return err
	}
	if c.nodes, err = newMemory[*store.Node](c.o.NodeMemory, 16<<10); err != nil {
		return err
	}
	return c.startAhead()
}

func (c *Cache) open(dir string) error {
	if err := c.openDir(dir); err != nil {
		return err
	}
	if err := c.checkPlace(dir); err != nil {
		return err
	}
	if err := c.openMemory(); err != nil {
		return err
	}
	c.space = newSpace(c.o.Size, c.o.SpaceWait, c.press, c.ctx.Done())
	c.space.free = c.diskSpace
	db, err := c.openDB(dir)
	if err != nil {
		return err
	}
	c.db, c.index = db, store.NewIndex(db, &store.IndexOptions{Memory: c.o.IndexMemory / 4})
	if c.share.ledger, err = store.NewLedger(db); err != nil {
		return err
	}
	c.repo.KeepCopies(c.keepObject)
	c.uploads = newUploads(int(c.o.InFlight / int64(c.repo.Config().MultichunkSize)))
	c.data = c.repo.NewPacker(store.KindData, c.sealed)
	if err := c.load(); err != nil {
		return err
	}
	c.space.evictOne = c.evictOne
	c.space.force(0)
	for i := range c.o.Uploads + 1 { // the last one never has its hands full with what is large
		if _, err := c.start(func(ctx context.Context) { c.uploader(ctx, i == c.o.Uploads) }); err != nil {
			return err
		}
	}
	if dir != "" {
		_, err = c.start(func(ctx context.Context) { c.keepSmall(ctx, dbDir(dir)) })
	}
	return err
}

// openDB opens the database below dir, unless the disk is so full that it has to
// do without.
func (c *Cache) openDB(dir string) (*badger.DB, error) {
	if d := c.space.free(); dir != "" && d.free < d.dbReserve() {
		c.trouble(fmt.Errorf("no room for the local database, it is kept in memory: %w", syscall.ENOSPC))
		dir = ""
	}
	return openDB(dbDir(dir), c.o.IndexMemory)
}

// diskSpace tells what the file system has; without end if it does not say.
func (c *Cache) diskSpace() diskSpace {
	if t, ok := c.fsys.(spaceTeller); ok {
		if d, err := t.space(); err == nil {
			return d
		}
	}
	return diskSpace{free: math.MaxInt64, total: math.MaxInt64}
}

// load reads what is there. The order matters: a chunk is pending only if neither
// a receipt nor the spool has it.
func (c *Cache) load() (err error) {
	if err := c.loadState(); err != nil {
		return err
	}
	if err := c.loadLocal(); err != nil {
		return err
	}
	c.putHints(bareHints(c.hints))                                    // of a database that was lost; references without hints outlive the need to keep them in the base
	segment := min(c.o.Segment, max(c.space.free().total/16, 64<<10)) // a small disk is not to be filled by one
	o := logOptions{size: segment, now: c.o.Now, onGrowth: c.logGrown}
	if c.log, err = openLog(c.fsys, c.space, c.newestLocked().Cut, o); err != nil {
		return err
	}
	if err := c.log.Damage(); err != nil {
		c.trouble(err)
	}
	if err := c.loadReceipts(); err != nil {
		return err
	}
	if err := c.loadSpool(); err != nil {
		return err
	}
	if err := c.loadPlaces(); err != nil {
		return err
	}
	if c.disk, err = openDisk(c.fsys, c.space, c.o.Now); err != nil {
		return err
	}
	return c.loadPins()
}

// logGrown asks for a commit when the log holds more than half of the budget.
func (c *Cache) logGrown(held int64) {
	if held > c.space.limit.Load()/2 {
		c.press()
	}
}

// Size returns the budget of the local disk, in bytes.
func (c *Cache) Size() int64 {
	if c.space == nil {
		return c.o.Size
	}
	return c.space.limit.Load()
}

// SetPressure says whom to ask for a commit and a publication instead of Options.Pressure.
func (c *Cache) SetPressure(ask func()) { c.pressure.Store(&ask) }

func (c *Cache) press() {
	if ask := c.pressure.Load(); ask != nil {
		(*ask)()
		return
	}
	c.o.Pressure()
}

// formatName is the file that says whose directory it is.
const formatName = "format"

func (c *Cache) formatLine() string {
	return fmt.Sprintf("dedupfs cache 1\nrepository %v\n", c.repo.Config().Repository)
}

// openDir takes the directory, unless it is another's.
func (c *Cache) openDir(dir string) (err error) {
	c.fsys = c.o.Files
	if c.fsys == nil {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		c.fsys = OSFiles(dir)
	}
	if err := c.checkFormat(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if dir != "" {
		if c.lock, err = lockDir(dir); err != nil {
			return err
		}
	}
	for _, name := range []string{"log", "local", "spool", "uploaded", multichunkDir} {
		if err := c.fsys.Mkdir(name); err != nil {
			return err
		}
	}
	for _, name := range []string{"base", "client", "keys", "place", pinsName, formatName} {
		c.fsys.Remove(name + tmpSuffix) // left by a crash
	}
	if err := c.checkFormat(); errors.Is(err, fs.ErrNotExist) {
		return writeFile(c.fsys, formatName, []byte(c.formatLine())) // syncs the directories too
	}
	return c.fsys.SyncDir(".")
}

func (c *Cache) checkFormat() error {
	b, err := readFile(c.fsys, formatName, 1<<10)
	if err != nil {
		return err
	}
	got, want := string(b), c.formatLine()
	if got == want {
		return nil
	}
	var version int
	var id string
	n, _ := fmt.Sscanf(got, "dedupfs cache %d\nrepository %s\n", &version, &id)
	switch {
	case n >= 1 && version > 1:
		return newerError(formatName, version, 1)
	case n == 2 && len(got) == len(want):
		return fmt.Errorf("it belongs to repository %s; give another --cache-dir", id)
	default:
		return corruptf("local file %s", formatName)
	}
}

// Close ends all that runs, waits for it, and closes the files. What is not yet
// uploaded is found by the next Open.
func (c *Cache) Close() error {
	c.gate.Lock()
	if c.closed {
		c.gate.Unlock()
		return nil
	}
	c.closed = true
	c.gate.Unlock()
	c.cancel()
	c.wg.Wait()
	if c.db != nil {
		c.stopCopies()
	}
	var errs error
	if c.log != nil {
		errs = errors.Join(errs, c.log.close())
	}
	if c.db != nil {
		errs = errors.Join(errs, c.db.Close())
	}
	if c.chunks != nil {
		c.chunks.close()
	}
	if c.nodes != nil {
		c.nodes.close()
	}
	if c.lock != nil {
		errs = errors.Join(errs, c.lock.Close())
	}
	if errs != nil {
		return fmt.Errorf("close cache: %w", errs)
	}
	return nil
}

// start runs fn in a goroutine that Close waits for. The context of fn ends with
// the cache or when the returned function is called.
func (c *Cache) start(fn func(context.Context)) (context.CancelFunc, error) {
	c.gate.RLock()
	defer c.gate.RUnlock()
	if c.closed {
		return nil, ErrClosed
	}
	ctx, cancel := context.WithCancel(c.ctx)
	c.wg.Go(func() {
		defer cancel()
		fn(ctx)
	})
	return cancel, nil
}

// trouble reports what was wrong and has been dealt with.
func (c *Cache) trouble(err error) {
	slog.Warn("cache: " + err.Error())
	c.o.Trouble(err)
}

// evictOne removes what is only cache and has been unused for longest: a
// multichunk, or a segment of the log whose bytes nobody needs. It returns the
// bytes freed, 0 if there is nothing.
func (c *Cache) evictOne() (int64, error) {
	c.evictMu.Lock()
	defer c.evictMu.Unlock()
	for range 3 {
		logAt, removeLog, inLog := c.log.idle()
		diskAt, remove, onDisk := c.disk.idle()
		if inLog && (!onDisk || logAt.Before(diskAt)) {
			remove = removeLog
		} else if !onDisk {
			return 0, nil
		}
		if freed, err := remove(); freed > 0 || err != nil {
			return freed, err
		}
	}
	return 0, nil
}

// retryFull runs a step that writes about n bytes; while the disk is full it
// evicts what is only cache and runs it again.
func (c *Cache) retryFull(n int64, step func() error) error {
	for {
		err := step()
		if !isNoSpace(err) || !c.space.evict(max(n, 1)) {
			return err
		}
	}
}

// Admit waits until the budget has room for n more bytes of the log, and returns
// ENOSPC when it has waited as long as Options.SpaceWait says. An n of 0 stands for
// records without data, which may use what is kept for them. Callers that take
// locks call it before them.
func (c *Cache) Admit(ctx context.Context, n int64) error {
	wait := c.space.patience(ctx)
	what := forData
	if n == 0 {
		what = forRecord
	}
	for !c.space.take(n, what) {
		if wait() {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		return errNoSpace
	}
	c.space.give(n)
	return nil
}

// WithRoom runs try, which appends about n bytes to the log, and runs it again
// when it has found the disk or the budget full and something was freed since. It
// gives up when that takes longer than Options.SpaceWait. Whoever appends under
// locks waits here, without them: what frees space may need them.
func (c *Cache) WithRoom(ctx context.Context, n int64, try func() error) error {
	// Mostly there is room, and looking for it costs more than finding it.
	if err := try(); err == nil || !isNoSpace(err) {
		return err
	}
	wait := c.space.patience(ctx)
	for {
		err := c.Admit(ctx, n)
		if err == nil {
			err = try()
		}
		if err == nil || !isNoSpace(err) || !wait() {
			return err
		}
	}
}

// Remember stores pairs of keys and values that can be found again if they are
// lost: it may fail, and what it stored may go. It is for the packages above.
func (c *Cache) Remember(fn func(set func(key, value []byte))) {
	c.dbPut(func(set func(key, value []byte)) {
		fn(func(key, value []byte) { set(append([]byte{keyAbove}, key...), value) })
	})
}

// Recall calls fn with the value that Remember stored, and reports whether there is one.
func (c *Cache) Recall(key []byte, fn func(value []byte)) bool {
	found, err := c.dbGet(append([]byte{keyAbove}, key...), func(b []byte) error {
		fn(b)
		return nil
	})
	return found && err == nil
}

// Index returns the chunk index.
func (c *Cache) Index() *store.Index { return c.index }

// Log returns the log.
func (c *Cache) Log() *Log { return c.log }

// LearnTables adds the tables of data multichunks that are not known yet to the
// index. It reads them by range. What is lost or damaged is given up; what cannot be
// read for other reasons is skipped and reported.
func (c *Cache) LearnTables(ctx context.Context, names []store.Name) error {
	var errs error
	for _, n := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		known, err := c.index.Known(n)
		if err == nil && !known && !c.isForbidden(n) {
			if _, err = c.learnTable(ctx, n); store.IsLost(err) {
				c.trouble(fmt.Errorf("learn multichunk %v: %w", n, err))
				err = c.lose(n)
			}
		}
		if err != nil {
			errs = errors.Join(errs, fmt.Errorf("learn multichunk %v: %w", n, err))
		}
	}
	return errs
}

func (c *Cache) learnTable(ctx context.Context, n store.Name) ([]store.TableEntry, error) {
	kind, table, err := c.repo.ReadTable(c.repo.RemoteReader(ctx, n), -1, n)
	if err != nil || kind != store.KindData {
		return nil, err
	}
	return table, c.addTable(n, table, false)
}

// learnDamaged writes receipts anew that cannot be read.
func (c *Cache) learnDamaged(ctx context.Context) error {
	c.mu.Lock()
	names := c.damaged
	c.mu.Unlock()
	for _, n := range names {
		table, err := c.learnTable(ctx, n)
		if err == nil {
			err = c.writeReceipt(n, table)
		}
		if err != nil {
			return fmt.Errorf("learn multichunk %v again: %w", n, err)
		}
		c.mu.Lock()
		c.damaged = c.damaged[1:]
		c.mu.Unlock()
	}
	return nil
}
