package experiment

import (
	"time"

	"github.com/dedupfs/dedupfs/chunking"
)

// A cutter cuts a stream that is pushed into it block by block.
type cutter struct {
	chunker chunking.Chunker
	emit    func(chunk []byte) error // chunk is valid during the call
	rest    []byte                   // bytes that are not decided yet
	ends    []int
	spent   time.Duration // of processor time, on cutting; exact if the goroutine keeps to its thread
}

// write takes the next block of the stream; with eof it is the last one.
func (c *cutter) write(block []byte, eof bool) error {
	data := block
	if len(c.rest) > 0 {
		c.rest = append(c.rest, block...)
		data = c.rest
	}
	if len(data) == 0 {
		return nil
	}
	before := threadTime()
	c.ends = c.chunker.Ends(c.ends[:0], data, eof)
	c.spent += threadTime() - before
	start := 0
	for _, end := range c.ends {
		if err := c.emit(data[start:end]); err != nil {
			return err
		}
		start = end
	}
	// data may be rest itself: append moves the bytes to its front.
	c.rest = append(c.rest[:0], data[start:]...)
	return nil
}
