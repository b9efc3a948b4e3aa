//go:build !amd64

package hashing

func blocks8(*[8][8]uint32, *[8]*byte, *[64]uint32, int) { panic("not on this machine") }

func faster() bool { return false }
