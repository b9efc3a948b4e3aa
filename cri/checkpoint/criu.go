// Package checkpoint makes archives of running containers: CRIU dumps the processes, and what else a checkpoint has
// goes beside the dump, in the layout that checkpointctl and runtimes that restore containers know.
package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// CRIU is an installed criu that can work on this kernel.
type CRIU struct{ path string }

// FindCRIU looks for criu and has it check the kernel. An error that is [errors.ErrUnsupported] says what is missing.
func FindCRIU(ctx context.Context) (CRIU, error) {
	path, err := exec.LookPath("criu")
	if err != nil {
		return CRIU{}, fmt.Errorf("%w: the program criu is not installed (in most distributions the package criu)", errors.ErrUnsupported)
	}
	if out, err := command(ctx, path, "check").CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return CRIU{}, ctx.Err()
		}
		return CRIU{}, fmt.Errorf("%w: this kernel cannot, for which it needs CONFIG_CHECKPOINT_RESTORE and more (criu check: %w): %s", errors.ErrUnsupported, err, lastLine(string(out)))
	}
	return CRIU{path: path}, nil
}

func command(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = "/"
	// In case it leaves something behind that holds its output.
	cmd.WaitDelay = time.Second
	return cmd
}

// Container is a running container of libcontainer's.
type Container struct {
	Pid    int    // its first process
	Rootfs string // where its root file system is mounted on the machine
	Spec   *specs.Spec
}

// Dump has the processes dumped into a [Dir] and goes on with them. When ctx ends it stops the dump, and the processes
// go on.
//
// They are stopped by ptrace(2) and not by the freezer, which the death of criu would leave frozen.
func (c CRIU) Dump(ctx context.Context, ctr Container, d Dir) error {
	external, err := ctr.external()
	if err != nil {
		return err
	}
	if err := ctr.describeStdio(d); err != nil {
		return err
	}
	args := []string{
		"dump", "--tree", strconv.Itoa(ctr.Pid), "--root", ctr.Rootfs, "--images-dir", d.Images(), "--work-dir", string(d),
		"--log-file", LogFile, "-v4", "--leave-running", "--tcp-established", "--file-locks", "--manage-cgroups=soft",
		// Without the programs of iptables, and as the ports of pods are made.
		"--network-lock", "nftables",
	}
	for _, e := range external {
		args = append(args, "--external", e)
	}
	out, err := command(ctx, c.path, args...).CombinedOutput()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if why := d.reason(); why != "" {
		err = fmt.Errorf("%w: %s", err, why)
	} else if text := lastLine(string(out)); text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return errors.Join(fmt.Errorf("criu dump: %w", err), UnlockNetwork(ctr.Pid))
}

// external is what belongs to the machine or the pod, and is put there again by whoever restores. Its names are those
// that runc gives it, who looks for them then.
func (ctr Container) external() ([]string, error) {
	var out []string
	for _, ns := range ctr.Spec.Linux.Namespaces {
		if ns.Path == "" {
			continue
		}
		kind, key := "net", "extRootNetNS"
		switch ns.Type {
		case specs.NetworkNamespace:
		case specs.PIDNamespace:
			kind, key = "pid", "extRootPidNS"
		default:
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat(ns.Path, &st); err != nil {
			return nil, &os.PathError{Op: "stat", Path: ns.Path, Err: err}
		}
		out = append(out, fmt.Sprintf("%s[%d]:%s", kind, st.Ino, key))
	}
	masked := map[string]bool{}
	for _, p := range ctr.Spec.Linux.MaskedPaths {
		masked[p] = true
	}
	bound := map[string]bool{}
	for _, m := range ctr.Spec.Mounts {
		for _, o := range m.Options {
			if o == "bind" || o == "rbind" {
				bound[filepath.Clean(m.Destination)] = true
			}
		}
	}
	mounts, err := ctr.mounts()
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		switch {
		case masked[m.Mountpoint] && m.FSType != "tmpfs":
			// A directory is covered by an empty file system, which is dumped as such.
			out = append(out, fmt.Sprintf("mnt[%s]:/dev/null", m.Mountpoint))
		case bound[m.Mountpoint], m.FSType == "cgroup", below(m.Mountpoint, bound):
			out = append(out, fmt.Sprintf("mnt[%s]:%s", m.Mountpoint, m.Mountpoint))
		}
	}
	return out, nil
}

// below says that a mount came with a directory that was bound with all that is mounted in it.
func below(path string, bound map[string]bool) bool {
	for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
		if bound[dir] {
			return true
		}
	}
	return false
}

// mounts are those that the container's first process sees.
func (ctr Container) mounts() ([]*mountinfo.Info, error) {
	f, err := os.Open("/proc/" + strconv.Itoa(ctr.Pid) + "/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return nil, fmt.Errorf("read mounts of container: %w", err)
	}
	return m, nil
}

// describeStdio writes what the standard streams are, in the file in which runc looks for what it shall connect again.
func (ctr Container) describeStdio(d Dir) error {
	names := make([]string, 3)
	for fd := range names {
		name, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", ctr.Pid, fd))
		if err != nil {
			name = "/dev/null" // closed
		}
		names[fd] = name
	}
	b, err := json.Marshal(names)
	if err != nil {
		return fmt.Errorf("encode standard streams: %w", err)
	}
	return os.WriteFile(filepath.Join(d.Images(), "descriptors.json"), b, 0o600)
}

// UnlockNetwork lets packets of a process's network through again, which criu keeps away while it dumps connections. It
// does so itself, unless it was killed.
func UnlockNetwork(pid int) error {
	ns, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err != nil {
		return nil // it has ended
	}
	defer ns.Close()
	c, err := nftables.New(nftables.WithNetNSFd(int(ns.Fd())))
	if err != nil {
		return fmt.Errorf("unlock network of container: %w", err)
	}
	tables, err := c.ListTables()
	if err != nil {
		return nil // a kernel without them has none
	}
	for _, t := range tables {
		if strings.HasPrefix(t.Name, "CRIU-") {
			c.DelTable(t)
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("unlock network of container: %w", err)
	}
	return nil
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
