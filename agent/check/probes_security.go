package check

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func securityProbes() []probe {
	return []probe{
		{"capabilities", true, "Containers cannot be set up, or not all of them.", probeCaps},
		{"CAP_SYS_RESOURCE", false, "oom_score_adj cannot be lowered: Guaranteed pods are not spared by the OOM killer, pods start nevertheless.", func(_ context.Context, e *env) answer {
			if !hasCap(e.status, unix.CAP_SYS_RESOURCE) {
				return missing("not in our effective set")
			}
			return ok("held")
		}},
		{"seccomp", false, "Containers can use every system call; profiles other than Unconfined are refused.", probeSeccomp},
		{"seccomp notify", false, "Profiles that hand system calls to an agent (SCMP_ACT_NOTIFY) are refused.", func(context.Context, *env) answer { return seccompAction("user_notif") }},
		{"libseccomp", false, "A dynamically linked helper cannot compile seccomp profiles.", probeLibseccomp},
		{"AppArmor", false, "AppArmor profiles that pods name are refused, and RuntimeDefault is none.", probeAppArmor},
		{"SELinux", false, "SELinux options of pods are ignored.", probeSELinux},
	}
}

// neededCaps are what making a container takes, by the work they are for.
func neededCaps() map[string]int {
	return map[string]int{
		"SYS_ADMIN": unix.CAP_SYS_ADMIN, "NET_ADMIN": unix.CAP_NET_ADMIN, "CHOWN": unix.CAP_CHOWN, "DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE,
		"FOWNER": unix.CAP_FOWNER, "FSETID": unix.CAP_FSETID, "KILL": unix.CAP_KILL, "MKNOD": unix.CAP_MKNOD, "SETFCAP": unix.CAP_SETFCAP,
		"SETGID": unix.CAP_SETGID, "SETUID": unix.CAP_SETUID, "SETPCAP": unix.CAP_SETPCAP, "SYS_CHROOT": unix.CAP_SYS_CHROOT,
		"SYS_PTRACE": unix.CAP_SYS_PTRACE, "NET_RAW": unix.CAP_NET_RAW, "NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE,
		"AUDIT_WRITE": unix.CAP_AUDIT_WRITE,
	}
}

func probeCaps(_ context.Context, e *env) answer {
	var lost []string
	for name, n := range neededCaps() {
		if !hasCap(e.status, n) {
			lost = append(lost, name)
		}
	}
	slices.Sort(lost)
	switch {
	case len(lost) == 0:
		return ok("all that containers are made with")
	case slices.Contains(lost, "SYS_ADMIN"):
		return missing("without %s", strings.Join(lost, ", "))
	}
	return limited("without %s", strings.Join(lost, ", "))
}

// hasCap looks a capability up in the CapEff line of /proc/self/status.
func hasCap(status string, n int) bool {
	for line := range strings.Lines(status) {
		if v, found := strings.CutPrefix(line, "CapEff:"); found {
			set, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return err == nil && set&(1<<n) != 0
		}
	}
	return false
}

func probeSeccomp(_ context.Context, e *env) answer {
	if !strings.Contains(e.status, "\nSeccomp:") {
		return missing("not in this kernel")
	}
	return seccompAction("errno")
}

func seccompAction(name string) answer {
	actions, err := readLine("/proc/sys/kernel/seccomp/actions_avail")
	if err != nil {
		return missing("%v", err)
	}
	if !slices.Contains(strings.Fields(actions), name) {
		return missing("the kernel has only %s", actions)
	}
	return ok("action %s", name)
}

func probeLibseccomp(context.Context, *env) answer {
	for _, dir := range []string{"/lib/*", "/usr/lib/*", "/lib64", "/usr/lib64", "/usr/lib", "/usr/local/lib"} {
		if found, _ := filepath.Glob(dir + "/libseccomp.so.2*"); len(found) > 0 {
			slices.Sort(found)
			return ok("%s", found[len(found)-1])
		}
	}
	return missing("no libseccomp.so.2")
}

func probeAppArmor(context.Context, *env) answer {
	v, err := readLine("/sys/module/apparmor/parameters/enabled")
	if err != nil || v != "Y" {
		return missing("not enabled in this kernel")
	}
	if _, err := os.Stat("/sys/kernel/security/apparmor/profiles"); err != nil {
		return limited("enabled, but securityfs is not mounted")
	}
	for _, name := range []string{"apparmor_parser", "/usr/sbin/apparmor_parser", "/sbin/apparmor_parser"} {
		if path, err := exec.LookPath(name); err == nil {
			return ok("enabled, profiles are loaded by %s", path)
		}
	}
	return limited("enabled, but there is no apparmor_parser to load RuntimeDefault: pods run without a profile")
}

func probeSELinux(context.Context, *env) answer {
	v, err := readLine("/sys/fs/selinux/enforce")
	if err != nil {
		return missing("not enabled in this kernel")
	}
	// Without a policy every process has the kernel's own label, and none can be set.
	if label, err := readLine("/proc/self/attr/current"); err == nil && strings.TrimRight(label, "\x00") == "kernel" {
		return missing("enabled, but no policy is loaded")
	}
	mode := map[string]string{"0": "permissive", "1": "enforcing"}[v]
	return ok("%s", fmt.Sprintf("enabled, %s", mode))
}
