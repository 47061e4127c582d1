package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
)

// TestBenchmark measures little and looks whether every stage was measured, alone and by all workers.
func TestBenchmark(t *testing.T) {
	tests := []struct {
		args []string
		want []string
	}{
		{[]string{"--chunker", "GFD-8"}, []string{"read", "scan", "cut", "hash", "compress", "seal", "all"}},
		{[]string{"--chunker", "Fixed-4", "--compression", "none"}, []string{"read", "cut", "hash", "compress", "seal", "all"}},
	}
	for _, tt := range tests {
		var stdout, stderr bytes.Buffer
		args := append([]string{"benchmark", "--json", "--runs", "1", "--size", "1M"}, tt.args...)
		if code := run(t.Context(), args, &stdout, &stderr); code != 0 {
			t.Fatalf("%v: exit code %d: %s", args, code, &stderr)
		}
		var report benchmarkReport
		if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
			t.Fatal(err)
		}
		var stages []string
		for _, r := range report.Rows {
			if r.Workers == 1 {
				stages = append(stages, r.Stage)
			}
			if r.PerSecond <= 0 || r.PerCPU <= 0 || r.Bytes != int64(r.Workers)<<20 {
				t.Errorf("%v: %+v", args, r)
			}
		}
		if !slices.Equal(stages, tt.want) {
			t.Errorf("%v: stages %q, want %q", args, stages, tt.want)
		}
	}
	for _, args := range [][]string{{"benchmark", "--chunker", "nonsense"}, {"benchmark", "--runs", "0"}} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, &stdout, &stderr); code != 2 {
			t.Errorf("%v: exit code %d, want 2", args, code)
		}
	}
}
