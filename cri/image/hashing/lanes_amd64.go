package hashing

import (
	"os"
	"strings"

	"golang.org/x/sys/cpu"
)

// blocks8 takes n blocks of 64 bytes of each of eight messages into eight states: state[i][lane] is word i of a lane.
//
//go:noescape
func blocks8(state *[8][8]uint32, data *[8]*byte, k *[64]uint32, n int)

// faster says that eight at a time pay: the processor can, and has no instructions for SHA-256 itself, which are faster.
func faster() bool {
	if !cpu.X86.HasAVX512VL || !cpu.X86.HasAVX512BW {
		return false
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	return err == nil && !strings.Contains(string(info), " sha_ni")
}
