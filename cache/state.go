package cache

import (
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/dedupfs/dedupfs/store"
)

// State is what this machine is as a client of the repository.
type State struct {
	Client      store.ClientID
	Incarnation store.Incarnation
	Key         ed25519.PrivateKey // of the incarnation
	InodeRange  uint32
	NextInode   uint64             // numbers from here on have never been given
	Trust       []byte             // store.Trust, marshalled: what has been accepted of all clients
	Head        store.Head         // the newest commit that this client has published
	Intent      store.SealedCommit // one that is about to be put, or was and the answer is not known; zero if none
	BaseHead    store.Head         // the commit, of any client, that the newest base comes from
	Seen        []store.Head       // of other incarnations: what the base contains of them
	Host        string
	RegName     string // on the remote, of the incarnation's registration; "" if an older program has put it
	RegWire     []byte // the registration
	Registered  bool   // it has been put, if RegName is known
}

// Pending reports whether the incarnation has yet to be registered.
func (s *State) Pending() bool { return s.RegName != "" && !s.Registered }

// IsZero reports whether s is the state of a client that is not registered.
func (s *State) IsZero() bool { return s.Client == store.ClientID{} }

func appendState(dst []byte, s *State) []byte {
	dst = append(append(dst, s.Client[:]...), s.Incarnation[:]...)
	dst = appendBytes(dst, s.Key)
	dst = binary.BigEndian.AppendUint32(dst, s.InodeRange)
	dst = binary.BigEndian.AppendUint64(dst, s.NextInode)
	dst = appendBytes(dst, s.Trust)
	dst = appendHead(appendHead(dst, s.Head), s.Intent.Head)
	dst = appendBytes(appendBytes(dst, []byte(s.Intent.Name)), s.Intent.Wire)
	dst = appendHead(dst, s.BaseHead)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(s.Seen)))
	for _, h := range s.Seen {
		dst = appendHead(dst, h)
	}
	dst = appendBytes(dst, []byte(s.Host))
	dst = appendBytes(appendBytes(dst, []byte(s.RegName)), s.RegWire)
	if s.Registered {
		return append(dst, 1)
	}
	return append(dst, 0)
}

const headSize = 16 + 16 + 8 + 32

func appendHead(dst []byte, h store.Head) []byte {
	dst = append(append(dst, h.Client[:]...), h.Incarnation[:]...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.Seq))
	return append(dst, h.Hash[:]...)
}

func (d *decoder) head() (h store.Head) {
	copy(h.Client[:], d.take(len(h.Client)))
	copy(h.Incarnation[:], d.take(len(h.Incarnation)))
	h.Seq = store.Seq(d.uint64())
	copy(h.Hash[:], d.take(len(h.Hash)))
	return h
}

func parseState(b []byte) (s State, ok bool) {
	d := decoder{b: b}
	copy(s.Client[:], d.take(len(s.Client)))
	copy(s.Incarnation[:], d.take(len(s.Incarnation)))
	s.Key = d.bytes()
	s.InodeRange, s.NextInode = d.uint32(), d.uint64()
	s.Trust = d.bytes()
	s.Head = d.head()
	s.Intent.Head = d.head()
	s.Intent.Name, s.Intent.Wire = string(d.bytes()), d.bytes()
	s.BaseHead = d.head()
	s.Seen = make([]store.Head, d.count(headSize))
	for i := range s.Seen {
		s.Seen[i] = d.head()
	}
	s.Host = string(d.bytes())
	if len(d.b) > 0 { // older programs end here
		s.RegName, s.RegWire, s.Registered = string(d.bytes()), d.bytes(), d.byte() == 1
	}
	return s, d.done() && (len(s.Key) == 0 || len(s.Key) == ed25519.PrivateKeySize)
}

// State returns the state that was saved last; zero if none was.
func (c *Cache) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// SaveState replaces the state. When it returns nil, the new one lasts.
func (c *Cache) SaveState(s State) error {
	return c.UpdateState(func(old *State) { *old = s })
}

// UpdateState changes the state in one step: what others save meanwhile is not lost. That of a reader is in memory only.
func (c *Cache) UpdateState(change func(s *State)) error {
	c.stateMu.Lock()
	defer c.stateMu.Unlock()
	s := c.State()
	change(&s)
	if c.fsys != nil {
		b := appendSmallFile(nil, magicClient, appendState(nil, &s))
		if err := c.retryFull(int64(len(b)), func() error { return writeFile(c.fsys, "client", b) }); err != nil {
			return fmt.Errorf("save state of client: %w", err)
		}
	}
	c.mu.Lock()
	news := !slices.Equal(c.state.Trust, s.Trust) || !slices.Equal(c.state.Seen, s.Seen)
	c.state = s
	c.mu.Unlock()
	if news {
		c.hopeAgain()
	}
	return nil
}

func (c *Cache) loadState() error {
	b, err := readSmallFile(c.fsys, "client", magicClient, maxSmallFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read state of client: %w", err)
	}
	var ok bool
	if c.state, ok = parseState(b); !ok {
		return corruptf("local file client")
	}
	return nil
}

// SaveKeys keeps the bytes that open a repository without its remote in the cache
// directory dir, for LoadKeys. They are as secret as the objects of the remote
// that they copy: without the password they open nothing.
func SaveKeys(dir string, b []byte) error {
	b = appendSmallFile(nil, magicKeys, b)
	if err := writeFile(OSFiles(dir), "keys", b); err != nil {
		return fmt.Errorf("save keys in %s: %w", dir, err)
	}
	return nil
}

// LoadKeys returns what SaveKeys has kept; an error that wraps fs.ErrNotExist if there is nothing.
func LoadKeys(dir string) ([]byte, error) {
	b, err := readSmallFile(OSFiles(dir), "keys", magicKeys, maxSmallFile)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", filepath.Join(dir, "keys"), err)
	}
	return b, nil
}
