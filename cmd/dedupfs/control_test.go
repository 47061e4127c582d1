package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// startControl serves mux on a socket in dir and returns a client.
func startControl(t *testing.T, dir string, mux http.Handler) *mounted {
	t.Helper()
	l, err := listenControl(dir)
	if err != nil {
		t.Fatal(err)
	}
	wait := serveControl(l, mux, slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		wait()
		if _, err := os.Lstat(l.path); err == nil {
			t.Errorf("socket %s is left", l.path)
		}
		if _, err := os.Lstat(l.own); l.own != "" && err == nil {
			t.Errorf("directory %s is left", l.own)
		}
	})
	return newMounted("/mnt", l.path)
}

func TestControlAnswers(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("POST /double", answer(func(_ context.Context, r *http.Request, report func(progress)) (any, error) {
		var n int
		if err := readJSON(r, &n); err != nil {
			return nil, err
		}
		for i := range int64(3) {
			report(progress{What: "doubling", Done: i, Total: 3})
		}
		return 2 * n, nil
	}))
	mux.Handle("POST /fail", answer(func(context.Context, *http.Request, func(progress)) (any, error) {
		return nil, fail(exitNotRemote, "3 MiB left")
	}))
	mux.Handle("POST /vanish", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	m := startControl(t, t.TempDir(), mux)
	ctx := context.Background()

	var got int
	var seen []int64
	if err := m.call(ctx, "POST", "/double", 21, &got, func(p progress) { seen = append(seen, p.Done) }); err != nil || got != 42 {
		t.Errorf("call = %d, %v, want 42", got, err)
	}
	if len(seen) != 3 || seen[2] != 2 {
		t.Errorf("progress = %v, want 0, 1, 2", seen)
	}
	if code, message := verdict(m.call(ctx, "POST", "/fail", nil, nil, nil)); code != exitNotRemote || message != "3 MiB left" {
		t.Errorf("verdict = %d, %q, want the code and message of the mount", code, message)
	}
	if err := m.call(ctx, "POST", "/vanish", nil, nil, nil); err == nil {
		t.Error("call answered by nothing = nil, want an error")
	}
	if err := m.call(ctx, "POST", "/nowhere", nil, nil, nil); err == nil || !strings.Contains(err.Error(), "version") {
		t.Errorf("call of an unknown path = %v, want a word about versions", err)
	}
}

func TestControlInterrupted(t *testing.T) {
	entered, left := make(chan struct{}), make(chan struct{})
	mux := http.NewServeMux()
	mux.Handle("POST /wait", answer(func(ctx context.Context, _ *http.Request, report func(progress)) (any, error) {
		report(progress{})
		close(entered)
		<-ctx.Done()
		close(left)
		return nil, ctx.Err()
	}))
	m := startControl(t, t.TempDir(), mux)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-entered
		cancel()
	}()
	if err := m.call(ctx, "POST", "/wait", nil, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("call = %v, want context.Canceled", err)
	}
	<-left
}

func TestControlLongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /one", answer(func(context.Context, *http.Request, func(progress)) (any, error) { return 1, nil }))
	m := startControl(t, dir, mux)
	var got int
	if err := m.call(context.Background(), "GET", "/one", nil, &got, nil); err != nil || got != 1 {
		t.Errorf("call = %d, %v, want 1", got, err)
	}
}
