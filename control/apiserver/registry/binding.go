package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"

	"github.com/berth-node/berth/control/api/core"
)

// bindingREST gives a pod its node: what a scheduler asks for.
type bindingREST struct{ pods *REST }

// New implements [rest.Storage].
func (bindingREST) New() runtime.Object { return &corev1.Binding{} }

// Destroy implements [rest.Storage].
func (bindingREST) Destroy() {}

// PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate keeps UID and version of a binding, which are those that the
// scheduler has decided by.
func (bindingREST) PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() bool { return true }

// Create implements [rest.NamedCreater].
func (b bindingREST) Create(ctx context.Context, name string, o runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions,
) (runtime.Object, error) {
	binding, ok := o.(*corev1.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding: %T", o))
	}
	if name != binding.Name {
		return nil, apierrors.NewBadRequest("the name in the URL is not the name of the Binding")
	}
	if errs := core.ValidateBinding(binding); len(errs) > 0 {
		return nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Binding").GroupKind(), name, errs)
	}
	if validate != nil {
		if err := validate(ctx, binding.DeepCopy()); err != nil {
			return nil, err
		}
	}
	if err := b.assign(ctx, binding, dryrun.IsDryRun(options.DryRun)); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

func (b bindingREST) assign(ctx context.Context, binding *corev1.Binding, dry bool) error {
	key, err := b.pods.KeyFunc(ctx, binding.Name)
	if err != nil {
		return err
	}
	var wanted storage.Preconditions
	if binding.UID != "" {
		wanted.UID = &binding.UID
	}
	if binding.ResourceVersion != "" {
		wanted.ResourceVersion = &binding.ResourceVersion
	}
	update := storage.SimpleUpdate(func(o runtime.Object) (runtime.Object, error) {
		p := o.(*corev1.Pod)
		return p, bind(p, binding)
	})
	err = b.pods.Storage.GuaranteedUpdate(ctx, key, &corev1.Pod{}, false, &wanted, update, dry, nil)
	if err == nil {
		return nil
	}
	pods := corev1.Resource("pods")
	err = storeerr.InterpretUpdateError(storeerr.InterpretGetError(err, pods, binding.Name), pods, binding.Name)
	if status := apierrors.APIStatus(nil); !errors.As(err, &status) {
		return apierrors.NewConflict(corev1.Resource("pods/binding"), binding.Name, err)
	}
	return err
}

func bind(p *corev1.Pod, to *corev1.Binding) error {
	switch {
	case p.DeletionTimestamp != nil:
		return fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", p.Name)
	case p.Spec.NodeName != "":
		return fmt.Errorf("pod %s is already assigned to node %q", p.Name, p.Spec.NodeName)
	case len(p.Spec.SchedulingGates) > 0:
		return fmt.Errorf("pod %s has non-empty .spec.schedulingGates", p.Name)
	}
	p.Spec.NodeName, p.Status.NominatedNodeName = to.Target.Name, ""
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	maps.Copy(p.Annotations, to.Annotations)
	if p.Labels == nil && len(to.Labels) > 0 {
		p.Labels = map[string]string{}
	}
	maps.Copy(p.Labels, to.Labels)
	setPodCondition(p, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
	return nil
}

func setPodCondition(p *corev1.Pod, c corev1.PodCondition) {
	c.LastTransitionTime, c.ObservedGeneration = metav1.Now(), p.Generation
	i := slices.IndexFunc(p.Status.Conditions, func(old corev1.PodCondition) bool { return old.Type == c.Type })
	if i < 0 {
		p.Status.Conditions = append(p.Status.Conditions, c)
		return
	}
	if old := p.Status.Conditions[i]; old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	p.Status.Conditions[i] = c
}

// bindingsREST is the same, asked for by the name in the body: the first way that schedulers had.
type bindingsREST struct{ bindingREST }

// NamespaceScoped implements [rest.Scoper].
func (bindingsREST) NamespaceScoped() bool { return true }

// GetSingularName implements [rest.SingularNameProvider].
func (bindingsREST) GetSingularName() string { return "binding" }

// Create implements [rest.Creater].
func (b bindingsREST) Create(ctx context.Context, o runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions,
) (runtime.Object, error) {
	return b.bindingREST.Create(ctx, metaOf(o).GetName(), o, validate, options)
}
