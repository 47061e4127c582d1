package fs

import (
	"math/rand"
	"testing"

	"github.com/dedupfs/dedupfs/cache"
)

// countingLog is a retainer that counts references per byte of the log.
type countingLog map[cache.Pos]int

func (c countingLog) Retain(pos cache.Pos, n int64) {
	for i := range cache.Pos(n) {
		c[pos+i]++
	}
}

func (c countingLog) Release(pos cache.Pos, n int64) {
	for i := range cache.Pos(n) {
		if c[pos+i]--; c[pos+i] == 0 {
			delete(c, pos+i)
		}
	}
}

// TestLayerModel lays random writes, holes and truncations over each other in three layers and compares every byte with
// a plain array. Byte i of the log has the value that the model gives it.
func TestLayerModel(t *testing.T) {
	const size = 200
	for seed := range int64(300) {
		r := rand.New(rand.NewSource(seed))
		log := countingLog{}
		bytesOf := map[cache.Pos]byte{}
		model := make([]byte, size)
		baseLen := int64(r.Intn(size))
		base := make([]byte, baseLen)
		r.Read(base)
		copy(model, base)
		layers := []*layer{newLayer(log)}
		next := cache.Pos(1000)
		for range 60 {
			l := layers[0]
			off := int64(r.Intn(size))
			n := int64(r.Intn(int(size - off)))
			switch r.Intn(12) {
			case 0:
				l.truncate(off)
				clear(model[off:])
			case 1, 2:
				l.put(extent{off: off, n: n, from: fromHole})
				clear(model[off : off+n])
			case 3:
				if len(layers) < 3 {
					layers = append([]*layer{newLayer(log)}, layers...)
				}
			default:
				for i := range n {
					b := byte(1 + r.Intn(255))
					bytesOf[next+cache.Pos(i)], model[off+i] = b, b
				}
				l.put(extent{off: off, n: n, from: fromLog, pos: next})
				next += cache.Pos(n) + 7
			}
		}
		got := make([]byte, size)
		at := int64(0)
		for _, p := range resolve(layers, baseLen, 0, size) {
			if p.off != at || p.n <= 0 {
				t.Fatalf("seed %d: piece %+v at %d", seed, p, at)
			}
			at += p.n
			for i := range p.n {
				switch p.from {
				case fromLog:
					if log[p.pos+cache.Pos(i)] == 0 {
						t.Fatalf("seed %d: byte %d is not retained", seed, p.off+i)
					}
					got[p.off+i] = bytesOf[p.pos+cache.Pos(i)]
				case fromBase:
					got[p.off+i] = base[p.off+i]
				}
			}
		}
		if at != size || string(got) != string(model) {
			t.Fatalf("seed %d: got\n%v, want\n%v", seed, got, model)
		}
		for _, l := range layers {
			l.releaseAll()
		}
		if len(log) != 0 {
			t.Fatalf("seed %d: %d bytes still retained", seed, len(log))
		}
	}
}
