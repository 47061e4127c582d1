package fs

import (
	"bytes"
	"syscall"
	"testing"

	"github.com/dedupfs/dedupfs/store"
)

// orphanRecords counts the records of files without names.
func (e *env) orphanRecords() (n int) {
	e.t.Helper()
	err := e.v.view(ctx, func(r *layered) error {
		return r.scan(ctx, string(key(0, keyOrphan, 0)), prefixEnd(0, keyOrphan), func(string, *store.Entry) bool { n++; return true })
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return n
}

// randomBytes returns n bytes that make several chunks.
func randomBytes(t testing.TB, n int) []byte {
	b := make([]byte, n)
	newRand(t).Read(b)
	return b
}

// TestUnlinkedOpen uses a file that has lost its name, over commits and publications that would have let it go: its
// content is in no newer local commit under any name.
func TestUnlinkedOpen(t *testing.T) {
	e := newEnv(t)
	data := randomBytes(t, 3<<20)
	a, h, err := e.v.Create(ctx, Root, []byte("f"), syscall.O_RDWR, 0o644, Cred{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Write(ctx, data, 0); err != nil {
		t.Fatal(err)
	}
	if err := e.v.Setxattr(ctx, a.Ino, "user.x", []byte("value"), 0); err != nil {
		t.Fatal(err)
	}
	e.commit()
	if err := e.v.Unlink(ctx, Root, []byte("f")); err != nil {
		t.Fatal(err)
	}
	e.sync()
	copy(data[1<<20:], "written without a name")
	if _, err := h.Write(ctx, data[1<<20:][:22], 1<<20); err != nil {
		t.Fatal(err)
	}
	e.sync()
	got := make([]byte, len(data))
	if n, err := h.Read(ctx, got, 0); n != len(data) || err != nil || !bytes.Equal(got, data) {
		t.Errorf("Read = %d, %v; first difference at %d of %d", n, err, firstDiff(got, data), len(data))
	}
	if value, err := e.v.Getxattr(ctx, a.Ino, "user.x"); string(value) != "value" || err != nil {
		t.Errorf("Getxattr = %q, %v", value, err)
	}
	st, err := e.v.Getattr(ctx, a.Ino, h)
	if err != nil || st.Nlink != 0 || st.Size != uint64(len(data)) {
		t.Errorf("Getattr: %d links, %d bytes, %v", st.Nlink, st.Size, err)
	}
	if n := e.orphanRecords(); n != 1 {
		t.Errorf("%d orphan records while the file is open, want 1", n)
	}
	h.Release()
	e.v.Forget(a.Ino, 1)
	e.sync()
	if n := e.orphanRecords(); n != 0 {
		t.Errorf("%d orphan records after the last use, want 0", n)
	}
	if _, err := e.v.Getattr(ctx, a.Ino, nil); err != syscall.ENOENT {
		t.Errorf("Getattr after the last use: %v, want ENOENT", err)
	}
}

// TestOrphansGoAfterCrash leaves files without names behind.
func TestOrphansGoAfterCrash(t *testing.T) {
	e := newEnv(t)
	for i, commit := range []bool{true, false} { // one stands in a local commit, the other in the log only
		_, h, err := e.v.Tmpfile(ctx, Root, syscall.O_RDWR, 0o600, Cred{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Write(ctx, randomBytes(t, 100_000), int64(i)); err != nil {
			t.Fatal(err)
		}
		if commit {
			e.commit()
		}
	}
	if err := e.v.fsync(ctx, Root); err != nil {
		t.Fatal(err)
	}
	e.powerCut(newRand(t))
	if n := e.orphanRecords(); n != 2 {
		t.Fatalf("%d orphan records after the crash, want 2", n)
	}
	e.write("other", 0, []byte("x"))
	e.sync()
	if n := e.orphanRecords(); n != 0 {
		t.Errorf("%d orphan records after the first commit, want 0", n)
	}
}

// TestTmpfileGetsName gives a temporary file a name, and cuts the power when that is durable.
func TestTmpfileGetsName(t *testing.T) {
	for _, test := range []struct {
		name   string
		commit bool // between the write and the name
	}{{"in the log", false}, {"committed", true}} {
		t.Run(test.name, func(t *testing.T) {
			e := newEnv(t)
			data := randomBytes(t, 1<<20)
			a, h, err := e.v.Tmpfile(ctx, Root, syscall.O_RDWR, 0o600, Cred{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := h.Write(ctx, data, 0); err != nil {
				t.Fatal(err)
			}
			if test.commit {
				e.commit()
			}
			if a, err = e.v.Link(ctx, a.Ino, Root, []byte("named")); err != nil || a.Nlink != 1 {
				t.Fatalf("Link: %d links, %v", a.Nlink, err)
			}
			if err := e.v.fsync(ctx, Root); err != nil {
				t.Fatal(err)
			}
			e.powerCut(newRand(t))
			if got := e.read("named"); !bytes.Equal(got, data) {
				t.Errorf("after a crash %d bytes differ from the %d written at %d", len(got), len(data), firstDiff(got, data))
			}
			if n := e.orphanRecords(); n != 0 {
				t.Errorf("%d orphan records, want 0", n)
			}
		})
	}
}
