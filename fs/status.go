package fs

import (
	"context"
	"time"
)

// Status tells how the volume is doing.
type Status struct {
	ReadOnly       bool           `json:"read_only"`
	Client         string         `json:"client"`
	Host           string         `json:"host"`
	Dirty          bool           `json:"dirty"`           // there are changes that no local commit has
	Unpublished    bool           `json:"unpublished"`     // there are local commits that are not on the remote
	StagedBytes    int64          `json:"staged_bytes"`    // written since the last local commit
	PendingBytes   int64          `json:"pending_bytes"`   // of chunks that are not on the remote
	PendingObjects int            `json:"pending_objects"` // multichunks that wait for upload
	SpoolBytes     int64          `json:"spool_bytes"`
	CacheBytes     int64          `json:"cache_bytes"`    // local disk in use
	Uploaded       int64          `json:"uploaded_bytes"` // since the mount
	LastSynced     time.Time      `json:"last_synced"`    // when last everything was on the remote; zero if not since the mount
	LastPoll       time.Time      `json:"last_poll"`
	Behind         bool           `json:"behind"`            // other clients have changes that this one does not show yet
	Conflicts      int            `json:"conflicts"`         // names that merges have given to what has lost
	History        string         `json:"history,omitempty"` // why the history on the remote is not what was seen before
	Clients        []ClientStatus `json:"clients"`
	Errors         []string       `json:"errors,omitempty"`
}

// ClientStatus tells of one client's newest commit.
type ClientStatus struct {
	Client string `json:"client"`
	Seq    uint64 `json:"seq"`
	Self   bool   `json:"self"`
}

// Status returns how the volume is doing now. It asks nobody else.
func (v *Volume) Status(ctx context.Context) Status {
	p := v.ca.Pending()
	s := Status{ReadOnly: v.opt.ReadOnly, Client: v.me.String(), Host: v.name(),
		Dirty: v.commits.first.Load() != 0, Unpublished: v.commits.unstable.Load(), StagedBytes: v.staged.Load(),
		PendingBytes: p.Bytes, PendingObjects: p.Objects, SpoolBytes: p.Spool, CacheBytes: p.Used, Uploaded: p.Uploaded}
	if t := v.commits.synced.Load(); t != 0 {
		s.LastSynced = time.Unix(0, t).UTC()
	}
	for _, err := range []error{p.Err, loadErr(v.commits)} {
		if err != nil {
			s.Errors = append(s.Errors, err.Error())
		}
	}
	conflicts, err := v.Conflicts(ctx)
	if err != nil {
		s.Errors = append(s.Errors, err.Error())
	}
	s.Conflicts = len(conflicts)
	f := v.follower
	f.mu.Lock()
	defer f.mu.Unlock()
	s.LastPoll, s.Behind = f.lastPoll, f.behind
	if f.lastErr != nil {
		s.Errors = append(s.Errors, f.lastErr.Error())
	}
	if f.history != nil {
		s.History = f.history.Error()
	}
	for _, h := range f.heads {
		s.Clients = append(s.Clients, ClientStatus{h.Client.String(), uint64(h.Seq), h.Client == v.me})
	}
	return s
}

// UploadTrouble returns why nothing could be uploaded when it was last tried, and since when that is so; nil if uploads work.
func (v *Volume) UploadTrouble() (err error, since time.Time) {
	p := v.ca.Pending()
	return p.Err, p.Since
}

func loadErr(c *committer) error {
	if p := c.lastErr.Load(); p != nil {
		return *p
	}
	return nil
}
