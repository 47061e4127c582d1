package fs

import (
	"bytes"
	"fmt"
	"math/rand"
	"testing"
	"time"
)

// files are small files as a tree of source code has them: most are one chunk, some are many.
func someFiles(rng *rand.Rand, n int) map[string][]byte {
	files := map[string][]byte{}
	for i := range n {
		size := 500 + rng.Intn(12_000)
		if i%16 == 0 {
			size = 100_000 + rng.Intn(200_000)
		}
		b := make([]byte, size)
		rng.Read(b)
		files[fmt.Sprintf("file %d", i)] = b
	}
	return files
}

func (e *env) writeAll(prefix string, files map[string][]byte) (total int64) {
	e.t.Helper()
	for name, b := range files {
		e.write(prefix+name, 0, b)
		total += int64(len(b))
	}
	return total
}

func (e *env) expectAll(prefix string, files map[string][]byte) {
	e.t.Helper()
	for name, b := range files {
		if !bytes.Equal(e.read(prefix+name), b) {
			e.t.Errorf("%s%s holds something else", prefix, name)
		}
	}
}

// TestCopyOnAnotherMachine copies a tree to a machine that has just mounted, to one that is mounted, and to one whose database
// is lost in between. Next to nothing is uploaded, and all can be read, also from the remote alone.
func TestCopyOnAnotherMachine(t *testing.T) {
	rng := newRand(t)
	files := someFiles(rng, 150)
	a := newEnv(t)
	total := a.writeAll("a ", files)
	a.sync()
	copyTo := func(what string, e *env, prefix string, lose bool) {
		t.Helper()
		before := a.st.Bytes()
		e.writeAll(prefix, files)
		if lose {
			e.commit()
			e.reopen() // loses the database
		}
		e.sync()
		nodes := int64(len(files)) * 1000
		if grown := a.st.Bytes() - before; grown > total*15/1000+nodes {
			t.Errorf("%s: the remote has grown by %d bytes for a copy of %d", what, grown, total)
		}
		e.wipe()
		e.expectAll(prefix, files)
	}
	copyTo("just mounted", a.other(), "b ", false)
	copyTo("database lost", a.other(), "c ", true)
	c := a.other()
	c.write("something", 0, []byte("else"))
	c.sync()
	fresh := someFiles(rng, 60)
	total = a.writeAll("fresh ", fresh)
	a.sync()
	files = fresh
	c.sync() // sees a's commit
	copyTo("mounted", c, "d ", false)
}

// TestCopyWithoutTables copies a tree whose multichunks cannot be read: it is stored again, and nothing else happens.
func TestCopyWithoutTables(t *testing.T) {
	rng := newRand(t)
	files := someFiles(rng, 40)
	a := newEnv(t)
	a.writeAll("a ", files)
	a.sync()
	a.close()
	for i, name := range a.dataObjects() {
		b, _ := a.st.Object(name)
		if len(b) < 200<<10 {
			continue // nodes
		}
		if i%2 == 0 {
			a.st.Delete(t.Context(), name)
			continue
		}
		a.st.Damage(name, func(b []byte) []byte { b[100] ^= 1; return b })
	}
	b := a.other()
	b.writeAll("b ", files)
	b.sync()
	b.wipe()
	b.expectAll("b ", files)
	b.expectAll("a ", files) // healed by what was stored again
}

// TestCopyWhileAway writes what is stored already while the remote is away: a local commit does not wait for it.
func TestCopyWhileAway(t *testing.T) {
	rng := newRand(t)
	files := someFiles(rng, 40)
	a := newEnv(t)
	a.writeAll("a ", files)
	a.sync()
	b := a.other()
	b.listing() // brings the nodes
	a.st.SetGone(true)
	b.writeAll("b ", files)
	began := time.Now()
	b.commit()
	if d := time.Since(began); d > 30*time.Second {
		t.Errorf("the local commit took %v", d)
	}
	a.st.SetGone(false)
	b.sync()
	b.wipe()
	b.expectAll("b ", files)
}
