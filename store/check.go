package store

// CheckOptions are options of Check. Nil is the defaults.
type CheckOptions struct {
	// ReadData reads every byte of all multichunks instead of their tables only. Default false.
	ReadData bool

	// Subset limits what ReadData reads. The zero value is all.
	Subset Subset

	// Progress, unless nil, is told how much of a stage is done, in units of that stage. It is called from one goroutine.
	Progress func(done, total int64, stage string)
}

// Subset is a share of all multichunks: those whose number is Part modulo Parts, by their names, counted from 1. The zero
// Subset is all of them.
type Subset struct{ Part, Parts int }

// Damage is what is wrong with one object.
type Damage struct {
	Object     string // name on the remote
	Err        error
	IDs        []ID // of chunks and nodes that are lost with it, as far as anything refers to them
	Repairable bool // whether all of them lie intact elsewhere too
}

// CheckReport is what Check has found.
type CheckReport struct {
	Objects int64 // looked at
	Bytes   int64 // of them, on the remote
	Nodes   int64 // walked
	Chunks  int64 // referred to
	Damages []Damage
	Foreign []string // names below the root that are none of ours, and are left alone
}
