package chunking

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// archive returns an archive or another file of a format with parts.
func archive(rng *rand.Rand) []byte {
	var b bytes.Buffer
	members := make([][]byte, 1+rng.IntN(4))
	for i := range members {
		members[i] = sample(rng, "random", rng.IntN(20<<10))
	}
	switch rng.IntN(5) {
	case 0:
		zipOf(&b, members)
	case 1:
		tarOf(&b, members)
	case 2:
		b.Write(jpegOf(members[0]))
	case 3:
		b.WriteString("ID3\x03\x00\x00\x00\x00\x02\x01")
		b.Write(members[0])
		b.WriteString("TAG")
		b.Write(make([]byte, 125))
	case 4:
		for _, m := range members {
			fmt.Fprintf(&b, "1 0 obj <</Length %d>> stream\n%s\nendstream\nendobj\n", len(m), m)
		}
	}
	return b.Bytes()
}

func zipOf(b *bytes.Buffer, members [][]byte) {
	w := zip.NewWriter(b)
	for i, m := range members {
		f, _ := w.CreateRaw(&zip.FileHeader{Name: fmt.Sprint("member", i), CompressedSize64: uint64(len(m)), UncompressedSize64: uint64(len(m))})
		f.Write(m)
	}
	w.Close()
}

func tarOf(b *bytes.Buffer, members [][]byte) {
	w := tar.NewWriter(b)
	for i, m := range members {
		w.WriteHeader(&tar.Header{Name: fmt.Sprint("member", i), Size: int64(len(m)), Mode: 0o644})
		w.Write(m)
	}
	w.Close()
}

func jpegOf(picture []byte) []byte {
	exif := bytes.Repeat([]byte("exif"), 600)
	return slices.Concat([]byte{0xff, 0xd8, 0xff, 0xe1, byte((len(exif) + 2) >> 8), byte(len(exif) + 2)}, exif, []byte{0xff, 0xda, 0, 8}, picture)
}

// partsByHand returns files of the formats that Typed knows, written here so
// that no library can change them.
func partsByHand(rng *rand.Rand) []byte {
	zipMember := func(size int) []byte {
		h := make([]byte, 30)
		copy(h, "PK\x03\x04")
		binary.LittleEndian.PutUint32(h[18:], uint32(size))
		binary.LittleEndian.PutUint16(h[26:], 4)
		return slices.Concat(h, []byte("name"), sample(rng, "random", size))
	}
	tarMember := func(size int) []byte {
		h := make([]byte, 512)
		copy(h, "name")
		copy(h[124:], fmt.Sprintf("%011o", size))
		copy(h[148:], "        ")
		copy(h[257:], "ustar\x0000")
		sum := 0
		for _, b := range h {
			sum += int(b)
		}
		copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
		return slices.Concat(h, sample(rng, "random", size), make([]byte, -size&511))
	}
	return slices.Concat(
		zipMember(50000), zipMember(100), zipMember(3000), []byte("PK\x01\x02"), sample(rng, "random", 4000), []byte("PK\x01\x02"),
		tarMember(70000), tarMember(10), tarMember(2000), tarMember(0),
		jpegOf(sample(rng, "random", 40000)),
		[]byte("1 0 obj stream\r\n"), sample(rng, "random", 30000), []byte("\nendstream\n"),
		[]byte("ID3\x03\x00\x00\x00\x00\x20\x01"), sample(rng, "random", 50000), []byte("TAG"), make([]byte, 125),
	)
}

// TestTyped: a member is the same chunks in whatever archive it lies.
func TestTyped(t *testing.T) {
	rng := newRand(t)
	c := newChunker(t, "Typed-8", randomKey(rng))
	member := sample(rng, "random", 60<<10)
	chunks := func(data []byte) (cs [][]byte) {
		start := 0
		for _, end := range c.Ends(nil, data, true) {
			cs = append(cs, data[start:end])
			start = end
		}
		return cs
	}
	contains := func(cs [][]byte, chunk []byte) bool {
		return slices.ContainsFunc(cs, func(x []byte) bool { return bytes.Equal(x, chunk) })
	}
	alone := chunks(member)
	var zipped, tarred bytes.Buffer
	others := [][]byte{sample(rng, "random", 1001), member, sample(rng, "text", 777)}
	zipOf(&zipped, others)
	tarOf(&tarred, others)
	for name, data := range map[string][]byte{
		"zip":  zipped.Bytes(),
		"tar":  tarred.Bytes(),
		"jpeg": jpegOf(append([]byte(nil), member...)),
		"pdf":  fmt.Appendf(nil, "%%PDF-1.4\n%s1 0 obj stream\n%s", bytes.Repeat([]byte("% comment\n"), 200), append(slices.Clone(member), "endstream"...)),
	} {
		cs := chunks(data)
		shared := 0
		for _, chunk := range alone {
			if contains(cs, chunk) {
				shared++
			}
		}
		// The picture begins with its marker, and the padding of tar lies
		// behind the data, so that the chunks at the ends may differ.
		if shared < len(alone)-2 {
			t.Errorf("%s: %d of the member's %d chunks are found", name, shared, len(alone))
		}
	}
}

// TestTypedCrafted: headers without members do not make chunks of headers.
func TestTypedCrafted(t *testing.T) {
	c := newChunker(t, "Typed-8", make([]byte, keySize))
	for name, data := range map[string]string{
		"zip":    "PK\x03\x04" + strings.Repeat("\x00", 26),
		"stream": "PK\x03\x04\x00\x00\x08" + strings.Repeat("\x00", 23),
		"jpeg":   "\xff\xd8\xff\xda",
		"id3":    "ID3\x03\x00\x00\x00\x00\x00\x01",
		"pdf":    "stream\nendstream",
	} {
		b := []byte(strings.Repeat(data, 1<<20/len(data)))
		if n := len(c.Ends(nil, b, true)); n > 2*len(b)>>10 {
			t.Errorf("%s: %d chunks of %d bytes", name, n, len(b))
		}
	}
}

func TestSigns(t *testing.T) {
	rng := newRand(t)
	set := newSignSet([]string{"abc", "bca", "\xff\x00\xff"})
	for range 2000 {
		data := make([]byte, rng.IntN(300))
		for i := range data {
			data[i] = "abcd\xff\x00"[rng.IntN(6)]
		}
		from := rng.IntN(len(data) + 1)
		want := len(data)
		for i := from; i+2 < len(data); i++ {
			if set.whole[0][data[i]]&set.whole[1][data[i+1]]&set.whole[2][data[i+2]] != 0 {
				want = i
				break
			}
		}
		if got := set.next(data, from); got > want || got < want && !hasHalves(set, data[got:]) {
			t.Fatalf("next(%q, %d) = %d, want %d", data, from, got, want)
		}
	}
}

// hasHalves reports whether data begins with bytes whose halves are all those
// of signs.
func hasHalves(s *signSet, data []byte) bool {
	bits := byte(0xff)
	for k := range 3 {
		bits &= s.half[k][0][data[k]&15] & s.half[k][1][data[k]>>4]
	}
	return bits != 0
}
