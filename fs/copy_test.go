package fs

import (
	"bytes"
	"testing"

	"github.com/dedupfs/dedupfs/store"
)

// copyRange copies n bytes of one file to another, which is made if it is not there.
func (e *env) copyRange(from string, off int64, to string, at, n int64) {
	e.t.Helper()
	hin, err := e.v.Open(ctx, e.walk(from), 0, Cred{})
	if err != nil {
		e.t.Fatal(err)
	}
	defer hin.Release()
	_, hout, err := e.v.Create(ctx, Root, []byte(to), 2, 0o644, Cred{})
	if err != nil {
		e.t.Fatal(err)
	}
	defer hout.Release()
	if got, err := e.v.CopyFileRange(ctx, hin, off, hout, at, n, 0); got != n || err != nil {
		e.t.Fatalf("copied %d, %v, want %d", got, err, n)
	}
}

func (e *env) wantFile(name string, want []byte) {
	e.t.Helper()
	if got := e.read(name); !bytes.Equal(got, want) {
		e.t.Fatalf("%s: %d bytes differ from the %d wanted at %d", name, len(got), len(want), firstDiff(got, want))
	}
}

// TestCopyByReference copies what is stored: nothing of it goes through the log, little is read, and the copy outlives its source, a
// crash and the machine.
func TestCopyByReference(t *testing.T) {
	const size = 8 << 20
	data := randomData(1, size)
	tests := []struct {
		name       string
		off, at, n int64
		most       int64 // bytes that are cut anew
	}{
		{"whole file", 0, 0, size, 0},
		{"front", 0, 0, size / 2, 1 << 20},
		{"back", size / 2, 0, size / 2, 1 << 20},
		{"middle into the middle", size / 4, 1<<20 + 17, size / 2, 2 << 20},
		{"with other alignment", 12_345, 1, size - 12_345, 1 << 20},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t)
			e.write("a", 0, data)
			want := make([]byte, tt.at+tt.n)
			if tt.at > 0 {
				before := randomData(2, int(tt.at))
				e.write("b", 0, before)
				copy(want, before)
			}
			copy(want[tt.at:], data[tt.off:tt.off+tt.n])
			e.sync()
			e.copyRange("a", tt.off, "b", tt.at, tt.n)
			if n := e.v.staged.Load(); n > 0 {
				t.Errorf("%d bytes went to the log", n)
			}
			e.wantFile("b", want)
			if a, err := e.v.Getattr(ctx, e.walk("b"), nil); err != nil || int64(a.Blocks)*512 < tt.n {
				t.Errorf("%d blocks, %v: a program that looks for holes would skip it", a.Blocks, err)
			}
			if err := e.v.log.Sync(e.v.log.End()); err != nil {
				t.Fatal(err)
			}
			e.powerCut(newRand(t))
			e.wantFile("b", want)
			if err := e.v.Unlink(ctx, Root, []byte("a")); err != nil {
				t.Fatal(err)
			}
			cut := e.v.cutBytes.Load()
			e.commit()
			if n := e.v.cutBytes.Load() - cut; n > tt.most {
				t.Errorf("%d bytes were cut anew, want at most %d", n, tt.most)
			}
			e.wantFile("b", want)
			e.wipe()
			e.wantFile("b", want)
		})
	}
}

// TestCopyLost copies a part of a file that the remote has lost: the copy is committed like everything else, and reads when what
// was lost is back.
func TestCopyLost(t *testing.T) {
	const size = 3 << 20
	data := randomData(1, size)
	for _, lost := range []string{"chunks", "list"} {
		t.Run(lost, func(t *testing.T) {
			e := newImpatientEnv(t)
			e.write("a", 0, data)
			e.sync()
			e.write("c", 0, []byte("of another commit"))
			e.wipe()
			names := []store.Name{e.contentOf("a").Ref.Hint.Multichunk}
			if lost == "chunks" {
				names = e.multichunks("a")
			}
			restore := e.lose(names...)
			e.copyRange("a", 1000, "b", 5000, size/2)
			e.write("c", 0, []byte("later"))
			e.wipe()
			if _, err := e.part("b", 6000, 1); !store.IsLost(err) {
				t.Errorf("read what is lost: %v", err)
			}
			e.write("b", 5000, []byte("new"))
			e.wipe()
			restore()
			e.wipe()
			want := append(make([]byte, 5000), data[1000:1000+size/2]...)
			copy(want[5000:], "new")
			e.wantFile("b", want)
		})
	}
}

// TestCopyInParts copies a file in several calls, as programs do: it shares its whole list of chunks, like one that is copied in one
// call.
func TestCopyInParts(t *testing.T) {
	const size = 4 << 20
	data := randomData(1, size)
	e := newEnv(t)
	e.write("a", 0, data)
	e.sync()
	for off := int64(0); off < size; off += 1 << 20 {
		e.copyRange("a", off, "b", off, 1<<20)
	}
	e.commit()
	if a, b := e.contentOf("a"), e.contentOf("b"); a.Ref.ID != b.Ref.ID {
		t.Error("the list of chunks is another one")
	}
	e.wantFile("b", data)
}
