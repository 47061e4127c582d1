package fusefs

import "testing"

func TestParseMount(t *testing.T) {
	for _, c := range []struct{ line, dir, kind string }{
		{`36 35 98:0 / /mnt rw,noatime shared:1 - fuse.dedupfs gdrive:home rw,user_id=0`, "/mnt", "fuse.dedupfs"},
		{`36 35 98:0 / /a\040b\011c\134d rw - fuse.dedupfs x rw`, "/a b\tc\\d", "fuse.dedupfs"},
		{`36 35 98:0 / /mnt rw shared:1 master:2 - ext4 /dev/root rw`, "/mnt", "ext4"},
		{`nonsense`, "", ""},
		{`36 35 - ext4 x rw`, "", ""},
	} {
		dir, kind, ok := parseMount(c.line)
		if dir != c.dir || kind != c.kind || ok != (c.dir != "") {
			t.Errorf("parseMount(%q) = %q, %q, %v, want %q, %q", c.line, dir, kind, ok, c.dir, c.kind)
		}
	}
}
