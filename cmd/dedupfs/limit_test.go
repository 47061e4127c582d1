package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dedupfs/dedupfs/limit"
)

// TestKeeper checks that a storage follows its timetable, and changes at once when that is replaced.
func TestKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up, down int64
		table := func(s string) limit.Timetable {
			parsed, err := limit.ParseTimetable(s, parseSize)
			if err != nil {
				t.Fatal(err)
			}
			return parsed
		}
		now := time.Now()
		soon := now.Add(10 * time.Minute).Format("15:04")
		later := now.Add(20 * time.Minute).Format("15:04")
		k := newKeeper(func(u, d int64) { up, down = u, d }, table(soon+",2K "+later+",1M"), table("64K"))
		if up != 1<<20 || down != 64<<10 {
			t.Errorf("limits = %d, %d, want those of yesterday evening, 1 MiB and 64 KiB", up, down)
		}
		time.Sleep(10*time.Minute + time.Second)
		synctest.Wait()
		if up != 2<<10 {
			t.Errorf("upload limit in the timetable's time = %d, want 2 KiB", up)
		}
		off := table("off")
		k.change(&off, nil)
		time.Sleep(time.Hour)
		synctest.Wait()
		if up != 0 || down != 64<<10 || k.timer != nil {
			t.Errorf("limits = %d, %d after a change, want none and 64 KiB, and no timer", up, down)
		}
	})
}

func TestLimitFlags(t *testing.T) {
	for _, args := range [][]string{
		{"version", "--limit-upload", "fast"}, {"version", "--cpu-limit", "30"}, {"version", "--limit-download", "8,512K"},
	} {
		var stderr bytes.Buffer
		if code := run(t.Context(), args, &stderr, &stderr); code != exitUsage || !strings.Contains(stderr.String(), "write") {
			t.Errorf("%v = %d, %s; want usage that says what to write", args, code, stderr.String())
		}
	}
	var stderr bytes.Buffer
	if code := run(t.Context(), []string{"version", "--limit-upload", "08:00,512K Sat-00:00,off", "--cpu-limit", "50%machine", "--nice"}, &stderr, &stderr); code != exitDone {
		t.Errorf("good limits = %d, %s", code, stderr.String())
	}
	t.Setenv("DEDUPFS_CPU_LIMIT", "much")
	if code := run(t.Context(), []string{"version"}, &stderr, &stderr); code == exitDone || !strings.Contains(stderr.String(), "DEDUPFS_CPU_LIMIT") {
		t.Errorf("a bad variable = %d, %s", code, stderr.String())
	}
}

// TestCommandsKeepCPULimit has a command work under a limit, for real: what it uses must be near it.
func TestCommandsKeepCPULimit(t *testing.T) {
	if os.Getenv("DEDUPFS_LONG") == "" {
		t.Skip("takes long; set DEDUPFS_LONG=1")
	}
	dir := t.TempDir()
	text := bytes.Repeat([]byte("All work and no play makes a dull text, as does no variation at all. "), 1<<20)
	if err := os.WriteFile(filepath.Join(dir, "text"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	before, start := limit.ProcessorTime(), time.Now()
	var out bytes.Buffer
	for ctx.Err() == nil {
		run(ctx, []string{"analyze", "--cpu-limit", "20%", dir}, &out, &out)
	}
	used := (limit.ProcessorTime() - before).Seconds() / time.Since(start).Seconds()
	if used > 0.25 {
		t.Errorf("%.2f cores under a limit of 0.2", used)
	}
}
