package fs

import "testing"

func TestNameForms(t *testing.T) {
	const nfc, nfd = "caf\u00e9", "cafe\u0301"
	tests := []struct {
		name string
		fold bool
		want []string
	}{
		{nfc, false, []string{nfc}},
		{nfc, true, []string{nfc, nfd}},
		{nfd, true, []string{nfd, nfc}},
		{"plain", true, []string{"plain"}},
		{"bad\xff\xfe", true, []string{"bad\xff\xfe"}},
	}
	for _, tt := range tests {
		got := nameForms([]byte(tt.name), tt.fold)
		if len(got) != len(tt.want) {
			t.Errorf("nameForms(%q, %v) = %q, want %q", tt.name, tt.fold, got, tt.want)
			continue
		}
		for i := range got {
			if string(got[i]) != tt.want[i] {
				t.Errorf("nameForms(%q, %v)[%d] = %q, want %q", tt.name, tt.fold, i, got[i], tt.want[i])
			}
		}
	}
}
