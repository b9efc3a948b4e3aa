package plain

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	devices "github.com/opencontainers/cgroups/devices/config"
	"golang.org/x/sys/unix"
)

// asked is what the kernel asks a guard.
type asked struct{ access, major, minor uint32 }

// instruction is one of a program, as the kernel has it.
type instruction struct {
	Code, Registers uint8
	Off             int16
	Imm             int32
}

// ask executes what guards are made of.
func ask(t *testing.T, program []instruction, a asked) bool {
	t.Helper()
	var r [10]uint32
	for at := 0; ; at++ {
		i := program[at]
		dst, src := &r[i.Registers&15], r[i.Registers>>4]
		switch i.Code {
		case 0x61: // load a word
			*dst = []uint32{a.access, a.major, a.minor}[i.Off/4]
		case 0x54:
			*dst &= uint32(i.Imm)
		case 0x74:
			*dst >>= i.Imm
		case 0xbc:
			*dst = src
		case 0xb4:
			*dst = uint32(i.Imm)
		case 0x55, 0x56: // jump where it is another
			if *dst != uint32(i.Imm) {
				at += int(i.Off)
			}
		case 0x95:
			return r[0] == 1
		default:
			t.Fatalf("instruction %#x", i.Code)
		}
	}
}

// TestGuard asks for all that can be done with some thousand devices.
func TestGuard(t *testing.T) {
	var code bytes.Buffer
	if err := allowing(defaults()).Marshal(&code, binary.LittleEndian); err != nil {
		t.Fatal(err)
	}
	program := make([]instruction, code.Len()/8)
	if err := binary.Read(&code, binary.LittleEndian, program); err != nil {
		t.Fatal(err)
	}
	for kind, name := range map[uint32]devices.Type{unix.BPF_DEVCG_DEV_BLOCK: devices.BlockDevice, unix.BPF_DEVCG_DEV_CHAR: devices.CharDevice} {
		for acts := range uint32(8) {
			for _, major := range []uint32{0, 1, 2, 5, 8, 10, 11, 136, 137, 1<<32 - 1} {
				for _, minor := range []uint32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 200, 201, 1<<32 - 1} {
					want := slices.ContainsFunc(defaults(), func(r *devices.Rule) bool {
						for bit, letter := range map[uint32]string{
							unix.BPF_DEVCG_ACC_MKNOD: "m", unix.BPF_DEVCG_ACC_READ: "r", unix.BPF_DEVCG_ACC_WRITE: "w",
						} {
							if acts&bit != 0 && !strings.Contains(string(r.Permissions), letter) {
								return false
							}
						}
						return r.Type == name && (r.Major == devices.Wildcard || r.Major == int64(major)) &&
							(r.Minor == devices.Wildcard || r.Minor == int64(minor))
					})
					if got := ask(t, program, asked{acts<<16 | kind, major, minor}); got != want {
						t.Errorf("%s %d:%d, acts %#b: %t", string(name), major, minor, acts, got)
					}
				}
			}
		}
	}
}
