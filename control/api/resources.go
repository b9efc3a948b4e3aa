package api

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	podresource "k8s.io/component-helpers/resource"

	bounded "github.com/berth-node/berth/internal/quantity"

	"github.com/berth-node/berth/control/api/check"
)

var containerResourceNames = sets.New(corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage)

func isHugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// isNative tells the resources the node itself has from those a device plugin offers under a domain.
func isNative(name corev1.ResourceName) bool {
	domain, _, ok := strings.Cut(string(name), "/")
	return !ok || domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io")
}

// overcommits says whether limits may promise more of a resource than there is.
func overcommits(name corev1.ResourceName) bool { return isNative(name) && !isHugePages(name) }

func pageSize(text string) (resource.Quantity, error) {
	q, err := bounded.Parse(text)
	if err != nil {
		return q, fmt.Errorf("must end in a page size: %w", err)
	}
	if size, ok := q.AsInt64(); !ok || size <= 0 || size&(size-1) != 0 {
		return q, errors.New("must end in a page size that is a positive power of two")
	}
	return q, nil
}

func resourceName(path *field.Path, name corev1.ResourceName) field.ErrorList {
	if bad := content.IsLabelKey(string(name)); len(bad) > 0 {
		return check.Invalid(path, name, bad)
	}
	switch {
	case isHugePages(name):
		if _, err := pageSize(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix)); err != nil {
			return field.ErrorList{field.Invalid(path, name, err.Error())}
		}
	case !strings.Contains(string(name), "/"):
		if !containerResourceNames.Has(name) {
			return field.ErrorList{field.Invalid(path, name, "must be a standard resource for containers")}
		}
	case isNative(name) || strings.HasPrefix(string(name), "requests."):
		return field.ErrorList{field.Invalid(path, name, "doesn't follow extended resource name standard")}
	}
	return nil
}

func quantity(path *field.Path, name corev1.ResourceName, q resource.Quantity) field.ErrorList {
	var errs field.ErrorList
	if q.Sign() < 0 {
		errs = append(errs, field.Invalid(path, q.String(), "must be greater than or equal to 0"))
	}
	if !isNative(name) && q.MilliValue()%1000 != 0 {
		errs = append(errs, field.Invalid(path, q, "must be an integer"))
	}
	if isHugePages(name) {
		size, err := pageSize(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
		if err == nil && q.Value()%size.Value() != 0 {
			errs = append(errs, field.Invalid(path, q.String(), fmt.Sprintf("must be a multiple of the page size %s", size.String())))
		}
	}
	return errs
}

func sortedNames(lists ...corev1.ResourceList) []corev1.ResourceName {
	all := sets.New[corev1.ResourceName]()
	for _, l := range lists {
		all = all.Union(sets.KeySet(l))
	}
	return sets.List(all)
}

// validateResources validates limits and requests of a container, or of a pod.
func validateResources(r *corev1.ResourceRequirements, s *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	huge, base := false, false
	look := func(list corev1.ResourceList, at *field.Path) {
		for _, name := range slices.Sorted(maps.Keys(list)) {
			errs = append(errs, resourceName(at.Key(string(name)), name)...)
			errs = append(errs, quantity(at.Key(string(name)), name, list[name])...)
			huge = huge || isHugePages(name)
			base = base || name == corev1.ResourceCPU || name == corev1.ResourceMemory
		}
	}
	look(r.Limits, path.Child("limits"))
	look(r.Requests, path.Child("requests"))
	errs = append(errs, requestsFit(r, path.Child("requests"))...)
	if huge && !base {
		errs = append(errs, field.Forbidden(path, "HugePages require cpu or memory"))
	}
	seen := sets.New[corev1.ResourceClaim]()
	for i, c := range r.Claims {
		at := path.Child("claims").Index(i)
		if c.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
			continue
		}
		if seen.Has(c) {
			errs = append(errs, field.Duplicate(at, c))
		}
		seen.Insert(c)
		if !slices.ContainsFunc(s.ResourceClaims, func(p corev1.PodResourceClaim) bool { return p.Name == c.Name }) {
			errs = append(errs, field.NotFound(at.Child("name"), c.Name))
		}
	}
	return errs
}

func requestsFit(r *corev1.ResourceRequirements, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		request := r.Requests[name]
		limit, limited := r.Limits[name]
		switch at := path.Key(string(name)); {
		case !overcommits(name) && !limited:
			errs = append(errs, field.Required(path.Key(string(name)), fmt.Sprintf("limit of %s must be set: it cannot be overcommitted", name)))
		case !overcommits(name) && request.Cmp(limit) != 0:
			errs = append(errs, field.Invalid(at, request.String(), fmt.Sprintf("must be equal to %s limit of %s", name, limit.String())))
		case limited && request.Cmp(limit) > 0:
			errs = append(errs, field.Invalid(at, request.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String())))
		}
	}
	return errs
}

// validatePodResources validates what is asked for the pod as a whole, which its containers share.
func validatePodResources(pod *corev1.Pod, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(pod.Spec.Overhead)) {
		at := path.Child("overhead").Key(string(name))
		errs = append(errs, resourceName(at, name)...)
		errs = append(errs, quantity(at, name, pod.Spec.Overhead[name])...)
	}
	r := pod.Spec.Resources
	if r == nil {
		return errs
	}
	spec := path
	path = path.Child("resources")
	if len(r.Claims) > 0 {
		errs = append(errs, field.Forbidden(path.Child("claims"), "claims may not be set for resources at pod-level"))
	}
	for _, part := range []struct {
		name string
		list corev1.ResourceList
	}{{"limits", r.Limits}, {"requests", r.Requests}} {
		for _, name := range slices.Sorted(maps.Keys(part.list)) {
			if !podresource.IsSupportedPodLevelResource(name) {
				errs = append(errs, field.NotSupported(path.Child(part.name).Key(string(name)), name, []string{"cpu", "hugepages-", "memory"}))
			}
		}
	}
	if len(errs) > 0 {
		return errs
	}
	errs = append(errs, validateResources(&corev1.ResourceRequirements{Limits: r.Limits, Requests: r.Requests}, &pod.Spec, path)...)
	sum := podresource.AggregateContainerRequests(pod, podresource.PodResourcesOptions{})
	for _, name := range sortedNames(r.Requests) {
		have := r.Requests[name]
		if want, ok := sum[name]; ok && want.Cmp(have) > 0 {
			errs = append(errs, field.Invalid(path.Child("requests").Key(string(name)), have.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container requests of %s", want.String())))
		}
	}
	for i, c := range pod.Spec.Containers {
		for _, name := range slices.Sorted(maps.Keys(c.Resources.Limits)) {
			most, ok := r.Limits[name]
			if want := c.Resources.Limits[name]; ok && want.Cmp(most) > 0 {
				errs = append(errs, field.Invalid(spec.Child("containers").Index(i).Child("resources", "limits").Key(string(name)), want.String(),
					fmt.Sprintf("must be less than or equal to pod limits of %s", most.String())))
			}
		}
	}
	return errs
}
