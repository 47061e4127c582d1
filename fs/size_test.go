package fs

import (
	"bytes"
	"syscall"
	"testing"
)

// TestLargestFile works at the end of the largest file that there can be, and everywhere before it there is a hole.
func TestLargestFile(t *testing.T) {
	e := newEnv(t)
	const name, end = "f", int64(maxSize)
	e.write(name, 0, []byte("head"))
	e.write(name, 1<<62+7, []byte("middle"))
	e.write(name, end-4, []byte("tail"))
	check := func(when string) {
		t.Helper()
		h, err := e.v.Open(ctx, e.walk(name), syscall.O_WRONLY|syscall.O_APPEND, Cred{})
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		defer h.Release()
		if a, err := e.v.Getattr(ctx, h.in.ino, h); err != nil || a.Size != uint64(end) {
			t.Errorf("%s: size %d, %v; want %d", when, a.Size, err, end)
		}
		p := make([]byte, 10)
		if n, err := h.Read(ctx, p, end-6); err != nil || !bytes.Equal(p[:n], []byte("\x00\x00tail")) {
			t.Errorf("%s: the end is %q, %v", when, p[:n], err)
		}
		if at, err := h.Lseek(ctx, 1<<20, 3); err != nil || at > 1<<62+7 || at <= 1<<62-1<<20 {
			t.Errorf("%s: data after the head at %d, %v", when, at, err)
		}
		if at, err := h.Lseek(ctx, 1<<62+1<<20, 3); err != nil || at > end-4 || at < end-1<<20 {
			t.Errorf("%s: data after the middle at %d, %v; want %d", when, at, err, end-4)
		}
		if _, err := h.Write(ctx, []byte("x"), 0); err != syscall.EFBIG {
			t.Errorf("%s: append: %v, want EFBIG", when, err)
		}
	}
	check("in the log")
	e.commit()
	check("committed")
	e.write(name, end-5, []byte("-"))
	e.write(name, end-5, []byte{0})
	e.wipe()
	check("on another machine")
}
