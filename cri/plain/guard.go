package plain

import (
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	devices "github.com/opencontainers/cgroups/devices/config"
	"golang.org/x/sys/unix"
)

// A guard says which devices a group of v2 may use: there the kernel asks a program. What ordinary containers may use
// is the same for all, so the kernel checks and compiles one program for all of their groups. It is loaded when the
// first needs it, and stays as long as the guard or one of the groups.
type guard struct {
	mu      sync.Mutex
	program *ebpf.Program
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

// attach sets the program before a group that has none. libcontainer knows what to do where there is one. A scope has
// one of systemd's, which says the same, and makes way: systemd adds it again at its next reload.
func (g *guard) attach(dir string, scope bool) error {
	group, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer group.Close()
	there, err := link.QueryPrograms(link.QueryOptions{Target: int(group.Fd()), Attach: ebpf.AttachCGroupDevice})
	switch {
	case err != nil:
		return fmt.Errorf("look at guards of devices: %w", err)
	case len(there.Programs) > 1 || len(there.Programs) > 0 && !scope:
		return fmt.Errorf("guard devices: %d others do", len(there.Programs))
	}
	program, err := g.load()
	if err != nil {
		return err
	}
	if err := link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: int(group.Fd()), Program: program, Attach: ebpf.AttachCGroupDevice, Flags: unix.BPF_F_ALLOW_MULTI,
	}); err != nil {
		return fmt.Errorf("guard devices: %w", err)
	}
	for _, p := range there.Programs {
		detach(group, p.ID)
	}
	return nil
}

// detach takes a program away. One that cannot be taken may stay: what either forbids is forbidden.
func detach(group *os.File, id ebpf.ProgramID) {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return
	}
	defer program.Close()
	_ = link.RawDetachProgram(link.RawDetachProgramOptions{
		Target: int(group.Fd()), Program: program, Attach: ebpf.AttachCGroupDevice,
	})
}

// load returns the program, made at the first call.
func (g *guard) load() (*ebpf.Program, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.program != nil {
		return g.program, nil
	}
	// Its license is that of libcontainer's: it calls nothing that needs another.
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.CGroupDevice, Instructions: allowing(defaults()), License: "Apache"})
	if err != nil {
		return nil, fmt.Errorf("load guard of devices: %w", err)
	}
	g.program = program
	return program, nil
}
