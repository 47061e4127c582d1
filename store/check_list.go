package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
	"golang.org/x/sync/errgroup"
)

// listAll lists every directory of the repository and sorts what is there by its name.
func (c *checker) listAll(ctx context.Context) error {
	c.done = 0
	level := []string{""}
	for len(level) > 0 {
		next, err := c.listDirs(ctx, level)
		if err != nil {
			return err
		}
		level = next
	}
	return nil
}

// listDirs lists directories and returns those in them that may hold objects of ours.
func (c *checker) listDirs(ctx context.Context, dirs []string) ([]string, error) {
	var below []string
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, dir := range dirs {
		group.Go(func() error {
			// What is listed twice is there once.
			seen := map[string]bool{}
			err := c.r.st.List(ctx, dir, func(e remote.Entry) error {
				if seen[e.Name] {
					return nil
				}
				seen[e.Name] = true
				name := strings.TrimPrefix(dir+"/"+e.Name, "/")
				c.mu.Lock()
				defer c.mu.Unlock()
				switch {
				case e.Dir && isDir(name):
					below = append(below, name)
				case !e.Dir && c.isObject(name, e.Size):
					c.report.Objects++
					c.report.Bytes += max(e.Size, 0)
				case len(c.report.Foreign) < maxForeign:
					c.report.Foreign = append(c.report.Foreign, name)
				}
				return nil
			})
			if err != nil && !(errors.Is(err, remote.ErrNotExist) && dir != "") {
				return fmt.Errorf("list %q: %w", dir, err)
			}
			c.step(0, "names")
			return nil
		})
	}
	return below, group.Wait()
}

// isDir reports whether a directory of this name may hold objects of ours.
func isDir(name string) bool {
	parts := strings.Split(name, "/")
	ids := func(parts []string) bool {
		for _, p := range parts {
			if _, ok := parseID(p); !ok {
				return false
			}
		}
		return true
	}
	switch parts[0] {
	case repositoryDir, keysDir, keyringDir, noticesDir, hooksDir, movedDir, settingsDir, pastDir, ballastDir:
		return len(parts) == 1
	case clientsDir:
		return len(parts) <= 2 && ids(parts[1:])
	case commitsDir:
		if len(parts) == 4 {
			_, ok := parseNumber(parts[3], 14)
			return ok && ids(parts[1:3])
		}
		return len(parts) <= 3 && ids(parts[1:])
	case dataDir, parityDir:
		if len(parts) == 2 {
			_, ok := parseNumber(parts[1], 2)
			return ok
		}
		return len(parts) == 1
	}
	return false
}

// isObject reports whether name is that of an object of ours, and notes it. c.mu is held.
func (c *checker) isObject(name string, size int64) bool {
	dir, rest, _ := strings.Cut(name, "/")
	parts := strings.Split(rest, "/")
	last := parts[len(parts)-1]
	switch dir {
	case repositoryDir, keysDir, keyringDir, noticesDir, hooksDir, movedDir, settingsDir, pastDir, ballastDir:
		if _, ok := parseID(rest); !ok {
			return false
		}
		list := map[string]*[]string{repositoryDir: &c.repositories, keysDir: &c.keys, keyringDir: &c.keyrings, noticesDir: &c.notices, movedDir: &c.moves,
			hooksDir: &c.hooks, settingsDir: &c.settings, pastDir: &c.past, ballastDir: &c.ballast}[dir]
		*list = append(*list, name)
		return true
	case clientsDir:
		_, _, ok := parsePair(last)
		if ok && len(parts) == 2 {
			c.registrations = append(c.registrations, name)
			return true
		}
	case commitsDir:
		return len(parts) == 4 && c.isCommit(name, parts)
	case parityDir:
		n, ok := parseParityName(name)
		if ok {
			c.parity[n] = true
		}
		return ok
	case dataDir:
		n, ok := parseObjectName(name)
		if ok {
			c.sizes[n] = size
			if size >= 0 && size != int64(c.r.cfg.MultichunkSize) && size != int64(seal.PadSize(int(size))) {
				c.half[n] = true
			}
		}
		return ok
	}
	return false
}

// isCommit reports whether the parts behind "commits/" are those of a commit's name, and notes it. c.mu is held.
func (c *checker) isCommit(name string, parts []string) bool {
	client, ok1 := parseID(parts[0])
	incarnation, ok2 := parseID(parts[1])
	seq, _, ok3 := parseCommitName(parts[3])
	if !ok1 || !ok2 || !ok3 || seq.group().String() != parts[2] {
		return false
	}
	ch := chain{client, incarnation}
	if c.commits[ch] == nil {
		c.commits[ch] = map[Seq][]string{}
	}
	c.commits[ch][seq] = append(c.commits[ch][seq], name)
	return true
}
