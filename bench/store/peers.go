package main

import (
	"os"
	"path/filepath"
)

// Peers see a directory that rsync makes equal to each version in turn, so that they too can leave alone what has not
// changed. They compress with zstd and encrypt.

// feedPeer lets backup store each version, which it finds in dir.
func feedPeer(p *place, versions []string, r *result, backup func(dir, version string) error) error {
	current := filepath.Join(p.dir, currentName)
	for _, v := range versions {
		aside := &place{} // what rsync takes does not count
		if _, err := aside.run("", "rsync", "-a", "--delete", v+"/", current+"/"); err != nil {
			return err
		}
		if err := backup(current, filepath.Base(v)); err != nil {
			return err
		}
		n, err := size(p.remote())
		if err != nil {
			return err
		}
		r.Remote = append(r.Remote, n)
	}
	return nil
}

type restic struct{}

func (restic) name() string { return "restic" }

func (restic) store(p *place, versions []string, r *result) error {
	p.env = []string{"RESTIC_REPOSITORY=" + p.remote(), "RESTIC_PASSWORD=" + password, "RESTIC_CACHE_DIR=" + filepath.Join(p.dir, "cache")}
	if _, err := p.run("", "restic", "init"); err != nil {
		return err
	}
	return feedPeer(p, versions, r, func(dir, _ string) error {
		_, err := p.run(dir, "restic", "backup", "-q", ".")
		return err
	})
}

func (restic) restore(p *place, dir string) (string, error) {
	_, err := p.run("", "restic", "restore", "-q", "latest", "--target", dir)
	return dir, err
}

type borg struct{}

func (borg) name() string { return "borg" }

func (borg) store(p *place, versions []string, r *result) error {
	p.env = []string{"BORG_REPO=" + p.remote(), "BORG_PASSPHRASE=" + password, "BORG_BASE_DIR=" + filepath.Join(p.dir, "base")}
	if _, err := p.run("", "borg", "init", "-e", "repokey-blake2"); err != nil {
		return err
	}
	return feedPeer(p, versions, r, func(dir, version string) error {
		_, err := p.run(dir, "borg", "create", "-C", "zstd", "::"+version, ".")
		return err
	})
}

func (borg) restore(p *place, dir string) (string, error) {
	out, err := p.run("", "borg", "list", "--last", "1", "--format", "{archive}")
	if err != nil {
		return "", err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	_, err = p.run(dir, "borg", "extract", "::"+string(out))
	return dir, err
}
