package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/oci"
	"github.com/berth-node/berth/cri/step"
	"github.com/berth-node/berth/internal/atomicfile"
)

func (b *Builder) writeFiles(sb *Sandbox) step.Act {
	return func(context.Context) error {
		own, root := b.host.Paths.Sandbox(sb.ID), sb.IDs.Root()
		dir := own.Shm()
		if err := b.host.Mounts.MountShm(dir, oci.Owner{}, filesMode); err != nil {
			return fmt.Errorf("mount shared memory: %w", err)
		}
		if err := makeMemory(own.Memory(), root); err != nil {
			return fmt.Errorf("make shared memory: %w", err)
		}
		if err := writeOwned(filepath.Join(dir, host.FileHostname), []byte(b.hostnameOf(sb)+"\n"), root); err != nil {
			return err
		}
		resolv := resolvConf(sb.Config.GetDnsConfig())
		if resolv == "" {
			b, err := os.ReadFile("/etc/resolv.conf")
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			resolv = string(b)
		}
		return writeOwned(filepath.Join(dir, host.FileResolvConf), []byte(resolv), root)
	}
}

// Modes of the root of a pod's file system, and of what containers have of it as /dev/shm.
const (
	filesMode  = 0o711
	memoryMode = 0o1777
)

func makeMemory(path string, owner oci.Owner) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// The umask has no part in it.
	return errors.Join(unix.Chmod(path, memoryMode), os.Chown(path, int(owner.UID), int(owner.GID)))
}

// writeOwned writes a file that belongs to the pod's root.
func writeOwned(path string, content []byte, owner oci.Owner) error {
	if err := atomicfile.Over(path, content, 0o644); err != nil {
		return err
	}
	if owner == (oci.Owner{}) {
		return nil
	}
	return os.Chown(path, int(owner.UID), int(owner.GID))
}

// resolvConf is empty when c says nothing.
func resolvConf(c *runtimeapi.DNSConfig) string {
	var b strings.Builder
	if s := c.GetSearches(); len(s) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(s, " "))
	}
	for _, s := range c.GetServers() {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if o := c.GetOptions(); len(o) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(o, " "))
	}
	return b.String()
}

// FilesFor returns the pod's files for one container and makes those that no container has needed so far.
func (b *Builder) FilesFor(sb *Sandbox, c *runtimeapi.ContainerConfig) (oci.Files, error) {
	own := map[string]bool{}
	for _, m := range c.GetMounts() {
		own[filepath.Clean(m.GetContainerPath())] = true
	}
	sb.shm.Lock()
	defer sb.shm.Unlock()
	dir, memory, err := b.placeOf(sb)
	f := oci.Files{
		Hosts: filepath.Join(dir, host.FileHosts), Hostname: filepath.Join(dir, host.FileHostname), ResolvConf: filepath.Join(dir, host.FileResolvConf),
	}
	if err != nil {
		return f, err
	}
	if !own["/etc/hosts"] {
		if err := copyHosts(f.Hosts, sb.IDs.Root()); err != nil {
			return f, fmt.Errorf("write hosts file: %w", err)
		}
	}
	switch {
	case own["/dev/shm"]:
	case c.GetLinux().GetSecurityContext().GetNamespaceOptions().GetIpc() == runtimeapi.NamespaceMode_NODE:
		f.Shm = "/dev/shm"
	default:
		f.Shm = memory
	}
	return f, nil
}

// placeOf is where the sandbox's files are, and what containers have as /dev/shm. A sandbox that an older version has
// made has the files in its directory, and the whole file system as shared memory.
func (b *Builder) placeOf(sb *Sandbox) (dir, memory string, err error) {
	own := b.host.Paths.Sandbox(sb.ID)
	if _, err := os.Lstat(filepath.Join(string(own), host.FileHostname)); err != nil {
		return own.Shm(), own.Memory(), nil
	}
	if err := b.host.Mounts.MountShm(own.Shm(), sb.IDs.Root(), memoryMode); err != nil {
		return "", "", fmt.Errorf("mount shared memory: %w", err)
	}
	return string(own), own.Shm(), nil
}

// copyHosts gives a pod that nobody wrote a hosts file for the host's.
func copyHosts(path string, owner oci.Owner) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	b, err := os.ReadFile("/etc/hosts")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return writeOwned(path, b, owner)
}

func (b *Builder) removeShm(sb *Sandbox) step.Act {
	return func(context.Context) error { return b.host.Mounts.Unmount(b.host.Paths.Sandbox(sb.ID).Shm()) }
}
