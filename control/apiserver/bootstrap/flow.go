package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	defaults "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-node/berth/control/api/flowcontrol"
)

// ensureFlowControl makes the schemas and levels of API priority and fairness. The mandatory ones are always as they
// are to be; the suggested ones are kept up to date until somebody changes them.
func ensureFlowControl(ctx context.Context, client kubernetes.Interface) error {
	haveLevels, err := client.FlowcontrolV1().PriorityLevelConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list priority levels: %w", err)
	}
	haveSchemas, err := client.FlowcontrolV1().FlowSchemas().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list flow schemas: %w", err)
	}
	levels := kind[*flowcontrolv1.PriorityLevelConfiguration]{
		client:  client.FlowcontrolV1().PriorityLevelConfigurations(),
		known:   byName[*flowcontrolv1.PriorityLevelConfiguration](haveLevels.Items),
		same:    sameLevel,
		replace: func(into, from *flowcontrolv1.PriorityLevelConfiguration) { into.Spec = from.Spec },
	}
	schemas := kind[*flowcontrolv1.FlowSchema]{
		client:  client.FlowcontrolV1().FlowSchemas(),
		known:   byName[*flowcontrolv1.FlowSchema](haveSchemas.Items),
		same:    sameSchema,
		replace: func(into, from *flowcontrolv1.FlowSchema) { into.Spec = from.Spec },
	}
	var all []error
	// Levels come before the schemas that lead to them.
	for _, l := range defaults.SuggestedPriorityLevelConfigurations {
		all = append(all, levels.ensure(ctx, l.DeepCopy(), false))
	}
	for _, l := range defaults.MandatoryPriorityLevelConfigurations {
		all = append(all, levels.ensure(ctx, l.DeepCopy(), true))
	}
	for _, s := range defaults.SuggestedFlowSchemas {
		all = append(all, schemas.ensure(ctx, s.DeepCopy(), false))
	}
	for _, s := range defaults.MandatoryFlowSchemas {
		all = append(all, schemas.ensure(ctx, s.DeepCopy(), true))
	}
	return errors.Join(all...)
}

func sameLevel(want, have *flowcontrolv1.PriorityLevelConfiguration) bool {
	want, have = want.DeepCopy(), have.DeepCopy()
	flowcontrol.SetLevelDefaults(want)
	flowcontrol.SetLevelDefaults(have)
	// The exempt level is the one mandatory thing that may be tuned: how much it lends and counts.
	if want.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt && have.Spec.Exempt != nil {
		want.Spec.Exempt = have.Spec.Exempt
	}
	return equality.Semantic.DeepEqual(want.Spec, have.Spec)
}

func sameSchema(want, have *flowcontrolv1.FlowSchema) bool {
	want, have = want.DeepCopy(), have.DeepCopy()
	flowcontrol.SetSchemaDefaults(want)
	flowcontrol.SetSchemaDefaults(have)
	return equality.Semantic.DeepEqual(want.Spec, have.Spec)
}

// byName are objects of a list.
func byName[P interface {
	*T
	metav1.Object
}, T any](items []T) map[string]P {
	all := map[string]P{}
	for i := range items {
		o := P(&items[i])
		all[o.GetName()] = o
	}
	return all
}

// client is what of the API is asked about one kind.
type client[T metav1.Object] interface {
	Get(context.Context, string, metav1.GetOptions) (T, error)
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
}

type kind[T metav1.Object] struct {
	client  client[T]
	known   map[string]T // what there was of it
	same    func(want, have T) bool
	replace func(into, from T)
}

// ensure makes one object, or puts its specification right where that is asked for.
func (k kind[T]) ensure(ctx context.Context, want T, mandatory bool) error {
	first := true
	err := again(func() error {
		have, found := k.known[want.GetName()]
		var err error
		if !first { // somebody has come between
			have, err = k.client.Get(ctx, want.GetName(), metav1.GetOptions{})
			found = !apierrors.IsNotFound(err)
		}
		first = false
		if !found {
			_, err = k.client.Create(ctx, want, metav1.CreateOptions{FieldManager: fieldManager})
			return err
		}
		if err != nil {
			return err
		}
		update := mandatory || keptUpToDate(have)
		said := have.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey]
		says, err := strconv.ParseBool(said)
		right := !update || k.same(want, have)
		if right && err == nil && says == update {
			return nil
		}
		if !right {
			k.replace(have, want)
		}
		annotations := have.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[flowcontrolv1.AutoUpdateAnnotationKey] = strconv.FormatBool(update)
		have.SetAnnotations(annotations)
		_, err = k.client.Update(ctx, have, metav1.UpdateOptions{FieldManager: fieldManager})
		return err
	})
	if err != nil {
		return fmt.Errorf("make %T %s: %w", want, want.GetName(), err)
	}
	return nil
}

// keptUpToDate tells whether a suggested object still is to be as suggested: its annotation says so, or says nothing
// and nobody has changed the specification, which would have counted the generation.
func keptUpToDate(o metav1.Object) bool {
	if says, err := strconv.ParseBool(o.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey]); err == nil {
		return says
	}
	return o.GetGeneration() == 1
}
