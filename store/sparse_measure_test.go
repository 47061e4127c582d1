package store

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dedupfs/dedupfs/chunking"
)

// TestMeasureSparse prints what is stored of the versions of real data when every version comes from a machine that has never
// met the repository and goes by hooks, beside what an exact index stores. It needs -data.
func TestMeasureSparse(t *testing.T) {
	if *setsDir == "" {
		t.Skip("no -data")
	}
	cfg := testConfig
	cfg.MultichunkSize, cfg.GroupSize, cfg.Compression = 8<<20, 512<<10, "zstd-fast"
	r := newTestRepository(t, cfg)
	type setting struct {
		share, least, segment int // segment in MiB
	}
	var settings []setting
	for _, share := range []int{16, 32, 64, 128, 256} {
		for _, least := range []int{1, 16, 32, 64} {
			settings = append(settings, setting{share, least, 32})
		}
	}
	for _, segment := range []int{1, 4, 8, 16, 128} {
		settings = append(settings, setting{HookShare, leastHooks, segment})
	}
	fmt.Println("set versions MB chunks | share least segment_MiB | hooks stored_MB exact_MB more_% tables_read tables_KB")
	for _, set := range strings.Split(*setNames, ",") {
		versions := cutVersions(t, r, filepath.Join(*setsDir, set))
		total, chunks := 0, 0
		for _, v := range versions {
			chunks += len(v)
			for _, c := range v {
				total += len(c.data)
			}
		}
		exact := (&sparseStore{r: r, exact: true, share: HookShare, least: leastHooks}).storeAll(t, versions)
		for _, s := range settings {
			st := (&sparseStore{r: r, share: s.share, least: s.least, segment: s.segment << 20}).storeAll(t, versions)
			fmt.Printf("%s %d %.1f %d | %d %d %d | %d %.2f %.2f %.2f %d %d\n", set, len(versions), float64(total)/1e6, chunks, s.share, s.least,
				s.segment, st.hooks, float64(st.stored)/1e6, float64(exact.stored)/1e6, 100*(float64(st.stored)/float64(exact.stored)-1), st.read, st.tableBytes>>10)
		}
	}
}

type idChunk struct {
	id   ID
	data []byte
}

// cutVersions cuts all files of all versions of a data set.
func cutVersions(t *testing.T, r *Repository, dir string) (versions [][]idChunk) {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(dir, "v[0-9]*"))
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no versions in %s: %v", dir, err)
	}
	held := map[ID][]byte{}
	for _, dir := range dirs {
		var chunks []idChunk
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			b, err := os.ReadFile(path)
			kind := chunking.KindDefault
			if len(b) >= 64<<10 {
				kind = chunking.Detect(b[:64<<10])
			}
			start := 0
			for _, end := range r.Chunkers()[kind].Ends(nil, b, true) {
				c := b[start:end]
				start = end
				if len(bytes.Trim(c, "\x00")) == 0 {
					continue
				}
				id := r.ChunkID(c)
				if held[id] == nil {
					held[id] = bytes.Clone(c)
				}
				chunks = append(chunks, idChunk{id, held[id]})
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, chunks)
	}
	return versions
}

// sparseStore stores versions as clients do that know hooks alone when they begin.
type sparseStore struct {
	r     *Repository
	exact bool

	share, least, segment int

	tables map[Name][]TableEntry
	lead   map[Hook]Name
	known  map[ID]bool // what the present client knows exactly
	packer *Packer
	fresh  [][]TableEntry // tables that the present client has stored

	hooks, stored, read, tableBytes int
}

func (s *sparseStore) storeAll(t *testing.T, versions [][]idChunk) *sparseStore {
	t.Helper()
	s.tables, s.lead, s.known = map[Name][]TableEntry{}, map[Hook]Name{}, map[ID]bool{}
	for _, v := range versions {
		if !s.exact {
			s.known = map[ID]bool{}
		}
		s.storeVersion(t, v)
	}
	return s
}

func (s *sparseStore) storeVersion(t *testing.T, chunks []idChunk) {
	t.Helper()
	s.packer = s.r.NewPacker(KindData, func(_ context.Context, m *Sealed) error {
		s.stored += len(m.Wire) - paddingOf(t, s.r, m)
		s.fresh = append(s.fresh, m.Table)
		m.Release()
		return nil
	})
	var held []idChunk
	bytes := 0
	for _, c := range chunks {
		if s.known[c.id] {
			continue
		}
		s.known[c.id] = true
		if s.exact {
			s.add(t, c)
			continue
		}
		held = append(held, c)
		if bytes += len(c.data); bytes >= s.segment || len(held) >= 8192 {
			s.decide(t, held)
			held, bytes = held[:0], 0
		}
	}
	s.decide(t, held)
	if err := s.packer.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, table := range s.fresh { // announced: the next client sees it
		name := table[0].Hint.Multichunk
		s.tables[name] = table
		hooks := chooseHooks(table, s.share, s.least)
		s.hooks += len(hooks)
		for _, id := range hooks {
			s.lead[HookOf(id)] = name
		}
	}
	s.fresh = nil
}

// decide stores those of the held chunks that no champion has.
func (s *sparseStore) decide(t *testing.T, held []idChunk) {
	t.Helper()
	there := map[ID]bool{}
	for range 2 {
		for _, c := range held {
			n, ok := s.lead[HookOf(c.id)]
			if !ok || there[c.id] {
				continue
			}
			table := s.tables[n]
			s.read++
			s.tableBytes += 35 * len(table)
			for _, e := range table {
				there[e.ID] = true
			}
		}
	}
	for id := range there {
		s.known[id] = true
	}
	for _, c := range held {
		if !there[c.id] {
			s.add(t, c)
		}
	}
}

func (s *sparseStore) add(t *testing.T, c idChunk) {
	t.Helper()
	if err := s.packer.Add(t.Context(), c.id, c.data); err != nil {
		t.Fatal(err)
	}
}
