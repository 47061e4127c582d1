package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/rclone/rclone/fs"
)

// A flaky is rclone's memory backend with faults of real storages, which rclone
// would pass on to us.
type flaky struct {
	fs.Fs
	puts, stats int
	put         func(in io.Reader, src fs.ObjectInfo) (io.Reader, error) // what arrives, and what the answer is
	open        func(fs.Object) fs.Object
}

func (f *flaky) Put(ctx context.Context, in io.Reader, src fs.ObjectInfo, o ...fs.OpenOption) (fs.Object, error) {
	f.puts++
	in, failure := f.put(in, src)
	data, err := io.ReadAll(in)
	if err != nil {
		return nil, err
	}
	obj, err := f.Fs.Put(ctx, bytes.NewReader(data), &source{name: src.Remote(), data: data, now: time.Now()}, o...)
	return obj, errors.Join(err, failure)
}

func (f *flaky) NewObject(ctx context.Context, name string) (fs.Object, error) {
	f.stats++
	obj, err := f.Fs.NewObject(ctx, name)
	if err == nil && f.open != nil {
		obj = f.open(obj)
	}
	return obj, err
}

// newFlaky returns a storage with retries over f, and the count of corrupt puts.
func newFlaky(t *testing.T) (*flaky, Storage, *int) {
	t.Helper()
	under, err := connect(t.Context(), ":memory:"+strings.ReplaceAll(t.Name(), "/", "-"))
	if err != nil {
		t.Fatal(err)
	}
	f := &flaky{Fs: under, put: func(in io.Reader, _ fs.ObjectInfo) (io.Reader, error) { return in, nil }}
	corrupt := new(int)
	s := newRcloneStorage(f, new(limit), new(limit), func() { *corrupt++ })
	return f, WithRetry(s, &RetryOptions{MinDelay: 1, Attempts: 3}), corrupt
}

func TestPutLooksBeforeItPutsAgain(t *testing.T) {
	f, s, _ := newFlaky(t)
	f.put = func(in io.Reader, _ fs.ObjectInfo) (io.Reader, error) { return in, errors.New("connection lost") }
	if err := s.Put(t.Context(), "a", []byte("whole")); err != nil || f.puts != 1 {
		t.Errorf("Put that worked and answered an error = %v after %d puts, want nil after 1", err, f.puts)
	}
}

func TestPutReplacesHalfWritten(t *testing.T) {
	f, s, corrupt := newFlaky(t)
	for name, fault := range map[string]func(io.Reader) (io.Reader, error){
		"short_and_error":   func(in io.Reader) (io.Reader, error) { return io.LimitReader(in, 3), errors.New("reset") },
		"short_and_success": func(in io.Reader) (io.Reader, error) { return io.LimitReader(in, 3), nil },
		"wrong_and_success": func(in io.Reader) (io.Reader, error) { return strings.NewReader("WHOLE"), nil },
		"wrong_and_error":   func(in io.Reader) (io.Reader, error) { return strings.NewReader("WHOLE"), errors.New("reset") },
	} {
		t.Run(name, func(t *testing.T) {
			f.puts, *corrupt = 0, 0
			f.put = func(in io.Reader, _ fs.ObjectInfo) (io.Reader, error) {
				if f.puts == 1 {
					return fault(in)
				}
				return in, nil
			}
			if err := s.Put(t.Context(), name, []byte("whole")); err != nil || f.puts != 2 {
				t.Errorf("Put = %v after %d puts, want nil after 2", err, f.puts)
			}
			if got, err := s.Get(t.Context(), name, 0, -1); string(got) != "whole" {
				t.Errorf("Get = %q, %v", got, err)
			}
			if strings.HasSuffix(name, "success") && *corrupt == 0 {
				t.Error("the corrupt upload was not counted")
			}
		})
	}
}

func TestPutNeverVerifies(t *testing.T) {
	f, s, _ := newFlaky(t)
	f.put = func(in io.Reader, _ fs.ObjectInfo) (io.Reader, error) { return io.LimitReader(in, 3), nil }
	if err := s.Put(t.Context(), "a", []byte("whole")); err == nil || f.puts != 3 {
		t.Errorf("Put of what never arrives whole = %v after %d puts, want an error after 3", err, f.puts)
	}
}

// A rangeless object answers every request with all of itself.
type rangeless struct{ fs.Object }

func (o rangeless) Open(ctx context.Context, _ ...fs.OpenOption) (io.ReadCloser, error) {
	return o.Object.Open(ctx)
}

func TestGetNoticesIgnoredRange(t *testing.T) {
	f, s, _ := newFlaky(t)
	if err := s.Put(t.Context(), "a", []byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	f.open = func(o fs.Object) fs.Object { return rangeless{o} }
	for _, name := range []string{"a"} {
		s := WithRetry(newRcloneStorage(f, new(limit), new(limit), nil), &RetryOptions{MinDelay: 1})
		if got, err := s.Get(t.Context(), name, 2, 3); err == nil {
			t.Errorf("Get of a range = %q, nil error from a storage that ignores ranges", got)
		}
		if got, err := s.Get(t.Context(), name, 2, -1); err == nil {
			t.Errorf("Get to the end = %q, nil error from a storage that ignores ranges", got)
		}
	}
}

func TestGetRemembersObjects(t *testing.T) {
	f, s, _ := newFlaky(t)
	if err := s.Put(t.Context(), "a", []byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	f.stats = 0
	for i := range int64(5) {
		if _, err := s.Get(t.Context(), "a", i, 2); err != nil {
			t.Fatal(err)
		}
	}
	if f.stats != 0 {
		t.Errorf("five ranges of an object just put asked %d times for it", f.stats)
	}
}

// TestGetForgetsObjects replaces a half-written object behind our back.
func TestGetForgetsObjects(t *testing.T) {
	f, s, _ := newFlaky(t)
	ctx := t.Context()
	write := func(data string) {
		if _, err := f.Fs.Put(ctx, strings.NewReader(data), &source{name: "a", data: []byte(data), now: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	write("01234")
	if _, err := s.Get(ctx, "a", 0, 5); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(ctx, "a", 0, 10); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Get beyond the end = %v, want ErrUnexpectedEOF", err)
	}
	if _, err := s.Get(ctx, "a", 0, 5); err != nil {
		t.Fatal(err)
	}
	write("0123456789")
	if got, err := s.Get(ctx, "a", 0, 10); string(got) != "0123456789" {
		t.Errorf("Get of the whole object = %q, %v", got, err)
	}
}

func TestHandlesAreBounded(t *testing.T) {
	var h handles
	for i := range 3 * maxHandles {
		h.put(fmt.Sprint(i), nil)
	}
	if len(h.m) != maxHandles {
		t.Errorf("%d handles, want %d", len(h.m), maxHandles)
	}
}
