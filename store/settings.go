package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// settingsDir is the directory of what can be changed in a repository that is there already. Objects never change, so each change is
// an object of its own, and the newest counts.
const settingsDir = "settings"

const (
	maxSettings    = 4096     // objects that are looked at
	maxSettingWire = 64 << 10 // bytes; what is longer is none of ours
)

// A setting is one change.
type setting struct {
	order  uint64 // one more than that of any other that its maker knew
	parity int    // of new multichunks, thousandths of their segments; 0 is none
}

func appendSetting(dst []byte, s setting) []byte {
	dst = binary.BigEndian.AppendUint64(dst, s.order)
	return binary.BigEndian.AppendUint16(dst, uint16(s.parity))
}

// parseSetting is the inverse of appendSetting.
func parseSetting(b []byte) (setting, error) {
	d := decoder{b: b}
	s := setting{order: d.uint64()}
	if p := d.bytes(2); p != nil {
		s.parity = int(binary.BigEndian.Uint16(p))
	}
	if d.bad || s.parity > MaxParity {
		return setting{}, corruptf("setting")
	}
	return s, nil
}

// settings are the newest that are known.
type settings struct {
	mu    sync.Mutex // guards what follows
	known map[[16]byte]bool
	id    [16]byte // of the one that counts; zero if none does
	now   setting
}

// add takes in a setting.
func (s *settings) add(id [16]byte, fresh setting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil {
		s.known = map[[16]byte]bool{}
	}
	s.known[id] = true
	if fresh.order > s.now.order || fresh.order == s.now.order && bytes.Compare(id[:], s.id[:]) > 0 {
		s.id, s.now = id, fresh
	}
}

// Parity returns how much parity new multichunks get, in thousandths of their segments: what was set last, as far as is known, or
// what the repository was made with.
func (r *Repository) Parity() int {
	r.settings.mu.Lock()
	defer r.settings.mu.Unlock()
	if r.settings.id == ([16]byte{}) {
		return r.cfg.Parity
	}
	return r.settings.now.parity
}

// ReadSettings makes known what has been set since it was called last. A setting that is damaged counts for nothing.
func (r *Repository) ReadSettings(ctx context.Context) error {
	fresh, err := fetchSettings(ctx, r.st, func(id seal.ID) bool {
		r.settings.mu.Lock()
		defer r.settings.mu.Unlock()
		return r.settings.known[id]
	})
	if err != nil {
		return err
	}
	r.takeSettings(fresh)
	return nil
}

// fetchSettings fetches the settings that are not known.
func fetchSettings(ctx context.Context, st remote.Storage, known func(seal.ID) bool) (map[seal.ID][]byte, error) {
	var ids []seal.ID
	err := listObjects(ctx, st, settingsDir, func(id [16]byte, e remote.Entry) {
		if !known(id) && e.Size <= maxSettingWire && len(ids) < maxSettings {
			ids = append(ids, id)
		}
	})
	if err != nil {
		return nil, err
	}
	fresh := make(map[seal.ID][]byte)
	for _, id := range ids {
		wire, err := st.Get(ctx, objectName(settingsDir, id), 0, -1)
		switch {
		case errors.Is(err, remote.ErrNotExist): // deleted since it was listed
		case err != nil:
			return nil, fmt.Errorf("get %s: %w", objectName(settingsDir, id), err)
		default:
			fresh[id] = wire
		}
	}
	return fresh, nil
}

// takeSettings makes settings known, but for those that are damaged.
func (r *Repository) takeSettings(fresh map[seal.ID][]byte) {
	for id, wire := range fresh {
		if s, err := r.openSetting(objectName(settingsDir, id), wire); err == nil {
			r.settings.add(id, s)
			r.keepCopy(objectName(settingsDir, id), wire)
		}
	}
}

func (r *Repository) openSetting(name string, wire []byte) (setting, error) {
	return openSealed(r.keys, seal.KindSetting, name, wire, parseSetting)
}

// SetParity has new multichunks of all clients get parity, in thousandths of their segments, as soon as they read the settings again.
func (r *Repository) SetParity(ctx context.Context, share int) error {
	if share < 0 || share > MaxParity {
		return errors.New("parity: must be at most 100%")
	}
	if err := r.ReadSettings(ctx); err != nil {
		return fmt.Errorf("set parity: %w", err)
	}
	if r.Parity() == share {
		return nil
	}
	r.settings.mu.Lock()
	s := setting{r.settings.now.order + 1, share}
	r.settings.mu.Unlock()
	var id [16]byte
	rand.Read(id[:])
	if _, err := r.putSealed(ctx, seal.KindSetting, objectName(settingsDir, id), appendSetting(nil, s)); err != nil {
		return fmt.Errorf("set parity: %w", err)
	}
	r.settings.add(id, s)
	return nil
}
