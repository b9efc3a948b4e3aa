package profile

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
	"github.com/berth-node/berth/control/scheduler/metrics"
	"github.com/berth-node/berth/control/scheduler/queue"
)

// Shared is what all profiles of a scheduler have in common.
type Shared struct {
	Client      kubernetes.Interface
	Config      *rest.Config
	Informers   informers.SharedInformerFactory
	Snapshot    *cluster.Snapshot
	Nominator   *queue.Nominator
	Waiting     *Waiting
	Extenders   []fwk.Extender
	Parallelism int
	// DRA and CSI know devices and drivers of volumes; nil: nobody does.
	DRA fwk.SharedDRAManager
	CSI fwk.CSIManager
	// Groups are the groups of pods.
	Groups *cluster.Groups
	// Metrics hear how long each phase takes, and how many pods are ended; nil: nobody does.
	Metrics *metrics.Metrics
	// Queue is set when there is one, which is made of what the profiles say.
	Queue *queue.Queue
}

// Handle is what plugins call the scheduler by.
type Handle struct {
	fwk.PodNominator
	fwk.PluginsRunner

	profile    *Profile
	shared     *Shared
	parallel   parallelizer
	preBinding preBinding
}

var _ fwk.Handle = (*Handle)(nil)

func newHandle(p *Profile, s *Shared) *Handle {
	return &Handle{PodNominator: s.Nominator, PluginsRunner: p, profile: p, shared: s, parallel: parallelizer{max(1, s.Parallelism)}}
}

// Activate implements [fwk.PodActivator].
func (h *Handle) Activate(logger klog.Logger, pods map[string]*corev1.Pod) {
	if q := h.shared.Queue; q != nil {
		q.Activate(logger, pods)
	}
}

// SnapshotSharedLister implements [fwk.Handle].
func (h *Handle) SnapshotSharedLister() fwk.SharedLister { return h.shared.Snapshot }

// MutableSnapshotSharedLister implements [fwk.Handle]. Only what makes room for groups of pods may use it.
func (h *Handle) MutableSnapshotSharedLister() fwk.MutableSnapshotSharedLister {
	return h.shared.Snapshot
}

// IterateOverWaitingPods implements [fwk.Handle].
func (h *Handle) IterateOverWaitingPods(f func(fwk.WaitingPod)) { h.shared.Waiting.each(f) }

// GetWaitingPod implements [fwk.Handle].
func (h *Handle) GetWaitingPod(uid types.UID) fwk.WaitingPod {
	if p := h.shared.Waiting.get(uid); p != nil {
		return p
	}
	return nil
}

// RejectWaitingPod implements [fwk.Handle].
func (h *Handle) RejectWaitingPod(uid types.UID) bool {
	return h.shared.Waiting.Reject(uid, "removed")
}

// AddPodInPreBind implements [fwk.Handle].
func (h *Handle) AddPodInPreBind(uid types.UID, cancel context.CancelCauseFunc) {
	h.preBinding.mu.Lock()
	defer h.preBinding.mu.Unlock()
	if h.preBinding.pods == nil {
		h.preBinding.pods = map[types.UID]*preBindPod{}
	}
	h.preBinding.pods[uid] = &preBindPod{cancel: cancel}
}

// GetPodInPreBind implements [fwk.Handle].
func (h *Handle) GetPodInPreBind(uid types.UID) fwk.PodInPreBind {
	h.preBinding.mu.Lock()
	defer h.preBinding.mu.Unlock()
	if p := h.preBinding.pods[uid]; p != nil {
		return p
	}
	return nil
}

// RemovePodInPreBind implements [fwk.Handle].
func (h *Handle) RemovePodInPreBind(uid types.UID) {
	h.preBinding.mu.Lock()
	defer h.preBinding.mu.Unlock()
	delete(h.preBinding.pods, uid)
}

// Preempted tells that so many pods are to end so that others have room.
func (h *Handle) Preempted(victims int) { h.shared.Metrics.Victims(victims) }

// ClientSet implements [fwk.Handle].
func (h *Handle) ClientSet() kubernetes.Interface { return h.shared.Client }

// KubeConfig implements [fwk.Handle].
func (h *Handle) KubeConfig() *rest.Config { return h.shared.Config }

// EventRecorder implements [fwk.Handle].
func (h *Handle) EventRecorder() events.EventRecorderLogger { return h.profile.tells }

// SharedInformerFactory implements [fwk.Handle].
func (h *Handle) SharedInformerFactory() informers.SharedInformerFactory { return h.shared.Informers }

// SharedDRAManager implements [fwk.Handle].
func (h *Handle) SharedDRAManager() fwk.SharedDRAManager { return h.shared.DRA }

// SharedCSIManager implements [fwk.Handle].
func (h *Handle) SharedCSIManager() fwk.CSIManager { return h.shared.CSI }

// RunFilterPluginsWithNominatedPods implements [fwk.Handle].
func (h *Handle) RunFilterPluginsWithNominatedPods(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	return h.profile.FilterNominated(ctx, state, pod, node)
}

// Extenders implements [fwk.Handle].
func (h *Handle) Extenders() []fwk.Extender { return h.shared.Extenders }

// Parallelizer implements [fwk.Handle].
func (h *Handle) Parallelizer() fwk.Parallelizer { return h.parallel }

// APIDispatcher implements [fwk.Handle]. Plugins call the API themselves.
func (h *Handle) APIDispatcher() fwk.APIDispatcher { return nil }

// APICacher implements [fwk.Handle]. Plugins call the API themselves.
func (h *Handle) APICacher() fwk.APICacher { return nil }

// ProfileName implements [fwk.Handle].
func (h *Handle) ProfileName() string { return h.profile.name }

// PodGroupManager implements [fwk.Handle].
func (h *Handle) PodGroupManager() fwk.PodGroupManager { return h.shared.Groups }

// SignPod implements [fwk.Handle].
func (h *Handle) SignPod(ctx context.Context, pod *corev1.Pod) fwk.PodSignature {
	return fwk.PodSignature(h.profile.Sign(ctx, pod))
}
