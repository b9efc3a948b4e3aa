package device

import (
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-node/berth/agent/record"
)

// journalVersion is that of the file's format.
const journalVersion = 1

// journal is the file of the assignments.
type journal struct {
	Version int           `json:"version"`
	Pods    []*assignment `json:"pods"`
}

func (l *ledger) save() error {
	j := journal{Version: journalVersion, Pods: append([]*assignment{}, l.pods...)}
	if err := record.Write(l.file, j); err != nil {
		return fmt.Errorf("write assignments of devices: %w", err)
	}
	return nil
}

// load reads what an agent before this one gave out.
func (l *ledger) load() error {
	j, bad, err := record.Load(l.file, journalVersion, decode)
	if err != nil {
		return fmt.Errorf("read assignments of devices: %w", err)
	}
	if bad != nil {
		l.log.Warn("assignments of devices cannot be read and are made again", "file", l.file, "error", bad)
	}
	if j == nil {
		return nil
	}
	l.pods = j.Pods
	return nil
}

// decode reads the file.
func decode(data []byte) (*journal, error) {
	j := &journal{}
	if err := json.Unmarshal(data, j); err != nil {
		return nil, err
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
