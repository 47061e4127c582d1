package store

import (
	"runtime/metrics"
	"syscall"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/chunking"
	"github.com/dedupfs/dedupfs/remote/remotetest"
	"github.com/dedupfs/dedupfs/store/internal/seal"
)

// testConfig makes small multichunks of small groups, so that little data makes many.
var testConfig = Config{
	Repository:     RepositoryID{1, 2, 3},
	Chunkers:       chunking.DefaultSet(),
	MultichunkSize: 256 << 10,
	GroupSize:      32 << 10,
	Compression:    "zstd",
}

// newTestRepository returns a repository with fresh keys on an empty storage, without the objects that Init makes.
func newTestRepository(t testing.TB, cfg Config) *Repository {
	t.Helper()
	r, err := newRepository(remotetest.NewMem(), seal.NewKeyring(cfg.Repository), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// limitAllocs fails the test if fn allocates more than limit bytes.
func limitAllocs(t *testing.T, limit int, fn func()) {
	t.Helper()
	before := allocated()
	fn()
	if n := allocated() - before; n > uint64(limit) {
		t.Errorf("%d bytes were allocated, at most %d expected", n, limit)
	}
}

// allocated returns the bytes that the program has allocated so far, small objects as they leave the caches of threads.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// reportCPU makes a benchmark report what it does for each second of processor time, which tells more than the clock where
// others use the machine too. It returns a function that is called at the end with the bytes of each iteration.
func reportCPU(b *testing.B) (end func(bytes int)) {
	start := cpuTime()
	return func(bytes int) {
		used := cpuTime() - start
		b.ReportMetric(float64(bytes)*float64(b.N)/used.Seconds()/1e6, "MB/cpu-s")
		b.ReportMetric(used.Seconds()*1e6/float64(b.N), "cpu-us/op")
	}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
