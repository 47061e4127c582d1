package main

import (
	"os"
	"testing"
	"time"
)

func TestMountOptions(t *testing.T) {
	o := mountOptions{
		fsync: "local", offline: "30s", snapshots: snapshotsDir,
		fuse: []string{"ro", "allow_other", "fsync=remote", "poll=1m", "cache_size=1G", "index_memory=64M", "offline=error", "snapshots_dir=past", "snapshot_every=1h", "noatime"},
	}
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	if !o.readOnly || !o.allowOther || o.fsync != "remote" || o.pollInterval() != time.Minute || o.cacheSize != 1<<30 || o.indexMem != 64<<20 ||
		o.offlineWait != 1 || o.snapshots != "past" || o.snapEvery != durationFlag(time.Hour) || len(o.fuse) != 1 || o.fuse[0] != "noatime" {
		t.Errorf("complete = %+v", o)
	}
}

func TestMountOptionsRefused(t *testing.T) {
	for _, opt := range []string{"fsync=never", "poll=often", "cache_size=big", "index_memory=1M", "offline=maybe", "snapshot_every=1ms", "snapshots_dir=a/b", "snapshots_dir=.."} {
		o := mountOptions{fsync: "local", offline: "30s", snapshots: snapshotsDir, fuse: []string{opt}}
		if err := o.complete(); err == nil {
			t.Errorf("-o %s is taken", opt)
		}
	}
}

func TestParseOffline(t *testing.T) {
	for in, want := range map[string]time.Duration{"wait": -1, "error": 1, "0s": 1, "30s": 30 * time.Second, "1h": time.Hour} {
		if got, err := parseOffline(in); err != nil || got != want {
			t.Errorf("parseOffline(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
}

func TestSubsetFlag(t *testing.T) {
	for in, parts := range map[string]int{"5%": 20, "100%": 1, "0.5%": 200, "2/7": 7} {
		var f subsetFlag
		if err := f.Set(in); err != nil || f.Parts != parts || f.Part < 1 || f.Part > parts {
			t.Errorf("Set(%q) = %+v, %v, want one of %d parts", in, f, err, parts)
		}
	}
	for _, in := range []string{"", "5", "0%", "101%", "0/7", "8/7", "1/0", "x/y"} {
		var f subsetFlag
		if err := f.Set(in); err == nil {
			t.Errorf("Set(%q) = %+v, want an error", in, f)
		}
	}
}

func TestSplitSnapshot(t *testing.T) {
	there := t.TempDir() + "/me@home"
	if err := os.Mkdir(there, 0o755); err != nil {
		t.Fatal(err)
	}
	for arg, want := range map[string][2]string{
		"/a/b":                         {"/a/b", ""},
		"/a/b@one":                     {"/a/b", "one"},
		"gdrive:home@2026-01-02":       {"gdrive:home", "2026-01-02"},
		":sftp,host=h,user=u@v:dir":    {":sftp,host=h,user=u@v:dir", ""},
		":sftp,host=h,user=u@v:dir@s1": {":sftp,host=h,user=u@v:dir", "s1"},
		"/a/me@home/":                  {"/a/me@home/", ""},
		there:                          {there, ""},
		there + "@latest":              {there, "latest"},
		"x@":                           {"x@", ""},
		"@x":                           {"@x", ""},
	} {
		if url, snapshot := splitSnapshot(arg); url != want[0] || snapshot != want[1] {
			t.Errorf("splitSnapshot(%q) = %q, %q, want %q", arg, url, snapshot, want)
		}
	}
}
