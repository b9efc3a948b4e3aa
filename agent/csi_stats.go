package agent

import (
	"cmp"
	"context"
	"sync"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/event"
	"github.com/berth-node/berth/agent/stats"
	"github.com/berth-node/berth/csi"
	"github.com/berth-node/berth/csi/node"
)

// used is a pod's use of a driver's volume; false: it has none by that name.
func (v *csiVolumes) used(p *corev1.Pod, volume string) (node.State, node.Use, bool) {
	name := volume
	for i := range p.Spec.Volumes {
		if one := &p.Spec.Volumes[i]; one.Name == volume {
			if pv := v.bound(p, one); pv != nil {
				name = pv.Name
			} else if one.CSI == nil {
				return node.State{}, node.Use{}, false
			}
		}
	}
	for _, s := range v.volumes.List() {
		for _, u := range s.Uses {
			if u.Pod.UID == string(p.UID) && u.Name == name && u.Published {
				return s, u, true
			}
		}
	}
	return node.State{}, node.Use{}, false
}

// disk is what a pod's volume takes, by its driver. Where that does not tell nobody else is asked: whoever touches a
// mount that does not answer keeps it busy, so that its driver cannot unmount it.
func (v *csiVolumes) disk(ctx context.Context, p *corev1.Pod, volume string) (d stats.Disk, ok bool) {
	s, u, ok := v.used(p, volume)
	if !ok {
		return d, false
	}
	d = stats.Disk{Time: time.Now(), Own: true}
	is, err := v.volumes.Stats(ctx, s.Driver, s.Handle, u.Path)
	if err != nil {
		return d, true
	}
	if is.Condition.Known {
		d.Abnormal = &is.Condition.Abnormal
	}
	if is.Bytes.Total < 0 && is.Bytes.Used < 0 {
		return d, true
	}
	known := func(n int64) uint64 { return uint64(max(n, 0)) }
	d.Known = true
	d.Capacity, d.Available, d.Used = known(is.Bytes.Total), known(is.Bytes.Available), known(is.Bytes.Used)
	d.Inodes, d.InodesFree, d.InodesUsed = known(is.Inodes.Total), known(is.Inodes.Available), known(is.Inodes.Used)
	return d, true
}

// healthEvery is how often drivers are asked how their volumes are, as kubelet does.
const healthEvery = time.Minute

// health tells pods when a driver says that a volume of theirs is not well any more, or is again.
type health struct {
	volumes *csiVolumes
	pods    func() []*corev1.Pod
	events  *event.Recorder

	mu  sync.Mutex
	ill map[csiVolume]string // what was said of those that are not well
}

func (h *health) run(ctx context.Context) {
	every(ctx, healthEvery, func() { h.look(ctx) })
}

// every calls act after each interval until ctx ends.
func every(ctx context.Context, interval time.Duration, act func()) {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			act()
		}
	}
}

// look asks the drivers side by side, and each for one volume after the other: one that does not answer is asked again
// the next time.
func (h *health) look(ctx context.Context) {
	of := map[string][]node.State{}
	for _, s := range h.volumes.volumes.List() {
		d, err := h.volumes.drivers.Get(s.Driver)
		if err == nil && (d.Condition() || d.Node(spec.NodeServiceCapability_RPC_GET_VOLUME_HEALTH)) {
			of[s.Driver] = append(of[s.Driver], s)
		}
	}
	var wait sync.WaitGroup
	for _, volumes := range of {
		wait.Go(func() {
			for _, s := range volumes {
				is, err := h.volumes.volumes.Stats(ctx, s.Driver, s.Handle, "")
				if csi.CodeOf(err) == codes.DeadlineExceeded || ctx.Err() != nil {
					return
				}
				if err == nil && is.Condition.Known {
					h.tell(&s, is.Condition)
				}
			}
		})
	}
	wait.Wait()
}

// abnormal is what is the matter with a volume by its driver, "" when it is well.
func abnormal(c node.Condition) string {
	switch {
	case !c.Abnormal:
		return ""
	case c.Reason != "" && c.Message != "":
		return c.Reason + ": " + c.Message
	}
	return cmp.Or(c.Reason, c.Message, "the driver does not say why")
}

func (h *health) tell(s *node.State, c node.Condition) {
	key := csiVolume{s.Driver, s.Handle}
	says := abnormal(c)
	h.mu.Lock()
	if h.ill == nil {
		h.ill = map[csiVolume]string{}
	}
	said := h.ill[key]
	h.ill[key] = says
	if says == "" {
		delete(h.ill, key)
	}
	h.mu.Unlock()
	if said == says {
		return
	}
	pods := map[types.UID]*corev1.Pod{}
	for _, p := range h.pods() {
		pods[p.UID] = p
	}
	for _, u := range s.Uses {
		p := pods[types.UID(u.Pod.UID)]
		switch {
		case p == nil:
		case says != "":
			h.events.Event(p, corev1.EventTypeWarning, "VolumeConditionAbnormal", "Volume %s: %s", u.Name, says)
		default:
			h.events.Event(p, corev1.EventTypeNormal, "VolumeConditionNormal", "Volume %s: its driver says that it is well again", u.Name)
		}
	}
}
