package fs

import (
	"context"
	"syscall"

	"github.com/dedupfs/dedupfs/cache"
)

// What is stored already is copied by reference: the copy is a run of the other content until it is flushed, and then shares the
// chunks that lie in it as a whole (copy_file_range(2); the idea is that of the reflinks of Btrfs and XFS).

// CopyFileRange copies bytes inside the volume and returns how many: by reference what is on the remote, the rest as bytes.
func (v *Volume) CopyFileRange(ctx context.Context, hin *Handle, offIn int64, hout *Handle, offOut, n int64, flags uint64) (int64, error) {
	if flags != 0 || offIn < 0 || offOut < 0 {
		return 0, syscall.EINVAL
	}
	if hin.in != nil && hin.in == hout.in && offIn < offOut+n && offOut < offIn+n {
		return 0, syscall.EINVAL
	}
	if offOut > maxSize-n {
		return 0, syscall.EFBIG
	}
	var total int64
	for total < n {
		done, err := v.copySome(ctx, hin, offIn+total, hout, offOut+total, n-total)
		total += done
		if err != nil || done == 0 {
			return total, partial(total, err)
		}
	}
	return total, nil
}

// copySome copies what can be copied in one change of the volume, and returns how many bytes; 0 at the end of the file.
func (v *Volume) copySome(ctx context.Context, hin *Handle, offIn int64, hout *Handle, offOut, n int64) (int64, error) {
	pieces, err := hin.copyable(ctx, offIn, n)
	if err != nil || len(pieces) == 0 {
		return 0, err
	}
	if hout.in != nil && hout.write && !hout.append && pieces[0].shareable() {
		if done, err := v.copyShared(ctx, pieces, hout, offOut-offIn); done > 0 || err != nil {
			return done, err
		}
	}
	last := pieces[len(pieces)-1]
	return copyBytes(ctx, hin, offIn, hout, offOut, last.off+last.n-offIn)
}

// partial drops an error after which some bytes were copied: the caller sees it with the next call.
func partial(done int64, err error) error {
	if done > 0 {
		return nil
	}
	return err
}

// copyBytes reads and writes up to n bytes.
func copyBytes(ctx context.Context, hin *Handle, offIn int64, hout *Handle, offOut, n int64) (int64, error) {
	buf := make([]byte, min(n, 1<<20))
	got, err := hin.Read(ctx, buf, offIn)
	if err != nil || got == 0 {
		return 0, err
	}
	done, err := hout.Write(ctx, buf[:got], offOut)
	return int64(done), err
}

// mostCopied is how many pieces are copied in one change of the volume.
const mostCopied = 256

// copyable returns where the next of n bytes of the file from off on come from: pieces that are all copied in the same way.
func (h *Handle) copyable(ctx context.Context, off, n int64) ([]piece, error) {
	if h.in == nil {
		view := fileView{base: h.snap, size: h.size}
		return view.copyable(off, n), nil
	}
	if err := h.v.lockContent(ctx, h.in, h.in.mu.RLocker()); err != nil {
		return nil, err
	}
	defer h.in.mu.RUnlock()
	view := fileView{layers: h.in.layers(), base: h.v.contentReader(*h.in.content), size: int64(h.in.attrs.Size)}
	return view.copyable(off, n), nil
}

func (f *fileView) copyable(off, n int64) []piece {
	n = min(n, f.size-off)
	for window := int64(firstWindow); ; window *= 4 {
		last := window >= n || window >= lastWindow
		ps := f.resolve(off, off+min(n, window))
		for i, pc := range ps {
			if pc.from == fromBase {
				ps[i].from, ps[i].src, ps[i].pos = fromCopy, f.base, cache.Pos(pc.off)
			}
			if i == mostCopied || i > 0 && ps[i].shareable() != ps[0].shareable() {
				ps, last = ps[:i], true
				break
			}
		}
		if last {
			return ps
		}
	}
}

// shareable reports whether a piece is copied by reference. What is not on the remote yet must not be named by a record that
// outlasts a crash, and what is shorter than a chunk can be would only be read later instead of now.
func (p piece) shareable() bool {
	switch p.from {
	case fromHole:
		return true
	case fromCopy:
		m := &p.src.m
		_, longest := p.src.v.repo.Chunkers()[m.Kind].Bounds()
		whole := p.pos == 0 && p.n == m.Length
		return !m.Ref.IsZero() && !m.Ref.Hint.IsZero() && (whole || p.n >= int64(longest))
	}
	return false
}

// copyShared makes pieces of a file those of another one, shift bytes further on, and returns how many bytes they have: 0 if the
// other one can't refer to them.
func (v *Volume) copyShared(ctx context.Context, pieces []piece, hout *Handle, shift int64) (n int64, err error) {
	err = v.update(ctx, func(t *tx) error {
		n = 0
		out := hout.in
		t.lock(out)
		if out.cutOff { // it takes no part in commits, so that nobody would know what it refers to
			return nil
		}
		out.layer(v.log)
		a := out.attrs
		for _, pc := range pieces {
			op := contentOp{in: out, off: pc.off + shift, n: pc.n}
			if pc.from == fromCopy {
				op.src, op.at = pc.src, int64(pc.pos)
			}
			t.ops = append(t.ops, op)
			n += pc.n
			a.Size = max(a.Size, uint64(op.off+op.n))
		}
		a.Mtime, a.Ctime, a.Changed = t.now, t.now, v.me
		t.setAttrs(out.ino, &a)
		return nil
	})
	return n, err
}

// wholeCopy returns the content that the layer makes a file of size bytes a copy of, if it is a copy as a whole.
func (l *layer) wholeCopy(size int64) (extentMap, bool) {
	e, ok := l.at(0)
	if !ok || e.from != fromCopy || e.pos != 0 || e.n != size || size != e.src.m.Length {
		return extentMap{}, false
	}
	return e.src.m, true
}

// shareable returns the copy that has the byte at off, if a chunk of what it is a copy of begins there and can be one of the new cut:
// it lies in the copy as a whole, and was not cut there because the data ended.
func (fl *flusher) shareable(off int64) (extent, bool, error) {
	e, ok := fl.view.layers[0].at(off)
	if !ok || e.from != fromCopy || e.src.m.Kind != fl.kind {
		return e, false, nil
	}
	n, err := fl.shared(e, off, func(chunkAt) bool { return false })
	return e, n > 0, err
}

// share refers to all chunks that can be shared from off on, and returns where the last one ends: off if there are none.
func (fl *flusher) share(off int64) (int64, error) {
	e, ok, err := fl.shareable(off)
	if !ok || err != nil {
		return off, err
	}
	n, err := fl.shared(e, off, func(c chunkAt) bool {
		fl.fresh = append(fl.fresh, c)
		return true
	})
	return off + n, err
}

// shared calls fn for the chunks that the copy e can share from off on, until it returns false, and returns how many bytes they have.
func (fl *flusher) shared(e extent, off int64, fn func(chunkAt) bool) (n int64, err error) {
	from := int64(e.pos) + off - e.off // in what it is a copy of
	shift, end := off-from, int64(e.pos)+e.n
	var last chunkAt // it can be shared if another one begins where it ends
	err = e.src.chunks(fl.ctx, from, func(c chunkAt) bool {
		if last.n > 0 {
			if c.off != last.end() {
				last = chunkAt{}
				return false
			}
			n += last.n
			last.off += shift
			if !fn(last) {
				last = chunkAt{}
				return false
			}
		}
		last = c
		if c.off != from+n || c.end() > end || c.skip+c.rest > 0 || c.nested() {
			last = chunkAt{}
		}
		return last.n > 0
	})
	if last.n > 0 && last.end() == e.src.m.Length && last.end()+shift == fl.view.size {
		n += last.n
		last.off += shift
		fn(last)
	}
	return n, err
}
