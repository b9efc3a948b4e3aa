package keeper_test

import (
	"bytes"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// TestPlainHasTheSameFilter reads the seccomp filters of programs that were started both ways from the kernel.
func TestPlainHasTheSameFilter(t *testing.T) {
	p := newPod(t)
	log, err := seccomp.GetDefaultProfile(p.spec("c"))
	if err != nil {
		t.Fatal(err)
	}
	log.Flags = []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagLog, specs.LinuxSeccompFlagSpecAllow}
	for name, profile := range map[string]*specs.LinuxSeccomp{
		"none": nil, "default": defaultProfile(t, p), "logging": log,
		"small": {DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"reboot"}, Action: specs.ActKillProcess}}},
	} {
		for _, nnp := range []bool{false, true} {
			var filters [2][]byte
			for i, old := range []bool{true, false} {
				s := p.spec("c", "/bin/sleep", "1000")
				s.Linux.Seccomp, s.Process.NoNewPrivileges = profile, nnp
				p.old = old
				c := p.container(s)
				c.Left = func(why string) { t.Errorf("%s is left to libcontainer: %s", name, why) }
				pid, err := p.Run(t.Context(), c)
				if err != nil {
					t.Fatal(err)
				}
				filters[i] = filterOf(t, pid)
				if err := p.Signal(t.Context(), c.ID, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
				p.exit(c.ID)
			}
			if !bytes.Equal(filters[0], filters[1]) || (profile == nil) != (len(filters[0]) == 0) {
				t.Errorf("%s: filters have %d and %d bytes, and differ", name, len(filters[0]), len(filters[1]))
			}
		}
	}
}

// filterOf is all filters of a process, one after the other, with their flags.
func filterOf(t *testing.T, pid int) []byte {
	t.Helper()
	const ptraceGetFilter, ptraceGetMetadata = 0x420c, 0x420d
	runtime.LockOSThread() // the kernel knows the thread that traces
	defer runtime.UnlockOSThread()
	if err := unix.PtraceSeize(pid); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.PtraceDetach(pid) }()
	if err := unix.PtraceInterrupt(pid); err != nil {
		t.Fatal(err)
	}
	// The keeper is the parent, and is not kept from its own wait.
	if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != nil {
		t.Fatal(err)
	}
	var out []byte
	for i := uintptr(0); ; i++ {
		n, _, errno := unix.Syscall6(unix.SYS_PTRACE, ptraceGetFilter, uintptr(pid), i, 0, 0, 0)
		if errno == unix.ENOENT || errno == unix.EINVAL && i == 0 { // no more, or none at all
			return out
		}
		if errno != 0 {
			if strings.Contains(errno.Error(), "permission") {
				t.Skip("filters cannot be read: ", errno)
			}
			t.Fatal(errno)
		}
		program := make([]unix.SockFilter, n)
		if n > 0 {
			_, _, errno = unix.Syscall6(unix.SYS_PTRACE, ptraceGetFilter, uintptr(pid), i, uintptr(unsafe.Pointer(&program[0])), 0, 0)
		}
		meta := [2]uint64{uint64(i), 0}
		if errno == 0 {
			_, _, errno = unix.Syscall6(unix.SYS_PTRACE, ptraceGetMetadata, uintptr(pid), 16, uintptr(unsafe.Pointer(&meta[0])), 0, 0)
		}
		if errno != 0 {
			t.Fatal(errno)
		}
		out = append(out, byte(meta[1]))
		for _, ins := range program {
			out = append(out, (*[8]byte)(unsafe.Pointer(&ins))[:]...)
		}
	}
}
