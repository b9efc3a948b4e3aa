package check

import (
	"context"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

func processProbes() []probe {
	return []probe{
		{"pidfd", true, "Processes could be mistaken for later ones with the same number, and their end would have to be polled for.", probePidfd},
		{"pidfd exit code", false, "The exit code of a container is only known from its keeper's record (Linux 6.15 tells others too).", probePidfdInfo},
		{"subreaper", true, "Keepers cannot collect the exit codes of containers.", probeSubreaper},
		{"pseudo terminals", false, "Containers with tty: true and `berth exec -t` do not work.", func(context.Context, *env) answer {
			f, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
			if err != nil {
				return missing("%v", err)
			}
			return tried(f.Close(), "opened")
		}},
	}
}

func probePidfd(context.Context, *env) answer {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return missing("pidfd_open: %v", err)
	}
	defer unix.Close(fd)
	return tried(unix.PidfdSendSignal(fd, 0, nil, 0), "opened and signalled")
}

// pidfdInfo is the first version of the kernel's struct pidfd_info.
type pidfdInfo struct {
	mask     uint64
	cgroupid uint64
	ids      [11]uint32
	exitCode int32
}

// pidfdGetInfo is _IOWR(0xFF, 11, struct pidfd_info) of that size, and pidfdInfoExit the bit that asks for the exit
// code.
const (
	pidfdGetInfo  = 0xC0000000 | 0xFF00 | 11 | unsafe.Sizeof(pidfdInfo{})<<16
	pidfdInfoExit = 1 << 3
)

func probePidfdInfo(context.Context, *env) answer {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return missing("pidfd_open: %v", err)
	}
	defer unix.Close(fd)
	info := pidfdInfo{mask: 1 | pidfdInfoExit}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), pidfdGetInfo, uintptr(unsafe.Pointer(&info))); errno != 0 {
		return missing("PIDFD_GET_INFO: %v", errno)
	}
	major, minor := runningKernel()
	if major < 6 || major == 6 && minor < 15 {
		return missing("PIDFD_GET_INFO is there, the exit code is not (Linux 6.15)")
	}
	return ok("PIDFD_GET_INFO")
}

func runningKernel() (major, minor int) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return 0, 0
	}
	return kernelVersion(unix.ByteSliceToString(u.Release[:]))
}

func probeSubreaper(context.Context, *env) answer {
	var on int32
	err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&on)), 0, 0, 0)
	return tried(err, "known to the kernel")
}
