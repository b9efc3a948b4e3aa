package verticalautoscaler

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/admission-controller/resource/pod/patch"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/admission-controller/resource/pod/recommendation"
	vpav1 "k8s.io/autoscaler/vertical-pod-autoscaler/pkg/apis/autoscaling.k8s.io/v1"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/updater/config"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/updater/inplace"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/updater/priority"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/updater/restriction"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/updater/utils"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/utils/limitrange"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/utils/status"
	vpautils "k8s.io/autoscaler/vertical-pod-autoscaler/pkg/utils/vpa"
)

// updater brings pods that run to what is recommended for them.
type updater struct {
	deps      Deps
	owners    *owners
	settings  *config.UpdaterConfig
	groups    restriction.PodsRestrictionFactory
	fit       vpautils.RecommendationProcessor
	direction priority.PodEvictionAdmission
	admission status.Validator
}

func newUpdater(d Deps, o *owners) (*updater, error) {
	limits, err := limitrange.NewLimitsRangeCalculator(d.Own)
	if err != nil {
		return nil, fmt.Errorf("watch ranges of limits: %w", err)
	}
	c := config.DefaultUpdaterConfig()
	fit := vpautils.NewCappingRecommendationProcessor(limits)
	changes := []patch.Calculator{
		inplace.NewResourceInPlaceUpdatesCalculator(recommendation.NewProvider(limits, fit)), inplace.NewInPlaceUpdatedCalculator(),
	}
	return &updater{
		deps: d, owners: o, settings: c, fit: fit, direction: priority.NewScalingDirectionPodEvictionAdmission(),
		groups: restriction.NewPodsRestrictionFactory(
			d.Client, d.Own, c.MinReplicas, c.EvictionToleranceFraction, changes, c.InPlaceSkipDisruptionBudget),
		admission: status.NewValidator(d.Client, status.AdmissionControllerStatusName, status.AdmissionControllerStatusNamespace),
	}, nil
}

// round looks at the pods of all autoscalers once.
func (u *updater) round(ctx context.Context, scalers []*vpav1.VerticalPodAutoscaler) error {
	ctx, cancel := context.WithTimeout(ctx, every)
	defer cancel()
	var active []*vpautils.VpaWithSelector
	for _, v := range scalers {
		switch vpautils.GetUpdateMode(v) {
		case vpav1.UpdateModeOff, vpav1.UpdateModeInitial, vpav1.UpdateModeInPlace: // the last is the project's alpha
			continue
		}
		selector, err := u.owners.selectors.Fetch(ctx, v)
		if err != nil { // the recommender says so in its conditions
			u.deps.Log.Debug("target of vertical autoscaler is not known", "autoscaler", v.Namespace+"/"+v.Name, "error", err)
			continue
		}
		active = append(active, &vpautils.VpaWithSelector{Vpa: v, Selector: selector})
	}
	if len(active) == 0 {
		u.direction.CleanUp()
		return nil
	}
	all, err := u.deps.Pods.Lister().List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	living, of := u.assigned(ctx, all, active)
	u.direction.LoopInit(living, of)
	for v, pods := range of {
		if err := u.bring(ctx, v, pods); err != nil { // which is no reason for others to wait
			u.deps.Log.Warn("pods are not resized", "autoscaler", v.Namespace+"/"+v.Name, "error", err)
		}
	}
	return nil
}

// assigned are the pods that run, and those of each autoscaler.
func (u *updater) assigned(ctx context.Context, all []*corev1.Pod, active []*vpautils.VpaWithSelector) ([]*corev1.Pod, map[*vpav1.VerticalPodAutoscaler][]*corev1.Pod) {
	var living []*corev1.Pod
	of := map[*vpav1.VerticalPodAutoscaler][]*corev1.Pod{}
	for _, p := range all {
		if p.DeletionTimestamp != nil || p.Spec.NodeName == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		living = append(living, p)
		if v := vpautils.GetControllingVPAForPod(ctx, p, active, u.owners.controllers); v != nil {
			of[v.Vpa] = append(of[v.Vpa], p)
		}
	}
	return living, of
}

// bring resizes pods of an autoscaler, those first that are furthest from what they need, and evicts those that cannot
// be resized where that is wanted and the new pod would begin with what is recommended.
func (u *updater) bring(ctx context.Context, v *vpav1.VerticalPodAutoscaler, pods []*corev1.Pod) error {
	groups, groupOf, err := u.groups.GetCreatorMaps(pods, v)
	if err != nil {
		return fmt.Errorf("find owners of pods: %w", err)
	}
	away := u.order(v, pods)
	if vpautils.GetUpdateMode(v) == vpav1.UpdateModeInPlaceOrRecreate {
		away = u.resize(v, away, u.groups.NewPodsInPlaceRestriction(groups, groupOf))
	}
	if len(away) == 0 {
		return nil
	}
	// Without the webhook that gives new pods what is recommended an eviction changes nothing, and would come again and
	// again.
	if applied, err := u.admission.IsStatusValid(ctx, status.AdmissionControllerStatusTimeout); err != nil || !applied {
		u.deps.Log.Debug("pods are not evicted: nothing gives new pods what is recommended", "autoscaler", v.Namespace+"/"+v.Name, "error", err)
		return nil
	}
	evictor := u.groups.NewPodsEvictionRestriction(groups, groupOf)
	for _, p := range away {
		if !evictor.CanEvict(p) {
			continue
		}
		if err := evictor.Evict(p, v, u.deps.Events); err != nil {
			u.deps.Log.Warn("pod is not evicted for its new size", "pod", p.Namespace+"/"+p.Name, "uid", p.UID, "error", err)
		}
	}
	return nil
}

// resize resizes pods in place, and returns those that have to be evicted instead.
func (u *updater) resize(v *vpav1.VerticalPodAutoscaler, pods []*corev1.Pod, resizer restriction.PodsInPlaceRestriction) (away []*corev1.Pod) {
	for _, p := range pods {
		switch resizer.CanInPlaceUpdate(p, v, nil) {
		case utils.InPlaceApproved:
		case utils.InPlaceEvict:
			away = append(away, p)
			continue
		default:
			continue // it may not be now, or a resize is on its way
		}
		if err := resizer.InPlaceUpdate(p, v, u.deps.Events); err != nil {
			u.deps.Log.Warn("pod is not resized", "pod", p.Namespace+"/"+p.Name, "uid", p.UID, "error", err)
			away = append(away, p)
			continue
		}
		u.deps.Log.Info("pod is resized", "pod", p.Namespace+"/"+p.Name, "uid", p.UID, "autoscaler", v.Name)
	}
	return away
}

// order are the pods that are to be changed, those first that are furthest from what they need.
func (u *updater) order(v *vpav1.VerticalPodAutoscaler, pods []*corev1.Pod) []*corev1.Pod {
	c := priority.NewUpdatePriorityCalculator(v, priority.UpdateConfig{
		MinChangePriority: u.settings.DefaultUpdateThreshold, PodLifetimeUpdateThreshold: u.settings.PodLifetimeUpdateThreshold,
		EvictAfterOOMThreshold: u.settings.EvictAfterOOMThreshold,
	}, u.fit, priority.NewProcessor())
	for _, p := range pods {
		c.AddPod(p, time.Now(), nil)
	}
	return c.GetSortedPods(u.direction)
}
