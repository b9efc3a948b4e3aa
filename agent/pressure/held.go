package pressure

import (
	"encoding/json"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/agent/record"
	"github.com/berth-node/berth/eviction"
)

// held is the file of the conditions.
type held struct {
	Version    int             `json:"version"`
	Boot       string          `json:"boot"`
	Conditions []heldCondition `json:"conditions"`
}

type heldCondition struct {
	Type  corev1.NodeConditionType `json:"type"`
	Since time.Time                `json:"since"`
	Last  time.Time                `json:"last"` // when it was seen to be met
}

const heldVersion = 1

// readHeld are the conditions that hold still by what was kept. Memory and process IDs are all free when the machine
// has been started again, disks are not.
func readHeld(c *Config) eviction.Conditions {
	if c.Held == "" {
		return nil
	}
	h, bad, err := record.Load(c.Held, heldVersion, func(data []byte) (*held, error) {
		h := &held{}
		return h, json.Unmarshal(data, h)
	})
	if err != nil || bad != nil {
		c.Log.Warn("which conditions of the node held is not known", "file", c.Held, "error", errors.Join(bad, err))
	}
	if h == nil {
		return nil
	}
	now := time.Now()
	known := map[corev1.NodeConditionType]bool{
		corev1.NodeMemoryPressure: true, corev1.NodeDiskPressure: true, corev1.NodePIDPressure: true,
	}
	var out eviction.Conditions
	for _, one := range h.Conditions {
		if one.Last.After(now) {
			one.Last = now // the clock was set
		}
		if !known[one.Type] {
			continue // a file may be damaged so that it is one of this kind still
		}
		known[one.Type] = false
		if h.Boot != pod.BootID() && one.Type != corev1.NodeDiskPressure || now.Sub(one.Last) >= c.Transition {
			continue
		}
		out = append(out, eviction.Condition{Type: one.Type, Status: true, Since: one.Since, Last: one.Last})
	}
	return out
}

// Held are the conditions that an agent before this one has seen to hold, and that hold still.
func (n *Node) Held() eviction.Conditions {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.conditions)
}

// Seen keeps the conditions for after a restart.
func (n *Node) Seen(now eviction.Conditions) {
	if n.cfg.Held == "" {
		return
	}
	h := held{Version: heldVersion, Boot: pod.BootID(), Conditions: []heldCondition{}}
	for _, c := range now {
		if c.Status {
			h.Conditions = append(h.Conditions, heldCondition{c.Type, c.Since, c.Last})
		}
	}
	if err := record.Write(n.cfg.Held, h); err != nil {
		n.log.Warn("the node's conditions are not kept for after a restart", "error", err)
	}
}
