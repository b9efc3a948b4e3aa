package registry

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// scale is where a kind has its number of replicas.
type scale struct {
	replicas func(runtime.Object) (wanted **int32, has int32, selector *metav1.LabelSelector)
}

func scaleOf[T any, P interface {
	*T
	runtime.Object
}](get func(P) (**int32, int32, *metav1.LabelSelector)) *scale {
	return &scale{func(o runtime.Object) (**int32, int32, *metav1.LabelSelector) { return get(o.(P)) }}
}

func deploymentScale() *scale {
	return scaleOf(func(o *appsv1.Deployment) (**int32, int32, *metav1.LabelSelector) {
		return &o.Spec.Replicas, o.Status.Replicas, o.Spec.Selector
	})
}

func replicaSetScale() *scale {
	return scaleOf(func(o *appsv1.ReplicaSet) (**int32, int32, *metav1.LabelSelector) {
		return &o.Spec.Replicas, o.Status.Replicas, o.Spec.Selector
	})
}

func statefulSetScale() *scale {
	return scaleOf(func(o *appsv1.StatefulSet) (**int32, int32, *metav1.LabelSelector) {
		return &o.Spec.Replicas, o.Status.Replicas, o.Spec.Selector
	})
}

func controllerScale() *scale {
	return scaleOf(func(o *corev1.ReplicationController) (**int32, int32, *metav1.LabelSelector) {
		return &o.Spec.Replicas, o.Status.Replicas, metav1.SetAsLabelSelector(o.Spec.Selector)
	})
}

// scaleREST serves the scale of a resource's objects: what autoscalers and kubectl scale speak to.
type scaleREST struct {
	of      *REST
	version schema.GroupVersion
}

// New implements [rest.Storage].
func (scaleREST) New() runtime.Object { return &autoscalingv1.Scale{} }

// Destroy implements [rest.Storage].
func (scaleREST) Destroy() {}

// GroupVersionKind implements [rest.GroupVersionKindProvider].
func (scaleREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return autoscalingv1.SchemeGroupVersion.WithKind("Scale")
}

// ConvertToTable implements [rest.TableConvertor].
func (s scaleREST) ConvertToTable(ctx context.Context, o, options runtime.Object) (*metav1.Table, error) {
	return newTable(s.of.DefaultQualifiedResource, []column{
		col("Desired", "integer", func(o *autoscalingv1.Scale) any { return int64(o.Spec.Replicas) }),
		col("Available", "integer", func(o *autoscalingv1.Scale) any { return int64(o.Status.Replicas) }),
	}, nil).ConvertToTable(ctx, o, options)
}

func (s scaleREST) make(o runtime.Object) (*autoscalingv1.Scale, error) {
	m := metaOf(o)
	wanted, has, selector := s.of.row.scale.replicas(o)
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name: m.GetName(), Namespace: m.GetNamespace(), UID: m.GetUID(),
			ResourceVersion: m.GetResourceVersion(), CreationTimestamp: m.GetCreationTimestamp(),
		},
		Spec:   autoscalingv1.ScaleSpec{Replicas: deref(*wanted)},
		Status: autoscalingv1.ScaleStatus{Replicas: has, Selector: parsed.String()},
	}, nil
}

// owners tell between who has set the object's fields and who has set those of its scale.
func (s scaleREST) owners(m metav1.Object) *managedfields.ScaleHandler {
	paths := managedfields.ResourcePathMappings{s.version.String(): fieldpath.MakePathOrDie("spec", "replicas")}
	return managedfields.NewScaleHandler(m.GetManagedFields(), s.version, paths)
}

// Get implements [rest.Getter].
func (s scaleREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	o, err := s.of.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	return s.make(o)
}

// Update implements [rest.Updater].
func (s scaleREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	o, _, err := s.of.Update(ctx, name, &scaleInfo{s, info, update}, create, rest.ValidateAllObjectUpdateFunc, false, options)
	if err != nil {
		return nil, false, err
	}
	out, err := s.make(o)
	return out, false, err
}

// scaleInfo makes of a change to a scale the change to the object that is scaled.
type scaleInfo struct {
	scale    scaleREST
	info     rest.UpdatedObjectInfo
	validate rest.ValidateObjectUpdateFunc
}

// Preconditions implements [rest.UpdatedObjectInfo].
func (i *scaleInfo) Preconditions() *metav1.Preconditions { return i.info.Preconditions() }

// UpdatedObject implements [rest.UpdatedObjectInfo].
func (i *scaleInfo) UpdatedObject(ctx context.Context, old runtime.Object) (runtime.Object, error) {
	o := old.DeepCopyObject()
	was, err := i.scale.make(o)
	if err != nil {
		return nil, err
	}
	if was.ManagedFields, err = i.scale.owners(metaOf(o)).ToSubresource(); err != nil {
		return nil, fmt.Errorf("read who has set the scale: %w", err)
	}
	changed, err := i.info.UpdatedObject(ctx, was)
	if err != nil {
		return nil, err
	}
	now, ok := changed.(*autoscalingv1.Scale)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Scale: %T", changed))
	}
	if now.Spec.Replicas < 0 {
		return nil, apierrors.NewInvalid(autoscalingv1.SchemeGroupVersion.WithKind("Scale").GroupKind(), now.Name, field.ErrorList{
			field.Invalid(field.NewPath("spec", "replicas"), now.Spec.Replicas, "must be greater than or equal to 0"),
		})
	}
	if err := i.validate(ctx, now, was); err != nil {
		return nil, err
	}
	if now.ResourceVersion != "" {
		metaOf(o).SetResourceVersion(now.ResourceVersion)
	}
	if now.UID != "" {
		metaOf(o).SetUID(now.UID)
	}
	wanted, _, _ := i.scale.of.row.scale.replicas(o)
	replicas := now.Spec.Replicas
	*wanted = &replicas
	owned, err := i.scale.owners(metaOf(o)).ToParent(now.ManagedFields)
	if err != nil {
		return nil, fmt.Errorf("write who has set the scale: %w", err)
	}
	metaOf(o).SetManagedFields(owned)
	return o, nil
}
