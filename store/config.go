package store

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/dedupfs/dedupfs/chunking"
)

// Values of a new repository where Config has zero.
const (
	DefaultMultichunk  = 8 << 20 // bytes
	DefaultGroup       = 512 << 10
	DefaultCompression = "zstd-better"
	DefaultSettleTime  = time.Hour
)

// NoSettleTime asks for a Config.SettleTime of zero, which is right for local directories.
const NoSettleTime time.Duration = -1

const maxConfigText = 256 // bytes of a chunker's or a compression's name

// withDefaults fills in what is zero, but for the random ids and the time.
func (c Config) withDefaults() Config {
	if c.Chunkers == (chunking.Set{}) {
		c.Chunkers = chunking.DefaultSet()
	}
	if c.MultichunkSize == 0 {
		c.MultichunkSize = DefaultMultichunk
	}
	if c.GroupSize == 0 {
		c.GroupSize = DefaultGroup
	}
	if c.Compression == "" {
		c.Compression = DefaultCompression
	}
	switch {
	case c.SettleTime == 0:
		c.SettleTime = DefaultSettleTime
	case c.SettleTime < 0:
		c.SettleTime = 0
	}
	return c
}

// check returns an error unless the numbers in c are possible. Names of chunkers and compression are checked by those
// who know them.
func (c *Config) check() error {
	switch {
	case c.MultichunkSize < MinMultichunk || c.MultichunkSize > MaxMultichunk:
		return errors.New("multichunk size: must be 64K to 64M")
	case c.GroupSize < MinGroup || c.GroupSize > MaxGroup:
		return errors.New("group size: must be 4K to 4M")
	case c.Parity < 0 || c.Parity > MaxParity:
		return errors.New("parity: must be at most 100%")
	case c.SettleTime < 0 || c.SettleTime > 365*24*time.Hour:
		return errors.New("settle time: must be at most a year")
	}
	return nil
}

func appendConfig(dst []byte, c *Config) []byte {
	dst = append(dst, c.Repository[:]...)
	dst = append(dst, c.Volume[:]...)
	dst = appendTime(dst, c.Created)
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.SettleTime))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.MultichunkSize))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.GroupSize))
	dst = appendText(dst, c.Compression)
	dst = appendText(dst, c.Chunkers.Default)
	dst = appendText(dst, c.Chunkers.Pages)
	dst = appendText(dst, c.Chunkers.Media)
	if c.Parity > 0 {
		dst = binary.BigEndian.AppendUint16(dst, uint16(c.Parity))
	}
	return dst
}

// parseConfig is the inverse of appendConfig.
func parseConfig(b []byte) (Config, error) {
	d := decoder{b: b}
	c := Config{
		Repository:     d.bytes16(),
		Volume:         d.bytes16(),
		Created:        d.time(),
		SettleTime:     time.Duration(d.uint64()),
		MultichunkSize: int(d.uint32()),
		GroupSize:      int(d.uint32()),
		Compression:    d.text(maxConfigText),
		Chunkers:       chunking.Set{Default: d.text(maxConfigText), Pages: d.text(maxConfigText), Media: d.text(maxConfigText)},
	}
	if d.bad {
		return Config{}, corruptf("configuration is cut short")
	}
	if len(d.b) >= 2 {
		c.Parity = int(binary.BigEndian.Uint16(d.b))
	}
	if err := c.check(); err != nil {
		return Config{}, corruptf("configuration: %v", err)
	}
	return c, nil
}
