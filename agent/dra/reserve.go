package dra

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Lookup finds the allocated claim that an entry of a pod's spec.resourceClaims means.
type Lookup func(*corev1.PodResourceClaim) (*resourcev1.ResourceClaim, error)

// reserve gives a pod the claims that it does not have yet, all or none, and returns all of them in order. What it has
// it keeps, whatever has become of the object.
func (m *Manager) reserve(pod *corev1.Pod, find Lookup) (uids []types.UID, err error) {
	err = m.claims.change(func(next claims) (changed bool, err error) {
		for i := range pod.Spec.ResourceClaims {
			entry := &pod.Spec.ResourceClaims[i]
			if next.entry(pod.UID, entry.Name) != nil {
				continue
			}
			object, err := find(entry)
			if err != nil {
				return false, err
			}
			c, err := m.admit(next, pod, entry.Name, object)
			if err != nil {
				return false, fmt.Errorf("resourceclaim %q: %w", object.Name, err)
			}
			next[object.UID], changed = c, true
		}
		uids = next.usedBy(pod.UID)
		return changed, nil
	})
	if err != nil {
		return nil, err
	}
	return uids, nil
}

// outdated are claims of a pod that were allocated otherwise meanwhile, as when a mistake in them was mended, and that
// are not prepared: nothing of the pod has started with them.
func (all claims) outdated(pod *corev1.Pod, find Lookup) []types.UID {
	var out []types.UID
	for i := range pod.Spec.ResourceClaims {
		c := all.entry(pod.UID, pod.Spec.ResourceClaims[i].Name)
		if c == nil || c.complete() {
			continue
		}
		object, err := find(&pod.Spec.ResourceClaims[i])
		if err == nil && (object.UID != c.UID || !slices.Equal(resultsOf(object), c.Results)) {
			out = append(out, c.UID)
		}
	}
	return out
}

// complete says whether every driver has prepared the claim.
func (r *record) complete() bool {
	return !slices.ContainsFunc(r.drivers(), func(name string) bool { return !r.Drivers[name].Prepared })
}

// admit is the claim with the pod among those who have it, or why the pod cannot have it.
func (m *Manager) admit(all claims, pod *corev1.Pod, entry string, object *resourcev1.ResourceClaim) (*claim, error) {
	if err := m.onNode(object.Status.Allocation.NodeSelector); err != nil {
		return nil, err
	}
	if err := requested(pod, entry, object); err != nil {
		return nil, err
	}
	results := resultsOf(object)
	c := all[object.UID]
	switch {
	case c == nil:
		if err := free(all, object.UID, results); err != nil {
			return nil, err
		}
		c = &claim{
			record{UID: object.UID, Namespace: object.Namespace, Name: object.Name, Results: results}, make(chan struct{}, 1),
		}
	case c.Namespace != object.Namespace || c.Name != object.Name:
		return nil, fmt.Errorf("its uid %s is that of %s, which pods have: give it another metadata.uid, or none", object.UID,
			&c.record)
	case !slices.Equal(c.Results, results):
		return nil, fmt.Errorf("its allocation has changed while it is in use%s: it can be had again when those have ended",
			usersOf(&c.record))
	}
	r := c.clone()
	if i := r.user(pod.UID); i >= 0 {
		r.Pods[i].As = append(slices.Clone(r.Pods[i].As), entry)
	} else {
		r.Pods = append(r.Pods, user{pod.UID, pod.Namespace, pod.Name, []string{entry}})
	}
	return &claim{r, c.lock}, nil
}

// usersOf names some of those who have a claim.
func usersOf(r *record) string {
	if len(r.Pods) == 0 {
		return ""
	}
	var names []string
	const few = 3
	for _, p := range r.Pods[:min(len(r.Pods), few)] {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	return " by pods " + strings.Join(names, ", ")
}

// onNode says why devices cannot be had here.
func (m *Manager) onNode(s *corev1.NodeSelector) error {
	if s == nil {
		return nil
	}
	terms, err := nodeaffinity.NewNodeSelector(s)
	if err != nil {
		return fmt.Errorf("status.allocation.nodeSelector: %w", err)
	}
	self := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.cfg.Node}}
	if m.cfg.Labels != nil {
		self.Labels = m.cfg.Labels()
	}
	if !terms.Match(self) {
		return fmt.Errorf("status.allocation.nodeSelector does not match node %s or its labels: its devices are on another node",
			m.cfg.Node)
	}
	return nil
}

// requested refuses a container that names a request that the claim does not have: it would go without a device that it
// counts on.
func requested(pod *corev1.Pod, entry string, object *resourcev1.ResourceClaim) error {
	var names []string
	for _, r := range object.Spec.Devices.Requests {
		names = append(names, r.Name)
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, e := range list[i].Resources.Claims {
				if e.Name == entry && e.Request != "" && !slices.Contains(names, e.Request) {
					return fmt.Errorf("it has no request %q, which container %q names in resources.claims; it has %q", e.Request,
						list[i].Name, names)
				}
			}
		}
	}
	return nil
}

// free says who else has one of the devices. A scheduler gives no device to two claims; people may, and drivers need
// not notice.
func free(all claims, self types.UID, results []result) error {
	for _, uid := range slices.Sorted(maps.Keys(all)) {
		if uid == self {
			continue
		}
		other := &all[uid].record
		for i := range results {
			if j := slices.IndexFunc(other.Results, func(o result) bool { return results[i].conflicts(&o) }); j >= 0 {
				return fmt.Errorf("device %s is allocated to %s too, which is in use%s: allocate another one, or have both pods name one claim",
					results[i].id(), other, usersOf(other))
			}
		}
	}
	return nil
}

func resultsOf(object *resourcev1.ResourceClaim) []result {
	var out []result
	for _, r := range object.Status.Allocation.Devices.Results {
		x := result{
			Request: r.Request, Driver: r.Driver, Pool: r.Pool, Device: r.Device, Admin: r.AdminAccess != nil && *r.AdminAccess,
		}
		if r.ShareID != nil {
			x.Share = *r.ShareID
		}
		for _, skip := range r.SkipNodeOperations {
			all := skip == resourcev1.SkipNodeOperationAll
			x.NoPrepare = x.NoPrepare || all || skip == resourcev1.SkipNodeOperationNodePrepareResources
			x.NoUnprepare = x.NoUnprepare || all || skip == resourcev1.SkipNodeOperationNodeUnprepareResources
		}
		out = append(out, x)
	}
	return out
}
