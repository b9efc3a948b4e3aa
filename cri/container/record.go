package container

import (
	"errors"
	"fmt"

	"github.com/berth-node/berth/cri/sandbox"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Record is what survives of a container.
type Record struct {
	ID        string
	SandboxID string
	Name      string
	State     State
	Config    []byte // runtimeapi.ContainerConfig

	CreatedAt, StartedAt, FinishedAt int64
	Pid                              int
	ExitCode                         int32
	Reason, Message                  string

	ImageID    string   // digest of the image's configuration
	ImageRef   string   // repository@digest, else the ID
	ImageName  string   // repository:tag, "" where it has none
	Layer      string   // the snapshot it stands on
	Volumes    []string `json:",omitempty"` // where the image wants volumes
	LogPath    string   // absolute, "" = no log
	Cgroup     string
	StopSignal int
	User       specs.User
	Resources  []byte // runtimeapi.LinuxContainerResources, as updated
	// PIDNamespace is the path of one that others are in, which it joins, and Traces says that it may trace all that it
	// sees there.
	PIDNamespace string `json:",omitempty"`
	Traces       bool   `json:",omitempty"`
	Poststop     bool   // the specification has hooks to be run when all of the container has ended
}

func containerName(c *runtimeapi.ContainerMetadata, s *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("%s_%s_%s_%s_%d", c.GetName(), s.GetName(), s.GetNamespace(), s.GetUid(), c.GetAttempt())
}

// check says what is wrong with a record that can be decoded.
func (r Record) check(id string, cfg *runtimeapi.ContainerConfig, sb *sandbox.Sandbox) error {
	switch r.State {
	case Creating, Created, Starting, Running, Exited:
	default:
		return fmt.Errorf("state %q is not known", r.State)
	}
	if r.ID != id || r.Name != containerName(cfg.GetMetadata(), sb.Config.GetMetadata()) {
		return errors.New("it is not that of this container")
	}
	return nil
}
