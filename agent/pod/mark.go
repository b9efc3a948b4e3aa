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

// mark is what is kept of the order that a pod end. Everything else about a pod can be found again in the runtime, but not this:
// without it a pod that was evicted would run again with the next agent, and one that is asked for again while it is being
// removed would come back with half of its past.
type mark struct {
	Since   time.Time     `json:"since"`
	Grace   time.Duration `json:"grace"`
	Evicted *Eviction     `json:"evicted,omitempty"`
}

func (m *mark) ending() plan.Ending {
	return plan.Ending{Since: m.Since, Grace: m.Grace, Keep: m.Evicted != nil}
}

func markFile(rootDir string, uid types.UID) string {
	return filepath.Join(rootDir, "pods", string(uid), "ending.json")
}

// writeMark keeps the mark. It goes with the pod's directory; of a pod without one there is nothing to end.
func writeMark(rootDir string, uid types.UID, m mark) error {
	if err := record.Write(markFile(rootDir, uid), m); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("mark ending pod: %w", err)
	}
	return nil
}

// readMark returns nil when the pod was not told to end. What cannot be read was not told to the end either.
func readMark(rootDir string, uid types.UID) *mark {
	m := &mark{}
	if !readRecord(markFile(rootDir, uid), m) {
		return nil
	}
	if m.Evicted != nil && m.Evicted.Boot != "" && m.Evicted.Boot != BootID() {
		return nil
	}
	return m
}

// BootID is the kernel's name for the time since the machine was started; "" when it has none.
func BootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
