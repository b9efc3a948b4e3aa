package cri

import (
	"os"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestSystemTree looks at what every container has beside its image. Most of it is put together outside of the
// container's root.
func TestSystemTree(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "tree", nil)
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, huge, _ := strings.Cut(string(status), "THP_enabled:")
	huge, _, _ = strings.Cut(huge, "\n")
	for name, more := range map[string]func(*runtimeapi.ContainerConfig){
		"plain":    sleeper,
		"readonly": func(cfg *runtimeapi.ContainerConfig) { sleeper(cfg); securityOf(cfg).ReadonlyRootfs = true },
		// What is mounted below /dev comes over what is there.
		"mounts": func(cfg *runtimeapi.ContainerConfig) {
			sleeper(cfg)
			cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/dev/mine", HostPath: t.TempDir()}}
		},
		// It covers the files of the pod unless they are put there later.
		"volume": func(cfg *runtimeapi.ContainerConfig) {
			sleeper(cfg)
			cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/etc", HostPath: t.TempDir()}}
		},
		// Its /dev is made by libcontainer.
		"device": func(cfg *runtimeapi.ContainerConfig) {
			sleeper(cfg)
			cfg.Devices = []*runtimeapi.Device{{HostPath: "/dev/null", ContainerPath: "/dev/other", Permissions: "rwm"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			id := n.run(t, pod, name, more)
			for script, want := range map[string]string{
				"readlink /proc/1/fd/0":                                                            "/dev/null",
				"cd /dev; stat -c '%F %t:%T %a' null zero full tty":                                strings.TrimSpace(nodes),
				"for l in ptmx fd stdin; do readlink /dev/$l; done":                                "pts/ptmx\n/proc/self/fd\n/proc/self/fd/0",
				"stat -c %a /dev/shm /dev/mqueue":                                                  "1777\n1777",
				"touch /dev/a && rm /dev/a && echo made":                                           "made",
				"echo x 2>/dev/null > /sys/kernel/mm/transparent_hugepage/enabled || echo refused": "refused",
				"grep -c '^sysfs /sys sysfs ro,' /proc/mounts":                                     "1",
				// Each place is mounted once.
				"cut -d' ' -f5 /proc/self/mountinfo | sort | uniq -d":                              "",
				"touch /sys/fs/cgroup/a 2>/dev/null || echo refused":                               "refused",
				"for f in hosts hostname resolv.conf; do grep -c \" /etc/$f \" /proc/mounts; done": "1\n1\n1",
				"cat /etc/hostname": "tree",
				// What sets the container up goes without huge pages, its program and commands do not.
				"sed -n s/THP_enabled://p /proc/1/status":    strings.TrimSpace(huge),
				"sed -n s/THP_enabled://p /proc/self/status": strings.TrimSpace(huge),
				// Of each hierarchy its own group, which has nothing in it.
				"find /sys/fs/cgroup/ -mindepth 2 -type d": "",
				"cat /sys/fs/cgroup/*/cgroup.procs /sys/fs/cgroup/cgroup.procs 2>/dev/null | grep -cx 1 | sed 's/[1-9][0-9]*/some/'": "some",
			} {
				if got := n.sh(t, id, script); got != want {
					t.Errorf("%s: got %q, want %q", script, got, want)
				}
			}
			for _, m := range []string{"/dev", "/dev/pts", "/dev/mqueue", "/dev/shm", "/sys/fs/cgroup"} {
				flags := n.sh(t, id, "awk '$2 == \""+m+"\" {print \",\" $4 \",\"}' /proc/mounts")
				if !strings.Contains(flags, ",nosuid,") || m != "/dev" && !strings.Contains(flags, ",noexec,") {
					t.Errorf("%s is mounted with %q", m, flags)
				}
			}
			want := map[bool]string{false: "written", true: "refused"}[name == "readonly"]
			if got := n.sh(t, id, "(: >> /etc/resolv.conf) 2>/dev/null && echo written || echo refused"); got != want {
				t.Errorf("write to a file of the pod: got %q, want %q", got, want)
			}
			// Through its standard input a container must not reach the node's own device.
			if name == "plain" {
				n.sh(t, id, "chmod 600 /proc/1/fd/0")
				if fi, err := os.Stat("/dev/null"); err != nil || fi.Mode().Perm() != 0o666 {
					t.Errorf("the node's /dev/null: got %v, %v", fi.Mode(), err)
				}
			}
		})
	}
	if got := n.leaks(t); hasPrefix(got, "mount "+n.core.host.Paths.State()) {
		t.Errorf("on the node there is %q", got)
	}
}

const nodes = `
character special file 1:3 666
character special file 1:5 666
character special file 1:7 666
character special file 5:0 666
`
