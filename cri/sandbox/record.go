package sandbox

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"strings"

	"github.com/berth-node/berth/cri/handler"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Record is what survives of a sandbox. CRI messages are kept in their own encoding, which is made to be read by
// other versions.
type Record struct {
	ID        string
	Name      string // unique among all sandboxes
	State     State
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

func sandboxName(m *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("%s_%s_%s_%d", m.GetName(), m.GetNamespace(), m.GetUid(), m.GetAttempt())
}

// Check says what is wrong with a record that can be decoded.
func (r Record) check(id string, cfg *runtimeapi.PodSandboxConfig) error {
	switch r.State {
	case Creating, Ready, NotReady:
	default:
		return fmt.Errorf("state %q is not known", r.State)
	}
	if r.ID != id || r.Name != sandboxName(cfg.GetMetadata()) || !strings.Contains(path.Base(r.Cgroup), id) {
		return errors.New("it is not that of this sandbox")
	}
	return nil
}
