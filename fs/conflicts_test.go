package fs

import "testing"

func TestPlainName(t *testing.T) {
	at := Timespec{Sec: 1e9}
	for _, name := range []string{"a.txt", "no extension", "b (2).tar.gz", ".hidden", "x (conflict y"} {
		if got := plainName(conflictName(name, "host (of) somebody", at, 2)); got != name {
			t.Errorf("from a conflict of %q plainName makes %q", name, got)
		}
		if got := plainName(name); got != name {
			t.Errorf("plainName(%q) = %q", name, got)
		}
	}
}
