package keeper_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

// checkFiles looks at the first three files of a process in a container: those of them that want names as the null
// device are one, and none is the host's. Who has that open can change its mode.
func checkFiles(t *testing.T, pid int, want ...int) {
	t.Helper()
	var host, st unix.Stat_t
	if err := unix.Stat("/dev/null", &host); err != nil {
		t.Fatal(err)
	}
	for fd := range 3 {
		if err := unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", pid, fd), &st); err != nil {
			t.Fatal(err)
		}
		if st.Dev == host.Dev && st.Ino == host.Ino {
			t.Errorf("file %d of process %d is the host's /dev/null", fd, pid)
		}
	}
	for _, fd := range want {
		f := fmt.Sprintf("/proc/%d/fd/%d", pid, fd)
		if err := unix.Stat(f, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(1, 3) {
			t.Errorf("file %d of process %d is no null device: %o, %v", fd, pid, st.Mode, err)
		}
	}
	if l, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)); err != nil || len(l) != 3 {
		t.Errorf("process %d has the files %q, %v", pid, l, err)
	}
}

// hostNull is the host's /dev/null as stat(1) numbers it.
func hostNull(t *testing.T) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/dev/null", &st); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// TestNullIsTheContainersOwn looks at what execs have for files that are not asked for, whatever the container does to
// its /dev/null.
func TestNullIsTheContainersOwn(t *testing.T) {
	for name, script := range map[string]string{
		"as it was":    "true",
		"no longer":    "rm /dev/null",
		"a link":       "rm /dev/null; ln -s zero /dev/null",
		"a file":       "rm /dev/null; echo x >/dev/null",
		"without mode": "chmod 0 /dev/null",
		"no pipe":      "rm /dev/null; mkfifo /dev/null",
		"another":      "rm /dev/null; mknod /dev/null c 1 5",
	} {
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			for _, a := range []string{"chmod", "mkfifo", "mknod", "stat"} {
				if err := os.Symlink("busybox", filepath.Join(p.rootfs, "bin", a)); err != nil {
					t.Fatal(err)
				}
			}
			spec := p.spec("c", "/bin/sh", "-c", "("+script+"); echo done; exec sleep 1000")
			caps := &specs.LinuxCapabilities{Bounding: []string{"CAP_MKNOD"}, Effective: []string{"CAP_MKNOD"}, Permitted: []string{"CAP_MKNOD"}}
			spec.Process.Capabilities = caps
			c := p.container(spec)
			pid, err := p.Run(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, func() bool { return strings.Contains(strings.Join(p.log(c.ID), ""), "done") })
			checkFiles(t, pid, 0)
			proc, err := p.Exec(t.Context(), keeper.Exec{ContainerID: c.ID, Pid: pid, Process: p.spec(c.ID, "/bin/sleep", "1000").Process})
			if err != nil {
				t.Fatal(err)
			}
			defer proc.Close()
			checkFiles(t, proc.Pid, 0, 1, 2)
			if err := proc.Kill(unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if _, err := proc.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			// A probe has its input from there. It changes the mode only of what is not the host's: a test must not do
			// the harm it is about.
			var out strings.Builder
			e, err := p.Capture(t.Context(), p.script(c.ID, pid, fmt.Sprintf(`[ "$(stat -L -c %%d:%%i /proc/self/fd/0)" = %s ] && exit 9
				cat; echo x >&0 && echo written; chmod 0 /proc/self/fd/0; echo $?`, hostNull(t))), &out, &out)
			if err != nil || e.Code != 0 || out.String() != "written\n0\n" {
				t.Errorf("a probe said %q, ended with %+v, %v", out.String(), e, err)
			}
			if fi, err := os.Stat("/dev/null"); err != nil || fi.Mode().Perm() != 0o666 {
				t.Errorf("the host's /dev/null: %v, %v", fi, err)
			}
		})
	}
}

// TestNullOfAContainerWithAForeignDev has a directory of the host in the place of /dev.
func TestNullOfAContainerWithAForeignDev(t *testing.T) {
	p := newPod(t)
	dev := filepath.Join(p.dir, "dev")
	mountTmpfs(t, dev, "mode=755")
	for _, null := range []bool{false, true} {
		if null {
			if err := unix.Mknod(filepath.Join(dev, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
				t.Fatal(err)
			}
		}
		spec := p.spec("c", "/bin/sleep", "1000")
		spec.Mounts = []specs.Mount{spec.Mounts[0], {Destination: "/dev", Type: "bind", Source: dev, Options: []string{"rbind", "ro"}}}
		c := p.container(spec)
		pid, err := p.Run(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		checkFiles(t, pid, 0)
		proc, err := p.Exec(t.Context(), keeper.Exec{ContainerID: c.ID, Pid: pid, Process: p.spec(c.ID, "/bin/sleep", "1000").Process})
		if err != nil {
			t.Fatal(err)
		}
		checkFiles(t, proc.Pid, 0, 1, 2)
		_ = proc.Kill(unix.SIGKILL)
		proc.Close()
	}
}
