package experiment

import (
	"github.com/dedupfs/dedupfs/chunking"
	"github.com/dedupfs/dedupfs/store"
)

// A Setting is a way to make a repository that Analyze looks at.
type Setting struct {
	Name  string // the flags of init
	About string
	store store.Config
}

// all returns a set that cuts every kind of file in one way, as init --chunker does.
func all(chunker string) chunking.Set {
	return chunking.Set{Default: chunker, Pages: chunker, Media: chunker}
}

// Settings returns what Analyze compares. The first is the default; those that cut alike stand together.
func Settings() []Setting {
	return []Setting{
		{"(default)", "by the kind of file", store.Config{}},
		{"--compression zstd-fast", "less work, a little more storage", store.Config{Compression: "zstd-fast"}},
		{"--compression none", "no compression", store.Config{Compression: "none"}},
		{"--chunker Typed-4", "smaller chunks: for dumps and source", store.Config{Chunkers: all("Typed-4")}},
		{"--chunker Fixed-4", "pages: for databases and disk images", store.Config{Chunkers: all("Fixed-4")}},
		{"--chunker GFD-64", "large chunks: for what never changes in part", store.Config{Chunkers: all("GFD-64")}},
		{"--chunker TTTD-4-Adler32 --compression gzip --multichunk-size 250K", "as the multichunk thesis chose",
			store.Config{Chunkers: all("TTTD-4-Adler32"), Compression: "gzip", MultichunkSize: 250 << 10, GroupSize: 250 << 10}},
	}
}
