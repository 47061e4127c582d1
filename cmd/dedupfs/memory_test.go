package main

import "testing"

func TestHeapLimit(t *testing.T) {
	for _, tt := range []struct{ limit, live, want int64 }{
		{144 << 20, 0, 144 << 20},
		{144 << 20, 96 << 20, 144 << 20},
		{144 << 20, 200 << 20, 266 << 20},
	} {
		if got := heapLimit(tt.limit, tt.live); got != tt.want {
			t.Errorf("%d bytes live, limit %d: %d, want %d", tt.live, tt.limit, got, tt.want)
		}
	}
}
