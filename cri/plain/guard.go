package plain

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf/asm"
	devices "github.com/opencontainers/cgroups/devices/config"
	"golang.org/x/sys/unix"
)

// A guard says which devices a group of v2 may use: there the kernel asks a program. What ordinary containers may use
// is the same for all, so the kernel checks and compiles one program for all of their groups. It is loaded when the
// first needs it, and stays as long as the guard or one of the groups.
type guard struct {
	mu      sync.Mutex
	program *os.File
	rules   string // that the program is made of
}

// deviceFilter is by what libcontainer makes its program of rules.
//
//go:linkname deviceFilter github.com/opencontainers/cgroups/devices.deviceFilter
func deviceFilter(rules []*devices.Rule) (asm.Instructions, string, error)

// attach sets the program before a group that has none. libcontainer knows what to do where there is one.
func (g *guard) attach(dir string, rules []*devices.Rule) error {
	group, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer group.Close()
	switch n, err := programs(group); {
	case err != nil:
		return err
	case n > 0:
		return fmt.Errorf("guard devices: %d others do", n)
	}
	program, err := g.load(rules)
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(program)
	attr := struct{ group, program, kind, flags uint32 }{
		uint32(group.Fd()), uint32(program.Fd()), unix.BPF_CGROUP_DEVICE, unix.BPF_F_ALLOW_MULTI,
	}
	if _, err := bpf(unix.BPF_PROG_ATTACH, unsafe.Pointer(&attr), unsafe.Sizeof(attr)); err != nil {
		return fmt.Errorf("guard devices: %w", err)
	}
	return nil
}

// load returns the program for these rules.
func (g *guard) load(rules []*devices.Rule) (*os.File, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	instructions, license, err := deviceFilter(rules)
	if err != nil {
		return nil, fmt.Errorf("guard devices: %w", err)
	}
	var code bytes.Buffer
	if err := instructions.Marshal(&code, binary.LittleEndian); err != nil { // as both architectures have it
		return nil, fmt.Errorf("guard devices: %w", err)
	}
	if g.program != nil && g.rules == code.String() {
		return g.program, nil
	}
	text := append([]byte(license), 0)
	attr := struct {
		kind, count   uint32
		code, license uint64
		logging       [16]byte
	}{kind: unix.BPF_PROG_TYPE_CGROUP_DEVICE, count: uint32(code.Len() / asm.InstructionSize)}
	var pins runtime.Pinner
	defer pins.Unpin()
	attr.code, attr.license = pinned(&pins, code.Bytes()), pinned(&pins, text)
	fd, err := bpf(unix.BPF_PROG_LOAD, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	if err != nil {
		return nil, fmt.Errorf("load guard of devices: %w", err)
	}
	g.program, g.rules = os.NewFile(fd, "guard of devices"), code.String()
	return g.program, nil
}

// programs counts those that are set before a group itself.
func programs(group *os.File) (uint32, error) {
	// Kernels from 6.17 on write the last field whatever size they are told.
	attr := struct {
		group, kind, query, flags uint32
		ids                       uint64
		count, _                  uint32
		_                         [4]uint64
	}{group: uint32(group.Fd()), kind: unix.BPF_CGROUP_DEVICE}
	if _, err := bpf(unix.BPF_PROG_QUERY, unsafe.Pointer(&attr), unsafe.Sizeof(attr)); err != nil {
		return 0, fmt.Errorf("look at guards of devices: %w", err)
	}
	return attr.count, nil
}

// bpf calls the kernel, again when the check of a program was cut off by a signal, as Go's profiler sends them.
func bpf(command uintptr, attr unsafe.Pointer, size uintptr) (uintptr, error) {
	const tries = 30
	for i := 0; ; i++ {
		r, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(attr), size)
		if errno == 0 {
			return r, nil
		}
		if errno != unix.EAGAIN || i == tries {
			return 0, os.NewSyscallError("bpf", errno)
		}
	}
}

// pinned is the address of bytes that stay where they are.
func pinned(pins *runtime.Pinner, b []byte) uint64 {
	pins.Pin(&b[0])
	return uint64(uintptr(unsafe.Pointer(&b[0])))
}
