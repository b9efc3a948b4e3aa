package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/oci"
)

// Files of a sandbox, in its directory.
const (
	fileHosts      = "hosts"
	fileHostname   = "hostname"
	fileResolvConf = "resolv.conf"
)

func (p *pods) writeFiles(sb *sandbox) act {
	return func(context.Context) error {
		dir, root := p.paths.sandbox(sb.id), sb.ids.Root()
		if err := writeOwned(filepath.Join(dir, fileHostname), []byte(p.hostnameOf(sb)+"\n"), root); err != nil {
			return err
		}
		resolv := resolvConf(sb.cfg.GetDnsConfig())
		if resolv == "" {
			b, err := os.ReadFile("/etc/resolv.conf")
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			resolv = string(b)
		}
		return writeOwned(filepath.Join(dir, fileResolvConf), []byte(resolv), root)
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

// filesFor returns the pod's files for one container and makes those that no container has needed so far.
func (p *pods) filesFor(sb *sandbox, c *runtimeapi.ContainerConfig) (oci.Files, error) {
	own := map[string]bool{}
	for _, m := range c.GetMounts() {
		own[filepath.Clean(m.GetContainerPath())] = true
	}
	dir := p.paths.sandbox(sb.id)
	f := oci.Files{
		Hosts: filepath.Join(dir, fileHosts), Hostname: filepath.Join(dir, fileHostname), ResolvConf: filepath.Join(dir, fileResolvConf),
	}
	sb.shm.Lock()
	defer sb.shm.Unlock()
	if !own["/etc/hosts"] {
		if err := copyHosts(f.Hosts, sb.ids.Root()); err != nil {
			return f, fmt.Errorf("write hosts file: %w", err)
		}
	}
	switch {
	case own["/dev/shm"]:
	case c.GetLinux().GetSecurityContext().GetNamespaceOptions().GetIpc() == runtimeapi.NamespaceMode_NODE:
		f.Shm = "/dev/shm"
	default:
		f.Shm = p.paths.shm(sb.id)
		if err := p.mounts.mountShm(f.Shm, sb.ids.Root()); err != nil {
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

func (p *pods) removeShm(sb *sandbox) act {
	return func(context.Context) error { return p.mounts.unmount(p.paths.shm(sb.id)) }
}

// removeSandboxDir removes file by file what is known to be there, so that a mount that is still in it stops it instead of
// being emptied.
func removeSandboxDir(l layout, id string) error {
	dir := l.sandbox(id)
	for _, name := range []string{fileHosts, fileHostname, fileResolvConf, "cgroup", "shm", "userns"} {
		if err := remove(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	// The record last: as long as anything is left, it says what.
	for _, own := range []string{l.keeper(id), l.records(id)} {
		if err := os.RemoveAll(own); err != nil {
			return err
		}
	}
	for _, p := range []string{l.record(id) + ".new", l.record(id), dir} {
		if err := remove(p); err != nil {
			return err
		}
	}
	return nil
}

// remove removes a file or an empty directory, if there is one.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
