package cri

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/netip"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/handler"
)

// sandboxRecord is what survives of a sandbox. CRI messages are kept in their own encoding, which is made to be read by
// other versions.
type sandboxRecord struct {
	ID        string
	Name      string // unique among all sandboxes
	State     sandboxState
	BootID    string // nothing the record speaks of outlives this boot
	CreatedAt int64
	Handler   string
	Runtime   *handler.Handler `json:",omitempty"` // of the handler; nil = built in
	Config    []byte           // runtimeapi.PodSandboxConfig

	Cgroup string
	NetNS  string // path of the pinned namespace; "" = the host's
	Pid    int    // the keeper
	IPs    []netip.Addr

	Overhead, Resources []byte // runtimeapi.LinuxContainerResources, as updated; nil before
}

// containerRecord is what survives of a container.
type containerRecord struct {
	ID        string
	SandboxID string
	Name      string
	State     containerState
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
	// PIDNamespace is the path of one that others are in, which it joins, and Traces says that it may trace all that it sees there.
	PIDNamespace string `json:",omitempty"`
	Traces       bool   `json:",omitempty"`
	Poststop     bool   // the specification has hooks to be run when all of the container has ended
}

func encode(m proto.Message) ([]byte, error) {
	b, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	return b, nil
}

func decode(b []byte, m proto.Message) error {
	if err := proto.Unmarshal(b, m); err != nil {
		return fmt.Errorf("decode record: %w", err)
	}
	return nil
}

// newID returns an ID as CRI clients expect them: 64 hexadecimal digits.
func newID() string {
	var b [32]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func sandboxName(m *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("%s_%s_%s_%d", m.GetName(), m.GetNamespace(), m.GetUid(), m.GetAttempt())
}

func containerName(c *runtimeapi.ContainerMetadata, s *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("%s_%s_%s_%s_%d", c.GetName(), s.GetName(), s.GetNamespace(), s.GetUid(), c.GetAttempt())
}
