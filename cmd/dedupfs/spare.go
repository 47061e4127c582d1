package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/store"
)

// localSpare is what this machine has of a repository: what its mount has, or
// else its cache directory. It is looked for when it is needed.
type localSpare struct {
	app  *app
	ctx  context.Context
	repo *store.Repository
	dir  string // of the cache

	mu    sync.Mutex // guards all below
	tried bool
	mount *mounted
	cache *cache.Cache
}

var _ store.Spare = (*localSpare)(nil)

func (a *app) newSpare(ctx context.Context, repo *store.Repository) (*localSpare, error) {
	root, err := a.cacheRoot()
	if err != nil {
		return nil, err
	}
	return &localSpare{app: a, ctx: ctx, repo: repo, dir: filepath.Join(root, repo.Config().Repository.String())}, nil
}

// open finds the mount or the cache directory.
func (s *localSpare) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tried {
		return
	}
	s.tried = true
	if _, err := os.Stat(s.dir); err != nil {
		return
	}
	c, err := cache.Open(s.ctx, s.dir, s.repo, &cache.Options{Memory: int64(s.app.g.memory) / 4, Uploads: -1})
	var used cache.ErrInUse
	switch {
	case err == nil:
		s.cache = c
		return
	case errors.As(err, &used):
		if s.mount = s.findMount(); s.mount != nil {
			return
		}
	}
	s.app.log.Warn("what is in the cache directory cannot be used", "dir", s.dir, "err", err)
}

// findMount returns the mount that uses the cache directory, or another one of the repository.
func (s *localSpare) findMount() *mounted {
	own := newMounted("", filepath.Join(s.dir, "control"))
	return mountOfID(s.ctx, append([]*mounted{own}, allMounts()...), s.repo.Config().Repository.String())
}

// spareQuery is the body of POST /spare: one of the four.
type spareQuery struct {
	Multichunk *store.Name `json:"multichunk,omitempty"`
	Ref        *store.Ref  `json:"ref,omitempty"`
	Object     string      `json:"object,omitempty"`
	Objects    bool        `json:"objects,omitempty"` // which there are
}

// spareReply is what it answers.
type spareReply struct {
	Data  []byte   `json:"data,omitempty"`
	Names []string `json:"names,omitempty"`
}

func (s *localSpare) ask(q spareQuery) (r spareReply) {
	s.open()
	switch {
	case s.mount != nil:
		if err := s.mount.call(s.ctx, http.MethodPost, "/spare", q, &r, nil); err != nil {
			s.app.log.Warn("ask the mount for copies", "err", err)
		}
	case s.cache != nil:
		r = answerSpare(s.cache, q)
	}
	return r
}

func answerSpare(c *cache.Cache, q spareQuery) (r spareReply) {
	switch {
	case q.Multichunk != nil:
		r.Data = c.SpareMultichunk(*q.Multichunk)
	case q.Ref != nil:
		r.Data = c.SpareChunk(*q.Ref)
	case q.Object != "":
		r.Data = c.SpareObject(q.Object)
	case q.Objects:
		r.Names = c.SpareObjects()
	}
	return r
}

func (s *localSpare) SpareMultichunk(n store.Name) []byte {
	return s.ask(spareQuery{Multichunk: &n}).Data
}
func (s *localSpare) SpareChunk(ref store.Ref) []byte { return s.ask(spareQuery{Ref: &ref}).Data }
func (s *localSpare) SpareObject(name string) []byte  { return s.ask(spareQuery{Object: name}).Data }
func (s *localSpare) SpareObjects() []string          { return s.ask(spareQuery{Objects: true}).Names }

// health is the body of POST /health: what is lost on the remote, what is intact again, and whether settings are to be read.
type health struct {
	Lost  []store.Name `json:"lost"`
	Found []store.Name `json:"found"`

	Settings bool `json:"settings"` // they have changed
}

func (h health) tell(c *cache.Cache) error {
	return errors.Join(c.Lose(h.Lost...), c.Regain(h.Found...))
}

// tell lets this machine know what was found out, so that it neither relies on
// what is lost nor gives up what is not.
func (s *localSpare) tell(h health) error {
	if len(h.Lost)+len(h.Found) == 0 && !h.Settings {
		return nil
	}
	s.open()
	switch {
	case s.mount != nil:
		return s.mount.call(s.ctx, http.MethodPost, "/health", h, nil, nil)
	case s.cache != nil:
		return h.tell(s.cache)
	}
	return nil
}

func (s *localSpare) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cache == nil {
		return nil
	}
	return s.cache.Close()
}

// multichunksOf returns the multichunks among damages.
func multichunksOf(damages []store.Damage) []store.Name {
	var names []store.Name
	for _, d := range damages {
		if !d.Multichunk.IsZero() {
			names = append(names, d.Multichunk)
		}
	}
	return names
}

func (s *session) serveSpare(_ context.Context, r *http.Request, _ func(progress)) (any, error) {
	var q spareQuery
	if err := readJSON(r, &q); err != nil {
		return nil, err
	}
	return answerSpare(s.cache, q), nil
}

func (s *session) serveHealth(ctx context.Context, r *http.Request, _ func(progress)) (any, error) {
	var h health
	if err := readJSON(r, &h); err != nil {
		return nil, err
	}
	var err error
	if h.Settings {
		err = s.volume.ReadSettings(ctx)
	}
	return nil, errors.Join(err, h.tell(s.cache))
}
