package seal

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"strings"
)

const (
	recoverySize   = 20 // random bytes
	recoveryDigits = recoverySize * 8 / 5
	recoveryCheck  = 4 // digits
	recoveryGroup  = 4 // digits between dashes
)

// Crockford's alphabet has no letters that are taken for others, or for digits.
var crockford = base32.NewEncoding("0123456789ABCDEFGHJKMNPQRSTVWXYZ").WithPadding(base32.NoPadding)

var (
	errNoRecovery = errors.New("not a recovery key")

	// ErrRecoveryTypo says that a secret looks like a recovery key but its check digits do not fit. It is an
	// ErrPassword.
	ErrRecoveryTypo = passwordError("recovery key: mistyped")
)

// newRecovery returns a random recovery secret.
func newRecovery() (secret [recoverySize]byte) {
	rand.Read(secret[:])
	return secret
}

// formatRecovery writes a recovery secret for people: nine groups of four, the last of them check digits.
func formatRecovery(secret [recoverySize]byte) string {
	digits := crockford.EncodeToString(secret[:]) + recoverySum(secret)
	var b strings.Builder
	for i := 0; i < len(digits); i += recoveryGroup {
		if i > 0 {
			b.WriteByte('-')
		}
		b.WriteString(digits[i : i+recoveryGroup])
	}
	return b.String()
}

// parseRecovery reads what formatRecovery wrote, as people type it. It returns errNoRecovery for what cannot be one,
// and ErrRecoveryTypo for what was meant to be one.
func parseRecovery(typed []byte) (secret [recoverySize]byte, err error) {
	digits := make([]byte, 0, recoveryDigits+recoveryCheck)
	for _, c := range typed {
		switch {
		case c == ' ' || c == '-':
			continue
		case 'a' <= c && c <= 'z':
			c -= 'a' - 'A'
		}
		switch c {
		case 'O':
			c = '0'
		case 'I', 'L':
			c = '1'
		}
		if len(digits) == cap(digits) {
			return secret, errNoRecovery
		}
		digits = append(digits, c)
	}
	if len(digits) != recoveryDigits+recoveryCheck {
		return secret, errNoRecovery
	}
	if _, err := crockford.Decode(secret[:], digits[:recoveryDigits]); err != nil {
		return secret, errNoRecovery
	}
	if recoverySum(secret) != string(digits[recoveryDigits:]) {
		return secret, ErrRecoveryTypo
	}
	return secret, nil
}

// recoverySum returns the check digits.
func recoverySum(secret [recoverySize]byte) string {
	sum := sha256.Sum256(append([]byte("dedupfs 1 recovery\x00"), secret[:]...))
	return crockford.EncodeToString(sum[:5])[:recoveryCheck]
}
