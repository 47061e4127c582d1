package cache_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/cache"
	"github.com/dedupfs/dedupfs/cache/cachetest"
	"github.com/dedupfs/dedupfs/store"
)

// logRecord is one record of the model.
type logRecord struct {
	typ        byte
	body, data []byte
	pos        cache.Pos
}

func randomRecord(rng *rand.Rand) logRecord {
	r := logRecord{typ: cache.FirstType + byte(rng.IntN(4)), body: randomBytes(rng, rng.IntN(60))}
	if rng.IntN(2) == 0 {
		r.data = randomBytes(rng, 1+rng.IntN(3000))
	}
	return r
}

func appendRecord(t *testing.T, l *cache.Log, r logRecord) logRecord {
	t.Helper()
	pos, _, err := l.Append(r.typ, r.body, r.data)
	if err != nil {
		t.Fatalf("Append: %v", err)
	}
	r.pos = pos
	return r
}

// replayAll returns what is in the log from a position on.
func replayAll(t *testing.T, l *cache.Log, from cache.Pos) []logRecord {
	t.Helper()
	var got []logRecord
	err := l.Replay(from, func(rec cache.Pos, typ byte, body []byte, dataPos cache.Pos, n int) error {
		data := make([]byte, n)
		if err := l.ReadAt(data, dataPos); err != nil {
			return err
		}
		got = append(got, logRecord{typ: typ, body: bytes.Clone(body), data: data, pos: rec})
		return nil
	})
	if err != nil {
		t.Fatalf("Replay: %v", err)
	}
	return got
}

func (r logRecord) equal(s logRecord) bool {
	return r.typ == s.typ && r.pos == s.pos && bytes.Equal(r.body, s.body) && bytes.Equal(r.data, s.data)
}

// checkPrefix reports an error unless got is a prefix of want that holds at least the first acked.
func checkPrefix(t *testing.T, got, want []logRecord, acked int) {
	t.Helper()
	if len(got) < acked || len(got) > len(want) {
		t.Fatalf("log holds %d records, want %d to %d", len(got), acked, len(want))
	}
	for i := range got {
		if !got[i].equal(want[i]) {
			t.Fatalf("record %d at %v (type %d, %d and %d bytes) is not the one that was appended at %v", i, got[i].pos, got[i].typ,
				len(got[i].body), len(got[i].data), want[i].pos)
		}
	}
}

func openLog(t *testing.T, fsys cache.Files, cut cache.Pos) *cache.Log {
	t.Helper()
	l, err := cache.OpenTestLog(fsys, cut, testSegment)
	if err != nil {
		t.Fatalf("open log: %v", err)
	}
	return l
}

const testSegment = 16 << 10

func TestLogReplay(t *testing.T) {
	rng := newRand(t)
	d := cachetest.NewDisk(0)
	var want []logRecord
	for life := range 4 {
		l := openLog(t, d, 0)
		checkPrefix(t, replayAll(t, l, 0), want, len(want))
		for range 40 {
			want = append(want, appendRecord(t, l, randomRecord(rng)))
			if rng.IntN(5) == 0 {
				if err := l.Sync(l.End()); err != nil {
					t.Fatal(err)
				}
			}
		}
		from := want[len(want)/2]
		if life == 3 {
			break
		}
		if err := l.CloseForTest(); err != nil {
			t.Fatal(err)
		}
		half := replayAll(t, openLog(t, d, 0), from.pos)
		checkPrefix(t, half, want[len(want)/2:], len(want)-len(want)/2)
	}
}

// TestLogPowerCut cuts the power at random moments, many times in the life of one log.
func TestLogPowerCut(t *testing.T) {
	states := 2000
	if long {
		states = 100000
	}
	rng := newRand(t)
	atStake := 0
	for done := 0; done < states; {
		n, stake := powerCutRun(t, rng, 40)
		done, atStake = done+n, atStake+stake
	}
	if atStake < states/2 {
		t.Errorf("in only %d of %d states there were records both synced and not", atStake, states)
	}
}

func powerCutRun(t *testing.T, rng *rand.Rand, cuts int) (states, atStake int) {
	d := cachetest.NewDisk(0)
	l := openLog(t, d, 0)
	var want []logRecord
	acked := 0
	for range cuts {
		for range rng.IntN(8) {
			want = append(want, appendRecord(t, l, randomRecord(rng)))
		}
		if rng.IntN(3) == 0 {
			if err := l.Sync(l.End()); err != nil {
				t.Fatal(err)
			}
			acked = len(want)
		}
		if acked > 0 && acked < len(want) {
			atStake++
		}
		states++
		after := d.PowerCut(rng)
		l2 := openLog(t, after, 0)
		got := replayAll(t, l2, 0)
		checkPrefix(t, got, want, acked)
		if err := l2.Damage(); err != nil {
			t.Fatalf("a power cut looks like damage: %v", err)
		}
		if rng.IntN(4) == 0 {
			// Life goes on with what is left.
			d, l, want, acked = after, l2, got, len(got)
		}
	}
	return states, atStake
}

// TestLogCutAtEveryByte shortens the last segment by every length up to 4 KiB, and the others by some.
func TestLogCutAtEveryByte(t *testing.T) {
	rng := newRand(t)
	d := cachetest.NewDisk(0)
	l := openLog(t, d, 0)
	var want []logRecord
	for range 60 {
		want = append(want, appendRecord(t, l, randomRecord(rng)))
	}
	if err := l.CloseForTest(); err != nil {
		t.Fatal(err)
	}
	list, err := d.List("log")
	if err != nil {
		t.Fatal(err)
	}
	for i, info := range list {
		name := "log/" + info.Name
		whole, err := d.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		step := 1
		if i < len(list)-1 && !long {
			step = 23
		}
		for cut := 0; cut < min(4<<10, len(whole)); cut += step {
			torn := d.Clone()
			if err := torn.Replace(name, whole[:len(whole)-cut]); err != nil {
				t.Fatal(err)
			}
			checkPrefix(t, replayAll(t, openLog(t, torn, 0), 0), want, 0)
		}
	}
}

// TestLogDamage damages a record that had been synced, behind which there are others.
func TestLogDamage(t *testing.T) {
	rng := newRand(t)
	d := cachetest.NewDisk(0)
	l := openLog(t, d, 0)
	var want []logRecord
	for range 50 {
		want = append(want, appendRecord(t, l, randomRecord(rng)))
		if err := l.Sync(l.End()); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.CloseForTest(); err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{0, 5, 20, 47} {
		hurt := d.Clone()
		pos := want[i].pos
		name := fmt.Sprintf("log/%08x", uint64(pos)>>32)
		b, err := d.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		b[pos&0xffffffff+9] ^= 1
		if err := hurt.Replace(name, b); err != nil {
			t.Fatal(err)
		}
		l := openLog(t, hurt, 0)
		checkPrefix(t, replayAll(t, l, 0), want[:i], i)
		if err := l.Damage(); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("record %d damaged: Damage() = %v, want ErrCorrupt", i, err)
		}
	}
}

// TestLogFails lets every operation fail, once and for ever.
func TestLogFails(t *testing.T) {
	rng := newRand(t)
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EIO, syscall.EROFS, syscall.EMFILE, syscall.EDQUOT} {
		for _, forever := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/%v", errno, forever), func(t *testing.T) {
				for i := 1; logFailsAt(t, rng, i, errno, forever) > 0; i++ {
				}
			})
		}
	}
}

// logFailsAt returns how many operations have failed.
func logFailsAt(t *testing.T, rng *rand.Rand, i int, errno syscall.Errno, forever bool) int {
	d := cachetest.NewDisk(0)
	f := cachetest.NewFaults(d)
	l := openLog(t, f, 0)
	var want []logRecord
	acked := 0
	step := func() {
		r := randomRecord(rng)
		pos, _, err := l.Append(r.typ, r.body, r.data)
		if err == nil {
			r.pos = pos
			want = append(want, r)
		} else if !errors.Is(err, errno) {
			t.Fatalf("Append: %v, want %v", err, errno)
		}
		if err := l.Sync(l.End()); err == nil {
			acked = len(want)
		} else if !errors.Is(err, errno) {
			t.Fatalf("Sync: %v, want %v", err, errno)
		}
	}
	f.FailAt(i, errno, forever)
	for range 15 {
		step()
	}
	checkPrefix(t, replayAll(t, openLog(t, d.PowerCut(rng), 0), 0), want, acked)
	hit := f.Hit()
	f.Heal()
	before := acked
	step()
	if acked != len(want) || acked == before {
		t.Fatalf("operation %d failed: the log did not recover: %d of %d records acknowledged", i, acked, len(want))
	}
	checkPrefix(t, replayAll(t, openLog(t, d.PowerCut(rng), 0), 0), want, acked)
	return hit
}

// TestLogLeftover has a whole record behind the place where the log went on in another segment, as an append leaves it that has
// failed after it had written everything.
func TestLogLeftover(t *testing.T) {
	rng := newRand(t)
	d := cachetest.NewDisk(0)
	l := openLog(t, d, 0)
	var want []logRecord
	appendTo := func(l *cache.Log) (r logRecord) {
		r = randomRecord(rng)
		var err error
		if r.pos, _, err = l.Append(r.typ, r.body, r.data); err == nil {
			err = l.Sync(l.End())
		}
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	want = append(want, appendTo(l))
	other := d.Clone()
	left := appendTo(l)
	name := fmt.Sprintf("log/%08x", uint64(left.pos)>>32)
	b, err := d.Read(name)
	if err != nil {
		t.Fatal(err)
	}
	l2 := openLog(t, other, 0)
	want = append(want, appendTo(l2), appendTo(l2)) // in a segment of its own
	if err := l2.CloseForTest(); err != nil {
		t.Fatal(err)
	}
	if err := other.Replace(name, b); err != nil {
		t.Fatal(err)
	}
	checkPrefix(t, replayAll(t, openLog(t, other, 0), 0), want, len(want))
}

// TestLogFull fills a disk: nothing that was accepted is lost, and records without data still go.
func TestLogFull(t *testing.T) {
	rng := newRand(t)
	d := cachetest.NewDisk(100 << 10)
	l := openLog(t, d, 0)
	var want []logRecord
	var err error
	for err == nil {
		r := logRecord{typ: cache.FirstType, body: []byte("write"), data: randomBytes(rng, 2000)}
		if r.pos, _, err = l.Append(r.typ, r.body, r.data); err == nil {
			want = append(want, r)
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("Append to a full disk: %v, want ENOSPC", err)
	}
	for range 5 {
		want = append(want, appendRecord(t, l, logRecord{typ: cache.FirstType, body: []byte("unlink")}))
	}
	if err := l.Sync(l.End()); err != nil {
		t.Fatal(err)
	}
	checkPrefix(t, replayAll(t, openLog(t, d.PowerCut(rng), 0), 0), want, len(want))
	l.SetCutForTest(l.End())
	if n, err := l.EvictForTest(); n == 0 || err != nil {
		t.Fatalf("no segment could be removed: %v", err)
	}
	appendRecord(t, l, logRecord{typ: cache.FirstType, data: randomBytes(rng, 2000)})
}

// TestLogRetain keeps segments as long as somebody needs them.
func TestLogRetain(t *testing.T) {
	rng := newRand(t)
	d := cachetest.NewDisk(0)
	l := openLog(t, d, 0)
	var pieces []cache.Pos
	for range 30 {
		_, at, err := l.Append(cache.FirstType, nil, randomBytes(rng, 3000))
		if err != nil {
			t.Fatal(err)
		}
		l.Retain(at, 3000)
		pieces = append(pieces, at)
	}
	evict := func() (n int) {
		for {
			if freed, err := l.EvictForTest(); err != nil || freed == 0 {
				return n
			}
			n++
		}
	}
	if err := l.Sync(l.End()); err != nil {
		t.Fatal(err)
	}
	if n := evict(); n > 0 {
		t.Errorf("%d segments removed before the cut", n)
	}
	l.SetCutForTest(l.End())
	if n := evict(); n > 0 {
		t.Errorf("%d retained segments removed", n)
	}
	for _, at := range pieces {
		l.Release(at, 1000)
		l.Release(at+1000, 2000)
	}
	if n := evict(); n < 4 {
		t.Errorf("%d segments removed after release, want all but the last", n)
	}
	if err := l.ReadAt(make([]byte, 10), pieces[0]); err == nil {
		t.Error("ReadAt of a removed segment succeeds")
	}
	if err := l.CloseForTest(); err != nil {
		t.Fatal(err)
	}
	list, _ := d.List("log")
	var sum int64
	for _, info := range list {
		sum += info.Size
	}
	if used := l.UsedForTest(); used < sum || used > sum+testSegment {
		t.Errorf("budget says %d bytes are used, files have %d", used, sum)
	}
}

// slowSync counts syncs, which take a while.
type slowSync struct {
	cache.Files
	syncs atomic.Int64
}

type slowFile struct {
	cache.File
	s *slowSync
}

func (s *slowSync) Create(name string) (cache.File, error) {
	f, err := s.Files.Create(name)
	return slowFile{f, s}, err
}

func (f slowFile) Sync() error {
	f.s.syncs.Add(1)
	time.Sleep(2 * time.Millisecond)
	return f.File.Sync()
}

// TestLogGroupCommit lets many writers share flushes.
func TestLogGroupCommit(t *testing.T) {
	const writers, each = 16, 20
	s := &slowSync{Files: cachetest.NewDisk(0)}
	l, err := cache.OpenTestLog(s, 0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				pos, at, err := l.Append(cache.FirstType, []byte{byte(w)}, []byte{byte(i)})
				if err == nil {
					err = l.Sync(pos)
				}
				b := make([]byte, 1)
				if err == nil {
					err = l.ReadAt(b, at)
				}
				if err != nil || b[0] != byte(i) {
					t.Errorf("writer %d: read %v, %v", w, b, err)
				}
			}
		})
	}
	wg.Wait()
	if n := s.syncs.Load(); n > writers*each/4 {
		t.Errorf("%d flushes for %d syncs by %d writers", n, writers*each, writers)
	}
	got := map[byte][]byte{}
	l.CloseForTest()
	l = openLog(t, s.Files, 0)
	for _, r := range replayAll(t, l, 0) {
		got[r.body[0]] = append(got[r.body[0]], r.data[0])
	}
	for w, data := range got {
		if !slices.IsSorted(data) || len(data) != each {
			t.Errorf("writer %d: %d records, in order: %v", w, len(data), slices.IsSorted(data))
		}
	}
}

// TestLogForeignFiles leaves files alone that are none of ours.
func TestLogForeignFiles(t *testing.T) {
	d := cachetest.NewDisk(0)
	l := openLog(t, d, 0)
	appendRecord(t, l, logRecord{typ: cache.FirstType, body: []byte("x")})
	l.CloseForTest()
	for _, name := range []string{"log/notes.txt", "log/0000000g", "log/1"} {
		if err := d.Replace(name, []byte(strings.Repeat("x", 100))); err != nil {
			t.Fatal(err)
		}
	}
	if got := replayAll(t, openLog(t, d, 0), 0); len(got) != 1 {
		t.Errorf("%d records, want 1", len(got))
	}
}

// TestZerosAhead syncs small records, one by one, kills the log, and finds them all again, and nothing behind them.
func TestZerosAhead(t *testing.T) {
	rng := newRand(t)
	fsys := cache.OSFiles(t.TempDir())
	l, err := cache.OpenTestLog(fsys, 0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer l.CloseForTest()
	var want []logRecord
	grown := map[int64]bool{} // lengths of the segment that syncs have met
	for range 200 {
		r := appendRecord(t, l, randomRecord(rng))
		want = append(want, r)
		if err := l.Sync(r.pos); err != nil {
			t.Fatal(err)
		}
		grown[sizeOf(t, fsys, "log/00000001")] = true
	}
	if len(grown) > 10 {
		t.Errorf("the segment had %d lengths during %d small syncs, want few", len(grown), len(want))
	}
	again, err := cache.OpenTestLog(fsys, 0, 1<<20) // as after a crash
	if err != nil {
		t.Fatal(err)
	}
	defer again.CloseForTest()
	checkPrefix(t, replayAll(t, again, 0), want, len(want))
	if size, end := sizeOf(t, fsys, "log/00000001"), int64(again.End()&0xffffffff); size != end {
		t.Errorf("the segment has %d bytes, want %d: zeros stay behind its end", size, end)
	}
}

func sizeOf(t *testing.T, fsys cache.Files, name string) int64 {
	t.Helper()
	f, err := fsys.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestMarkAfterLargeSync damages data that was synced, with nothing appended since: the log is opened as if nothing was, since what has
// been synced needs no check then. Who reads the data finds the damage.
func TestMarkAfterLargeSync(t *testing.T) {
	fsys := cache.OSFiles(t.TempDir())
	l, err := cache.OpenTestLog(fsys, 0, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer l.CloseForTest()
	data := make([]byte, 1<<20)
	var last cache.Pos
	const records = 20
	for range records {
		if last, _, err = l.Append(cache.FirstType, nil, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Sync(last); err != nil {
		t.Fatal(err)
	}
	f, err := fsys.Open("log/00000001")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.WriteAt(3<<20, []byte("damage")); err != nil {
		t.Fatal(err)
	}
	again, err := cache.OpenTestLog(fsys, 0, 64<<20) // as after a crash
	if err != nil {
		t.Fatal(err)
	}
	defer again.CloseForTest()
	if got := len(replayAll(t, again, 0)); got != records {
		t.Errorf("%d records, want %d: data was checked that had been synced", got, records)
	}
}
