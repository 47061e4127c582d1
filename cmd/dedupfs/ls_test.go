package main

import (
	"syscall"
	"testing"
)

func TestModeString(t *testing.T) {
	for mode, want := range map[uint32]string{
		syscall.S_IFREG | 0o644:  "-rw-r--r--",
		syscall.S_IFDIR | 0o1777: "drwxrwxrwt",
		syscall.S_IFDIR | 0o1776: "drwxrwxrwT",
		syscall.S_IFREG | 0o4755: "-rwsr-xr-x",
		syscall.S_IFREG | 0o6644: "-rwSr-Sr--",
		syscall.S_IFLNK | 0o777:  "lrwxrwxrwx",
		syscall.S_IFIFO:          "p---------",
	} {
		if got := modeString(mode); got != want {
			t.Errorf("modeString(%o) = %q, want %q", mode, got, want)
		}
	}
}

func TestParseSnapshotPath(t *testing.T) {
	for in, want := range map[string]snapshotPath{
		"daily":               {"daily", ""},
		"daily:":              {"daily", ""},
		"daily:/":             {"daily", ""},
		"latest:a/b":          {"latest", "a/b"},
		"latest:/a//b/./c/":   {"latest", "a/b/c"},
		"s:a:b":               {"s", "a:b"},
		"s:../../etc":         {"s", "etc"},
		"current: with space": {"current", " with space"},
	} {
		if got, err := parseSnapshotPath(in); err != nil || got != want {
			t.Errorf("parseSnapshotPath(%q) = %+v, %v, want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{"", ":a"} {
		if got, err := parseSnapshotPath(in); err == nil {
			t.Errorf("parseSnapshotPath(%q) = %+v, want an error", in, got)
		}
	}
}
