package main

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dedupfs/dedupfs/store"
)

// parts tells where the bytes of a repository are.
type parts struct {
	Data    packed  `json:"data"`
	Nodes   packed  `json:"nodes"`
	Commits objects `json:"commits"`
	Keys    objects `json:"keys"` // and everything else
}

// objects are counted as they lie on the remote.
type objects struct {
	Objects int   `json:"objects"`
	Bytes   int64 `json:"bytes"`
}

// packed is what multichunks of one kind hold.
type packed struct {
	objects
	Chunks int   `json:"chunks"`
	Plain  int64 `json:"plain_bytes"` // of the chunks
	Groups int64 `json:"group_bytes"` // as they are stored
	Tables int64 `json:"table_bytes"`
}

// padding returns what is left: zeros, and the seal, which is a few bytes in 64 KiB.
func (p *packed) padding() int64 { return p.Bytes - p.Groups - p.Tables }

// takeApart counts the parts of the repository in a local directory.
func takeApart(repo *store.Repository, dir string) (*parts, error) {
	p := &parts{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		switch kind, _, _ := strings.Cut(rel, "/"); kind {
		case "data":
			return p.addMultichunk(repo, path, info.Size())
		case "commits":
			p.Commits.add(info.Size())
		default:
			p.Keys.add(info.Size())
		}
		return nil
	})
	return p, err
}

func (o *objects) add(size int64) {
	o.Objects++
	o.Bytes += size
}

func (p *parts) addMultichunk(repo *store.Repository, path string, size int64) error {
	var name store.Name
	if n, err := hex.Decode(name[:], []byte(filepath.Base(path))); err != nil || n != len(name) {
		return fmt.Errorf("%s is not a multichunk", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	kind, table, err := repo.ReadTable(f, size, name)
	if err != nil {
		return err
	}
	to := &p.Data
	if kind == store.KindNodes {
		to = &p.Nodes
	}
	to.add(size)
	to.addTable(table)
	return nil
}

// addTable counts a table as it is before compression (store/FORMAT.md, section 10): little of it can be compressed.
func (p *packed) addTable(table []store.TableEntry) {
	const id, length, group = 32, 2, 5 // bytes, of which the last two are those of usual chunks and groups
	for i, e := range table {
		if i == 0 || e.Hint != table[i-1].Hint {
			p.Groups += int64(e.Hint.Len)
			p.Tables += group
		}
		p.Chunks++
		p.Plain += int64(e.Len)
		p.Tables += id + length
	}
}
