package environment

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/volume"
)

// hosts is the pod's /etc/hosts.
func (f *files) hosts() string { return filepath.Join(directory(f.cfg, f.pod), "etc-hosts") }

// writeHosts writes the pod's /etc/hosts when it is to change. It is written in place, because containers have it
// mounted.
func (f *files) writeHosts(ips []string) error {
	hostname, err := spec.Hostname(f.pod, f.cfg.Domain)
	if err != nil {
		return err
	}
	var host []byte
	if f.pod.Spec.HostNetwork {
		if host, err = os.ReadFile("/etc/hosts"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("read the node's hosts: %w", err)
		}
	}
	content := volume.HostsFile(f.pod, hostname, spec.FQDN(f.pod, spec.ShortName(f.pod), f.cfg.Domain), ips, host)
	if had, err := os.ReadFile(f.hosts()); err == nil && bytes.Equal(had, content) {
		return nil
	}
	if err := os.WriteFile(f.hosts(), content, 0o644); err != nil {
		return fmt.Errorf("write the pod's hosts: %w", err)
	}
	return nil
}
