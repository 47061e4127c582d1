package store

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dedupfs/dedupfs/chunking"
	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// Limits of a Config.
const (
	MinMultichunk = 64 << 10 // bytes on the wire
	MaxMultichunk = 64 << 20
	MinGroup      = 4 << 10 // plaintext bytes
	MaxGroup      = 4 << 20
)

// A RepositoryID names a repository. It is random.
type RepositoryID [16]byte

// String returns the id in lower-case hex, as it stands on the remote.
func (id RepositoryID) String() string { return hex.EncodeToString(id[:]) }

// A Config is what is decided when a repository is made, for ever. It is sealed in the repository object.
type Config struct {
	Repository     RepositoryID
	Volume         [16]byte      // id of the file system in it
	Chunkers       chunking.Set  // where file content is cut
	MultichunkSize int           // bytes on the wire of a full multichunk
	GroupSize      int           // plaintext bytes at which a group is closed and compressed
	Compression    string        // "zstd", "zstd-fast", "zstd-better", "gzip", "bzip2" or "none"
	SettleTime     time.Duration // after which listings show every acknowledged put; 0 for local directories
	Created        time.Time     // for display only
	Parity         int           // of new multichunks, thousandths of their segments; 0 is none; see SetParity
}

// A Repository is an open repository: its keys, and the storage that it lies on. It is safe for concurrent use.
type Repository struct {
	st       remote.Storage
	cfg      Config
	keys     *keyring
	chunkers [3]chunking.Chunker
	blocks   *blocks
	chunkIDs *hashPool
	nodeIDs  *hashPool
	names    *hashPool
	treeKey  [16]byte

	ballastKey *hashPool

	commitNames seal.Key      // names commits by their hashes
	askAgain    time.Duration // after which it is asked again for what is not found and should be there
	random      func() uint32 // draws inode ranges
	pacer       Pacer         // nil if nobody holds back

	recent        recentCommits
	moves         moves
	settings      settings
	past          *past
	registrations sync.Map // of *Registration by object name; objects never change

	featuresMu sync.Mutex // guards readOnly
	readOnly   error

	copies   atomic.Pointer[func(name string, wire []byte)] // see KeepCopies
	read     map[seal.ID][]byte                             // settings, by Open
	keep     func(state []byte) error                       // OpenOptions.KeepKeys
	keyMu    sync.Mutex                                     // serializes changes of slots, and guards what follows
	identity *seal.Identity                                 // the slot that was opened
	objects  *openObjects                                   // as last read
}

// newRepository returns the repository with the given keys, without any look at st.
func newRepository(st remote.Storage, keys *seal.Keyring, cfg Config) (*Repository, error) {
	chunker := keys.Derive("chunker")
	chunkers, err := cfg.Chunkers.Chunkers(chunker[:])
	if err != nil {
		return nil, fmt.Errorf("repository %s: %w", cfg.Repository, err)
	}
	blocks, err := newBlocks(cfg.Compression, cfg.MultichunkSize, cfg.GroupSize)
	if err != nil {
		return nil, fmt.Errorf("repository %s: %w", cfg.Repository, err)
	}
	tree := keys.Derive("tree")
	return &Repository{
		st:       st,
		cfg:      cfg,
		keys:     newKeyringOf(keys),
		chunkers: chunkers,
		blocks:   blocks,
		chunkIDs: newHashPool(keys.Derive("chunk ids")),
		nodeIDs:  newHashPool(keys.Derive("node ids")),
		names:    newHashPool(keys.Derive("names")),

		ballastKey: newHashPool(keys.Derive("ballast")),
		treeKey:    [16]byte(tree[:16]),

		commitNames: keys.Derive("commit names"),
		past:        new(past),
		askAgain:    time.Second,
		random:      randomUint32,
	}, nil
}

// Config returns what was decided when the repository was made.
func (r *Repository) Config() Config { return r.cfg }

// ReadOnly returns nil, or an error that wraps ErrReadOnly and names the object that this program is too old to write
// beside.
func (r *Repository) ReadOnly() error {
	r.featuresMu.Lock()
	defer r.featuresMu.Unlock()
	return r.readOnly
}

// forbidWriting makes ReadOnly return err, unless it returns one already.
func (r *Repository) forbidWriting(err error) {
	r.featuresMu.Lock()
	defer r.featuresMu.Unlock()
	if r.readOnly == nil {
		r.readOnly = err
	}
}

// Storage returns the storage that r lies on.
func (r *Repository) Storage() remote.Storage { return r.st }

// ChunkID returns the id of the chunk with the given bytes.
func (r *Repository) ChunkID(data []byte) ID { return r.chunkIDs.sum(data) }

// NodeID returns the id of the node with the given canonical encoding.
func (r *Repository) NodeID(canonical []byte) ID { return r.nodeIDs.sum(canonical) }

// NameHash returns 56 bits of a keyed hash of a name in a directory, which decide its place in listings.
func (r *Repository) NameHash(parent uint64, name []byte) uint64 {
	h := r.names.get()
	defer r.names.put(h)
	binary.BigEndian.PutUint64(h.out[:], parent)
	h.Write(h.out[:8])
	h.Write(name)
	return binary.BigEndian.Uint64(h.Sum(h.out[:0])) >> 8
}

// TreeKey returns the key of the hash that cuts trees into nodes.
func (r *Repository) TreeKey() [16]byte { return r.treeKey }

// Chunkers returns the repository's keyed chunkers, indexed by chunking.Kind.
func (r *Repository) Chunkers() [3]chunking.Chunker { return r.chunkers }
