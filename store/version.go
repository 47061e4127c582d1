package store

import "github.com/dedupfs/dedupfs/store/internal/seal"

// Format is the version of what this program writes on the remote, and the newest that it reads.
const Format = seal.Format
