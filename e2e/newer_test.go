//go:build linux

package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// buildNewer builds the program of the future, dedupfs-newer beside dedupfs: the
// same but for the version of the format that it writes.
func buildNewer(t *testing.T) {
	t.Helper()
	source, err := filepath.Abs("../store/internal/seal/header.go")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	const now, future = "\nconst Format = 1\n", "\nconst Format = 2\n"
	if !bytes.Contains(text, []byte(now)) {
		t.Fatalf("%s does not say %q any more", source, now)
	}
	dir := t.TempDir()
	changed := filepath.Join(dir, "header.go")
	if err := os.WriteFile(changed, bytes.Replace(text, []byte(now), []byte(future), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{source: changed}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-tags", "slim", "-overlay", file, "-o", program+"-newer", "../cmd/dedupfs")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
}
