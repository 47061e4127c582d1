package fs

import (
	"runtime"
	"testing"

	"github.com/dedupfs/dedupfs/store"
)

// FuzzRecords parses records of the tree: none panics, and none takes more than a few times its length.
func FuzzRecords(f *testing.F) {
	f.Add([]byte{0x01}, []byte{1, 2, 3})
	f.Add([]byte{0x05}, appendGap(nil, gap{"a", "b"}))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		withinMemory(t, len(key)+len(value), func() {
			e := &store.Entry{Key: key, Value: value}
			parseAttrs(value)
			parseEntryValue(value)
			parseExtentMap(e)
			parseChunkEntry(e)
			parseSnapshot(e)
			parseACL(value)
			splitKey(string(key))
			if g, err := parseGap(value); err == nil {
				g.has(string(key))
			}
		})
	})
}

// FuzzLogRecords parses what the log holds after a crash.
func FuzzLogRecords(f *testing.F) {
	f.Add(appendWrite(nil, &writeRecord{ino: 2, off: 4096, now: Timespec{1, 2}}))
	f.Add(appendEdit(nil, "key", &store.Entry{Key: []byte("key"), Value: []byte("value"), Refs: []store.Ref{{Kind: store.RefNode}}}))
	f.Add(appendEdit(nil, "key", nil))
	v := new(Volume)
	f.Fuzz(func(t *testing.T, b []byte) {
		withinMemory(t, len(b), func() {
			parseWrite(b)
			parseEdit(&reader{b: b})
			v.parseContentOp(&reader{b: b})
		})
	})
}

// withinMemory fails if fn takes much more memory than the n bytes that it parses.
func withinMemory(t *testing.T, n int, fn func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > uint64(64*n+1<<20) {
		t.Errorf("parsing %d bytes took %d of memory", n, took)
	}
}
