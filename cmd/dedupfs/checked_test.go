package main

import (
	"os"
	"testing"
	"time"

	"github.com/dedupfs/dedupfs/store"
)

// TestChecked remembers what was read until a check has come to its end, or for a day.
func TestChecked(t *testing.T) {
	root, id := t.TempDir(), store.RepositoryID{1}
	open := func(anew bool) *checked {
		t.Helper()
		c, err := openChecked(root, id, anew)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := open(false)
	c.add(store.Name{1})
	c.add(store.Name{2})
	if err := c.close(false); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(c.path, 2*checkedRecord-5); err != nil { // as a crash might
		t.Fatal(err)
	}
	c = open(false)
	if !c.has(store.Name{1}) || c.has(store.Name{2}) {
		t.Errorf("remembered %v, want the first record alone", c.done)
	}
	c.add(store.Name{3})
	if err := c.close(false); err != nil {
		t.Fatal(err)
	}
	if c = open(false); !c.has(store.Name{1}) || !c.has(store.Name{3}) {
		t.Errorf("remembered %v, want what was read behind a record that was cut short", c.done)
	}
	if c = open(true); len(c.done) > 0 {
		t.Error("remembered something that shall be read anew")
	}
	c.add(store.Name{4})
	if err := c.close(true); err != nil {
		t.Fatal(err)
	}
	if c = open(false); len(c.done) > 0 {
		t.Error("a check that has come to its end is gone on with")
	}
}

func TestParseChecked(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	var b []byte
	for i, at := range []time.Time{now, now.Add(-checkedFor), now.Add(time.Hour), now.Add(-time.Hour), now} {
		b = appendChecked(b, store.Name{byte(i)}, at)
	}
	b[4*checkedRecord] ^= 1
	if done := parseChecked(b, now); len(done) != 2 || !done[store.Name{0}] || !done[store.Name{3}] {
		t.Errorf("parseChecked = %v, want those of now and of an hour ago", done)
	}
}
