// Package chunking decides where a stream of bytes is cut into chunks. It is
// made of pure functions over bytes: it knows nothing of files and stores.
package chunking
