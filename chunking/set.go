package chunking

import "fmt"

// A Kind says how the content of a file is cut. It is stored with the content,
// and its values never change their meaning.
type Kind uint8

const (
	KindDefault Kind = 0 // anything else
	KindPages   Kind = 1 // made of pages that change in place: databases, disk images
	KindMedia   Kind = 2 // incompressible, and seldom changed in part
)

// A Set names the chunker for each kind. It is stored in the repository.
type Set struct {
	Default string
	Pages   string
	Media   string
}

// DefaultSet returns the chunkers of a new repository.
func DefaultSet() Set {
	return Set{Default: Default, Pages: "Fixed-4", Media: "GFD-64"}
}

// Chunkers returns the chunkers of s, indexed by Kind.
func (s Set) Chunkers(key []byte) ([3]Chunker, error) {
	var cs [3]Chunker
	for kind, name := range [...]string{KindDefault: s.Default, KindPages: s.Pages, KindMedia: s.Media} {
		c, err := New(name, key)
		if err != nil {
			return cs, err
		}
		if _, max := c.Bounds(); max > repoMax {
			return cs, fmt.Errorf("chunker %s: chunks of up to %d bytes, a repository takes %d", name, max, repoMax)
		}
		cs[kind] = c
	}
	return cs, nil
}
