package oci

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/moby/sys/capability"
)

// ReadHost looks at this process and its kernel. What depends on the cgroup hierarchy is the caller's to fill in.
func ReadHost() (Host, error) {
	h := Host{AppArmor: isYes("/sys/module/apparmor/parameters/enabled"), SELinux: labels()}
	var err error
	if h.Hostname, err = os.Hostname(); err != nil {
		return h, fmt.Errorf("read hostname: %w", err)
	}
	caps, err := capability.NewPid2(0)
	if err != nil {
		return h, fmt.Errorf("read capabilities: %w", err)
	}
	if err := caps.Load(); err != nil {
		return h, fmt.Errorf("read capabilities: %w", err)
	}
	known, err := capability.ListSupported()
	if err != nil {
		return h, fmt.Errorf("read capabilities: %w", err)
	}
	for _, c := range known {
		if caps.Get(capability.PERMITTED, c) {
			h.Capabilities = append(h.Capabilities, "CAP_"+strings.ToUpper(c.String()))
		}
	}
	h.OOMScoreAdjMin = -1000
	if !caps.Get(capability.PERMITTED, capability.CAP_SYS_RESOURCE) {
		b, err := os.ReadFile("/proc/self/oom_score_adj")
		if err != nil {
			return h, fmt.Errorf("read own oom_score_adj: %w", err)
		}
		if h.OOMScoreAdjMin, err = strconv.Atoi(string(bytes.TrimSpace(b))); err != nil {
			return h, fmt.Errorf("read own oom_score_adj: %w", err)
		}
	}
	return h, nil
}

func isYes(path string) bool {
	b, err := os.ReadFile(path)
	return err == nil && strings.HasPrefix(string(b), "Y")
}

// labels says whether SELinux runs, and has a policy: without one it takes no label, and every process has the kernel's
// own.
func labels() bool {
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err != nil {
		return false
	}
	b, err := os.ReadFile("/proc/self/attr/current")
	return err == nil && string(bytes.TrimRight(b, "\x00\n")) != "kernel"
}
