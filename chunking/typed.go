package chunking

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"
)

const (
	// typedHead is how many bytes are needed to see whether a chunk begins
	// with a header, and beyond a place to see whether one begins there: those
	// of a tar header.
	typedHead = 512

	// typedSmall is the length in bytes under which parts are not cut apart:
	// what a chunk costs would be more than what it saves.
	typedSmall = 1024
)

// newTyped returns a chunker that knows file formats: it cuts where a member
// of a ZIP (so JAR, OOXML, ODF, APK) or tar archive, a JPEG picture, an ID3 tag
// or a PDF stream begins, and between their headers and data, so that equal
// members are equal chunks in whatever file they lie. Between these places it
// cuts as GFD does.
func newTyped(name string, avg int, key []byte) (Chunker, error) {
	inner, err := newGFD(name, avg, key)
	if err != nil {
		return nil, err
	}
	return typed{inner.(*twoStage)}, nil
}

type typed struct{ inner *twoStage }

func (c typed) Name() string           { return c.inner.name }
func (c typed) Bounds() (min, max int) { return 1, c.inner.rule.max }

func (c typed) Ends(dst []int, data []byte, eof bool) []int {
	return appendEnds(dst, c, data, eof)
}

// end returns the end of the chunk that data begins with, or 0 if it depends
// on what follows data. A chunk that begins with a header is that header. Any
// other ends where GFD ends it, or where the next part begins if that is before.
func (c typed) end(data []byte, eof bool) int {
	limit := c.inner.rule.max
	if len(data) >= limit {
		data, eof = data[:limit], false
	}
	enough := eof || len(data) == limit // what follows does not matter
	if len(data) < typedHead && !enough {
		return 0
	}
	if n, ok := headerLength(data); ok && n <= len(data) {
		return n
	} else if ok && !enough {
		return 0
	}
	n := c.inner.end(data, eof)
	if n == 0 || n+typedHead > len(data) && !enough {
		return 0 // more bytes may show a part before n
	}
	if part := firstPart(data[:min(n+typedHead, len(data))], n); part > 0 {
		return part
	}
	if eof && n == len(data) && n > 128 && string(data[n-128:n-125]) == "TAG" {
		return n - 128 // ID3v1
	}
	return n
}

// headerLength returns the length of the header that data begins with, if what
// follows it is long enough to be a chunk of its own. Only the start of data
// counts, so that more data do not change the answer, but for a header that is
// not complete: n is more than len(data) then.
func headerLength(data []byte) (n int, ok bool) {
	switch {
	case bytes.HasPrefix(data, []byte("PK\x03\x04")):
		return zipHeader(data)
	case bytes.HasPrefix(data, []byte("\xff\xd8\xff")):
		n = jpegHeader(data)
	case isID3(data):
		n = id3Length(data)
	case isTar(data):
		size, err := parseOctal(data[124:136])
		return 512, err == nil && size >= typedSmall
	}
	return n, n >= typedSmall || n > len(data)
}

func zipHeader(data []byte) (n int, ok bool) {
	if len(data) < 30 {
		return 0, false
	}
	n = 30 + int(binary.LittleEndian.Uint16(data[26:])) + int(binary.LittleEndian.Uint16(data[28:]))
	const sizeFollows = 1 << 3 // a flag: the size stands behind the data
	if data[6]&sizeFollows == 0 {
		return n, binary.LittleEndian.Uint32(data[18:]) >= typedSmall
	}
	// Nothing is known of the member but whether it is empty.
	if n+4 > len(data) {
		return n + 4, true
	}
	return n, !bytes.HasPrefix(data[n:], []byte("PK\x03\x04"))
}

// jpegHeader returns the place of the marker that begins the picture proper:
// Exif and other metadata lie before it. It returns 0 if data are not a JPEG
// header.
func jpegHeader(data []byte) (n int) {
	const startOfScan = 0xda
	for n = 2; n+4 <= len(data); {
		if data[n] != 0xff {
			return 0
		}
		if data[n+1] == startOfScan {
			return n
		}
		n += 2 + int(binary.BigEndian.Uint16(data[n+2:]))
	}
	return n + 4
}

func isID3(data []byte) bool {
	return len(data) >= 10 && string(data[:3]) == "ID3" && data[3] < 5 && data[4] == 0 &&
		(data[6]|data[7]|data[8]|data[9])&0x80 == 0
}

func id3Length(data []byte) int {
	return 10 + (int(data[6])<<21 | int(data[7])<<14 | int(data[8])<<7 | int(data[9]))
}

// isTar reports whether data begins with a tar header whose checksum is right.
func isTar(data []byte) bool {
	if len(data) < 512 || string(data[257:262]) != "ustar" {
		return false
	}
	sum := 8 * int(' ') // the checksum itself counts as spaces
	for i, b := range data[:512] {
		if i < 148 || i >= 156 {
			sum += int(b)
		}
	}
	want, err := parseOctal(data[148:156])
	return err == nil && want == int64(sum)
}

func parseOctal(field []byte) (int64, error) {
	return strconv.ParseInt(strings.Trim(string(field), " \x00"), 8, 64)
}

// firstPart returns the first place in data below limit, other than its first
// bytes, where a part of a known format begins or ends, or 0.
func firstPart(data []byte, limit int) int {
	best := limit
	for i := typedSmall; ; i++ {
		// The sign of a part may stand as much as a header behind its start.
		end := min(best+typedHead, len(data))
		if i = partSigns.next(data[:end], i); i == end {
			break
		}
		for _, p := range parts {
			if bytes.HasPrefix(data[i:], []byte(p.sign)) {
				if at := p.at(data, i); at >= typedSmall {
					best = min(best, at)
				}
			}
		}
	}
	if best == limit {
		return 0
	}
	return best
}

var partSigns = func() *signSet {
	var signs []string
	for _, p := range parts {
		signs = append(signs, p.sign)
	}
	return newSignSet(signs)
}()

// parts are the signs by which firstPart finds parts, and for each a function
// that returns the place that the sign at i stands for, or 0 if none.
var parts = []struct {
	sign string
	at   func(data []byte, i int) int
}{
	{"PK\x03\x04", func(_ []byte, i int) int { return i }},
	{"PK\x01\x02", func(data []byte, i int) int { // the first entry of a directory
		if bytes.HasPrefix(data, []byte("PK\x01\x02")) {
			return 0
		}
		return i
	}},
	{"\xff\xd8\xff", func(_ []byte, i int) int { return i }},
	{"ID3", func(data []byte, i int) int {
		if isID3(data[i:]) {
			return i
		}
		return 0
	}},
	{"ustar", func(data []byte, i int) int {
		if i >= 257 && isTar(data[i-257:]) {
			return i - 257
		}
		return 0
	}},
	{"stream", func(data []byte, i int) int { // of PDF
		rest := data[i+len("stream"):]
		switch {
		case bytes.HasSuffix(data[:i], []byte("end")):
			return i - len("end")
		case bytes.HasPrefix(rest, []byte("\r\n")):
			return i + len("stream\r\n")
		case bytes.HasPrefix(rest, []byte("\n")):
			return i + len("stream\n")
		}
		return 0
	}},
}
