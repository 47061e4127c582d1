package chunking

import (
	"bytes"
	"slices"
	"testing"
)

func TestDetect(t *testing.T) {
	rng := newRand(t)
	random := sample(rng, "random", DetectSize)
	at := func(off int, text string) []byte {
		b := sample(rng, "text", DetectSize)
		copy(b[off:], text)
		return b
	}
	for _, test := range []struct {
		name string
		head []byte
		want Kind
	}{
		{"nothing", nil, KindDefault},
		{"zeros", make([]byte, DetectSize), KindDefault},
		{"text", sample(rng, "text", DetectSize), KindDefault},
		{"random", random, KindMedia},
		{"random, short", random[:100], KindDefault},
		{"SQLite", at(0, "SQLite format 3\x00"), KindPages},
		{"SQLite, cut off", []byte("SQLite for"), KindDefault},
		{"ext4", at(0x438, "\x53\xef"), KindPages},
		{"GPT", at(512, "EFI PART"), KindPages},
		{"ISO", at(32769, "CD001"), KindPages},
		{"JPEG", at(0, "\xff\xd8\xff\xe1"), KindMedia},
		{"MP4", at(4, "ftypisom"), KindMedia},
		{"ZIP", slices.Concat([]byte("PK\x03\x04"), random), KindDefault},
		{"PDF", slices.Concat([]byte("%PDF-1.7\n"), random), KindDefault},
		{"bytes beyond the head", slices.Concat(make([]byte, DetectSize), bytes.Repeat(random, 10)), KindDefault},
	} {
		if got := Detect(test.head); got != test.want {
			t.Errorf("%s: kind %d, want %d", test.name, got, test.want)
		}
	}
}

func FuzzDetect(f *testing.F) {
	f.Add([]byte("SQLite format 3\x00"))
	f.Fuzz(func(t *testing.T, head []byte) {
		if k := Detect(head); k > KindMedia {
			t.Errorf("kind %d", k)
		}
	})
}
