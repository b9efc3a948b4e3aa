//go:build seccomp && amd64

package main

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// verdict runs a filter as the kernel would, on a syscall without arguments.
func verdict(t *testing.T, filter []byte, arch, nr uint32) uint32 {
	t.Helper()
	var prog []unix.SockFilter
	for b := filter[8:]; len(b) >= 8; b = b[8:] {
		prog = append(prog, unix.SockFilter{
			Code: binary.NativeEndian.Uint16(b), Jt: b[2], Jf: b[3], K: binary.NativeEndian.Uint32(b[4:]),
		})
	}
	var a uint32
	for pc := 0; pc < len(prog); pc++ {
		in := prog[pc]
		jump := func(yes bool) {
			if yes {
				pc += int(in.Jt)
			} else {
				pc += int(in.Jf)
			}
		}
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = map[uint32]uint32{0: nr, 4: arch}[in.K]
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(in.K)
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump(a == in.K)
		case unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K:
			jump(a > in.K)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump(a >= in.K)
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			jump(a&in.K != 0)
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= in.K
		case unix.BPF_RET | unix.BPF_K:
			return in.K
		default:
			t.Fatalf("instruction %#x is not known here", in.Code)
		}
	}
	t.Fatal("filter ends without a verdict")
	return 0
}

func TestFilterKnowsYoungSyscalls(t *testing.T) {
	p, err := seccomp.GetDefaultProfile(&specs.Spec{
		Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}, Linux: &specs.Linux{},
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := compile(p)
	if err != nil {
		t.Fatal(err)
	}
	if f := binary.NativeEndian.Uint32(b); f != unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW {
		t.Errorf("flags are %#x", f)
	}
	const (
		allow  = unix.SECCOMP_RET_ALLOW
		eperm  = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
		enosys = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
		amd64  = unix.AUDIT_ARCH_X86_64
		i386   = unix.AUDIT_ARCH_I386
	)
	for _, tc := range []struct {
		name           string
		arch, nr, want uint32
	}{
		{"read", amd64, unix.SYS_READ, allow},
		{"getpid of i386", i386, 20, allow},
		{"read of x32", amd64, x32Bit | unix.SYS_READ, allow},
		{"mount", amd64, unix.SYS_MOUNT, eperm},
		{"mount of i386", i386, 21, eperm},
		{"mount of x32", amd64, x32Bit | unix.SYS_MOUNT, eperm},
		{"one of the future", amd64, 2000, enosys},
		{"one of i386's future", i386, 2000, enosys},
		{"one of x32's future", amd64, x32Bit | 2000, enosys},
		{"one of another architecture", unix.AUDIT_ARCH_AARCH64, 0, unix.SECCOMP_RET_KILL_THREAD},
	} {
		if got := verdict(t, b, tc.arch, tc.nr); got != tc.want {
			t.Errorf("%s: verdict is %#x, want %#x", tc.name, got, tc.want)
		}
	}
}

func TestFilterThatAllowsByDefaultHasNoStub(t *testing.T) {
	b, err := compile(&specs.LinuxSeccomp{DefaultAction: specs.ActAllow})
	if err != nil {
		t.Fatal(err)
	}
	if got := verdict(t, b, unix.AUDIT_ARCH_X86_64, 2000); got != unix.SECCOMP_RET_ALLOW {
		t.Errorf("verdict is %#x", got)
	}
}

func TestFilterIsCompiledOnceAProfile(t *testing.T) {
	p := &specs.LinuxSeccomp{DefaultAction: specs.ActAllow}
	state := t.TempDir()
	for range 3 {
		l := launch{id: "c", bundle: t.TempDir(), state: state}
		want, err := l.filter(p)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(l.bundle + "/seccomp.bpf")
		if err != nil || string(got) != string(want) {
			t.Errorf("bundle has %d bytes of %d, %v", len(got), len(want), err)
		}
	}
	if e, err := os.ReadDir(state + "/.seccomp"); err != nil || len(e) != 1 {
		t.Errorf("cache has %v, %v", e, err)
	}
}
