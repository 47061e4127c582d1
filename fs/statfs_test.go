package fs

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestSpaceTeller asks a storage that is slow, wrong once, and has nothing to say.
func TestSpaceTeller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked int
		var fails error
		takes := 3 * time.Second
		s := newSpaceTeller(func(ctx context.Context) (total, free int64, err error) {
			asked++
			time.Sleep(takes)
			return 1000, 100 * int64(asked), fails
		})
		defer s.close()
		want := func(step string, total, free int64, known bool, times int) {
			t.Helper()
			synctest.Wait()
			gotTotal, gotFree, ok := s.get(t.Context())
			if gotTotal != total || gotFree != free || ok != known || asked != times {
				t.Errorf("%s: %d of %d free, known %v, asked %d times; want %d of %d, %v, %d times", step, gotFree, gotTotal, ok, asked, free, total, known, times)
			}
		}
		want("at first", 0, 0, false, 1)
		time.Sleep(takes)
		want("when the answer is there", 1000, 100, true, 1)
		time.Sleep(spaceEvery)
		want("later", 1000, 100, true, 2) // the old answer, while the new one is under way
		time.Sleep(takes)
		want("when the new answer is there", 1000, 200, true, 2)

		takes, fails = 0, errors.New("away")
		time.Sleep(spaceEvery)
		want("when the storage is away", 1000, 200, true, 3)
		fails = nil
		want("while it is not asked again", 1000, 200, true, 3)
		time.Sleep(spaceEvery)
		want("when it is back", 1000, 400, true, 4)
		time.Sleep(time.Millisecond)
		want("when it answers at once", 1000, 500, true, 5)
	})
}

func TestSpaceUnknown(t *testing.T) {
	s := newSpaceTeller(nil)
	defer s.close()
	if _, _, ok := s.get(t.Context()); ok {
		t.Error("a storage that cannot tell has told something")
	}
}
