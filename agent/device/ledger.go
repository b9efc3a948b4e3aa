package device

import (
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pinning"
	"github.com/berth-node/berth/agent/record"
)

// held is what a container has of one resource.
type held struct {
	Resource corev1.ResourceName `json:"resource"`
	Devices  []Device            `json:"devices"`
	Near     pinning.Nodes       `json:"near,omitempty"` // the NUMA nodes that they were to come from

	Allocated bool   `json:"allocated,omitempty"` // the plugin was asked for them, and has answered
	PreStart  bool   `json:"preStart,omitempty"`  // it wants to be asked before each start
	Response  []byte `json:"response,omitempty"`  // its answer: a ContainerAllocateResponse
}

func (h *held) ids() []string {
	out := make([]string, 0, len(h.Devices))
	for _, d := range h.Devices {
		out = append(out, d.ID)
	}
	return out
}

// given is what one container has.
type given struct {
	Container string `json:"container"`
	Init      bool   `json:"init,omitempty"`
	Held      []held `json:"held"`
}

// assignment is what a pod has.
type assignment struct {
	UID        types.UID `json:"uid"`
	Namespace  string    `json:"namespace"`
	Name       string    `json:"name"`
	Containers []given   `json:"containers"`
	// Without are the resources that the pod does without: whoever offers them later has nothing to do with it.
	Without []corev1.ResourceName `json:"without,omitempty"`
}

// answers says whether the pod has what it asks for.
func (a *assignment) answers(all []ask) bool {
	if len(a.Containers) != len(all) {
		return false
	}
	for i := range all {
		g := &a.Containers[i]
		if g.Container != all[i].container || g.Init != all[i].init || len(g.Held) != len(all[i].counts) {
			return false
		}
		for _, h := range g.Held {
			if len(h.Devices) != all[i].counts[h.Resource] {
				return false
			}
		}
	}
	return true
}

// ledger is who has what, and its file. Who uses it holds the manager's lock.
type ledger struct {
	file string
	log  *slog.Logger
	pods []*assignment // in the order of their admission
}

func (l *ledger) find(uid types.UID) *assignment {
	for _, a := range l.pods {
		if a.UID == uid {
			return a
		}
	}
	return nil
}

func (l *ledger) heldBy(uid types.UID, container string) []held {
	a := l.find(uid)
	if a == nil {
		return nil
	}
	for _, g := range a.Containers {
		if g.Container == container {
			return g.Held
		}
	}
	return nil
}

// others are what all pods have but that one.
func (l *ledger) others(uid types.UID) []*assignment {
	return slices.DeleteFunc(slices.Clone(l.pods), func(a *assignment) bool { return a.UID == uid })
}

// place is one resource of one container.
type place struct {
	uid       types.UID
	container string
	resource  corev1.ResourceName
}

// unasked is what a pod has that the plugins have not been asked for.
func (l *ledger) unasked(uid types.UID) []place {
	var out []place
	if a := l.find(uid); a != nil {
		for _, g := range a.Containers {
			for _, h := range g.Held {
				if !h.Allocated {
					out = append(out, place{uid, g.Container, h.Resource})
				}
			}
		}
	}
	return out
}

// locate finds a record.
func (l *ledger) locate(at place) (*assignment, int, *held) {
	a := l.find(at.uid)
	if a == nil {
		return nil, 0, nil
	}
	for i := range a.Containers {
		g := &a.Containers[i]
		for j := range g.Held {
			if g.Container == at.container && g.Held[j].Resource == at.resource {
				return a, i, &g.Held[j]
			}
		}
	}
	return nil, 0, nil
}

// put writes down what a pod has, which may be nothing, in the place of what it had.
func (l *ledger) put(a *assignment) error {
	to := l.others(a.UID)
	if len(a.Containers) > 0 || len(a.Without) > 0 {
		to = append(to, a)
	}
	return record.Change(&l.pods, to, l.save)
}

// change writes down again what is in one place.
func (l *ledger) change(h *held, fn func(*held)) error {
	before := *h
	fn(h)
	if err := l.save(); err != nil {
		*h = before
		return err
	}
	return nil
}

// drop takes back what pods have, and says whether there was any.
func (l *ledger) drop(gone func(*assignment) bool) (bool, error) {
	return record.Drop(&l.pods, gone, l.save)
}
