package experiment

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/dedupfs/dedupfs/store"
)

// A Line is a connection to a storage.
type Line struct {
	Name     string        `json:"name"`
	Up       int64         `json:"up_bytes_per_second"`
	Down     int64         `json:"down_bytes_per_second"`
	Latency  time.Duration `json:"latency_ns"` // there and back
	Parallel int           `json:"parallel"`   // requests at a time
}

// Lines returns the lines of the experiments: the one of the thesis, a good one at home, and one in a data centre.
func Lines() []Line {
	return []Line{
		{"DSL (thesis)", 75 << 10, 750 << 10, 60 * time.Millisecond, 4},
		{"home", 5 << 20, 12 << 20, 20 * time.Millisecond, 4},
		{"data centre", 100 << 20, 100 << 20, time.Millisecond, 4},
	}
}

// A Fetch is what bringing a client up to date takes in one way.
type Fetch struct {
	Requests int64     `json:"requests"`
	Bytes    int64     `json:"bytes"`
	Seconds  []float64 `json:"seconds"` // over each of Lines, by a model: bytes at the speed of the line, and latency
}

// Reconstruction is what it takes to bring a client up to date that lacks the last versions: experiment 3 of the thesis.
type Reconstruction struct {
	Set        string `json:"set"`
	Multichunk int    `json:"multichunk_bytes"`
	Lacks      int    `json:"lacks"`  // versions
	Needed     int64  `json:"needed"` // bytes of the chunks that the client lacks
	Chunks     int64  `json:"needed_chunks"`
	Full       Fetch  `json:"full"`      // all multichunks that hold such a chunk
	Ranged     Fetch  `json:"ranged"`    // of them only the segments with the groups
	Regrouped  Fetch  `json:"regrouped"` // all multichunks, after those were regrouped of which the last version needs less than half; estimated
}

// segment is what a multichunk is sealed in, and header what precedes it, in bytes.
const (
	segment = 64 << 10
	header  = 512
)

// MultichunkSizes are those that Reconstruct compares, in KB: the thesis's, and larger ones.
func MultichunkSizes() []int { return []int{125, 250, 1024, 4096, 8192, 16384, 32768} }

// Reconstruct stores the versions of the data set in dir in multichunks of so many KB, and tells for each number of versions in
// lacks what a client fetches that lacks the last ones, and has all before. 0 or too many means all. pace is as for Chunking.
func Reconstruct(ctx context.Context, dir string, kb int, lacks []int, pace func(context.Context) error) ([]*Reconstruction, error) {
	dirs, err := versionsIn(dir)
	if err != nil {
		return nil, err
	}
	c, err := ParseConfig(fmt.Sprintf("Custom-%d-0/%s/Zstdbetter-Cipher", kb, ByKind))
	if err != nil {
		return nil, err
	}
	l, err := newLab(ctx, c)
	if err != nil {
		return nil, err
	}
	l.lengths, l.pace = map[store.ID]int{}, pace
	var versions [][]uint64
	for _, d := range dirs {
		if _, err := l.store(d, 0); err != nil {
			return nil, fmt.Errorf("%s: %w", d, err)
		}
		versions = append(versions, l.version)
	}
	var out []*Reconstruction
	for _, n := range lacks {
		if n <= 0 || n > len(versions) {
			n = len(versions)
		}
		r := l.reconstruct(versions, n)
		r.Set, r.Multichunk = filepath.Base(filepath.Clean(dir)), kb<<10
		if len(out) == 0 || out[len(out)-1].Lacks != n {
			out = append(out, r)
		}
	}
	return out, nil
}

// reconstruct tells what a client fetches that lacks the last n versions.
func (l *lab) reconstruct(versions [][]uint64, n int) *Reconstruction {
	has := l.chunksOf(versions[:len(versions)-n])
	last := l.chunksOf(versions[len(versions)-1:])
	r := &Reconstruction{Lacks: n}
	live := map[store.Name]int64{} // bytes of groups that the last version needs, by share of the chunks
	whole := map[store.Name]bool{}
	groups := map[store.Hint]bool{}
	for id := range last {
		h := l.place[id]
		live[h.Multichunk] += int64(l.lengths[id])
		if has[id] {
			continue
		}
		r.Chunks++
		r.Needed += int64(l.lengths[id])
		whole[h.Multichunk], groups[h] = true, true
	}
	r.Full = l.full(whole)
	r.Ranged = l.ranged(groups)
	r.Regrouped = l.regrouped(whole, live)
	for _, f := range []*Fetch{&r.Full, &r.Ranged, &r.Regrouped} {
		for _, line := range Lines() {
			f.Seconds = append(f.Seconds, line.download(f.Requests, f.Bytes).Seconds())
		}
	}
	return r
}

// chunksOf returns the chunks of versions.
func (l *lab) chunksOf(versions [][]uint64) map[store.ID]bool {
	ids := map[store.ID]bool{}
	for _, v := range versions {
		for _, content := range v {
			for _, id := range l.files[content] {
				ids[id] = true
			}
		}
	}
	return ids
}

func (l *lab) full(whole map[store.Name]bool) (f Fetch) {
	for name := range whole {
		f.Requests++
		f.Bytes += int64(l.size[name].wire)
	}
	return f
}

// ranged fetches each group by itself: the header and the segments that it lies in.
func (l *lab) ranged(groups map[store.Hint]bool) (f Fetch) {
	segments := map[store.Name]map[uint32]bool{}
	for h := range groups {
		f.Requests++
		if segments[h.Multichunk] == nil {
			segments[h.Multichunk] = map[uint32]bool{}
		}
		for s := h.Off / segment; s <= (h.Off+h.Len-1)/segment; s++ {
			segments[h.Multichunk][s] = true
		}
	}
	for name, s := range segments {
		f.Bytes += min(int64(len(s))*segment+header, int64(l.size[name].wire))
	}
	return f
}

// regrouped estimates full fetches after the live chunks of poor multichunks were put together, compressed as they were.
func (l *lab) regrouped(whole map[store.Name]bool, live map[store.Name]int64) (f Fetch) {
	moved := int64(0)
	for name := range whole {
		m := l.size[name]
		if 2*live[name] >= m.plain {
			f.Requests++
			f.Bytes += int64(m.wire)
			continue
		}
		moved += int64(float64(live[name]) * float64(m.wire) / float64(max(1, m.plain)))
	}
	size := int64(l.repo.Config().MultichunkSize)
	f.Requests += (moved + size - 1) / size
	f.Bytes += moved
	return f
}

// download returns how long it takes to fetch so many bytes by so many requests.
func (l Line) download(requests, bytes int64) time.Duration {
	seconds := float64(bytes)/float64(l.Down) + float64(requests)*l.Latency.Seconds()/float64(l.Parallel)
	return time.Duration(seconds * float64(time.Second))
}

// ReconstructionCharts draws, for each data set, bytes by multichunk size.
func ReconstructionCharts(all []*Reconstruction) (charts []Chart, err error) {
	var sets []string
	series := map[string]map[string]*Series{}
	order := map[string][]string{}
	for _, r := range all {
		if series[r.Set] == nil {
			sets = append(sets, r.Set)
			series[r.Set] = map[string]*Series{}
		}
		add := func(way string, f Fetch) {
			name := fmt.Sprintf("lacks %d, %s", r.Lacks, way)
			s := series[r.Set][name]
			if s == nil {
				s = &Series{Name: name}
				series[r.Set][name] = s
				order[r.Set] = append(order[r.Set], name)
			}
			s.Points = append(s.Points, Point{float64(r.Multichunk) / (1 << 20), float64(max(1, f.Bytes)) / 1e6})
		}
		add("whole", r.Full)
		add("by range", r.Ranged)
	}
	for _, set := range sets {
		var list []Series
		for _, name := range order[set] {
			list = append(list, *series[set][name])
		}
		c, err := Draw(fileName(set)+"-reconstruction", Axes{Title: set + ": bytes fetched by a client that lacks versions", X: "MiB of a multichunk", Y: "MB fetched", LogX: true, LogY: true, LegendBottom: true}, list)
		if err != nil {
			return nil, err
		}
		charts = append(charts, c)
	}
	return charts, nil
}
