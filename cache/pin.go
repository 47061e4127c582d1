package cache

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/dedupfs/dedupfs/store"
)

// Pins are what is to stay on this machine.
type Pins struct {
	Roots []uint64     // what was pinned, in numbers of the package above
	Names []store.Name // the multichunks that it needs
}

func appendPins(dst []byte, p Pins) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(p.Roots)))
	for _, r := range p.Roots {
		dst = binary.BigEndian.AppendUint64(dst, r)
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(p.Names)))
	for _, n := range p.Names {
		dst = append(dst, n[:]...)
	}
	return dst
}

func parsePins(b []byte) (p Pins, ok bool) {
	d := decoder{b: b}
	for range d.count(8) {
		p.Roots = append(p.Roots, d.uint64())
	}
	for range d.count(len(store.Name{})) {
		p.Names = append(p.Names, store.Name(d.take(len(store.Name{}))))
	}
	return p, d.done()
}

// Pins returns what is to stay on this machine.
func (c *Cache) Pins() Pins {
	c.disk.mu.Lock()
	defer c.disk.mu.Unlock()
	return Pins{slices.Clone(c.disk.roots), slices.Collect(maps.Keys(c.disk.pinned))}
}

// SetPins says what is to stay on this machine, over restarts too: multichunks that are pinned are not evicted once they are here.
func (c *Cache) SetPins(p Pins) error {
	slices.SortFunc(p.Names, func(a, b store.Name) int { return slices.Compare(a[:], b[:]) })
	b := appendSmallFile(nil, magicPins, appendPins(nil, p))
	if err := c.retryFull(int64(len(b)), func() error { return writeFile(c.fsys, pinsName, b) }); err != nil {
		return fmt.Errorf("keep what is pinned: %w", err)
	}
	c.disk.pin(p)
	return nil
}

// pinsName is the local file of what is pinned.
const pinsName = "pins"

// loadPins reads what is pinned. If the file is damaged nothing is, until the package above says it anew.
func (c *Cache) loadPins() error {
	b, err := readSmallFile(c.fsys, pinsName, magicPins, maxPins)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	p, ok := parsePins(b)
	if err == nil && !ok {
		err = corruptf("local file %s", pinsName)
	}
	if errors.Is(err, store.ErrCorrupt) {
		c.trouble(fmt.Errorf("what was pinned is not known any more: %w", err))
		return nil
	}
	c.disk.pin(p)
	return err
}

// maxPins bounds the file of pins, in bytes.
const maxPins = 64 << 20

func (d *disk) pin(p Pins) {
	pinned := make(map[store.Name]bool, len(p.Names))
	for _, n := range p.Names {
		pinned[n] = true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.roots, d.pinned = slices.Clone(p.Roots), pinned
}

// pinnedBytes returns how much of what is pinned is here, and how many multichunks of it are not.
func (d *disk) pinnedBytes() (here int64, missing int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for n := range d.pinned {
		if f := d.files[n]; f != nil {
			here += f.size
		} else {
			missing++
		}
	}
	return here, missing
}

// ErrPinsFull says that what is to stay on this machine does not fit.
var ErrPinsFull = errors.New("it does not fit beside what is pinned already; unpin something, or give more with: dedupfs cache resize")

// Keep fetches a multichunk unless it is here, and keeps it on the disk. It returns how many bytes it has fetched. What is pinned
// may take three quarters of the budget.
func (c *Cache) Keep(ctx context.Context, n store.Name, pinned bool) (int64, error) {
	if c.disk.has(n) {
		return 0, nil
	}
	if here, _ := c.disk.pinnedBytes(); pinned && here+int64(c.repo.Config().MultichunkSize) > c.space.limit.Load()/4*3 {
		return 0, ErrPinsFull
	}
	wire, err := c.download(ctx, n)
	if err != nil {
		return 0, err
	}
	if !c.disk.has(n) {
		c.disk.put(n, wire) // fetched for somebody else, and gone again
	}
	if !c.disk.has(n) {
		return int64(len(wire)), errNoSpace
	}
	return int64(len(wire)), nil
}

// Here reports whether a multichunk can be read without the remote.
func (c *Cache) Here(n store.Name) bool { return c.disk.has(n) || c.uploads.has(n) }

// Drop removes the copies of multichunks that can be fetched again and are not pinned, and returns the bytes freed.
func (c *Cache) Drop(names []store.Name) (freed int64) {
	for _, n := range names {
		if !c.disk.isPinned(n) {
			freed += c.disk.drop(n)
		}
	}
	return freed
}

func (d *disk) isPinned(n store.Name) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pinned[n]
}

// DropAll removes all that can be fetched again and is not pinned, and returns the bytes freed.
func (c *Cache) DropAll() (sum int64, err error) {
	for {
		freed, err := c.evictOne()
		if err != nil || freed == 0 {
			return sum, err
		}
		sum += freed
	}
}

// Resize changes the budget of the local disk, in bytes, until the cache is closed. What is too much goes at once, as far as it is
// only cache.
func (c *Cache) Resize(size int64) error {
	if least := 4 * int64(c.repo.Config().MultichunkSize); size < least {
		return fmt.Errorf("cache size of %d bytes is too small: four multichunks of this repository take %d", size, least)
	}
	c.space.limit.Store(size)
	c.space.force(0)
	c.space.wake()
	return nil
}

// Info tells what the local disk is used for, in bytes.
type Info struct {
	Size        int64 `json:"size"` // the budget
	Used        int64 `json:"used"`
	Multichunks int64 `json:"multichunks"`     // that can be fetched again
	Pinned      int64 `json:"pinned"`          // those of them that stay
	Missing     int   `json:"missing_objects"` // pinned ones that are not here yet
	Log         int64 `json:"log"`
	LogHeld     int64 `json:"log_held"` // those of it that are needed
	Spool       int64 `json:"spool"`    // that waits for upload
}

// Info tells what the local disk is used for.
func (c *Cache) Info() Info {
	p := c.Pending()
	i := Info{Size: c.space.limit.Load(), Used: p.Used, Log: p.Log, LogHeld: p.LogHeld, Spool: p.Spool}
	i.Pinned, i.Missing = c.disk.pinnedBytes()
	c.disk.mu.Lock()
	defer c.disk.mu.Unlock()
	for _, f := range c.disk.files {
		i.Multichunks += f.size
	}
	return i
}
