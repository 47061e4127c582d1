package main

import "github.com/hanwen/go-fuse/v2/fuse"

const loopbackCapabilities = fuse.CAP_HANDLE_KILLPRIV_V2 | fuse.CAP_ATOMIC_O_TRUNC | fuse.CAP_ASYNC_DIO | fuse.CAP_READDIRPLUS_AUTO
