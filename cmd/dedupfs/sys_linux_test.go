package main

import "testing"

func TestParseMountInfo(t *testing.T) {
	for _, c := range []struct {
		line, want string
	}{
		{`36 35 98:0 / /mnt rw,noatime shared:1 - fuse.dedupfs gdrive:home rw,user_id=0`, "/mnt"},
		{`36 35 98:0 / /a\040b\011c\134d rw - fuse.dedupfs x rw`, "/a b\tc\\d"},
		{`36 35 98:0 / /mnt rw shared:1 master:2 - ext4 /dev/root rw`, ""},
		{`36 35 98:0 / /mnt rw - fuse.dedupfsx x rw`, ""},
		{`nonsense`, ""},
	} {
		got, ok := parseMountInfo(c.line)
		if got != c.want || ok != (c.want != "") {
			t.Errorf("parseMountInfo(%q) = %q, %v, want %q", c.line, got, ok, c.want)
		}
	}
}
