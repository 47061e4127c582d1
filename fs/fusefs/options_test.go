package fusefs

import (
	"strings"
	"testing"
)

func TestMountOptions(t *testing.T) {
	for _, tc := range []struct {
		option, want string // want: part of the error, or "" for none
	}{
		{"ro", ""},
		{"nosuid", ""},
		{"allow_other", ""},
		{"default_permissions", ""},
		{"fsname=a,b c", ""},
		{"_netdev", ""},
		{"x-systemd.automount", ""},
		{"", ""},
		{"ro=1", `"ro" takes no value`},
		{"allow_other=yes", `"allow_other" takes no value`},
		{"fsname", `"fsname" needs a value`},
		{"fsname=", `"fsname" needs a value`},
		{"fast", `unknown mount option "fast"; known are allow_other`},
		{"fd=3", `unknown mount option "fd"`},
		{"subtype=ext4", `unknown mount option "subtype"`},
	} {
		_, err := mountOptions((&Options{Mount: []string{tc.option}}).withDefaults())
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%q: %v", tc.option, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%q: error %v, want %q", tc.option, err, tc.want)
		}
	}
}
