//go:build seccomp

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/opencontainers/runtime-spec/specs-go"
	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/filter"
)

// filter returns the compiled filter of a profile, and leaves it in the bundle
// for later execs. Compiling takes libseccomp longer than all the rest of a
// container's start, so it is done once a profile and kept beside the state.
func (l launch) filter(p *specs.LinuxSeccomp) ([]byte, error) {
	cached, err := filter.Path(l.state, p)
	if err != nil {
		return nil, err
	}
	bpf, err := os.ReadFile(cached)
	if errors.Is(err, fs.ErrNotExist) {
		if bpf, err = compile(p); err != nil {
			return nil, err
		}
		err = keep(filepath.Dir(cached), cached, bpf)
	}
	if err != nil {
		return nil, err
	}
	return bpf, filter.Keep(l.bundle, cached, bpf)
}

// keep writes a file at once: another launcher may be reading, or writing, the
// same.
func keep(dir, path string, b []byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "new-")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// native says whether a profile needs libcontainer to load it: one that hands
// decisions to an agent makes a descriptor that has to be passed on.
func native(p *specs.LinuxSeccomp) bool {
	notify := p.ListenerPath != "" || p.DefaultAction == specs.ActNotify
	for _, s := range p.Syscalls {
		notify = notify || s.Action == specs.ActNotify
	}
	return notify
}

var seccompArchs = map[specs.Arch]libseccomp.ScmpArch{
	specs.ArchX86:         libseccomp.ArchX86,
	specs.ArchX86_64:      libseccomp.ArchAMD64,
	specs.ArchX32:         libseccomp.ArchX32,
	specs.ArchARM:         libseccomp.ArchARM,
	specs.ArchAARCH64:     libseccomp.ArchARM64,
	specs.ArchMIPS:        libseccomp.ArchMIPS,
	specs.ArchMIPS64:      libseccomp.ArchMIPS64,
	specs.ArchMIPS64N32:   libseccomp.ArchMIPS64N32,
	specs.ArchMIPSEL:      libseccomp.ArchMIPSEL,
	specs.ArchMIPSEL64:    libseccomp.ArchMIPSEL64,
	specs.ArchMIPSEL64N32: libseccomp.ArchMIPSEL64N32,
	specs.ArchPPC:         libseccomp.ArchPPC,
	specs.ArchPPC64:       libseccomp.ArchPPC64,
	specs.ArchPPC64LE:     libseccomp.ArchPPC64LE,
	specs.ArchS390:        libseccomp.ArchS390,
	specs.ArchS390X:       libseccomp.ArchS390X,
	specs.ArchRISCV64:     libseccomp.ArchRISCV64,
}

var seccompOps = map[specs.LinuxSeccompOperator]libseccomp.ScmpCompareOp{
	specs.OpNotEqual: libseccomp.CompareNotEqual, specs.OpLessThan: libseccomp.CompareLess,
	specs.OpLessEqual: libseccomp.CompareLessOrEqual, specs.OpEqualTo: libseccomp.CompareEqual,
	specs.OpGreaterEqual: libseccomp.CompareGreaterEqual, specs.OpGreaterThan: libseccomp.CompareGreater,
	specs.OpMaskedEqual: libseccomp.CompareMaskedEqual,
}

func seccompAction(a specs.LinuxSeccompAction, errno *uint) (libseccomp.ScmpAction, error) {
	code := int16(unix.EPERM)
	if errno != nil {
		code = int16(*errno)
	}
	switch a {
	case specs.ActKill, specs.ActKillThread:
		return libseccomp.ActKillThread, nil
	case specs.ActKillProcess:
		return libseccomp.ActKillProcess, nil
	case specs.ActTrap:
		return libseccomp.ActTrap, nil
	case specs.ActErrno:
		return libseccomp.ActErrno.SetReturnCode(code), nil
	case specs.ActTrace:
		return libseccomp.ActTrace.SetReturnCode(code), nil
	case specs.ActAllow:
		return libseccomp.ActAllow, nil
	case specs.ActLog:
		return libseccomp.ActLog, nil
	}
	return libseccomp.ActInvalid, fmt.Errorf("seccomp action %q is not known", a)
}

// compile makes the filter file of a profile: the flags of seccomp(2), a zero,
// and the program.
func compile(p *specs.LinuxSeccomp) ([]byte, error) {
	// Many small objects, soon dead: here collecting does pay.
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	def, err := seccompAction(p.DefaultAction, p.DefaultErrnoRet)
	if err != nil {
		return nil, err
	}
	f, err := libseccomp.NewFilter(def)
	if err != nil {
		return nil, err
	}
	defer f.Release()
	archs := make([]libseccomp.ScmpArch, 0, len(p.Architectures)+1)
	for _, a := range p.Architectures {
		arch, ok := seccompArchs[a]
		if !ok {
			return nil, fmt.Errorf("seccomp architecture %q is not known", a)
		}
		if err := f.AddArch(arch); err != nil {
			return nil, fmt.Errorf("add architecture %s: %w", a, err)
		}
		archs = append(archs, arch)
	}
	native, err := libseccomp.GetNativeArch()
	if err != nil {
		return nil, err
	}
	archs = append(archs, native)
	// A tree instead of a list, which matters with hundreds of rules. Older
	// libraries cannot, and are only slower.
	if len(p.Syscalls) > 0 {
		_ = f.SetOptimize(2)
	}
	if err := addRules(f, p, def); err != nil {
		return nil, err
	}
	program, err := export(f)
	if err != nil {
		return nil, err
	}
	flags, err := filterFlags(p)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	_ = binary.Write(&out, binary.NativeEndian, [2]uint32{flags, 0})
	_ = binary.Write(&out, binary.NativeEndian, unknownSyscalls(p, archs))
	out.Write(program)
	return out.Bytes(), nil
}

// export goes through a file: libseccomp exports to memory since 2.6 only.
func export(f *libseccomp.ScmpFilter) ([]byte, error) {
	fd, err := unix.MemfdCreate("bpf", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "bpf")
	defer file.Close()
	if err := f.ExportBPF(file); err != nil {
		return nil, err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(file)
}

func filterFlags(p *specs.LinuxSeccomp) (uint32, error) {
	if p.Flags == nil {
		// Without a word on it, the mitigation against speculative stores
		// stays off: it costs much, and the kernel left it out since 5.16.
		return unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW, nil
	}
	var flags uint32
	for _, f := range p.Flags {
		switch f {
		case "SECCOMP_FILTER_FLAG_TSYNC": // all threads get it in any case
		case specs.LinuxSeccompFlagLog:
			flags |= unix.SECCOMP_FILTER_FLAG_LOG
		case specs.LinuxSeccompFlagSpecAllow:
			flags |= unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
		case specs.LinuxSeccompFlagWaitKillableRecv: // only for listeners
		default:
			return 0, fmt.Errorf("seccomp flag %q is not known", f)
		}
	}
	return flags, nil
}

func addRules(f *libseccomp.ScmpFilter, p *specs.LinuxSeccomp, def libseccomp.ScmpAction) error {
	for _, s := range p.Syscalls {
		act, err := seccompAction(s.Action, s.ErrnoRet)
		if err != nil {
			return err
		}
		if act == def {
			continue // libseccomp refuses a rule that says what holds anyhow
		}
		sets, err := conditions(s.Args)
		if err != nil {
			return err
		}
		for _, name := range s.Names {
			nr, err := libseccomp.GetSyscallFromName(name)
			if err != nil {
				continue // a profile may know more syscalls than the library
			}
			if err := addRule(f, nr, act, sets); err != nil {
				return fmt.Errorf("add rule for %s: %w", name, err)
			}
		}
	}
	return nil
}

func addRule(
	f *libseccomp.ScmpFilter, nr libseccomp.ScmpSyscall, act libseccomp.ScmpAction, sets [][]libseccomp.ScmpCondition,
) error {
	if len(sets) == 0 {
		return f.AddRule(nr, act)
	}
	for _, set := range sets {
		if err := f.AddRuleConditional(nr, act, set); err != nil {
			return err
		}
	}
	return nil
}

// conditions returns the sets of conditions that each make a rule. All of one
// syscall must hold together, but libseccomp takes only one an argument: where
// one is named twice, each condition is an alternative of its own, as other
// runtimes have it.
func conditions(args []specs.LinuxSeccompArg) ([][]libseccomp.ScmpCondition, error) {
	var all []libseccomp.ScmpCondition
	var single [][]libseccomp.ScmpCondition
	seen := map[uint]bool{}
	twice := false
	for _, a := range args {
		op, ok := seccompOps[a.Op]
		if !ok {
			return nil, fmt.Errorf("seccomp operator %q is not known", a.Op)
		}
		c, err := libseccomp.MakeCondition(a.Index, op, a.Value, a.ValueTwo)
		if err != nil {
			return nil, err
		}
		twice = twice || seen[a.Index]
		seen[a.Index] = true
		all = append(all, c)
		single = append(single, []libseccomp.ScmpCondition{c})
	}
	switch {
	case len(all) == 0:
		return nil, nil
	case twice:
		return single, nil
	}
	return [][]libseccomp.ScmpCondition{all}, nil
}
