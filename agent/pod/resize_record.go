package pod

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/record"
)

func resizedFile(rootDir string, uid types.UID) string {
	return filepath.Join(rootDir, "pods", string(uid), "resized.json")
}

// writeResized keeps the record. It goes with the pod's directory.
func writeResized(rootDir string, uid types.UID, r *plan.Resized) error {
	if err := record.Write(resizedFile(rootDir, uid), r); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("record resize: %w", err)
	}
	return nil
}

// readResized is an empty record when there is none that can be read: what the containers were made with is known then.
func readResized(rootDir string, uid types.UID) *plan.Resized {
	r := &plan.Resized{}
	if !record.Read(resizedFile(rootDir, uid), r) {
		return &plan.Resized{}
	}
	return r
}

// reservations are what pods were given by a resize, until their status tells.
type reservations struct {
	mu      sync.Mutex
	granted map[types.UID]grant
}

type grant struct {
	requests corev1.ResourceList
	at       time.Time
}

// told is when everybody's status tells what was given to them.
const told = 10 * time.Second

// used is what all pods but one have of a resource.
func (r *reservations) used(but types.UID, name corev1.ResourceName, all []*corev1.Pod) resource.Quantity {
	var sum resource.Quantity
	for _, p := range all {
		if p.UID == but || over(p) {
			continue
		}
		one := requests(p, true)[name]
		g, ok := r.granted[p.UID]
		switch {
		case ok && time.Since(g.at) > told:
			delete(r.granted, p.UID)
		case ok && g.requests.Name(name, resource.DecimalSI).Cmp(one) > 0:
			one = g.requests[name]
		}
		sum.Add(one)
	}
	return sum
}
