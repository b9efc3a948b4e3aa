//go:build seccomp

package main

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"
)

// x32Bit marks a syscall of the x32 ABI, which shares its audit architecture
// with x86-64.
const x32Bit = 0x40000000

var auditArchs = map[libseccomp.ScmpArch]uint32{
	libseccomp.ArchX86:         unix.AUDIT_ARCH_I386,
	libseccomp.ArchAMD64:       unix.AUDIT_ARCH_X86_64,
	libseccomp.ArchX32:         unix.AUDIT_ARCH_X86_64,
	libseccomp.ArchARM:         unix.AUDIT_ARCH_ARM,
	libseccomp.ArchARM64:       unix.AUDIT_ARCH_AARCH64,
	libseccomp.ArchMIPS:        unix.AUDIT_ARCH_MIPS,
	libseccomp.ArchMIPS64:      unix.AUDIT_ARCH_MIPS64,
	libseccomp.ArchMIPS64N32:   unix.AUDIT_ARCH_MIPS64N32,
	libseccomp.ArchMIPSEL:      unix.AUDIT_ARCH_MIPSEL,
	libseccomp.ArchMIPSEL64:    unix.AUDIT_ARCH_MIPSEL64,
	libseccomp.ArchMIPSEL64N32: unix.AUDIT_ARCH_MIPSEL64N32,
	libseccomp.ArchPPC:         unix.AUDIT_ARCH_PPC,
	libseccomp.ArchPPC64:       unix.AUDIT_ARCH_PPC64,
	libseccomp.ArchPPC64LE:     unix.AUDIT_ARCH_PPC64LE,
	libseccomp.ArchS390:        unix.AUDIT_ARCH_S390,
	libseccomp.ArchS390X:       unix.AUDIT_ARCH_S390X,
	libseccomp.ArchRISCV64:     unix.AUDIT_ARCH_RISCV64,
}

// unknownSyscalls is put before a filter that refuses by default. A syscall
// with a higher number than any the profile names is younger than the profile,
// and is answered with ENOSYS: programs then fall back to an older one, where
// they would take EPERM for the last word.
func unknownSyscalls(p *specs.LinuxSeccomp, archs []libseccomp.ScmpArch) []unix.SockFilter {
	switch p.DefaultAction {
	case specs.ActAllow, specs.ActLog, specs.ActTrace:
		return nil
	}
	if p.DefaultErrnoRet != nil && *p.DefaultErrnoRet == uint(unix.ENOSYS) {
		return nil
	}
	type key struct {
		audit uint32
		x32   bool
	}
	last := map[key]uint32{}
	var order []uint32
	for _, arch := range archs {
		audit, ok := auditArchs[arch]
		if !ok {
			continue
		}
		k := key{audit, arch == libseccomp.ArchX32}
		if n := lastSyscall(p, arch); n > 0 {
			last[k] = n
			if !slices.Contains(order, audit) {
				order = append(order, audit)
			}
		}
	}
	return stub(order, func(audit uint32, x32 bool) uint32 { return last[key{audit, x32}] })
}

func lastSyscall(p *specs.LinuxSeccomp, arch libseccomp.ScmpArch) uint32 {
	var last uint32
	for _, s := range p.Syscalls {
		for _, name := range s.Names {
			// libseccomp numbers what an architecture lacks below zero.
			if nr, err := libseccomp.GetSyscallFromNameByArch(name, arch); err == nil && nr > 0 {
				last = max(last, uint32(nr))
			}
		}
	}
	return last
}

// stub writes the program: for each architecture the comparison with its last
// syscall; whoever passes falls into the filter behind.
func stub(archs []uint32, last func(audit uint32, x32 bool) uint32) []unix.SockFilter {
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		above = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
		bits  = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		jump  = unix.BPF_JMP | unix.BPF_JA
		ret   = unix.BPF_RET | unix.BPF_K
		none  = ^uint32(0)
	)
	limit := func(n uint32) uint32 {
		if n == 0 {
			return none // the profile names no syscall: the filter decides
		}
		return n
	}
	if len(archs) == 0 {
		return nil
	}
	// offsets of struct seccomp_data: 0 is the number, 4 the architecture
	prog := []unix.SockFilter{{Code: load, K: 4}}
	for _, a := range archs {
		if a != unix.AUDIT_ARCH_X86_64 {
			prog = append(prog,
				unix.SockFilter{Code: equal, Jf: 4, K: a},
				unix.SockFilter{Code: load, K: 0},
				unix.SockFilter{Code: above, Jf: 1, K: limit(last(a, false))},
				unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
				unix.SockFilter{Code: jump, K: none}) // to the end, see below
			continue
		}
		prog = append(prog,
			unix.SockFilter{Code: equal, Jf: 6, K: a},
			unix.SockFilter{Code: load, K: 0},
			unix.SockFilter{Code: bits, Jt: 1, K: x32Bit},
			unix.SockFilter{Code: above, Jt: 1, Jf: 2, K: limit(last(a, false))},
			unix.SockFilter{Code: above, Jf: 1, K: limit(last(a, true))},
			unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
			unix.SockFilter{Code: jump, K: none})
	}
	for i := range prog {
		if prog[i].Code == jump {
			prog[i].K = uint32(len(prog) - i - 1)
		}
	}
	return prog
}
