package check

import (
	"context"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func systemProbes() []probe {
	return []probe{
		{"root", true, "Only root can make namespaces, mounts and control groups for pods.", func(context.Context, *env) answer {
			if uid := os.Geteuid(); uid != 0 {
				return missing("running as user %d", uid)
			}
			return ok("running as root")
		}},
		{"kernel", true, "Kernels before 5.11 lack overlay features, pidfds and the syscalls that berth is built on.", probeKernel},
		{"clock", false, "Certificates, image pulls over TLS and token lifetimes fail when the time is wrong.", probeClock},
		{"swap", false, "Pods' memory limits do not count what the kernel swaps out, unless swap is limited too (cgroup v2).", probeSwap},
		{"inotify", false, "Watching manifests and groups fails when a user's watches or instances run out (fs.inotify.max_user_*).", probeInotify},
		{"open files", false, "An agent with many pods runs out of descriptors; raise LimitNOFILE.", probeFiles},
	}
}

func probeKernel(context.Context, *env) answer {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return missing("uname: %v", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	major, minor := kernelVersion(release)
	if major < 5 || major == 5 && minor < 11 {
		return missing("%s is older than 5.11", release)
	}
	return ok("%s", release)
}

func kernelVersion(release string) (major, minor int) {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return 0, 0
	}
	major, _ = strconv.Atoi(parts[0])
	end := strings.IndexFunc(parts[1], func(r rune) bool { return r < '0' || r > '9' }) // "6.1-rc3"
	if end < 0 {
		end = len(parts[1])
	}
	minor, _ = strconv.Atoi(parts[1][:end])
	return major, minor
}

func probeClock(_ context.Context, e *env) answer {
	source, _ := readLine("/sys/devices/system/clocksource/clocksource0/current_clocksource")
	var tx unix.Timex
	state, err := unix.Adjtimex(&tx)
	return clock(time.Now(), made(e.program(os.Getpid())), source, state == unix.TIME_ERROR || tx.Status&unix.STA_UNSYNC != 0, err)
}

// clock judges the time that a machine has, by when the program was made, and by what the kernel has heard of those who
// keep it.
func clock(now, made time.Time, source string, unsynchronized bool, err error) answer {
	switch {
	case now.Before(made):
		return missing("says %s, and this program was made at %s", now.UTC().Format(time.RFC3339), made.UTC().Format(time.RFC3339))
	case err != nil:
		return limited("clock source %s; cannot ask whether it is synchronized: %v", source, err)
	case unsynchronized:
		return limited("not synchronized (no NTP), clock source %s", source)
	}
	return ok("synchronized, clock source %s", source)
}

// made is a time that has been: that of the commit that the program was built of, or at which its file was written.
func made(program string) time.Time {
	at := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if t, err := time.Parse(time.RFC3339, s.Value); s.Key == "vcs.time" && err == nil && t.After(at) {
				at = t
			}
		}
	}
	if st, err := os.Stat(program); err == nil && st.ModTime().After(at) {
		at = st.ModTime()
	}
	return at
}

func probeSwap(context.Context, *env) answer {
	data, err := os.ReadFile("/proc/swaps")
	if os.IsNotExist(err) {
		return ok("the kernel has no swap")
	}
	if err != nil {
		return limited("%v", err)
	}
	if n := len(strings.Split(strings.TrimSpace(string(data)), "\n")) - 1; n > 0 {
		return limited("%d areas in use", n)
	}
	return ok("off")
}

func probeInotify(context.Context, *env) answer {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return missing("inotify_init: %v", err)
	}
	unix.Close(fd)
	instances := readInt("/proc/sys/fs/inotify/max_user_instances")
	watches := readInt("/proc/sys/fs/inotify/max_user_watches")
	if instances < 128 || watches < 8192 {
		return limited("%d instances, %d watches a user", instances, watches)
	}
	return ok("%d instances, %d watches a user", instances, watches)
}

func readInt(path string) int {
	s, err := readLine(path)
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}

func probeFiles(context.Context, *env) answer {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return limited("getrlimit: %v", err)
	}
	if r.Max < 65536 {
		return limited("at most %d", r.Max)
	}
	return ok("at most %d", r.Max)
}
