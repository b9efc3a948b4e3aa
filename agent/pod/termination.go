package pod

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/record"
)

// termination is what is kept of the order that a pod end. Everything else about a pod can be found again in the
// runtime, but not this: without it a pod that was evicted would run again with the next agent, and one that is asked
// for again while it is being removed would come back with half of its past.
type termination struct {
	Since   time.Time     `json:"since"`
	Grace   time.Duration `json:"grace"`
	Evicted *Eviction     `json:"evicted,omitempty"`
}

func (t *termination) ending() plan.Ending {
	return plan.Ending{Since: t.Since, Grace: t.Grace, Keep: t.Evicted != nil, Shed: t.Evicted.sheds()}
}

func terminationFile(rootDir string, uid types.UID) string {
	return filepath.Join(rootDir, "pods", string(uid), "ending.json")
}

// writeTermination keeps it. It goes with the pod's directory; of a pod without one there is nothing to end.
func writeTermination(rootDir string, uid types.UID, t termination) error {
	if err := record.Write(terminationFile(rootDir, uid), t); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("record termination of pod: %w", err)
	}
	return nil
}

// readTermination returns nil when the pod was not told to end. What cannot be read was not told to the end either.
func readTermination(rootDir string, uid types.UID) *termination {
	t := &termination{}
	if !record.Read(terminationFile(rootDir, uid), t) {
		return nil
	}
	if t.Evicted != nil && t.Evicted.Boot != "" && t.Evicted.Boot != BootID() {
		return nil
	}
	return t
}

// BootID is the kernel's name for the time since the machine was started; "" when it has none.
func BootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
