package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"github.com/containerd/cgroups/v3/cgroup2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups"
)

func cgroupProbes() []probe {
	out := []probe{
		{"cgroups", true, "Without control groups no pod can be limited, measured or killed as a whole.", probeHierarchy},
	}
	for _, c := range []struct {
		name, cost string
		required   bool
	}{
		{"cpu", "CPU requests and limits have no effect.", true},
		{"cpuset", "Containers cannot be pinned to CPUs.", false},
		{"memory", "Memory limits have no effect: one container can take the node's memory.", true},
		{"pids", "A fork bomb in a container takes the whole node.", true},
		{"io", "Disk use of pods is neither measured nor limited.", false},
		{"hugetlb", "Pods that ask for huge pages are not held to their limit.", false},
	} {
		out = append(out, probe{
			"cgroup " + c.name, c.required, c.cost, func(_ context.Context, e *env) answer { return probeController(e, c.name) },
		})
	}
	return append(out,
		probe{"cgroup devices", true, "Containers could open any device of the node.", probeDevices},
		probe{"cgroup freezer", false, "Groups that fork quickly take longer to kill.", probeFreezer},
		probe{"cgroup kill", false, "Groups are killed process by process instead of at once.", probeKill},
		probe{
			"clone into cgroup", false, "Attaching a process to its group costs up to 10 ms at each pod start (cgroup v1).",
			probeCloneInto,
		},
		probe{"PSI", false, "Pressure stall figures are not shown, and eviction looks at memory use alone.", probePSI},
	)
}

func probeHierarchy(ctx context.Context, e *env) answer {
	if e.hErr != nil {
		return missing("%v", e.hErr)
	}
	path, err := scratch(e.h)
	if err != nil {
		return missing("%v", err)
	}
	if err := e.h.Remove(ctx, path); err != nil {
		return limited("%s, but a group cannot be removed: %v", e.h.Mode(), err)
	}
	return ok("%s at %s, a group was made and removed", e.h.Mode(), e.h.Mountpoint())
}

// scratch makes a group of our own that the caller removes.
func scratch(h *cgroups.Hierarchy) (string, error) {
	path := fmt.Sprintf("/berth-check-%d", os.Getpid())
	if err := h.Create(path, nil); err != nil {
		_ = h.Remove(context.Background(), path)
		return "", err
	}
	return path, nil
}

// removed removes a scratch group. One that stays is nothing that the probe could keep quiet about.
func removed(ctx context.Context, h *cgroups.Hierarchy, path string, found *answer) {
	if err := h.Remove(context.WithoutCancel(ctx), path); err != nil {
		*found = missing("remove group %s: %v", path, err)
	}
}

// inGroup is what try finds in the directory of a group that is made for it, in the v2 hierarchy.
func inGroup(ctx context.Context, e *env, try func(dir string) answer) (found answer) {
	if e.h.Mode() == cgroups.Legacy {
		return missing("there is no v2 hierarchy")
	}
	path, err := scratch(e.h)
	if err != nil {
		return missing("%v", err)
	}
	defer removed(ctx, e.h, path, &found)
	return try(e.h.Dir("", path))
}

func probeController(e *env, name string) answer {
	if e.hErr != nil {
		return missing("no hierarchy")
	}
	v1 := name
	if name == "io" {
		v1 = "blkio"
	}
	have := e.h.Controllers()
	switch {
	case e.h.Mode() == cgroups.Unified && slices.Contains(have, name):
		return ok("v2")
	case slices.Contains(have, v1):
		dir := e.h.Dir(v1, "/")
		if e.h.Mode() == cgroups.Hybrid && dir == e.h.Dir("", "/") {
			return ok("on the v2 side, %s", dir)
		}
		return ok("v1, %s", dir)
	}
	return missing("not enabled in this kernel or on its command line")
}

func probeDevices(ctx context.Context, e *env) answer {
	if e.hErr != nil {
		return missing("no hierarchy")
	}
	if e.h.Mode() != cgroups.Unified {
		if e.h.Dir("devices", "/") == "" {
			return missing("no v1 devices controller")
		}
		return ok("v1, %s", e.h.Dir("devices", "/"))
	}
	return inGroup(ctx, e, func(path string) answer {
		every := int64(-1)
		insts, license, err := cgroup2.DeviceFilter([]specs.LinuxDeviceCgroup{
			{Type: "a", Major: &every, Minor: &every, Access: "rwm"},
		})
		if err != nil {
			return missing("%v", err)
		}
		dir, err := os.Open(path)
		if err != nil {
			return missing("%v", err)
		}
		defer dir.Close()
		detach, err := cgroup2.LoadAttachCgroupDeviceFilter(insts, license, int(dir.Fd()))
		if err != nil {
			return missing("BPF device filter: %v", err)
		}
		return tried(detach(), "BPF device filter loaded and attached")
	})
}

func probeFreezer(_ context.Context, e *env) answer {
	switch {
	case e.hErr != nil:
		return missing("no hierarchy")
	case e.h.Mode() == cgroups.Unified:
		return ok("v2")
	case e.h.Dir("freezer", "/") != "":
		return ok("v1, %s", e.h.Dir("freezer", "/"))
	}
	return missing("no freezer controller")
}

func probeKill(ctx context.Context, e *env) answer {
	if e.hErr != nil {
		return missing("no hierarchy")
	}
	return inGroup(ctx, e, func(path string) answer {
		if _, err := os.Stat(path + "/cgroup.kill"); err != nil {
			return missing("no cgroup.kill (Linux 5.14)")
		}
		if e.h.Mode() == cgroups.Hybrid {
			return limited("on the v2 side only; the v1 side is killed by pidfd")
		}
		return ok("cgroup.kill")
	})
}

func probeCloneInto(ctx context.Context, e *env) answer {
	if e.hErr != nil {
		return missing("no hierarchy")
	}
	return inGroup(ctx, e, func(path string) answer {
		dir, err := os.Open(path)
		if err != nil {
			return missing("%v", err)
		}
		defer dir.Close()
		if err := forkOnly(&syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}); err != nil {
			return missing("clone3(CLONE_INTO_CGROUP): %v", err)
		}
		if e.h.Mode() == cgroups.Hybrid {
			return limited("on the v2 side only; the v1 controllers need an attach")
		}
		return ok("clone3 works")
	})
}

func probePSI(_ context.Context, e *env) answer {
	f, err := os.Open("/proc/pressure/memory")
	if err != nil {
		return missing("no /proc/pressure (CONFIG_PSI, or psi=1 on the kernel command line)")
	}
	defer f.Close()
	if _, err := f.Read(make([]byte, 64)); errors.Is(err, unix.EOPNOTSUPP) {
		return missing("switched off (psi=0)")
	}
	if e.hErr != nil || e.h.Mode() == cgroups.Legacy {
		return limited("of the machine only, v1 groups have none")
	}
	if _, err := os.Stat(e.h.Dir("", "/") + "/cpu.pressure"); err != nil && e.h.Mode() == cgroups.Hybrid {
		return limited("of the machine only")
	}
	return ok("of the machine and of each group")
}
