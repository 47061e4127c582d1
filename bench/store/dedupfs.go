package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/fs"
	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store"
)

const password = "bench"

// dedupfs is this project.
type dedupfs struct{ c *config }

func (dedupfs) name() string { return "dedupfs" }

// store runs this program once more, so that what feeding takes can be told from the rest.
func (d dedupfs) store(p *place, dirs []string, r *result) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{self, "-" + feedFlag, p.remote(), "-work", p.dir,
		"-multichunk", fmt.Sprint(d.c.repo.MultichunkSize), "-group", fmt.Sprint(d.c.repo.GroupSize),
		"-compression", d.c.repo.Compression, fmt.Sprintf("-inplace=%v", d.c.inPlace)}
	if ch := d.c.repo.Chunkers; ch.Default != "" {
		args = append(args, "-chunkers", ch.Default+","+ch.Pages+","+ch.Media)
	}
	out, err := p.run("", append(args, filepath.Dir(dirs[0]))...)
	if err != nil {
		return err
	}
	return json.Unmarshal(out, r)
}

// restore uses the command as somebody would who has nothing but the remote.
func (d dedupfs) restore(p *place, dir string) (string, error) {
	if d.c.dedupfs == "" {
		return "", nil
	}
	p.env = []string{"DEDUPFS_REPOSITORY=" + p.remote(), "DEDUPFS_PASSWORD=" + password, "DEDUPFS_CACHE_DIR=" + filepath.Join(p.dir, "fresh")}
	_, err := p.run("", d.c.dedupfs, "restore", "-q", "latest:"+currentName, dir)
	return dir, err
}

// currentName is the directory of the volume that the versions go into, one over the other.
const currentName = "current"

// feed makes a repository and feeds it all versions of a data set. It prints a result that holds the sizes and the parts.
func feed(ctx context.Context, c *config) error {
	dirs, err := versions(c.data)
	if err != nil {
		return err
	}
	st, err := remote.Open(ctx, c.feed, &remote.Options{Create: true})
	if err != nil {
		return err
	}
	repo, _, err := store.Init(ctx, st, []byte(password), &store.InitOptions{Config: c.repo})
	if err != nil {
		return err
	}
	ca, err := cache.Open(ctx, filepath.Join(c.work, "cache"), repo, nil)
	if err != nil {
		return err
	}
	defer ca.Close()
	// Commits are made when asked for, so that every run stores the same.
	v, err := fs.Open(ctx, ca, repo, &fs.Options{CommitAfter: time.Hour, CommitEvery: time.Hour, Poll: -1})
	if err != nil {
		return err
	}
	var r result
	for _, dir := range dirs {
		if err := addVersion(ctx, v, dir, c.inPlace); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		n, err := size(c.feed)
		if err != nil {
			return err
		}
		r.Remote = append(r.Remote, n)
	}
	if err := v.Close(ctx); err != nil {
		return err
	}
	if r.Parts, err = takeApart(repo, c.feed); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// addVersion makes the volume equal to dir, and returns when that has its snapshot on the remote.
func addVersion(ctx context.Context, v *fs.Volume, dir string, inPlace bool) error {
	m := &mirror{ctx: ctx, v: v, inPlace: inPlace}
	if err := m.top(dir); err != nil {
		return err
	}
	if _, err := v.CreateSnapshot(ctx, fs.Snapshot{Name: filepath.Base(dir)}); err != nil {
		return err
	}
	return v.Sync(ctx, nil)
}
