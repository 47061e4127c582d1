package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	table := &table{}
	for _, v := range []float64{30, 10, 20} {
		table.add("native", "write", "MB/s", v)
		table.add("mount", "write", "MB/s", v/2)
		table.add("native", "clone", "s", v)
		table.add("mount", "clone", "s", v*2)
	}
	table.add("mount", "peak memory", "MiB", 123.4)
	want := [][]string{
		{"step", "native", "mount"},
		{"write, MB/s", "20.00", "10.00 (0.50)"},
		{"clone, s", "20.00", "40.00 (0.50)"},
		{"peak memory, MiB", "-", "123"},
	}
	lines := strings.Split(strings.TrimSpace(table.String()), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(want), table)
	}
	for i, cells := range want {
		if got, want := strings.Join(strings.Fields(lines[i]), " "), strings.Join(cells, " "); got != want {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, tc := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{4, 1}, 2.5}, {[]float64{9, 1, 2}, 2}} {
		if got := median(tc.values); got != tc.want {
			t.Errorf("median(%v) = %v, want %v", tc.values, got, tc.want)
		}
	}
}

// TestWorkloads lets the native file system do a little of everything.
func TestWorkloads(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("sync -f is of Linux")
	}
	c, err := parseFlags([]string{"-work", t.TempDir(), "-mib", "1", "-files", "1100", "-ops", "20", "-tree", ".", "-cold=false", "-only", "seq,rand,meta,tree"})
	if err != nil {
		t.Fatal(err)
	}
	data, err := prepare(c, c.work)
	if err != nil {
		t.Fatal(err)
	}
	table := &table{}
	if err := runSubject(c, subjects(c, c.work)[0], data, table); err != nil {
		t.Fatal(err)
	}
	for _, step := range []string{"write and fsync", "random write 4 KiB", "unlink", "rm -r"} {
		if !strings.Contains(table.String(), step) {
			t.Errorf("no line about %q in\n%s", step, table)
		}
	}
	if left, _ := os.ReadDir(c.work); len(left) != 2 {
		t.Errorf("%d files left, want the two inputs", len(left))
	}
}

// TestTurns lets two directories of the native file system take turns.
func TestTurns(t *testing.T) {
	c, err := parseFlags([]string{"-work", t.TempDir(), "-mib", "1", "-ops", "20", "-tree", "", "-cold=false", "-turns"})
	if err != nil {
		t.Fatal(err)
	}
	data, err := prepare(c, c.work)
	if err != nil {
		t.Fatal(err)
	}
	var two []*subject
	for _, name := range []string{"loopback-copy", "mount"} {
		two = append(two, &subject{name: name, dir: filepath.Join(c.work, name)})
	}
	if err := measureTurns(c, two, data); err != nil {
		t.Fatal(err)
	}
	if err := measureTurns(c, two[:1], data); err == nil {
		t.Error("one file system took turns with itself")
	}
}
