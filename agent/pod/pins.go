package pod

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pinning"
	"github.com/berth-node/berth/agent/pod/admission"
	"github.com/berth-node/berth/agent/status"
)

// admitPinned gives a pod the CPUs and the memory that are to be its own. One that cannot have them now waits for its turn, like
// others that the node has something against; one that runs already goes on, because an agent's restart is no event in its life.
func (m *Manager) admitPinned(pod *corev1.Pod, ran bool) *admission.Verdict {
	err := m.cfg.Pins.Admit(pod)
	if err == nil {
		if err = m.admitDevices(pod); err != nil && !ran {
			// What is not used is not kept from others either.
			err = errors.Join(err, m.cfg.Pins.Release(pod.UID))
		}
	}
	if ran && m.cfg.Pins != nil {
		if err := m.cfg.Cgroups.SettleQuota(pod); err != nil {
			m.log.Warn("the pod's CPU quota is as the agent before had it", "pod", pod.Namespace+"/"+pod.Name, "uid", string(pod.UID), "error", err)
		}
	}
	if err == nil {
		return nil
	}
	v := &admission.Verdict{Waiting: status.Waiting{Reason: pinning.ReasonAdmission, Message: err.Error()}}
	if r, ok := errors.AsType[*pinning.Refusal](err); ok {
		v.Reason, v.Final = r.Reason, r.Final
	}
	if ran {
		m.event(pod, corev1.EventTypeWarning, v.Reason, "%v; the pod goes on with what it has", err)
		return nil
	}
	if !v.Final {
		v.Message += "; the pod starts when it can be had"
	}
	return v
}

// pinned says why a pod's resize cannot be: which CPUs and what memory are a container's own is settled when its pod is admitted.
func (n *node) pinned(pod *corev1.Pod) (reason, message string) {
	if n.cfg.Pins.Keeps(pod) {
		return "", ""
	}
	return corev1.PodReasonInfeasible, "Resize is infeasible for containers with CPUs or memory nodes of their own"
}

// forgetPins takes back what pods had that are not there any more.
func (m *Manager) forgetPins() {
	here := func(uid types.UID) bool {
		_, ok := m.workers.Load(uid)
		return ok
	}
	if err := errors.Join(m.cfg.Pins.Synced(here), m.cfg.Devices.Synced(here), m.cfg.Claims.Synced(here)); err != nil {
		m.log.Warn("CPUs, devices or claims of pods that are gone are not free yet", "error", err)
	}
}

// unpin takes back what was the pod's own, when nothing of it runs any more.
func (n *node) unpin(uid types.UID) error {
	if n.cfg.Pins == nil && n.cfg.Devices == nil {
		return nil
	}
	if err := errors.Join(n.cfg.Pins.Release(uid), n.cfg.Devices.Release(uid)); err != nil {
		return err
	}
	n.askAgain()
	return nil
}
