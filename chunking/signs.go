package chunking

// signSet finds the first three bytes of any of at most eight signs. It has a
// bit for every sign, and for every half of each of the three bytes a table of
// the signs whose byte has that half: the method of Teddy (Langdale et al.),
// which vector units do for 32 places at once.
type signSet struct {
	half  [3][2][16]byte // by byte of the sign, then low and high half
	whole [3][256]byte   // the same, by whole byte
}

func newSignSet(signs []string) *signSet {
	s := new(signSet)
	for bit, sign := range signs {
		for k := range 3 {
			s.half[k][0][sign[k]&15] |= 1 << bit
			s.half[k][1][sign[k]>>4] |= 1 << bit
			s.whole[k][sign[k]] |= 1 << bit
		}
	}
	return s
}

// next returns the first place in data, from on, where a sign may begin, or
// len(data). That three bytes are right in both halves does not say that they
// are those of one sign.
func (s *signSet) next(data []byte, from int) int {
	if hasSignBlocks {
		const block = 32
		if n := (len(data) - from - 2) &^ (block - 1); n > 0 {
			if i := signFirst(&data[from], n, &s.half); i >= 0 {
				return from + i
			}
			from += n
		}
	}
	for ; from+2 < len(data); from++ {
		if s.whole[0][data[from]]&s.whole[1][data[from+1]]&s.whole[2][data[from+2]] != 0 {
			return from
		}
	}
	return len(data)
}
