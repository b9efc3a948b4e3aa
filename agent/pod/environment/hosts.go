package environment

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/volume"
	"github.com/berth-node/berth/internal/atomicfile"
)

// hosts is the pod's /etc/hosts.
func (f *files) hosts() string { return spec.HostsFile(f.cfg.RootDir, string(f.pod.UID)) }

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
	if hasContent(f.hosts(), content) {
		return nil
	}
	if err := atomicfile.Over(f.hosts(), content, 0o644); err != nil {
		return fmt.Errorf("write the pod's hosts: %w", err)
	}
	return nil
}

// hasContent says whether a file has just that. Containers have it mounted, and write to it what they like, which may
// be far more than there is memory, so that its length comes first and no more is read of it.
func hasContent(path string, content []byte) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	if st, err := file.Stat(); err != nil || st.Size() != int64(len(content)) {
		return false
	}
	had := make([]byte, len(content))
	_, err = io.ReadFull(file, had)
	return err == nil && bytes.Equal(had, content)
}
