package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/oci"
	"github.com/berth-node/berth/cri/step"
)

func (b *Builder) writeFiles(sb *Sandbox) step.Act {
	return func(context.Context) error {
		dir, root := string(b.host.Paths.Sandbox(sb.ID)), sb.IDs.Root()
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

// writeOwned writes a file that belongs to the pod's root.
func writeOwned(path string, content []byte, owner oci.Owner) error {
	if err := os.WriteFile(path, content, 0o644); err != nil {
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
	dir := string(b.host.Paths.Sandbox(sb.ID))
	f := oci.Files{
		Hosts: filepath.Join(dir, host.FileHosts), Hostname: filepath.Join(dir, host.FileHostname), ResolvConf: filepath.Join(dir, host.FileResolvConf),
	}
	sb.shm.Lock()
	defer sb.shm.Unlock()
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
		f.Shm = b.host.Paths.Sandbox(sb.ID).Shm()
		if err := b.host.Mounts.MountShm(f.Shm, sb.IDs.Root()); err != nil {
			return f, fmt.Errorf("mount shared memory: %w", err)
		}
	}
	return f, nil
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
