package cache_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/store"
)

// wanted returns what is to be read, a part of each chunk, and the chunk in the middle as a whole.
func wanted(chunks []chunk) (wants []cache.Want) {
	for i, ck := range chunks {
		from, n := i%7, len(ck.data)-i%7-i%5
		if i == len(chunks)/2 {
			from, n = 0, len(ck.data)
		}
		wants = append(wants, cache.Want{Ref: ck.ref, Size: len(ck.data), From: from, To: make([]byte, n)})
	}
	return wants
}

// checkBulk reads chunks with one call, as parts, in two orders.
func (f *fixture) checkBulk(c *cache.Cache, chunks []chunk) {
	f.t.Helper()
	for range 2 {
		wants := wanted(chunks)
		if err := c.ReadChunks(f.t.Context(), wants); err != nil {
			f.t.Fatalf("ReadChunks: %v", err)
		}
		for i, w := range wants {
			if !bytes.Equal(w.To, chunks[i].data[w.From:][:len(w.To)]) {
				f.t.Fatalf("bytes %d to %d of chunk %d are not what was stored", w.From, w.From+len(w.To), i)
			}
		}
		chunks = append(append([]chunk{}, chunks[len(chunks)/2:]...), chunks[:len(chunks)/2]...)
	}
}

// TestReadChunks reads from the log, where chunks lie in several pieces and beside others, from memory, and from multichunks.
func TestReadChunks(t *testing.T) {
	f := newFixture(t)
	f.open()
	chunks := f.addMixed()
	f.commit(chunks, "one")
	f.forget(f.publish())
	f.checkBulk(f.c, chunks)
	f.c.DropMemoryForTest()
	f.checkBulk(f.c, chunks)
}

// TestReadChunksOnDisk reads from the log on a real disk, several pieces at a time.
func TestReadChunksOnDisk(t *testing.T) {
	f, dir := dirFixture(t)
	f.openDir(dir)
	f.addMixed()
}

// addMixed stores chunks of several sizes and places, and reads them back from the log.
func (f *fixture) addMixed() []chunk {
	f.t.Helper()
	chunks := f.addRandom(20, 9000)
	chunks = append(chunks, f.addPieces(3, 2000), f.addPieces(2, 60_000))
	chunks = append(chunks, f.addRandom(5, 300)...)
	f.checkBulk(f.c, chunks)
	f.c.DropMemoryForTest()
	f.checkBulk(f.c, chunks)
	return chunks
}

// addPieces stores a chunk whose bytes were written in n records, with others between them.
func (f *fixture) addPieces(n, size int) chunk {
	f.t.Helper()
	data := randomBytes(f.rng, n*size)
	var place cache.Place
	for i := range n {
		_, at, err := f.c.Log().Append(cache.FirstType, nil, data[i*size:][:size])
		if err == nil {
			_, _, err = f.c.Log().Append(cache.FirstType, []byte("something else"), nil)
		}
		if err != nil {
			f.t.Fatal(err)
		}
		place = append(place, cache.Piece{Pos: at, Len: uint32(size)})
	}
	id := f.repo.ChunkID(data)
	if _, err := f.c.AddChunk(f.t.Context(), id, data, place); err != nil {
		f.t.Fatal(err)
	}
	return chunk{store.Ref{ID: id}, data}
}

// TestReadChunksFails asks for what is not there, and for a chunk with a wrong size.
func TestReadChunksFails(t *testing.T) {
	f := newFixture(t)
	c := f.open()
	ck := f.add(randomBytes(f.rng, 5000))
	missing := cache.Want{Ref: store.Ref{ID: f.repo.ChunkID([]byte("never stored"))}, Size: 100, To: make([]byte, 100)}
	if err := c.ReadChunks(t.Context(), append(wanted([]chunk{ck}), missing)); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("ReadChunks of a chunk that does not exist: %v, want %v", err, store.ErrNotFound)
	}
	longer := cache.Want{Ref: ck.ref, Size: 5001, To: make([]byte, 5001)}
	if err := c.ReadChunks(t.Context(), []cache.Want{longer}); !errors.Is(err, store.ErrCorrupt) && !errors.Is(err, store.ErrNotFound) {
		t.Errorf("ReadChunks of a chunk that should be longer: %v, want an error", err)
	}
}

// TestReadChunksBesideDropped reads chunks that are only in the log, together with others whose places there are gone.
func TestReadChunksBesideDropped(t *testing.T) {
	f := newFixture(t)
	f.open()
	old := f.addRandom(200, 9000)
	f.commit(old, "one")
	f.publish()
	f.c.EvictAllForTest()
	fresh := f.addRandom(20, 9000)
	f.c.DropMemoryForTest()
	var mixed []chunk
	for i, ck := range fresh {
		mixed = append(mixed, old[i], ck)
	}
	f.checkBulk(f.c, mixed)
}
