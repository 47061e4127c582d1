package fs

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"

	"github.com/dedupfs/dedupfs/store"
)

// Where a node of the tree is lost, all records between two keys are: of some inodes all, of those at the ends a part. Much of it stands
// in other records as well: a directory's entry and the reverse link of what it names tell the same, so one is made of the
// other. Of an inode whose own record is lost its entry tells type and name. What has no name left comes into a directory of its own.

// foundDir is the directory in the root for what has no name left.
const foundDir = "lost+found"

// closer makes records that are lost out of those that are left.
type closer struct {
	*mender
	inodes  map[Ino]uint32 // named by entries, and their records may be lost: the types
	links   []dirent       // entries whose reverse links may be lost
	entries []dirent       // reverse links whose entries may be lost
	found   Ino            // the directory for what has no name; 0 if there is none yet
}

// dirent is one name of an inode.
type dirent struct {
	nameIn
	ino  Ino
	mode uint32 // type bits; 0 if it is not known
}

// closeGaps makes the tree consistent again, and takes the notes of gaps out of it.
func (m *mender) closeGaps(ctx context.Context) error {
	if err := m.readGaps(ctx); err != nil || len(m.gaps) == 0 {
		return err
	}
	c := &closer{mender: m, inodes: map[Ino]uint32{}}
	for _, step := range []func(context.Context) error{c.survey, c.makeInodes, c.makeLinks, c.makeEntries, c.mendEnds, c.nameAll} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("close the gap of a lost node: %w", err)
		}
	}
	return nil
}

func (m *mender) readGaps(ctx context.Context) error {
	var notes []string
	var bad error
	err := m.r.scan(ctx, string(key(0, keyGap, 0)), prefixEnd(0, keyGap), func(k string, e *store.Entry) bool {
		g, err := parseGap(e.Value)
		bad = errors.Join(bad, err)
		m.gaps, notes = append(m.gaps, g), append(notes, k)
		return bad == nil
	})
	if err = errors.Join(err, bad); err != nil {
		return err
	}
	for _, k := range notes {
		m.del(k)
	}
	return nil
}

// survey looks for all that points into a gap.
func (c *closer) survey(ctx context.Context) error {
	var bad error
	err := c.r.scan(ctx, string(key(Root, keyInode, 0)), "\xff", func(k string, e *store.Entry) bool {
		ino, kind, rest, ok := splitKey(k)
		switch {
		case !ok:
		case kind == keyInode && c.gaps.touches(string(key(ino, keyLink, 0)), prefixEnd(ino, keyLink)):
			c.changed[ino] = true // its names may be lost
		case kind == keyEntry:
			bad = c.surveyEntry(ino, rest, e)
		case kind == keyLink && len(rest) > 8:
			c.surveyLink(ino, nameIn{Ino(binary.BigEndian.Uint64([]byte(rest))), rest[8:]})
		}
		return bad == nil
	})
	return errors.Join(err, bad)
}

func (c *closer) surveyEntry(parent Ino, rest string, e *store.Entry) error {
	_, name, ok := splitEntry(rest)
	ino, mode, err := parseEntryValue(e.Value)
	if !ok || err != nil {
		return errors.Join(err, errRecord)
	}
	at := nameIn{parent, name}
	if c.gaps.has(inodeKey(ino)) {
		c.inodes[ino] = mode
	}
	if c.gaps.has(linkKey(ino, parent, []byte(name))) {
		c.links = append(c.links, dirent{at, ino, mode})
	}
	return nil
}

func (c *closer) surveyLink(ino Ino, at nameIn) {
	base := c.v.cookieBase(at.parent, []byte(at.name))
	if c.gaps.touches(entryKey(at.parent, base, nil), entryKey(at.parent, base+128, nil)) {
		c.entries = append(c.entries, dirent{at, ino, 0})
	}
}

func (c *closer) has(ctx context.Context, k string) (bool, error) {
	e, err := c.r.get(ctx, k)
	return e != nil, err
}

// makeInodes makes records for inodes of which an entry tells.
func (c *closer) makeInodes(ctx context.Context) error {
	for _, ino := range slices.Sorted(maps.Keys(c.inodes)) {
		if err := c.makeInode(ctx, ino, c.inodes[ino]); err != nil {
			return err
		}
	}
	return nil
}

// makeInode makes a record for an inode that has none. Nobody but the owner of the root directory may use it until he has looked.
func (c *closer) makeInode(ctx context.Context, ino Ino, mode uint32) error {
	if there, err := c.has(ctx, inodeKey(ino)); there || err != nil {
		return err
	}
	root, err := loadAttrs(ctx, c.r, Root)
	if err != nil {
		return err
	}
	a := attrs{Mode: mode | 0o600, Uid: root.Uid, Gid: root.Gid, Mtime: root.Mtime, Ctime: root.Mtime, Atime: root.Mtime, Btime: root.Mtime}
	d := c.damageOf(ino)
	d.what = append(d.what, "mode, owner and times")
	switch mode {
	case syscall.S_IFDIR:
		a.Mode = mode | 0o700
		if ino == Root {
			a.Mode = mode | 0o755
		}
	case syscall.S_IFREG:
		content, err := loadExtentMap(ctx, c.r, ino)
		if err != nil {
			return err
		}
		a.Size, d.whole = uint64(content.Length), false
		if content.Length == 0 {
			d.what = append(d.what, "all content")
		}
	case syscall.S_IFLNK:
		a.Target, a.Size, d.whole = []byte("?"), 1, false
		d.what = append(d.what, "target")
	default:
		d.whole = false
		d.what = append(d.what, "device number")
	}
	c.put(inodeKey(ino), appendAttrs(nil, &a))
	c.changed[ino] = true
	return nil
}

// makeLinks makes reverse links out of entries.
func (c *closer) makeLinks(context.Context) error {
	for _, l := range c.links {
		c.put(linkKey(l.ino, l.parent, []byte(l.name)), nil)
		c.changed[l.ino] = true
	}
	return nil
}

// makeEntries makes entries out of reverse links.
func (c *closer) makeEntries(ctx context.Context) error {
	for _, l := range c.entries {
		f, free, err := c.v.find(ctx, c.r, l.parent, []byte(l.name))
		if err != nil || f != nil && f.ino == l.ino {
			if err != nil {
				return err
			}
			continue
		}
		if err := c.makeInode(ctx, l.parent, syscall.S_IFDIR); err != nil {
			return err
		}
		mode, err := c.typeOf(ctx, l.ino)
		if err != nil {
			return err
		}
		if f == nil {
			c.enter(l.ino, mode, l.parent, free, l.name)
			continue
		}
		// Another has got the name since.
		c.del(linkKey(l.ino, l.parent, []byte(l.name)))
		if _, err := c.enterFree(ctx, l.ino, mode, l.parent, l.name); err != nil {
			return err
		}
	}
	return nil
}

// typeOf returns the type of an inode, whose record is made if it is lost: what has entries is a directory, all else a file.
func (c *closer) typeOf(ctx context.Context, ino Ino) (uint32, error) {
	there, err := c.has(ctx, inodeKey(ino))
	if err != nil {
		return 0, err
	}
	if !there && ino != Root {
		mode := uint32(syscall.S_IFREG)
		err := c.r.scan(ctx, string(key(ino, keyEntry, 0)), prefixEnd(ino, keyEntry), func(string, *store.Entry) bool {
			mode = syscall.S_IFDIR
			return false
		})
		if err == nil {
			err = c.makeInode(ctx, ino, mode)
		}
		if err != nil {
			return 0, err
		}
	}
	a, err := loadAttrs(ctx, c.r, ino)
	if err != nil {
		return 0, err
	}
	return a.Mode & syscall.S_IFMT, nil
}

// mendEnds looks at the inodes that have a part of their records in a gap: those at its two ends.
func (c *closer) mendEnds(ctx context.Context) error {
	for _, g := range c.gaps {
		for _, k := range []string{g.from, g.to} {
			ino, _, _, ok := splitKey(k)
			if !ok || ino == 0 {
				continue
			}
			w, err := loadVersion(ctx, c.r, ino)
			if err != nil {
				return err
			}
			if len(w.records) == 0 && len(w.links) == 0 {
				continue
			}
			if _, err := c.typeOf(ctx, ino); err != nil {
				return err
			}
			if err := c.mendEnd(ctx, ino); err != nil {
				return err
			}
		}
	}
	return nil
}

// mendEnd notes what is lost of an inode whose own record is there.
func (c *closer) mendEnd(ctx context.Context, ino Ino) error {
	a, err := loadAttrs(ctx, c.r, ino)
	if err != nil {
		return err
	}
	c.changed[ino] = true
	d := c.damaged[ino]
	if d == nil {
		d = &damage{whole: true}
	}
	if c.gaps.touches(string(key(ino, keyXattr, 0)), prefixEnd(ino, keyXattr)) {
		d.what = append(d.what, "extended attributes, if it had any")
	}
	switch a.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		if c.gaps.has(contentKey(ino)) && a.Size > 0 && d.whole {
			d.whole = false
			d.spans = append(d.spans, span{0, int64(a.Size)})
		}
	case syscall.S_IFLNK:
		if len(a.Target) == 0 && c.gaps.touches(string(key(ino, keyTarget, 0)), prefixEnd(ino, keyTarget)) {
			d.whole = false
			d.what = append(d.what, "target")
			a.Target = []byte("?")
			c.put(inodeKey(ino), appendAttrs(nil, a))
		}
	}
	if len(d.what)+len(d.spans) > 0 {
		c.damaged[ino] = d
	}
	return nil
}

// nameAll gives what has no name a place in foundDir.
func (c *closer) nameAll(ctx context.Context) error {
	for _, ino := range slices.Sorted(maps.Keys(c.changed)) {
		if ino == Root || len(linksOf(ctx, c.r, ino)) > 0 {
			continue
		}
		if there, err := c.has(ctx, orphanKey(ino)); there || err != nil {
			if err != nil {
				return err
			}
			continue
		}
		mode, err := c.typeOf(ctx, ino)
		if err != nil {
			return err
		}
		if err := c.makeFoundDir(ctx); err != nil {
			return err
		}
		name := fmt.Sprintf("#%d", ino)
		f, free, err := c.v.find(ctx, c.r, c.found, []byte(name))
		switch {
		case err != nil:
			return err
		case f != nil:
			_, err = c.enterFree(ctx, ino, mode, c.found, name)
		default:
			c.enter(ino, mode, c.found, free, name)
		}
		if err != nil {
			return err
		}
		d := c.damageOf(ino)
		d.what = append(d.what, "name")
	}
	return nil
}

// makeFoundDir finds foundDir, or makes it. Its number follows from the volume, so that two clients make one.
func (c *closer) makeFoundDir(ctx context.Context) error {
	if c.found != 0 {
		return nil
	}
	f, free, err := c.v.find(ctx, c.r, Root, []byte(foundDir))
	if err != nil || f != nil && f.isDir() {
		if f != nil {
			c.found = f.ino
		}
		return err
	}
	volume := c.v.repo.Config().Volume
	sum := sha256.Sum256(append([]byte("dedupfs lost+found\x00"), volume[:]...))
	ino := mergeClass | Ino(binary.BigEndian.Uint64(sum[:])>>3)
	if err := c.makeInode(ctx, ino, syscall.S_IFDIR); err != nil {
		return err
	}
	delete(c.damaged, ino)
	c.found = ino
	if f != nil {
		_, err = c.enterFree(ctx, ino, syscall.S_IFDIR, Root, foundDir)
		return err
	}
	c.enter(ino, syscall.S_IFDIR, Root, free, foundDir)
	return nil
}
