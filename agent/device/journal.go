package device

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// journalVersion is that of the file's format.
const journalVersion = 1

// journal is the file of the assignments.
type journal struct {
	Version int           `json:"version"`
	Pods    []*assignment `json:"pods"`
}

// save replaces the file as a whole: it is what it was or what it is to be, whenever the agent is killed. It need not outlive the
// machine, where no container would either.
func (m *Manager) save() error {
	data, err := json.Marshal(journal{Version: journalVersion, Pods: append([]*assignment{}, m.pods...)})
	if err == nil {
		err = os.WriteFile(m.cfg.File+".new", data, 0o600)
	}
	if err == nil {
		err = os.Rename(m.cfg.File+".new", m.cfg.File)
	}
	if err != nil {
		return fmt.Errorf("write assignments of devices: %w", err)
	}
	return nil
}

// load reads what an agent before this one gave out.
func (m *Manager) load() error {
	data, err := os.ReadFile(m.cfg.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read assignments of devices: %w", err)
	}
	j, err := decode(data)
	if err != nil {
		// A machine that lost its power may have cut it off; nothing runs then that it would tell of.
		m.log.Warn("assignments of devices cannot be read and are made anew", "file", m.cfg.File, "error", err)
		if err := os.Rename(m.cfg.File, m.cfg.File+".bad"); err != nil {
			return fmt.Errorf("put assignments of devices aside: %w", err)
		}
		return nil
	}
	if j.Version > journalVersion {
		return fmt.Errorf("read assignments of devices: %s was written by a later version (format %d, this is %d): stop the pods and remove it", m.cfg.File, j.Version, journalVersion)
	}
	m.pods = j.Pods
	return nil
}

// decode reads the file.
func decode(data []byte) (*journal, error) {
	j := &journal{}
	if err := json.Unmarshal(data, j); err != nil {
		return nil, err
	}
	if j.Version < 1 {
		return nil, errors.New("it has no version")
	}
	for _, a := range j.Pods {
		if a == nil || a.UID == "" {
			return nil, errors.New("a pod in it has no uid")
		}
		for _, g := range a.Containers {
			for _, h := range g.Held {
				for _, d := range h.Devices {
					for _, n := range d.Nodes {
						if n < 0 || n > 63 {
							return nil, fmt.Errorf("device %s of %s is near to NUMA node %d", d.ID, h.Resource, n)
						}
					}
				}
				if err := proto.Unmarshal(h.Response, new(pluginapi.ContainerAllocateResponse)); err != nil {
					return nil, fmt.Errorf("answer of the plugin of %s: %w", h.Resource, err)
				}
			}
		}
	}
	return j, nil
}
