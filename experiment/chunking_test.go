package experiment

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// plainVersions makes three versions of 1 MB, in which an insertion near the front comes, and nothing.
func plainVersions(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "set")
	data := random(4, 1_000_000)
	for i := range data {
		data[i] = "0123456789ab\n   "[data[i]&15]
	}
	for v := range 3 {
		write(t, filepath.Join(dir, fmt.Sprint("v", v), "data"), data)
		write(t, filepath.Join(dir, fmt.Sprint("v", v), "small"), []byte("small"))
		if v == 0 {
			data = append([]byte("inserted at the front"), data...)
		}
	}
	return dir
}

func TestThesisConfigs(t *testing.T) {
	names := ThesisConfigs()
	seen := map[string]bool{}
	for _, n := range append(names, OurConfigs()...) {
		if seen[n] {
			t.Errorf("%s twice", n)
		}
		seen[n] = true
		if c, err := ParseConfig(n); err != nil || c.Name != n {
			t.Errorf("ParseConfig(%q) = %v, %v", n, c.Name, err)
		}
	}
	if len(names) != 144 || !seen["Custom-250-30/TTTD-4-Adler32/Gzip-Cipher"] {
		t.Errorf("%d configurations, want 144 and the one that the thesis chose", len(names))
	}
	for _, n := range []string{"", "Custom-125-0/Fixed-4", "Custom-x-0/Fixed-4/Cipher", "Custom-125-0/Fixed-x/Cipher", "Custom-125-0/Fixed-4/Rot13",
		"Custom-999999999-0/Fixed-4/Cipher", "Custom-125--1/Fixed-4/Cipher"} {
		if _, err := ParseConfig(n); err == nil || !strings.Contains(err.Error(), n) {
			t.Errorf("ParseConfig(%q) = %v", n, err)
		}
	}
}

func TestChunking(t *testing.T) {
	dir := plainVersions(t)
	results := map[string]*Result{}
	for _, name := range []string{"Custom-125-0/Fixed-4/Cipher", "Custom-125-0/TTTD-4-Adler32/Cipher", "Custom-125-0/TTTD-4-Adler32/Gzip-Cipher",
		"Custom-8192-0/Whole-Unbounded/Cipher", "Custom-8192-0/ByKind/Zstdbetter-Cipher"} {
		c, err := ParseConfig(name)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Chunking(t.Context(), dir, c, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		results[name] = r
		if len(r.Versions) != 3 || r.Sum.Files != 6 || r.Sum.Bytes != 3_000_000+2*21+3*5 {
			t.Errorf("%s: %d versions of %d files, %d bytes", name, len(r.Versions), r.Sum.Files, r.Sum.Bytes)
		}
		if last := r.Versions[2]; last.NewChunks != 0 || last.Stored() != 0 || last.Chunks != r.Versions[1].Chunks {
			t.Errorf("%s: nothing has changed, and %d chunks of %d are new, %d bytes stored", name, last.NewChunks, last.Chunks, last.Stored())
		}
	}
	fixed, tttd := results["Custom-125-0/Fixed-4/Cipher"], results["Custom-125-0/TTTD-4-Adler32/Cipher"]
	if got := fixed.Versions[1]; got.NewBytes < 1_000_000 {
		t.Errorf("after an insertion fixed chunks are %d bytes new, want all", got.NewBytes)
	}
	if got := tttd.Versions[1]; got.NewBytes > 30_000 {
		t.Errorf("after an insertion content-defined chunks are %d bytes new, want few", got.NewBytes)
	}
	if n := tttd.Versions[0]; n.Multichunks < 8 || n.Multichunks > 9 || n.Multichunk < 1_000_000 || n.Multichunk > 1_080_000 || n.Nodes == 0 {
		t.Errorf("1 MB makes %d multichunks of 125 KB, %d bytes, %d of nodes", n.Multichunks, n.Multichunk, n.Nodes)
	}
	if tttd.Ratio < 2.5 || tttd.Ratio > 3 || fixed.Ratio > 1.6 {
		t.Errorf("ratios %.2f and %.2f, want nearly 3, and half of it", tttd.Ratio, fixed.Ratio)
	}
	if gzip := results["Custom-125-0/TTTD-4-Adler32/Gzip-Cipher"]; gzip.Stored > tttd.Stored*65/100 {
		t.Errorf("four random bits of eight take %d bytes under gzip, %d without", gzip.Stored, tttd.Stored)
	}
	if whole := results["Custom-8192-0/Whole-Unbounded/Cipher"]; whole.Sum.NewChunks != 3 {
		t.Errorf("whole files make %d chunks, want 3", whole.Sum.NewChunks)
	}
}

func TestWithPause(t *testing.T) {
	r := &Result{Config: "Custom-125-0/Fixed-4/Cipher", Versions: []Account{{Bytes: 100, Multichunk: 50, Multichunks: 10, Seconds: 1, CPU: 0.5}}}
	c, err := ParseConfig("Custom-125-30/Fixed-4/Cipher")
	if err != nil {
		t.Fatal(err)
	}
	r.finish()
	p := r.WithPause(c, 0)
	if p.Config != c.Name || math.Abs(p.Sum.Seconds-1.3) > 1e-9 || p.Stored != r.Stored || p.Load >= r.Load {
		t.Errorf("with 10 pauses of 30 ms: %+v", p)
	}
	if back := p.WithPause(Config{Name: r.Config}, 30*time.Millisecond); math.Abs(back.Sum.Seconds-1) > 1e-9 {
		t.Errorf("without them: %v s", back.Sum.Seconds)
	}
}

// TestSleep has the pauses slept: they are in the time once.
func TestSleep(t *testing.T) {
	c, err := ParseConfig("Custom-125-30/Fixed-4/Cipher")
	if err != nil {
		t.Fatal(err)
	}
	c.Sleep = true
	begin := time.Now()
	r, err := Chunking(t.Context(), plainVersions(t), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	took, slept := time.Since(begin), time.Duration(r.Sum.Multichunks-4)*c.Pause // none after the last of a version; one is on its way
	if took < slept || r.Sum.Seconds > took.Seconds() {
		t.Errorf("%d multichunks took %v, %.2f s by the account, want at least %v, and no less than the account", r.Sum.Multichunks, took, r.Sum.Seconds, slept)
	}
}

func TestReconstruct(t *testing.T) {
	dir := plainVersions(t)
	for _, kb := range []int{125, 8192} {
		list, err := Reconstruct(t.Context(), dir, kb, []int{1, 2, 0, 99}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) != 3 || list[2].Lacks != 3 {
			t.Fatalf("%d results, want those of 1, 2 and all versions", len(list))
		}
		if none := list[0]; none.Needed != 0 || none.Full.Bytes != 0 || none.Ranged.Requests != 0 {
			t.Errorf("the last version is equal, and %+v is fetched", none)
		}
		some, all := list[1], list[2]
		if some.Needed == 0 || some.Needed > 60_000 || some.Ranged.Bytes > some.Full.Bytes {
			t.Errorf("for an insertion %d bytes are needed, %d fetched whole, %d by range", some.Needed, some.Full.Bytes, some.Ranged.Bytes)
		}
		if all.Needed < 1_000_000 || all.Full.Bytes < 400_000 || all.Full.Seconds[0] <= all.Full.Seconds[1] {
			t.Errorf("for all %d bytes are needed, %d fetched, in %v s", all.Needed, all.Full.Bytes, all.Full.Seconds)
		}
	}
}
