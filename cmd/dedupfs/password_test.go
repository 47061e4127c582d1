package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

func TestPasswordSources(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "password")
	if err := os.WriteFile(file, []byte(" two words\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TEST_PASSWORD", "from the variable\n")
	for _, c := range []struct {
		name, want string
		source     passwordSource
	}{
		{"file drops one newline", " two words\n", passwordSource{file: file, variable: "TEST_PASSWORD"}},
		{"command", "from a command", passwordSource{command: "echo from a command", variable: "TEST_PASSWORD"}},
		{"variable is taken as it is", "from the variable\n", passwordSource{variable: "TEST_PASSWORD"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.source.read(context.Background(), &app{}, false)
			if err != nil || string(got) != c.want {
				t.Errorf("read = %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestPasswordRefused(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		source passwordSource
	}{
		{"empty file", passwordSource{file: empty}},
		{"no such file", passwordSource{file: empty + "x"}},
		{"command that fails", passwordSource{command: "echo secret; exit 3"}},
		{"command that says nothing", passwordSource{command: "true"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := c.source.read(context.Background(), &app{}, false); err == nil {
				t.Errorf("read = %q, want an error", got)
			}
		})
	}
}
