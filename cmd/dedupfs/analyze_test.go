package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dedupfs/dedupfs/experiment"
)

func TestAnalyzeCommand(t *testing.T) {
	dir := t.TempDir()
	text := []byte(strings.Repeat("The same line again. ", 50_000))
	for _, name := range []string{"a.txt", "b\x1b[2J.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"analyze", dir}, &stdout, &stderr); code != exitDone {
		t.Fatalf("analyze = %d, %s", code, stderr.String())
	}
	for _, want := range []string{"2.0 MiB in 2 files", "(50.0%)", "txt", "recommended: dedupfs init"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("analyze does not say %q:\n%s", want, stdout.String())
		}
	}
	stdout.Reset()
	if code := run(t.Context(), []string{"analyze", "--json", dir}, &stdout, &stderr); code != exitDone {
		t.Fatalf("analyze --json = %d, %s", code, stderr.String())
	}
	var out experiment.Analysis
	if err := json.Unmarshal(stdout.Bytes(), &out); err != nil || out.Files.Files != 2 || out.Estimates[0].Stored > 100_000 {
		t.Errorf("analyze --json = %+v, %v", out, err)
	}
	stderr.Reset()
	if code := run(t.Context(), []string{"analyze", filepath.Join(dir, "none")}, &stdout, &stderr); code == exitDone || !strings.Contains(stderr.String(), "none") {
		t.Errorf("analyze of nothing = %d, %s", code, stderr.String())
	}
}
