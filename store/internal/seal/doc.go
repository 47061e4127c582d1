// Package seal is the part of dedupfs to audit: keys, authenticated encryption, and nothing else.
//
// It owns three things. A Keyring seals objects: each under a key of its own, derived from an epoch key, a random
// salt, the object's kind and name and the repository, so that no nonce is ever used twice whatever is copied,
// restored or killed, and an object opens only where it was put. A slot locks a keyring with a password, or with a
// printed recovery key. A keyring object carries the keyring to all slots that it lists.
//
// It promises that what opens was sealed by somebody who holds the keyring, byte for byte, under the kind and name
// asked for. Everything else is ErrCorrupt, or ErrFormat if such a person wrote it with a newer program. It does no
// I/O of its own, keeps no state beyond the keys, and bounds what it allocates by what it is given. The bytes are
// specified in store/FORMAT.md.
package seal
