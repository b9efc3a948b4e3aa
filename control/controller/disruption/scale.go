package disruption

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// owners say how many pods they are to have.
type owners struct {
	client kubernetes.Interface
	apps   appsinformers.Interface
}

var errOwner = errors.New("owner has no scale")

// of is the scale of pods: that of each of their owners, once.
func (o owners) of(ctx context.Context, pods []*corev1.Pod) (scale, error) {
	var s scale
	seen := map[types.UID]bool{}
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
		uid, n, err := o.one(ctx, p.Namespace, c)
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

// one is the scale of an owner, and whose it is.
func (o owners) one(ctx context.Context, namespace string, c *metav1.OwnerReference) (types.UID, int32, error) {
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
			return o.one(ctx, namespace, d)
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
	}
	return o.served(ctx, namespace, c)
}

// served asks the API for the scale of an owner of any kind that has one.
func (o owners) served(ctx context.Context, namespace string, c *metav1.OwnerReference) (types.UID, int32, error) {
	list, err := o.client.Discovery().ServerResourcesForGroupVersion(c.APIVersion)
	if err != nil {
		return c.UID, 0, fmt.Errorf("find resource of %s: %w", c.Kind, err)
	}
	plural, has := "", map[string]bool{}
	for _, r := range list.APIResources {
		has[r.Name] = true
		if r.Kind == c.Kind && !strings.Contains(r.Name, "/") {
			plural = r.Name
		}
	}
	if plural == "" || !has[plural+"/scale"] {
		return c.UID, 0, fmt.Errorf("%w: %s %s does not implement the scale subresource", errOwner, c.APIVersion, c.Kind)
	}
	root := "/apis/"
	if !strings.Contains(c.APIVersion, "/") {
		root = "/api/"
	}
	text, err := o.client.Discovery().RESTClient().Get().AbsPath(root+c.APIVersion, "namespaces", namespace, plural, c.Name, "scale").
		SetHeader("Accept", "application/json").Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return c.UID, 0, nil
	}
	if err != nil {
		return c.UID, 0, err
	}
	var s autoscalingv1.Scale
	if err := json.Unmarshal(text, &s); err != nil {
		return c.UID, 0, fmt.Errorf("read scale: %w", err)
	}
	if s.UID != c.UID {
		return c.UID, 0, nil
	}
	return c.UID, s.Spec.Replicas, nil
}
