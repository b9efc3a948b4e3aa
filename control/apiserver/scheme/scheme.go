// Package scheme is the types that the API server knows: those of k8s.io/api, each registered twice, at its own
// group-version and at __internal of its group.
//
// There are no internal types. Generic code asks for the internal version of what it stores and admits, and is given
// the versioned type. Where a group has several versions one of them, the hub, is registered as the internal one, and
// the others are converted to it.
package scheme

import (
	"fmt"
	"net/url"
	"reflect"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/berth-node/berth/control/api/rules"
)

// group is one version of a group of the API.
type group struct {
	version schema.GroupVersion
	add     func(*runtime.Scheme) error
	// spoke says that another version of the group, or another group, has the types that are stored.
	spoke bool
}

func groups() []group {
	return []group{
		{corev1.SchemeGroupVersion, corev1.AddToScheme, false},
		{admissionregistrationv1.SchemeGroupVersion, admissionregistrationv1.AddToScheme, false},
		{appsv1.SchemeGroupVersion, appsv1.AddToScheme, false},
		{authenticationv1.SchemeGroupVersion, authenticationv1.AddToScheme, false},
		{authorizationv1.SchemeGroupVersion, authorizationv1.AddToScheme, false},
		{autoscalingv2.SchemeGroupVersion, autoscalingv2.AddToScheme, false},
		{autoscalingv1.SchemeGroupVersion, autoscalingv1.AddToScheme, true},
		{batchv1.SchemeGroupVersion, batchv1.AddToScheme, false},
		{certificatesv1.SchemeGroupVersion, certificatesv1.AddToScheme, false},
		{coordinationv1.SchemeGroupVersion, coordinationv1.AddToScheme, false},
		{discoveryv1.SchemeGroupVersion, discoveryv1.AddToScheme, false},
		{eventsv1.SchemeGroupVersion, eventsv1.AddToScheme, true},
		{flowcontrolv1.SchemeGroupVersion, flowcontrolv1.AddToScheme, false},
		{metricsv1beta1.SchemeGroupVersion, metricsv1beta1.AddToScheme, false},
		{networkingv1.SchemeGroupVersion, networkingv1.AddToScheme, false},
		{nodev1.SchemeGroupVersion, nodev1.AddToScheme, false},
		{policyv1.SchemeGroupVersion, policyv1.AddToScheme, false},
		{rbacv1.SchemeGroupVersion, rbacv1.AddToScheme, false},
		{resourcev1.SchemeGroupVersion, resourcev1.AddToScheme, false},
		{schedulingv1.SchemeGroupVersion, schedulingv1.AddToScheme, false},
		{schedulingv1beta1.SchemeGroupVersion, addPodGroups, false},
		{storagev1.SchemeGroupVersion, storagev1.AddToScheme, false},
	}
}

// New makes the scheme.
func New() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, g := range groups() {
		if err := g.add(s); err != nil {
			return nil, fmt.Errorf("register %s: %w", g.version, err)
		}
		if !g.spoke {
			registerInternal(s, g.version)
		}
	}
	// Without a group there are the options of all, and answers that are of no version.
	v1 := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(s, v1)
	s.AddUnversionedTypes(v1, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	// A scale is of autoscaling/v1, whatever is scaled.
	s.AddKnownTypes(schema.GroupVersion{Group: autoscalingv1.GroupName, Version: runtime.APIVersionInternal}, &autoscalingv1.Scale{})
	// Events are one kind in two groups.
	s.AddKnownTypes(schema.GroupVersion{Group: eventsv1.GroupName, Version: runtime.APIVersionInternal}, &corev1.Event{}, &corev1.EventList{})
	for _, add := range []func(*runtime.Scheme) error{addAutoscaling, addEvents, addOptions} {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("register conversions: %w", err)
		}
	}
	if err := s.SetVersionPriority(schedulingv1.SchemeGroupVersion, schedulingv1beta1.SchemeGroupVersion); err != nil {
		return nil, fmt.Errorf("register versions: %w", err)
	}
	// The hub comes first where nobody asks for a version.
	if err := s.SetVersionPriority(autoscalingv2.SchemeGroupVersion, autoscalingv1.SchemeGroupVersion); err != nil {
		return nil, fmt.Errorf("register versions: %w", err)
	}
	return s, addDefaults(s)
}

// addPodGroups registers what is of the beta version alone: it has priority classes, too, as they once were.
func addPodGroups(s *runtime.Scheme) error {
	s.AddKnownTypes(schedulingv1beta1.SchemeGroupVersion,
		&schedulingv1beta1.Workload{}, &schedulingv1beta1.WorkloadList{}, &schedulingv1beta1.PodGroup{}, &schedulingv1beta1.PodGroupList{})
	metav1.AddToGroupVersion(s, schedulingv1beta1.SchemeGroupVersion)
	return nil
}

// External makes a scheme of the served versions alone: what clients are told of.
func External() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, g := range groups() {
		if err := g.add(s); err != nil {
			return nil, fmt.Errorf("register %s: %w", g.version, err)
		}
	}
	return s, nil
}

// registerInternal registers the types of a version as the internal ones of its group, but those of all versions.
func registerInternal(s *runtime.Scheme, gv schema.GroupVersion) {
	meta := reflect.TypeFor[metav1.ObjectMeta]().PkgPath()
	internal := schema.GroupVersion{Group: gv.Group, Version: runtime.APIVersionInternal}
	for kind, t := range s.KnownTypes(gv) {
		if t.PkgPath() != meta {
			s.AddKnownTypeWithName(internal.WithKind(kind), reflect.New(t).Interface().(runtime.Object))
		}
	}
}

// addDefaults has objects given their defaults whenever they are read, of a request or of the store: what an older
// version has stored without a field has its default, too.
func addDefaults(s *runtime.Scheme) error {
	for _, gvk := range rules.Kinds() {
		r, _ := rules.For(gvk)
		if !s.Recognizes(gvk) {
			continue // of a version that is not served
		}
		o, err := s.New(gvk)
		if err != nil {
			return fmt.Errorf("register defaults: %w", err)
		}
		s.AddTypeDefaultingFunc(o, func(o any) { r.Default(o.(runtime.Object)) })
		list, err := s.New(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		if err != nil {
			return fmt.Errorf("register defaults: %w", err)
		}
		s.AddTypeDefaultingFunc(list, func(o any) {
			items := reflect.ValueOf(o).Elem().FieldByName("Items")
			for i := range items.Len() {
				r.Default(items.Index(i).Addr().Interface().(runtime.Object))
			}
		})
	}
	return nil
}

// Codecs makes what reads and writes the types of a scheme: JSON, YAML and Protobuf, and CBOR where its feature is on.
func Codecs(s *runtime.Scheme) serializer.CodecFactory {
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		return serializer.NewCodecFactory(s, serializer.WithSerializer(cbor.NewSerializerInfo))
	}
	return serializer.NewCodecFactory(s)
}

// addOptions has options of a subresource read from a query.
func addOptions(s *runtime.Scheme) error {
	for _, o := range []any{
		&corev1.PodLogOptions{}, &corev1.PodExecOptions{}, &corev1.PodAttachOptions{}, &corev1.PodPortForwardOptions{},
		&corev1.PodProxyOptions{}, &corev1.NodeProxyOptions{}, &corev1.ServiceProxyOptions{},
	} {
		err := s.AddConversionFunc((*url.Values)(nil), o, func(in, out any, _ conversion.Scope) error {
			return fromQuery(*in.(*url.Values), out)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// fromQuery sets the fields of a struct by their JSON names.
func fromQuery(query url.Values, out any) error {
	v := reflect.ValueOf(out).Elem()
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		values, given := query[name]
		if name == "" || !given || len(values) == 0 {
			continue
		}
		if err := setField(v.Field(i), values); err != nil {
			return fmt.Errorf("read parameter %s: %w", name, err)
		}
	}
	return nil
}
