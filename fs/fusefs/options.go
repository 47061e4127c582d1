package fusefs

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// maxRequest is the most that one READ or WRITE carries, in bytes.
const maxRequest = 1 << 20

// mountOptions returns what go-fuse is to be given for o, or an error about an option in o.Mount.
func mountOptions(o *Options) (*fuse.MountOptions, error) {
	m := &options{MountOptions: fuse.MountOptions{
		AllowOther: o.AllowOther,
		FsName:     o.Source,
		Name:       fsType,

		MaxWrite:      maxRequest,
		MaxBackground: 32, // requests of the kernel's read-ahead at a time; each takes a buffer of up to maxRequest

		// Every change that does not pass through the kernel is announced, so it need not guess from times and sizes. If it
		// did it would throw away what was just written.
		ExplicitDataCacheControl: true,
		EnableSymlinkCaching:     true,

		// Reads are answered from a buffer: nothing to splice, and trying costs system calls.
		DisableSplice: true,

		ExtraCapabilities: capabilities,
		Logger:            slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn),
		Options:           []string{"default_permissions"},
	}}
	addDefaults(m, o)
	if o.ReadOnly {
		m.addFlag("ro")
	}
	for _, option := range o.Mount {
		if err := m.add(option); err != nil {
			return nil, err
		}
	}
	return &m.MountOptions, m.check()
}

// options are those of a mount while they are collected.
type options struct {
	fuse.MountOptions
	direct bool // this process mounts by itself, without a helper
}

// foreign are options that stand in /etc/fstab for others to read.
var foreign = []string{"auto", "noauto", "defaults", "user", "nouser", "users", "nofail", "_netdev"}

// add adds an option that the user has given.
func (m *options) add(option string) error {
	name, value, hasValue := strings.Cut(option, "=")
	switch {
	case option == "", slices.Contains(foreign, name), strings.HasPrefix(name, "x-"):
		return nil
	case option == "allow_other":
		m.AllowOther = true
	case option == "default_permissions": // always
	case name == "fsname" && value != "":
		m.FsName = value
	case slices.Contains(valueOptions, name) && value != "":
		m.Options = append(m.Options, option)
	case flags.has(name) && !hasValue:
		m.addFlag(name)
	default:
		return optionError(name, hasValue)
	}
	return nil
}

func optionError(name string, hasValue bool) error {
	switch {
	case name == "fsname", slices.Contains(valueOptions, name):
		return fmt.Errorf("mount option %q needs a value, as in %s=...", name, name)
	case hasValue && (name == "allow_other" || name == "default_permissions" || flags.has(name)):
		return fmt.Errorf("mount option %q takes no value", name)
	}
	known := slices.Concat(flags.names(), valueOptions, []string{"allow_other", "default_permissions", "fsname"})
	slices.Sort(known)
	return fmt.Errorf("unknown mount option %q; known are %s", name, strings.Join(known, ", "))
}
