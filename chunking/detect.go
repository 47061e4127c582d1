package chunking

import "bytes"

// DetectSize is how many bytes of a file Detect looks at.
const DetectSize = 64 << 10

// A signature is text that tells a file format, at an offset in the file.
type signature struct {
	off  int
	text string
}

func (s signature) match(head []byte) bool {
	return len(head) > s.off && bytes.HasPrefix(head[s.off:], []byte(s.text))
}

// pageSignatures tell files that are made of pages and change in place.
var pageSignatures = []signature{
	{0, "SQLite format 3\x00"},
	{12, "\x62\x31\x05\x00"}, // Berkeley DB, tree
	{12, "\x61\x15\x06\x00"}, // Berkeley DB, hash
	{16, "\xde\xc0\xef\xbe"}, // LMDB
	{16, "\xed\xda\x0c\xed"}, // bbolt
	{4, "Standard Jet DB\x00"},
	{4, "Standard ACE DB\x00"},
	{0x438, "\x53\xef"}, // ext2, ext3, ext4
	{0, "XFSB"},
	{3, "NTFS    "},
	{3, "EXFAT   "},
	{54, "FAT1"},
	{82, "FAT32   "},
	{512, "EFI PART"},
	{0, "QFI\xfb"},           // qcow2
	{0, "KDMV"},              // VMDK
	{0, "conectix"},          // VHD
	{0, "vhdxfile"},          // VHDX
	{64, "\x7f\x10\xda\xbe"}, // VDI
	{0, "LUKS\xba\xbe"},
	{32769, "CD001"}, // ISO 9660
}

// mediaSignatures tell pictures, sound and films: compressed, and at most
// tagged anew.
var mediaSignatures = []signature{
	{0, "\xff\xd8\xff"}, // JPEG
	{0, "\x89PNG\r\n\x1a\n"},
	{0, "GIF8"},
	{0, "OggS"},
	{0, "fLaC"},
	{0, "ID3"},  // MP3
	{4, "ftyp"}, // MP4, HEIF, AVIF
	{8, "WEBP"},
	{8, "AVI "},
	{0, "\x1a\x45\xdf\xa3"}, // Matroska, WebM
}

// archiveSignatures tell files whose parts are compressed one by one, so that
// small chunks find those that two files have in common.
var archiveSignatures = []signature{
	{0, "PK\x03\x04"},
	{0, "%PDF-"},
}

// Detect returns the kind of a file by its first DetectSize bytes, or by all of
// it if it is shorter.
func Detect(head []byte) Kind {
	head = head[:min(len(head), DetectSize)]
	switch {
	case anyMatch(pageSignatures, head):
		return KindPages
	case anyMatch(mediaSignatures, head):
		return KindMedia
	case anyMatch(archiveSignatures, head):
		return KindDefault
	case incompressible(head):
		return KindMedia
	}
	return KindDefault
}

func anyMatch(signatures []signature, head []byte) bool {
	for _, s := range signatures {
		if s.match(head) {
			return true
		}
	}
	return false
}

// incompressible reports whether the bytes of head are spread nearly as evenly
// as random ones: whether two of them, picked at random, are equal at most a
// quarter more often than one time in 256.
func incompressible(head []byte) bool {
	const fewest = 4096 // bytes whose distribution says anything
	if len(head) < fewest {
		return false
	}
	var count [256]int
	for _, b := range head {
		count[b]++
	}
	pairs := 0
	for _, c := range count {
		pairs += c * (c - 1)
	}
	return pairs*256*4 <= len(head)*(len(head)-1)*5
}
