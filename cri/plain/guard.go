package plain

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strconv"
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
}

// Kinds of devices, and what may be done with one, as Linux tells a program of BPF_PROG_TYPE_CGROUP_DEVICE.
var (
	kindsOf = map[devices.Type]int32{devices.BlockDevice: unix.BPF_DEVCG_DEV_BLOCK, devices.CharDevice: unix.BPF_DEVCG_DEV_CHAR}
	actsOf  = map[rune]int32{'m': unix.BPF_DEVCG_ACC_MKNOD, 'r': unix.BPF_DEVCG_ACC_READ, 'w': unix.BPF_DEVCG_ACC_WRITE}
)

// allowing is the program that allows what one of the rules does, and nothing else. The kernel gives it the kind of the
// device and what is to be done with it as two halves of a word, and then the device's numbers (struct
// bpf_cgroup_dev_ctx). What asks for more than a rule allows needs another.
func allowing(rules []*devices.Rule) asm.Instructions {
	const kind, acts, major, minor, some = asm.R2, asm.R3, asm.R4, asm.R5, asm.R1
	program := asm.Instructions{
		asm.LoadMem(kind, asm.R1, 0, asm.Word), asm.And.Imm32(kind, 0xffff),
		asm.LoadMem(acts, asm.R1, 0, asm.Word), asm.RSh.Imm32(acts, 16),
		asm.LoadMem(major, asm.R1, 4, asm.Word), asm.LoadMem(minor, asm.R1, 8, asm.Word),
	}
	add := func(more ...asm.Instruction) { program = append(program, more...) }
	name := func(rule int) string { return "rule " + strconv.Itoa(rule) }
	for i, r := range rules {
		next := name(i + 1)
		var others int32 = 0xffff // than those that the rule allows
		for _, act := range r.Permissions {
			others &^= actsOf[act]
		}
		add(asm.Mov.Reg32(some, acts).WithSymbol(name(i)), asm.And.Imm32(some, others), asm.JNE.Imm32(some, 0, next),
			asm.JNE.Imm32(kind, kindsOf[r.Type], next))
		if r.Major != devices.Wildcard {
			add(asm.JNE.Imm32(major, int32(r.Major), next))
		}
		if r.Minor != devices.Wildcard {
			add(asm.JNE.Imm32(minor, int32(r.Minor), next))
		}
		add(asm.Mov.Imm32(asm.R0, 1), asm.Return())
	}
	add(asm.Mov.Imm32(asm.R0, 0).WithSymbol(name(len(rules))), asm.Return())
	return program
}

// attach sets the program before a group that has none. libcontainer knows what to do where there is one.
func (g *guard) attach(dir string) error {
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
	program, err := g.load()
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

// load returns the program, made at the first call.
func (g *guard) load() (*os.File, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.program != nil {
		return g.program, nil
	}
	var code bytes.Buffer
	if err := allowing(defaults()).Marshal(&code, binary.LittleEndian); err != nil { // as both architectures have it
		return nil, fmt.Errorf("guard devices: %w", err)
	}
	license := []byte("Apache\x00") // it calls nothing that needs another
	attr := struct {
		kind, count   uint32
		code, license uint64
		logging       [16]byte
	}{kind: unix.BPF_PROG_TYPE_CGROUP_DEVICE, count: uint32(code.Len() / asm.InstructionSize)}
	var pins runtime.Pinner
	defer pins.Unpin()
	attr.code, attr.license = pinned(&pins, code.Bytes()), pinned(&pins, license)
	fd, err := bpf(unix.BPF_PROG_LOAD, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	if err != nil {
		return nil, fmt.Errorf("load guard of devices: %w", err)
	}
	g.program = os.NewFile(fd, "guard of devices")
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
