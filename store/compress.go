package store

import (
	"bytes"
	"compress/bzip2"
	"fmt"
	"io"
	"math/bits"
	"runtime"
	"sync"

	dsnet "github.com/dsnet/compress/bzip2"
	"github.com/klauspost/compress"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// codec says how a block is compressed. Every reader knows all codecs, whatever its repository writes.
type codec byte

const (
	codecNone codec = iota
	codecZstd
	codecGzip
	codecBzip2
	codecEnd
)

// compressor compresses and decompresses blocks. It is safe for concurrent use, and holds one encoder and one decoder for
// each core at most.
type compressor struct {
	codec codec
	zstdW *zstd.Encoder
	zstdR *zstd.Decoder
	gzipW sync.Pool // of *gzip.Writer
	gzipR sync.Pool // of *gzip.Reader
}

// newCompressor returns a compressor that writes as Config.Compression says: "zstd", "zstd-fast", "zstd-better", "gzip",
// "bzip2" or "none".
func newCompressor(compression string, groupSize int) (*compressor, error) {
	c := &compressor{codec: codecZstd}
	level := zstd.SpeedDefault
	switch compression {
	case "zstd":
	case "zstd-fast":
		level = zstd.SpeedFastest
	case "zstd-better":
		level = zstd.SpeedBetterCompression
	case "gzip":
		c.codec = codecGzip
	case "bzip2":
		c.codec = codecBzip2
	case "none":
		c.codec = codecNone
	default:
		return nil, fmt.Errorf("compression %q is none of zstd, zstd-fast, zstd-better, gzip, bzip2, none", compression)
	}
	var err error
	if c.zstdW, err = newZstdWriter(level, groupSize); err != nil {
		return nil, err
	}
	c.zstdR, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(runtime.GOMAXPROCS(0)), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(MaxMultichunk), zstd.WithDecodeAllCapLimit(true))
	return c, err
}

func newZstdWriter(level zstd.EncoderLevel, groupSize int) (*zstd.Encoder, error) {
	// Nothing is gained by a window above the size of a group, and it costs memory.
	window := max(zstd.MinWindowSize, min(maxWindow, 1<<bits.Len(uint(groupSize))))
	// Blocks carry no checksum of their own: they are authenticated, and each chunk is checked against its id.
	return zstd.NewWriter(nil, zstd.WithEncoderLevel(level), zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)),
		zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false), zstd.WithWindowSize(window))
}

// maxWindow bounds what an encoder remembers, bytes.
const maxWindow = 1 << 20

// compress appends src to dst, compressed if that pays, and says how.
func (c *compressor) compress(dst, src []byte) (codec, []byte, error) {
	start := len(dst)
	if c.codec != codecNone && worthTrying(src) {
		out, err := c.encode(dst, src)
		if err != nil {
			return 0, nil, err
		}
		if n := len(out) - start; n < len(src)-len(src)/minGain {
			return c.codec, out, nil
		}
		dst = out[:start] // what has been grown is of use
	}
	return codecNone, append(dst, src...), nil
}

// minGain is the share of a block that compressing it must save at least, for reading it costs time ever after: 1/minGain.
const minGain = 64

// worthTrying looks at samples of src and reports whether compressing it may pay. It is there to be cheap where data is
// compressed already: a false yes costs the time of one attempt.
func worthTrying(src []byte) bool {
	const sample, stride = 2 << 10, 16 << 10
	if len(src) < stride {
		return true
	}
	// The first sample leaves out the lengths that a block begins with, which always compress.
	for off := stride / 2; off+sample <= len(src); off += stride {
		// Of 2,000 samples of random bytes none gives more than 0.07; source text gives 0.35 and more, JPEG and office
		// documents between 0 and 0.15.
		if compress.Estimate(src[off:off+sample]) > 0.1 {
			return true
		}
	}
	return false
}

func (c *compressor) encode(dst, src []byte) ([]byte, error) {
	switch c.codec {
	case codecGzip:
		return c.encodeGzip(dst, src)
	case codecBzip2:
		return encodeBzip2(dst, src)
	default:
		return c.zstdW.EncodeAll(src, dst), nil
	}
}

func (c *compressor) encodeGzip(dst, src []byte) ([]byte, error) {
	buf := bytes.NewBuffer(dst)
	w, _ := c.gzipW.Get().(*gzip.Writer)
	if w == nil {
		w = gzip.NewWriter(nil)
	}
	defer c.gzipW.Put(w)
	w.Reset(buf)
	if _, err := w.Write(src); err != nil {
		return nil, fmt.Errorf("gzip: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("gzip: %w", err)
	}
	return buf.Bytes(), nil
}

func encodeBzip2(dst, src []byte) ([]byte, error) {
	buf := bytes.NewBuffer(dst)
	w, err := dsnet.NewWriter(buf, nil)
	if err != nil {
		return nil, fmt.Errorf("bzip2: %w", err)
	}
	if _, err := w.Write(src); err != nil {
		return nil, fmt.Errorf("bzip2: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("bzip2: %w", err)
	}
	return buf.Bytes(), nil
}

// decompress returns the size bytes that src was compressed from: src itself if it was not. It never writes more than size
// bytes, whatever src says, and returns ErrCorrupt if there are more or fewer.
func (c *compressor) decompress(k codec, src []byte, size int) ([]byte, error) {
	switch k {
	case codecNone:
		if len(src) != size {
			return nil, corruptf("block of %d bytes says %d", len(src), size)
		}
		return src, nil
	case codecZstd:
		out, err := c.zstdR.DecodeAll(src, make([]byte, 0, size))
		if err != nil || len(out) != size {
			return nil, corruptf("zstd block of %d bytes: %d of %d, %v", len(src), len(out), size, err)
		}
		return out, nil
	case codecGzip:
		r, _ := c.gzipR.Get().(*gzip.Reader)
		if r == nil {
			r = new(gzip.Reader)
		}
		defer c.gzipR.Put(r)
		if err := r.Reset(bytes.NewReader(src)); err != nil {
			return nil, corruptf("gzip block: %v", err)
		}
		return readExactly(r, size)
	case codecBzip2:
		return readExactly(bzip2.NewReader(bytes.NewReader(src)), size)
	default:
		return nil, corruptf("block with unknown compression %d", k)
	}
}

// readExactly reads size bytes from r, which must then be at its end.
func readExactly(r io.Reader, size int) ([]byte, error) {
	out := make([]byte, size)
	if _, err := io.ReadFull(r, out); err != nil {
		return nil, corruptf("block ends too early: %v", err)
	}
	var more [1]byte
	if n, err := io.ReadFull(r, more[:]); n > 0 || err != io.EOF {
		return nil, corruptf("block does not end after %d bytes", size)
	}
	return out, nil
}
