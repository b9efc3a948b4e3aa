package verticalautoscaler

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
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
	"k8s.io/client-go/tools/record"
)

// updater brings pods that run to what is recommended for them.
type updater struct {
	deps      Deps
	owners    *owners
	settings  *config.UpdaterConfig
	groups    restriction.PodsRestrictionFactory
	fit       vpautils.RecommendationProcessor
	direction priority.PodEvictionAdmission
	limit     *rate.Limiter
	admission status.Validator
	refused   map[types.UID]*vpav1.RecommendedPodResources // what a node has no room for, by pod
	events    record.EventRecorder
	log       *slog.Logger
}

func newUpdater(d Deps, o *owners) *updater {
	limits, err := limitrange.NewLimitsRangeCalculator(d.Own)
	var ranges limitrange.LimitRangeCalculator = limits
	if err != nil { // only without a factory
		ranges = limitrange.NewNoopLimitsCalculator()
	}
	c := config.DefaultUpdaterConfig()
	fit := vpautils.NewCappingRecommendationProcessor(ranges)
	changes := []patch.Calculator{
		inplace.NewResourceInPlaceUpdatesCalculator(recommendation.NewProvider(ranges, fit)), inplace.NewInPlaceUpdatedCalculator(),
	}
	limit := rate.Inf
	if c.EvictionRateLimit > 0 {
		limit = rate.Limit(c.EvictionRateLimit)
	}
	return &updater{
		deps: d, owners: o, settings: c, fit: fit, direction: priority.NewScalingDirectionPodEvictionAdmission(), limit: rate.NewLimiter(limit, c.EvictionRateBurst),
		groups:    restriction.NewPodsRestrictionFactory(d.Client, d.Own, c.MinReplicas, c.EvictionToleranceFraction, changes, c.InPlaceSkipDisruptionBudget),
		admission: status.NewValidator(d.Client, status.AdmissionControllerStatusName, status.AdmissionControllerStatusNamespace),
		refused:   map[types.UID]*vpav1.RecommendedPodResources{}, events: d.Events, log: d.Log,
	}
}

// round looks at the pods of all autoscalers once.
func (u *updater) round(ctx context.Context, scalers []*vpav1.VerticalPodAutoscaler) error {
	ctx, cancel := context.WithTimeout(ctx, every)
	defer cancel()
	var active []*vpautils.VpaWithSelector
	for _, v := range scalers {
		switch vpautils.GetUpdateMode(v) {
		case vpav1.UpdateModeOff, vpav1.UpdateModeInitial:
			continue
		}
		selector, err := u.owners.selectors.Fetch(ctx, v)
		if err != nil { // the recommender says so in its conditions
			u.log.Debug("target of vertical autoscaler is not known", "autoscaler", v.Namespace+"/"+v.Name, "error", err)
			continue
		}
		active = append(active, &vpautils.VpaWithSelector{Vpa: v, Selector: selector})
	}
	if len(active) == 0 {
		u.direction.CleanUp()
		clear(u.refused)
		return nil
	}
	all, err := u.deps.Pods.Lister().List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	living, of := u.assigned(ctx, all, active)
	u.direction.LoopInit(living, of)
	for v, pods := range of {
		if err := u.bring(ctx, v, pods); err != nil {
			return fmt.Errorf("resize pods of vertical autoscaler %s/%s: %w", v.Namespace, v.Name, err)
		}
	}
	return nil
}

// assigned are the pods that run, and those of each autoscaler.
func (u *updater) assigned(ctx context.Context, all []*corev1.Pod, active []*vpautils.VpaWithSelector) ([]*corev1.Pod, map[*vpav1.VerticalPodAutoscaler][]*corev1.Pod) {
	var living []*corev1.Pod
	of := map[*vpav1.VerticalPodAutoscaler][]*corev1.Pod{}
	here := map[types.UID]bool{}
	for _, p := range all {
		if p.DeletionTimestamp != nil || p.Spec.NodeName == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		living, here[p.UID] = append(living, p), true
		if v := vpautils.GetControllingVPAForPod(ctx, p, active, u.owners.controllers); v != nil {
			of[v.Vpa] = append(of[v.Vpa], p)
		}
	}
	for uid := range u.refused {
		if !here[uid] {
			delete(u.refused, uid)
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
	resizer := u.groups.NewPodsInPlaceRestriction(groups, groupOf)
	var away []*corev1.Pod
	switch vpautils.GetUpdateMode(v) {
	case vpav1.UpdateModeInPlaceOrRecreate, vpav1.UpdateModeInPlace:
		if away, err = u.resize(ctx, v, pods, resizer); err != nil {
			return err
		}
	default:
		away = u.order(v, pods)
	}
	if len(away) == 0 {
		return nil
	}
	// Without the webhook that gives new pods what is recommended an eviction changes nothing, and would come again and
	// again.
	if applied, err := u.admission.IsStatusValid(ctx, status.AdmissionControllerStatusTimeout); err != nil || !applied {
		u.log.Debug("pods are not evicted: nothing gives new pods what is recommended", "autoscaler", v.Namespace+"/"+v.Name, "error", err)
		return nil
	}
	evictor := u.groups.NewPodsEvictionRestriction(groups, groupOf)
	for _, p := range away {
		if !evictor.CanEvict(p) {
			continue
		}
		if err := u.limit.Wait(ctx); err != nil {
			return err
		}
		if err := evictor.Evict(p, v, u.events); err != nil {
			u.log.Warn("pod is not evicted for its new size", "pod", p.Namespace+"/"+p.Name, "uid", p.UID, "error", err)
		}
	}
	return nil
}

// resize resizes pods in place, and returns those that have to be evicted instead.
func (u *updater) resize(
	ctx context.Context, v *vpav1.VerticalPodAutoscaler, pods []*corev1.Pod, resizer restriction.PodsInPlaceRestriction,
) (away []*corev1.Pod, err error) {
	stay := vpautils.GetUpdateMode(v) == vpav1.UpdateModeInPlace
	for _, p := range u.order(v, pods) {
		switch resizer.CanInPlaceUpdate(p, v, u.refused) {
		case utils.InPlaceApproved:
		case utils.InPlaceEvict:
			away = append(away, p)
			continue
		case utils.InPlaceInfeasible:
			u.refused[p.UID] = v.Status.Recommendation // asked for once more, and not again before less is recommended
		default:
			continue // it may not be now, or a resize is on its way
		}
		if err := u.limit.Wait(ctx); err != nil {
			return nil, err
		}
		if err := resizer.InPlaceUpdate(p, v, u.events); err != nil {
			u.log.Warn("pod is not resized", "pod", p.Namespace+"/"+p.Name, "uid", p.UID, "error", err)
			if !stay {
				away = append(away, p)
			}
			continue
		}
		u.log.Info("pod is resized", "pod", p.Namespace+"/"+p.Name, "uid", p.UID, "autoscaler", v.Name)
	}
	return away, nil
}

// order are the pods that are to be changed, those first that are furthest from what they need.
func (u *updater) order(v *vpav1.VerticalPodAutoscaler, pods []*corev1.Pod) []*corev1.Pod {
	c := priority.NewUpdatePriorityCalculator(v, priority.UpdateConfig{
		MinChangePriority: u.settings.DefaultUpdateThreshold, PodLifetimeUpdateThreshold: u.settings.PodLifetimeUpdateThreshold,
		EvictAfterOOMThreshold: u.settings.EvictAfterOOMThreshold,
	}, u.fit, priority.NewProcessor())
	for _, p := range pods {
		c.AddPod(p, time.Now(), u.refused)
	}
	return c.GetSortedPods(u.direction)
}
