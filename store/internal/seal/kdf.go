package seal

import (
	"fmt"

	"golang.org/x/crypto/argon2"
)

// A KDF says how dear it is to try a password: the parameters of Argon2id.
type KDF struct {
	Memory  uint32 // KiB
	Passes  uint32
	Threads uint8
}

// DefaultKDF is for new slots: a second or less on small machines, and 64 MiB.
func DefaultKDF() KDF { return KDF{Memory: 64 << 10, Passes: 3, Threads: 4} }

// Bounds of what is taken from a slot that somebody else may have written.
const (
	maxMemory  = 1 << 20 // KiB
	maxPasses  = 64
	maxThreads = 64
	maxWork    = 8 << 20 // KiB times passes
)

// Check returns an error unless k is within the bounds that every reader accepts.
func (k KDF) Check() error {
	switch {
	case k.Passes < 1 || k.Passes > maxPasses:
		return fmt.Errorf("Argon2id passes %d: must be 1 to %d", k.Passes, maxPasses)
	case k.Threads < 1 || k.Threads > maxThreads:
		return fmt.Errorf("Argon2id threads %d: must be 1 to %d", k.Threads, maxThreads)
	case k.Memory < 8*uint32(k.Threads) || k.Memory > maxMemory:
		return fmt.Errorf("Argon2id memory %d KiB: must be %d to %d with %d threads", k.Memory, 8*uint32(k.Threads), maxMemory, k.Threads)
	case uint64(k.Memory)*uint64(k.Passes) > maxWork:
		return fmt.Errorf("Argon2id memory %d KiB times %d passes: must be at most %d", k.Memory, k.Passes, maxWork)
	}
	return nil
}

func (k KDF) key(password, salt []byte) []byte {
	return argon2.IDKey(password, salt, k.Passes, k.Memory, k.Threads, KeySize)
}
