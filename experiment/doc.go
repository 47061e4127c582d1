// Package experiment measures what the product makes of somebody's data: with the product's own chunkers, packer and seal, and
// without any repository. It has Analyze, which tells what a folder would cost, and the experiments of the multichunk thesis
// (Heckel 2012): chunking efficiency, upload, and reconstruction.
//
// It promises that what it reads is not changed and that nothing is stored, and that memory does not grow with the data, but
// for Chunking and Reconstruct, which hold an entry for each chunk of a data set. What it measures in time is processor time,
// where it can. It leaves to others how results are shown (cmd/dedupfs).
package experiment
