//go:build linux

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Every command of the README's tour works as it stands there.
func TestReadme(t *testing.T) {
	needFUSE(t)
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	script := "set -euo pipefail\n" + strings.Join(shellBlocks(string(text)), "\n")
	if n := strings.Count(script, "dedupfs "); n < 15 {
		t.Fatalf("the tour has %d commands; is it still marked as sh?", n)
	}
	dir := t.TempDir()
	t.Cleanup(func() { unmountBelow(t, dir) })
	if err := os.WriteFile(filepath.Join(dir, "password"), []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "-x", "-c", script)
	cmd.Dir = dir
	cmd.Env = environment(
		"PATH="+filepath.Dir(program)+string(os.PathListSeparator)+os.Getenv("PATH"),
		"HOME="+dir, "XDG_CACHE_HOME="+filepath.Join(dir, "cache"),
		"DEDUPFS_PASSWORD_FILE="+filepath.Join(dir, "password"),
		"RCLONE_CONFIG_GDRIVE_TYPE=local",
	)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// shellBlocks returns what stands in fences marked sh.
func shellBlocks(text string) []string {
	var blocks []string
	for {
		_, rest, ok := strings.Cut(text, "\n```sh\n")
		if !ok {
			return blocks
		}
		block, after, _ := strings.Cut(rest, "\n```")
		blocks = append(blocks, block)
		text = after
	}
}
