package cache

import (
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/store"
)

func TestMappingsLimit(t *testing.T) {
	m := &mappings{resident: 200 << 20}
	for _, tt := range []struct{ others, want int64 }{
		{0, mappedMost},
		{150 << 20, 42 << 20},
		{190 << 20, mappedLeast},
	} {
		if got := m.limit(tt.others); got != tt.want {
			t.Errorf("beside %d bytes: %d, want %d", tt.others, got, tt.want)
		}
	}
}

func TestRecentGroupsExpire(t *testing.T) {
	now := time.Unix(1000, 0)
	r := &recentGroups{budget: 1 << 20, now: func() time.Time { return now }}
	old, used := store.Hint{Off: 16, Len: 1}, store.Hint{Off: 17, Len: 1}
	r.put(old, &store.Group{})
	r.put(used, &store.Group{})
	now = now.Add(5 * time.Second)
	r.get(used)
	r.expire(now.Add(-time.Second))
	if r.get(old) != nil {
		t.Error("a group that nobody has used is still there")
	}
	if r.get(used) == nil {
		t.Error("a group that was used just now is gone")
	}
}
