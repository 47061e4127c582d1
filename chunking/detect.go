package chunking

import "bytes"

// detectMin is the fewest bytes whose distribution says anything.
const detectMin = 4096

// signatures of files that are made of pages.
var pageSignatures = []struct {
	off  int
	text string
}{
	{0, "SQLite format 3\x00"},
	{12, "\x62\x31\x05\x00"},   // Berkeley DB, B-tree
	{12, "\x61\x15\x06\x00"},   // Berkeley DB, hash
	{16, "\xde\xc0\xef\xbe"},   // LMDB
	{16, "\xed\xda\x0c\xed"},   // bbolt
	{4, "Standard Jet DB\x00"}, // Access
	{4, "Standard ACE DB\x00"}, // Access
	{0x438, "\x53\xef"},        // ext2, ext3, ext4
	{0, "XFSB"},                // XFS
	{3, "NTFS    "},            // NTFS
	{3, "EXFAT   "},            // exFAT
	{54, "FAT1"},               // FAT12, FAT16
	{82, "FAT32   "},           // FAT32
	{512, "EFI PART"},          // GPT
	{0, "QFI\xfb"},             // qcow2
	{0, "KDMV"},                // VMDK
	{0, "conectix"},            // VHD
	{0, "vhdxfile"},            // VHDX
	{64, "\x7f\x10\xda\xbe"},   // VDI
	{0, "LUKS\xba\xbe"},        // LUKS
	{32769, "CD001"},           // ISO 9660
}

// Detect returns the kind of a file by its first 64 KiB, or by all of it if
// it is shorter.
func Detect(head []byte) Kind {
	for _, s := range pageSignatures {
		if len(head) > s.off && bytes.HasPrefix(head[s.off:], []byte(s.text)) {
			return KindPages
		}
	}
	if isContainer(head) || !incompressible(head) {
		return KindDefault
	}
	return KindMedia
}

// isContainer reports whether head begins a file whose parts are compressed
// one by one and shared with others, so that small chunks find them.
func isContainer(head []byte) bool {
	return bytes.HasPrefix(head, []byte("PK\x03\x04")) || bytes.HasPrefix(head, []byte("%PDF-"))
}

// incompressible reports whether the bytes of head are spread nearly as evenly
// as random ones: whether two of them, picked at random, are equal at most 15%
// more often than one time in 256.
func incompressible(head []byte) bool {
	if len(head) < detectMin {
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
	n := len(head)
	return pairs*256*100 <= n*(n-1)*115
}
