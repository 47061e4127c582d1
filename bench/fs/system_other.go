//go:build !linux

package main

const loopbackCapabilities = 0
