package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain makes the test's own program the command, where an experiment starts it again.
func TestMain(m *testing.M) {
	if os.Getenv(measureVariable) != "" {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// TestExperimentChunking runs the experiment, and goes on with one that was interrupted.
func TestExperimentChunking(t *testing.T) {
	set, out := filepath.Join(t.TempDir(), "set"), filepath.Join(t.TempDir(), "out")
	data := make([]byte, 200_000)
	rand.NewChaCha8([32]byte{1}).Read(data)
	for v := range 2 {
		if err := os.MkdirAll(filepath.Join(set, fmt.Sprint("v", v)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(set, fmt.Sprint("v", v), "file"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		data[100_000]++
	}
	var stdout, stderr bytes.Buffer
	experiment := func(configs string) {
		t.Helper()
		stdout.Reset()
		stderr.Reset()
		if code := run(t.Context(), []string{"experiment", "chunking", "--out", out, "--configs", configs, set}, &stdout, &stderr); code != exitDone {
			t.Fatalf("experiment = %d, %s", code, stderr.String())
		}
	}
	experiment("Custom-125-0/Fixed-4/Cipher")
	// An interrupted run leaves half a line behind.
	f, err := os.OpenFile(filepath.Join(out, resultsName), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString(`{"set":"set","config":"Cus`)
	f.Close()
	experiment("Custom-125-0/Fixed-4/Cipher,Custom-125-30/Fixed-4/Cipher,Custom-250-0/TTTD-4-Adler32/Gzip-Cipher")
	if got := strings.Count(stderr.String(), " under "); got != 2 {
		t.Errorf("the second run measures %d configurations, want the 2 new ones:\n%s", got, stderr.String())
	}
	if !strings.Contains(stdout.String(), "Custom-250-0/TTTD-4-Adler32/Gzip-Cipher") {
		t.Errorf("no table:\n%s", stdout.String())
	}
	text, err := os.ReadFile(filepath.Join(out, "results.csv"))
	if err != nil {
		t.Fatal(err)
	}
	lines, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil || len(lines) != 1+3*2 {
		t.Errorf("results.csv has %d lines, %v, want a head and two versions of three configurations", len(lines), err)
	}
	page, err := os.ReadFile(filepath.Join(out, "index.html"))
	if err != nil || !bytes.Contains(page, []byte("<svg")) || bytes.Contains(page, []byte("src=")) || bytes.Contains(page, []byte("NaN")) {
		t.Errorf("index.html of %d bytes: %v, want charts in it and nothing to load", len(page), err)
	}
	for _, name := range []string{"results.json", "set-cost.svg", "set-ratio.svg"} {
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			t.Error(err)
		}
	}
	if code := run(t.Context(), []string{"experiment", "chunking", "--out", out, "--configs", "Custom", set}, &stdout, &stderr); code != exitUsage {
		t.Errorf("a configuration that is none = %d", code)
	}
}

func TestExperimentLines(t *testing.T) {
	set, out := filepath.Join(t.TempDir(), "set"), filepath.Join(t.TempDir(), "out")
	if err := os.MkdirAll(filepath.Join(set, "v0"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(set, "v0", "file"), bytes.Repeat([]byte("some text "), 10_000), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"experiment", "reconstruction", "--out", out, "--multichunks", "125,1024", set}, &stdout, &stderr); code != exitDone {
		t.Fatalf("reconstruction = %d, %s", code, stderr.String())
	}
	if !strings.Contains(stdout.String(), "125 KiB") {
		t.Errorf("no table:\n%s", stdout.String())
	}
	t.Setenv("TMPDIR", t.TempDir())
	if code := run(t.Context(), []string{"experiment", "upload", "--out", out, "--protocols", "webdav", "--sizes", "16", "--parallel", "4", "--each", "0s"}, &stdout, &stderr); code != exitDone {
		t.Fatalf("upload = %d, %s", code, stderr.String())
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) != 0 {
		t.Errorf("the servers have left %v, %v", left, err)
	}
	for _, name := range []string{"reconstruction.json", "set-reconstruction.svg", "upload.json", "upload-1.svg", "upload-3.svg"} {
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			t.Error(err)
		}
	}
	if code := run(t.Context(), []string{"experiment", "upload", "--protocols", "gopher"}, &stdout, &stderr); code != exitUsage {
		t.Errorf("a protocol that is none = %d", code)
	}
}
