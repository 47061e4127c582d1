package fusefs

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// capabilities are what we ask of the kernel beyond what go-fuse does:
//   - HANDLE_KILLPRIV_V2: it does not ask for security.capability before every write; clearing set-user-id is ours.
//   - ATOMIC_O_TRUNC: opening and truncating is one request, so no crash comes between.
//   - ASYNC_DIO: direct I/O with several requests at a time.
//   - READDIRPLUS_AUTO: listings without attributes when nobody asks for them.
//   - POSIX_ACL: the kernel checks access control lists, which are kept as extended attributes.
//   - DONT_MASK: the umask comes with the request, because a default list of the directory makes it not count.
const capabilities = fuse.CAP_HANDLE_KILLPRIV_V2 | fuse.CAP_ATOMIC_O_TRUNC | fuse.CAP_ASYNC_DIO | fuse.CAP_READDIRPLUS_AUTO |
	fuse.CAP_POSIX_ACL | fuse.CAP_DONT_MASK

// flagTable says which bits of mount(2) an option sets and clears.
type flagTable map[string]struct{ set, clear uintptr }

var flags = flagTable{
	"ro":          {set: unix.MS_RDONLY},
	"rw":          {clear: unix.MS_RDONLY},
	"nosuid":      {set: unix.MS_NOSUID},
	"suid":        {clear: unix.MS_NOSUID},
	"nodev":       {set: unix.MS_NODEV},
	"dev":         {clear: unix.MS_NODEV},
	"noexec":      {set: unix.MS_NOEXEC},
	"exec":        {clear: unix.MS_NOEXEC},
	"sync":        {set: unix.MS_SYNCHRONOUS},
	"async":       {clear: unix.MS_SYNCHRONOUS},
	"dirsync":     {set: unix.MS_DIRSYNC},
	"noatime":     {set: unix.MS_NOATIME},
	"atime":       {clear: unix.MS_NOATIME},
	"nodiratime":  {set: unix.MS_NODIRATIME},
	"diratime":    {clear: unix.MS_NODIRATIME},
	"relatime":    {set: unix.MS_RELATIME},
	"strictatime": {set: unix.MS_STRICTATIME},
}

func (t flagTable) has(name string) bool { _, ok := t[name]; return ok }
func (t flagTable) names() []string      { return slices.Collect(maps.Keys(t)) }

// valueOptions are options with a value that go to the kernel as they are.
var valueOptions = []string{"context", "defcontext", "fscontext", "rootcontext"}

// addDefaults adds what holds unless the user says otherwise. Root mounts by itself, all others through fusermount, which
// makes the mount nosuid and nodev too.
func addDefaults(m *options, _ *Options) {
	m.direct = os.Geteuid() == 0
	m.DirectMountStrict = m.direct
	m.DirectMountFlags = unix.MS_NOSUID | unix.MS_NODEV
}

// addFlag adds a name in flags, for mount(2) or for fusermount.
func (m *options) addFlag(name string) {
	if !m.direct {
		m.Options = append(m.Options, name)
		return
	}
	m.DirectMountFlags = m.DirectMountFlags&^flags[name].clear | flags[name].set
	if m.DirectMountFlags == 0 {
		m.DirectMountFlags = unix.MS_MGC_VAL // go-fuse takes 0 for its own default; the kernel ignores this one
	}
}

// check refuses what fusermount would refuse with fewer words.
func (m *options) check() error {
	if m.direct || !m.AllowOther {
		return nil
	}
	conf, err := os.ReadFile(fuseConf)
	if err == nil && !allowsOther(string(conf)) {
		return fmt.Errorf("allow_other is for root, unless root writes user_allow_other into %s", fuseConf)
	}
	return nil
}

const fuseConf = "/etc/fuse.conf"

// allowsOther reports whether a fuse.conf says user_allow_other.
func allowsOther(conf string) bool {
	for line := range strings.Lines(conf) {
		if text, _, _ := strings.Cut(line, "#"); strings.TrimSpace(text) == "user_allow_other" {
			return true
		}
	}
	return false
}
