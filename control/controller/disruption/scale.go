package disruption

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/ptr"
)

const (
	// askTimeout is how long the API may take to say what one scale is.
	askTimeout = 10 * time.Second
	// maxAsked is how many owners the API is asked about for one budget.
	maxAsked = 1000
)

// owners say how many pods they are to have.
type owners struct {
	client      kubernetes.Interface
	apps        appsinformers.Interface
	controllers corelisters.ReplicationControllerLister
}

var errOwner = errors.New("owner has no scale")

// of is the scale of pods: that of each of their owners, once.
func (o owners) of(ctx context.Context, pods []*corev1.Pod) (scale, error) {
	var s scale
	seen := map[types.UID]bool{}
	a := asked{client: o.client, kinds: map[schema.GroupVersionKind]string{}}
	for _, p := range pods {
		c := metav1.GetControllerOf(p)
		if c == nil {
			s.unmanaged = append(s.unmanaged, p.Name)
			continue
		}
		if seen[c.UID] {
			continue
		}
		seen[c.UID] = true
		uid, n, err := o.one(ctx, &a, p.Namespace, c)
		if err != nil {
			return s, fmt.Errorf("find scale of %s %s: %w", c.Kind, c.Name, err)
		}
		// Of the ReplicaSets of a deployment the deployment's scale counts, and not once for each.
		if uid == c.UID || !seen[uid] {
			s.expected += n
		}
		seen[uid] = true
	}
	return s, nil
}

// someOf are names as they are told: the first few of them, which are the same as long as the pods are.
func someOf(names []string) string {
	const few = 10
	slices.Sort(names)
	if more := len(names) - few; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), more)
	}
	return strings.Join(names, ", ")
}

// one is the scale of an owner, and whose it is.
func (o owners) one(ctx context.Context, a *asked, namespace string, c *metav1.OwnerReference) (types.UID, int32, error) {
	group := schema.FromAPIVersionAndKind(c.APIVersion, c.Kind).Group
	switch {
	case group == appsv1.GroupName && c.Kind == "ReplicaSet":
		rs, err := o.apps.ReplicaSets().Lister().ReplicaSets(namespace).Get(c.Name)
		if apierrors.IsNotFound(err) || err == nil && rs.UID != c.UID {
			return c.UID, 0, nil
		}
		if err != nil {
			return c.UID, 0, err
		}
		if d := metav1.GetControllerOf(rs); d != nil && d.Kind == "Deployment" && strings.HasPrefix(d.APIVersion, appsv1.GroupName+"/") {
			return o.one(ctx, a, namespace, d)
		}
		return c.UID, ptr.Deref(rs.Spec.Replicas, 1), nil
	case group == appsv1.GroupName && c.Kind == "Deployment":
		d, err := o.apps.Deployments().Lister().Deployments(namespace).Get(c.Name)
		if apierrors.IsNotFound(err) || err == nil && d.UID != c.UID {
			return c.UID, 0, nil
		}
		if err != nil {
			return c.UID, 0, err
		}
		return c.UID, ptr.Deref(d.Spec.Replicas, 1), nil
	case group == appsv1.GroupName && c.Kind == "StatefulSet":
		s, err := o.apps.StatefulSets().Lister().StatefulSets(namespace).Get(c.Name)
		if apierrors.IsNotFound(err) || err == nil && s.UID != c.UID {
			return c.UID, 0, nil
		}
		if err != nil {
			return c.UID, 0, err
		}
		return c.UID, ptr.Deref(s.Spec.Replicas, 1), nil
	case group == corev1.GroupName && c.Kind == "ReplicationController":
		r, err := o.controllers.ReplicationControllers(namespace).Get(c.Name)
		if apierrors.IsNotFound(err) || err == nil && r.UID != c.UID {
			return c.UID, 0, nil
		}
		if err != nil {
			return c.UID, 0, err
		}
		return c.UID, ptr.Deref(r.Spec.Replicas, 1), nil
	}
	n, err := a.scale(ctx, namespace, c)
	return c.UID, n, err
}

// asked asks the API for the scales of owners of other kinds, for one look at a budget.
type asked struct {
	client kubernetes.Interface
	kinds  map[schema.GroupVersionKind]string // their resources, each asked for once
	n      int
}

// scale is that of an owner of any kind that has one. What a pod says of its owner is anybody's words: a name may be a
// way to something else that the API serves, as to a watch that never ends.
func (a *asked) scale(ctx context.Context, namespace string, c *metav1.OwnerReference) (int32, error) {
	gvk := schema.FromAPIVersionAndKind(c.APIVersion, c.Kind)
	for _, part := range []string{gvk.Group, gvk.Version, c.Name} {
		if len(content.IsPathSegmentName(part)) > 0 {
			return 0, nil // nothing has such a name
		}
	}
	if a.n++; a.n > maxAsked {
		return 0, fmt.Errorf("%w that could be asked for: it is one of more than %d", errOwner, maxAsked)
	}
	plural, known := a.kinds[gvk]
	if !known {
		var err error
		if plural, err = a.resource(gvk); err != nil {
			return 0, err
		}
		a.kinds[gvk] = plural
	}
	root := "/apis/"
	if gvk.Group == "" {
		root = "/api/"
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	text, err := a.client.Discovery().RESTClient().Get().AbsPath(root+c.APIVersion, "namespaces", namespace, plural, c.Name, "scale").
		SetHeader("Accept", "application/json").Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var s autoscalingv1.Scale
	if err := json.Unmarshal(text, &s); err != nil {
		return 0, fmt.Errorf("read scale: %w", err)
	}
	if s.UID != c.UID {
		return 0, nil
	}
	return s.Spec.Replicas, nil
}

// resource is how a kind that has a scale is called in paths.
func (a *asked) resource(gvk schema.GroupVersionKind) (string, error) {
	list, err := a.client.Discovery().ServerResourcesForGroupVersion(gvk.GroupVersion().String())
	if err != nil {
		return "", fmt.Errorf("find resource of %s: %w", gvk.Kind, err)
	}
	plural, has := "", map[string]bool{}
	for _, r := range list.APIResources {
		has[r.Name] = true
		if r.Kind == gvk.Kind && !strings.Contains(r.Name, "/") {
			plural = r.Name
		}
	}
	if plural == "" || !has[plural+"/scale"] {
		return "", fmt.Errorf("%w: %s %s does not implement the scale subresource", errOwner, gvk.GroupVersion(), gvk.Kind)
	}
	return plural, nil
}
