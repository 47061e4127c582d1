package fusefs

import "slices"

// capabilities are what we ask of the kernel beyond what go-fuse does. The bits have other meanings than on Linux.
const capabilities = 0

// flagTable lists options without a value that macFUSE's mount helper knows.
type flagTable []string

var flags = flagTable{
	"ro", "rdonly", "rw", "nosuid", "suid", "nodev", "dev", "noexec", "exec", "sync", "async", "noatime", "atime",
	"local", "nobrowse", "noappledouble", "noapplexattr", "allow_root", "noubc", "noreadahead",
}

func (t flagTable) has(name string) bool { return slices.Contains(t, name) }
func (t flagTable) names() []string      { return t }

// valueOptions are options with a value that go to the mount helper as they are.
var valueOptions = []string{"volname", "volicon"}

// addDefaults adds what holds unless the user says otherwise. Extended attributes are kept as such, so files beside them
// that emulate them are refused.
func addDefaults(m *options, o *Options) {
	m.Options = append(m.Options, "nosuid", "nodev", "noappledouble", "volname="+o.VolumeName)
}

// addFlag adds a name in flags.
func (m *options) addFlag(name string) { m.Options = append(m.Options, name) }

// check has nothing to refuse.
func (m *options) check() error { return nil }
