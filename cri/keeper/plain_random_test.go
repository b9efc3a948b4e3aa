package keeper_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// A dice makes specifications of ordinary containers.
type dice struct {
	*rand.Rand
	t   testing.TB
	p   *pod
	dir string // with volumes

	failed int // starts, as they should
}

func (d *dice) chance(percent int) bool { return d.IntN(100) < percent }

// some is a part of a list, in its order.
func some[T any](d *dice, percent int, list ...T) []T {
	var out []T
	for _, v := range list {
		if d.chance(percent) {
			out = append(out, v)
		}
	}
	return out
}

func pick[T any](d *dice, list ...T) T { return list[d.IntN(len(list))] }

// makeRoot makes an empty root, with what an image may have of links and places.
func makeRoot(t testing.TB, dir, program string) {
	t.Helper()
	for _, sub := range []string{"bin", "etc", "proc", "dev", "sys", "tmp", "run", "var", "data/deep", "home/bob", "locked", "nodes"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "locked"), 0o700); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"var/run": "/run", "var/log": "../data", "loop": "loop", "up": "../../..", "file": "etc/passwd"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range nodes {
		if err := unix.Mknod(filepath.Join(dir, "nodes", n.name), n.kind|0o666, int(unix.Mkdev(n.major, n.minor))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(program, filepath.Join(dir, "bin/reveal")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nbob:x:1000:1000::/home/bob:/bin/sh\n", 0o644)
	write(t, filepath.Join(dir, "data/secret"), "secret", 0o644)
}

var looked = []string{
	"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sys", "/proc/sysrq-trigger", "/proc/bus", "/proc/irq", "/proc/fs",
	"/sys/firmware", "/sys", "/sys/fs/cgroup", "/data", "/data/secret", "/data/deep", "/vol", "/etc/hosts", "/run/secrets", "/var/run/secrets", "/nested/inner",
	"/dev/shm", "/dev/mqueue", "/dev/null", "/tmp", "/", "/nodes/zero", "/nodes/tun", "/nodes/memory", "/nodes/log", "/nodes/fuse",
	"/nodes/random", "/nodes/loop", "/nodes/console",
}

// spec is one of a container that is ordinary.
func (d *dice) spec(root string) *specs.Spec {
	s := d.p.spec("c", append([]string{pick(d, "reveal", "/bin/reveal")}, looked...)...)
	s.Root = &specs.Root{Path: root, Readonly: d.chance(30)}
	s.Process.Env = []string{"PATH=/sbin:/bin"}
	s.Process.Env = append(s.Process.Env, some(d, 30, "A=1", "A=2", "HOME=", "HOME=/else", "B=", "PATH=/bin", "C=x=y")...)
	s.Process.Cwd = pick(d, "/", "/", "/tmp", "/data/deep", "/made/on/the/way", "/var/run/new", "/up")
	d.user(s.Process)
	d.capabilities(s.Process)
	d.limits(s)
	d.mounts(s)
	d.paths(s)
	if d.chance(15) {
		s.Process.Terminal = true
		if d.chance(50) {
			s.Process.ConsoleSize = &specs.Box{Width: 100, Height: 30}
		}
	}
	s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Path != "" && d.chance(10) })
	if onV2() {
		d.unified(s)
	}
	d.filter(s)
	return s
}

func (d *dice) user(p *specs.Process) {
	p.User = specs.User{UID: pick(d, uint32(0), 0, 1000, 65534, 4000000), GID: pick(d, uint32(0), 0, 1000, 7)}
	p.User.AdditionalGids = some(d, 30, uint32(5), 10, 1000, 70000)
	if d.chance(20) {
		p.User.Umask = new(pick(d, uint32(0), 0o27, 0o77))
	}
	p.NoNewPrivileges = d.chance(50)
	if d.chance(60) {
		p.OOMScoreAdj = new(pick(d, 0, 2, 500, 1000))
	}
	for _, name := range some(d, 15, "RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_NPROC", "RLIMIT_SIGPENDING", "RLIMIT_MEMLOCK") {
		hard := pick(d, uint64(512), 1000, 4096) // to raise one takes a capability that not every root has
		p.Rlimits = append(p.Rlimits, specs.POSIXRlimit{Type: name, Soft: min(hard, pick(d, uint64(256), 1<<20)), Hard: hard})
	}
}

func (d *dice) capabilities(p *specs.Process) {
	caps := some(d, 50, "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_NET_RAW",
		"CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_ADMIN", "CAP_SETPCAP", "CAP_CHECKPOINT_RESTORE")
	p.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
	if d.chance(30) {
		p.Capabilities.Ambient = some(d, 50, caps...)
		p.Capabilities.Inheritable = p.Capabilities.Ambient
	}
	if d.chance(10) {
		p.Capabilities.Effective = some(d, 50, caps...)
	}
}

func (d *dice) limits(s *specs.Spec) {
	r := &specs.LinuxResources{}
	if d.chance(80) {
		r.Devices = []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	}
	if d.chance(50) {
		r.Memory = &specs.LinuxMemory{Limit: new(pick(d, int64(64<<20), 256<<20, 1<<30))}
		if d.chance(30) {
			r.Memory.Reservation = new(int64(32 << 20))
		}
	}
	if d.chance(60) {
		r.CPU = &specs.LinuxCPU{Shares: new(pick(d, uint64(2), 102, 1024, 4096))}
		if d.chance(50) {
			r.CPU.Quota, r.CPU.Period = new(pick(d, int64(20000), 50000, -1)), new(uint64(100000))
		}
		if d.chance(20) {
			r.CPU.Cpus, r.CPU.Mems = "0", "0"
		}
	}
	if d.chance(30) {
		r.Pids = &specs.LinuxPids{Limit: new(pick(d, int64(100), 2000))}
	}
	s.Linux.Resources = r
	if d.chance(5) {
		s.Linux.Resources = nil
	}
}

// mounts makes those of a pod's container, of which most have all.
func (d *dice) mounts(s *specs.Spec) {
	std := []string{"nosuid", "noexec", "nodev"}
	add := func(at, kind, source string, options ...string) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: at, Type: kind, Source: source, Options: options})
	}
	s.Mounts = nil
	add("/proc", "proc", "proc", pick(d, std, nil, std)...)
	add("/dev", "tmpfs", pick(d, "tmpfs", "other"), append(some(d, 70, "nosuid", "strictatime"), "mode=755", "size=65536k")...)
	add("/dev/pts", "devpts", "devpts", append([]string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}, some(d, 70, "gid=5")...)...)
	if d.chance(80) {
		add("/dev/mqueue", "mqueue", "mqueue", std...)
	}
	if d.chance(85) {
		add("/sys", "sysfs", "sysfs", append(some(d, 80, std...), "rw")...)
		if d.chance(85) {
			add("/sys/fs/cgroup", "cgroup", "cgroup", append(slices.Clone(std), pick(d, "relatime", "noexec"), pick(d, "ro", "rw"))...)
		}
		if d.chance(80) {
			s.Linux.ReadonlyPaths = append(s.Linux.ReadonlyPaths, "/sys")
		}
	}
	private := []string{"rbind", "rprivate"}
	volume := func(at, source string) {
		if !d.chance(50) {
			return
		}
		options := append(slices.Clone(private), pick(d, "ro", "rw", "rw"))
		switch d.IntN(10) {
		case 0:
			options = []string{"rbind", "rslave", pick(d, "ro", "rw")}
		case 1:
			options = []string{"rbind", "rprivate", "rro"}
		case 2:
			options = []string{"bind", "rprivate", "ro", "nosuid", "nodev"}
		case 3:
			options = private
		}
		add(at, "bind", filepath.Join(d.dir, source), options...)
	}
	if d.chance(80) {
		add("/dev/shm", "bind", filepath.Join(d.dir, "shm"), "rbind", "rprivate", "nosuid", "noexec", "nodev", "rw")
	}
	volume("/dev/termination-log", "file")
	volume("/etc/hosts", "file")
	volume("/vol", "plain")
	volume("/data", "plain")
	volume("/nested", "tmpfs")
	volume("/up/top", "plain")
	volume("/etc/resolv.conf", "strict/file")
	volume("/var/log/new", "strict")
	volume("/var/run/secrets/token", "tmpfs/inner")
	volume("/deep/er/than/that/file", "file")
}

func (d *dice) paths(s *specs.Spec) {
	s.Linux.MaskedPaths = some(d, 60, "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/acpi", "/proc/scsi", "/sys/firmware", "/proc/irq", "/proc/fs",
		"/proc/not-there", "/data/secret", "/data/deep", "/file", "/var/log/secret", "/proc/keys")
	s.Linux.ReadonlyPaths = append(s.Linux.ReadonlyPaths, some(d, 60, "/proc/bus", "/proc/fs", "/proc/sys", "/proc/sysrq-trigger", "/proc/gone", "/data", "/var/run", "/tmp")...)
}

// filter: the default one depends on capabilities, so there are few of both.
func (d *dice) filter(s *specs.Spec) {
	switch d.IntN(5) {
	case 0:
	case 1:
		// It says that all is well, and does nothing: who gives up what the program is not to have must not fall for
		// it.
		s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{
			Names:  []string{"setuid", "setresuid", "setgid", "setresgid", "setgroups", "capset", "chdir", pick(d, "umask", "fchown")},
			Action: specs.ActErrno, ErrnoRet: new(uint(0)),
		}}}
	case 2:
		s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{
			{Names: []string{"reboot", pick(d, "swapon", "swapoff")}, Action: specs.ActErrno, ErrnoRet: new(uint(38))},
		}}
	default:
		like := *s
		like.Process = &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: pick(d, nil, []string{"CAP_SYS_ADMIN"})}}
		p, err := seccomp.GetDefaultProfile(&like)
		if err != nil {
			d.t.Fatal(err)
		}
		if d.chance(20) {
			p.Flags = []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagLog}
		}
		s.Linux.Seccomp = p
	}
}

// volumes makes what may be mounted.
func (d *dice) volumes() {
	for _, dir := range []string{"plain/sub"} {
		if err := os.MkdirAll(filepath.Join(d.dir, dir), 0o755); err != nil {
			d.t.Fatal(err)
		}
	}
	write(d.t, filepath.Join(d.dir, "file"), "file", 0o644)
	mountTmpfs(d.t, filepath.Join(d.dir, "shm"), "mode=1777,size=64k")
	// As a pod's is mounted.
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if err := unix.Mount("", filepath.Join(d.dir, "shm"), "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""); err != nil {
		d.t.Fatal(err)
	}
	mountTmpfs(d.t, filepath.Join(d.dir, "tmpfs"), "mode=755")
	// What goes to the container must not come back from there, nor may all of it go there.
	if err := unix.Mount("", filepath.Join(d.dir, "tmpfs"), "", unix.MS_SHARED, ""); err != nil {
		d.t.Fatal(err)
	}
	mountTmpfs(d.t, filepath.Join(d.dir, "tmpfs/inner"), "mode=755")
	mountTmpfs(d.t, filepath.Join(d.dir, "strict"), "mode=755")
	write(d.t, filepath.Join(d.dir, "strict/file"), fmt.Sprintln("file"), 0o600)
}
