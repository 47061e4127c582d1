package fs

import (
	"context"
	"runtime"

	"golang.org/x/text/unicode/norm"
)

// foldNames is set where applications spell one name in several Unicode forms: on macOS. There new names are stored
// as NFC, and a look-up tries the bytes given, then their NFC, then their NFD form.
const foldNames = runtime.GOOS == "darwin"

// newName returns the form in which a new name is stored.
func (v *Volume) newName(name []byte) []byte {
	if foldNames && name != nil {
		return norm.NFC.Bytes(name)
	}
	return name
}

// findFolded looks a name up as people on this system spell it.
func (v *Volume) findFolded(ctx context.Context, r records, parent Ino, name []byte) (*found, uint64, error) {
	return findForms(nameForms(name, foldNames), func(form []byte) (*found, uint64, error) {
		return v.find(ctx, r, parent, form)
	})
}

// findForms tries one spelling after the other.
func findForms(forms [][]byte, find func([]byte) (*found, uint64, error)) (f *found, free uint64, err error) {
	for _, form := range forms {
		if f, free, err = find(form); f != nil || err != nil {
			return f, free, err
		}
	}
	return nil, free, nil
}

// nameForms returns the spellings to try, the given one first and none twice.
func nameForms(name []byte, fold bool) [][]byte {
	forms := [][]byte{name}
	if !fold {
		return forms
	}
	for _, form := range []norm.Form{norm.NFC, norm.NFD} {
		f := form.Bytes(name)
		known := false
		for _, o := range forms {
			known = known || string(o) == string(f)
		}
		if !known {
			forms = append(forms, f)
		}
	}
	return forms
}
