package cache_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/dedupfs/dedupfs/remote"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store/storetest"
)

// fetchingStorage is a storage that can fetch into files, in one of several ways.
type fetchingStorage struct {
	*countingStorage
	how     string
	fetches int
}

var _ remote.Fetcher = (*fetchingStorage)(nil)

func (s *fetchingStorage) Fetch(ctx context.Context, name string, file *os.File) (int64, error) {
	data, err := s.Storage.Get(ctx, name, 0, -1)
	if err != nil {
		return 0, err
	}
	s.fetches++
	switch s.how {
	case "fails":
		file.Write(data[:len(data)/2])
		return 0, errors.New("the disk is slow")
	case "short":
		data = data[:len(data)/2]
	case "damaged":
		data = append([]byte{}, data...)
		for i := 100; i < len(data); i += 1000 {
			data[i] ^= 1
		}
	}
	n, err := file.Write(data)
	return int64(n), err
}

// TestFetchFile reads multichunks that the storage has written to the disk, well or badly.
func TestFetchFile(t *testing.T) {
	for _, how := range []string{"well", "fails", "short", "damaged"} {
		t.Run(how, func(t *testing.T) {
			f, dir := dirFixture(t)
			f.st = &countingStorage{Storage: remotetest.NewMem()}
			st := &fetchingStorage{countingStorage: f.st, how: how}
			f.repo = storetest.New(t, st)
			f.openDir(dir)
			chunks := f.addRandom(60, 8000)
			f.commit(chunks, "one")
			p := f.publish()
			f.close()
			f.openDir(dir)
			f.c.EvictAllForTest()
			f.learn(p)
			f.st.gets.Store(0)
			st.fetches = 0
			f.checkBulk(f.c, chunks)
			f.c.DropMemoryForTest()
			f.check(f.c, chunks)
			if st.fetches == 0 {
				t.Error("nothing was fetched")
			}
			if gets := f.st.gets.Load(); how == "well" && gets > 0 || how != "well" && gets == 0 {
				t.Errorf("%d gets beside %d fetches", gets, st.fetches)
			}
		})
	}
}
