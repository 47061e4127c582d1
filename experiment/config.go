package experiment

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dedupfs/dedupfs/chunking"
	"github.com/dedupfs/dedupfs/store"
)

// A Config is one configuration of the multichunk thesis, or one of ours in its terms.
type Config struct {
	Name    string        // such as Custom-250-30/TTTD-4-Adler32/Gzip-Cipher
	Pause   time.Duration // after each multichunk
	Sleep   bool          // the pauses are slept, and not only added to the time
	Chunker string        // for all files, or ByKind
	store   store.Config

	unbounded chunking.Chunker // what cuts instead of the repository's chunkers, if not nil
}

// ByKind is the chunker of a Config that cuts by the kind of file, as a new repository does.
const ByKind = "ByKind"

// transformers are the chains of a Config, and the compression that they mean. All encrypt.
var transformers = []struct{ name, compression string }{
	{"Cipher", "none"}, {"Gzip-Cipher", "gzip"}, {"Bzip2-Cipher", "bzip2"},
	{"Zstdfast-Cipher", "zstd-fast"}, {"Zstd-Cipher", "zstd"}, {"Zstdbetter-Cipher", "zstd-better"},
}

// ParseConfig reads MULTICHUNKER/CHUNKER/TRANSFORMERS. The multichunker is Custom-SIZE-PAUSE: the size of a multichunk in KB, and the
// pause after each in milliseconds. The chunker is a name of package chunking, or ByKind. The transformers are Cipher, alone or
// after Gzip-, Bzip2-, Zstdfast-, Zstd- or Zstdbetter-.
func ParseConfig(name string) (Config, error) {
	bad := fmt.Errorf("%q is no configuration; write MULTICHUNKER/CHUNKER/TRANSFORMERS as in Custom-250-30/TTTD-4-Adler32/Gzip-Cipher", name)
	parts := strings.Split(name, "/")
	if len(parts) != 3 {
		return Config{}, bad
	}
	c := Config{Name: name, Chunker: parts[1]}
	m := strings.Split(parts[0], "-")
	if len(m) != 3 || m[0] != "Custom" {
		return Config{}, bad
	}
	kb, err := strconv.Atoi(m[1])
	pause, err2 := strconv.Atoi(m[2])
	if err != nil || err2 != nil || kb <= 0 || kb > store.MaxMultichunk>>10 || pause < 0 || pause > 60_000 {
		return Config{}, bad
	}
	c.Pause = time.Duration(pause) * time.Millisecond
	i := slices.IndexFunc(transformers, func(t struct{ name, compression string }) bool { return t.name == parts[2] })
	if i < 0 {
		return Config{}, fmt.Errorf("%q names none of the chains Cipher, Gzip-Cipher, Bzip2-Cipher, Zstdfast-Cipher, Zstd-Cipher, Zstdbetter-Cipher", name)
	}
	c.store = store.Config{MultichunkSize: kb << 10, Compression: transformers[i].compression, GroupSize: min(kb<<10, store.DefaultGroup)}
	if c.Chunker != ByKind {
		chunker, err := chunking.New(c.Chunker, make([]byte, 32))
		if err != nil {
			return Config{}, fmt.Errorf("%s: %w", name, err)
		}
		if _, largest := chunker.Bounds(); largest > store.MaxChunk {
			c.unbounded = chunker // no repository takes its chunks
		} else {
			c.store.Chunkers = all(c.Chunker)
		}
	}
	return c, nil
}

// WithoutPause returns the name of the configuration that differs only in having no pause.
func (c *Config) WithoutPause() string {
	multichunker, rest, _ := strings.Cut(c.Name, "/")
	return multichunker[:strings.LastIndexByte(multichunker, '-')] + "-0/" + rest
}

// ThesisConfigs returns the names of the thesis's 144 configurations: 12 chunkers, 4 multichunkers and 3 chains of transformers.
func ThesisConfigs() (names []string) {
	for _, multichunker := range []string{"Custom-125-0", "Custom-125-30", "Custom-250-0", "Custom-250-30"} {
		for _, size := range []int{4, 8, 16} {
			for _, chunker := range []string{"Fixed-%d", "TTTD-%d-Adler32", "TTTD-%d-PLAIN", "TTTD-%d-Rabin"} {
				for _, chain := range []string{"Cipher", "Gzip-Cipher", "Bzip2-Cipher"} {
					names = append(names, multichunker+"/"+fmt.Sprintf(chunker, size)+"/"+chain)
				}
			}
		}
	}
	return names
}

// OurConfigs returns configurations around the default: the default chunker from 4 to 1024 KB, multichunks from 256 KB to 32 MB, and
// all levels of zstd.
func OurConfigs() []string {
	names := []string{"Custom-8192-0/ByKind/Zstdbetter-Cipher"}
	for _, kb := range []int{4, 8, 16, 32, 64, 128, 256, 512, 1024} {
		names = append(names, fmt.Sprintf("Custom-8192-0/GFD-%d/Zstdbetter-Cipher", kb))
	}
	names = append(names, "Custom-8192-0/Typed-4/Zstdbetter-Cipher", "Custom-8192-0/Typed-8/Zstdbetter-Cipher",
		"Custom-8192-0/Gear-8/Zstdbetter-Cipher", "Custom-8192-0/Fixed-4/Zstdbetter-Cipher", "Custom-8192-0/Whole-Unbounded/Zstdbetter-Cipher")
	for _, kb := range []int{256, 1024, 4096, 16384, 32768} {
		names = append(names, fmt.Sprintf("Custom-%d-0/ByKind/Zstdbetter-Cipher", kb))
	}
	for _, chain := range []string{"Cipher", "Gzip-Cipher", "Zstdfast-Cipher", "Zstd-Cipher"} {
		names = append(names, "Custom-8192-0/ByKind/"+chain)
	}
	return names
}
