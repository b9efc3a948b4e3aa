// Package admission refuses and completes what is written to the API server: the plugins that Kubernetes turns on, and
// two that are for who asks for them. Objects are the versioned types of k8s.io/api.
package admission

import (
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/api/rules"
	"github.com/berth-node/berth/control/apiserver/admission/quota"
)

// Options are what plugins need beside what every plugin of k8s.io/apiserver is given.
type Options struct {
	// Informers are those that the plugins are given, not started yet.
	Informers informers.SharedInformerFactory
	// SchemaResolver finds the schemas that expressions of policies are checked with. It may be nil.
	SchemaResolver resolver.SchemaResolver
}

// row is one plugin, in the order in which they run.
type row struct {
	name string
	off  bool
	new  func(given) (checks, error) // nil: the library's, by register
	from func(*admission.Plugins)
}

// table has the order that Kubernetes recommends: what fills in defaults comes before what counts them, webhooks see
// what all others have made of the object, and quota is last, when nobody can refuse any more.
func table() []row {
	return []row{
		{name: lifecycle.PluginName, from: lifecycle.Register},
		{name: "LimitRanger", new: newLimitRanger},
		{name: "ServiceAccount", new: newServiceAccount},
		{name: "NodeRestriction", new: newNodeRestriction},
		{name: "TaintNodesByCondition", new: newTaintNodes},
		{name: "PodSecurity", new: newPodSecurity},
		{name: "Priority", new: newPriority},
		{name: "DefaultTolerationSeconds", new: newDefaultTolerations},
		{name: "DefaultStorageClass", new: newDefaultStorageClass},
		{name: "StorageObjectInUseProtection", new: newInUseProtection},
		{name: "OwnerReferencesPermissionEnforcement", off: true, new: newOwnerReferences},
		{name: "PersistentVolumeClaimResize", new: newClaimResize},
		{name: "RuntimeClass", new: newRuntimeClass},
		{name: "CertificateApproval", new: newCertificateApproval},
		{name: "CertificateSigning", new: newCertificateSigning},
		{name: "ClusterTrustBundleAttest", new: newTrustBundleAttest},
		{name: "CertificateSubjectRestriction", new: newSubjectRestriction},
		{name: "DefaultIngressClass", new: newDefaultIngressClass},
		{name: "DenyServiceExternalIPs", off: true, new: newDenyExternalIPs},
		{name: "PodTopologyLabels", new: newTopologyLabels},
		{name: mutatingpolicy.PluginName, from: mutatingpolicy.Register},
		{name: mutating.PluginName, from: mutating.Register},
		{name: validatingpolicy.PluginName, from: validatingpolicy.Register},
		{name: validating.PluginName, from: validating.Register},
		{name: resourcequota.PluginName, from: resourcequota.Register},
	}
}

// Plugins are all, registered.
func Plugins(o Options) (*admission.Plugins, error) {
	if err := defaultOnRead(o.Informers); err != nil {
		return nil, err
	}
	all := admission.NewPlugins()
	for _, r := range table() {
		if r.from != nil {
			r.from(all)
		} else {
			register(all, r)
		}
	}
	return all, nil
}

// RecommendedOrder names the plugins in the order in which they run.
func RecommendedOrder() []string {
	var names []string
	for _, r := range table() {
		names = append(names, r.name)
	}
	return names
}

// DefaultOff names those that run only where they are asked for.
func DefaultOff() sets.Set[string] {
	off := sets.New[string]()
	for _, r := range table() {
		if r.off {
			off.Insert(r.name)
		}
	}
	return off
}

// Initializers give the library's plugins what only this server knows. They come after those of the library, which give
// the channel of the end that quota wants first.
func Initializers(o Options) admission.PluginInitializers {
	return admission.PluginInitializers{own{o}}
}

type own struct{ o Options }

func (i own) Initialize(p admission.Interface) {
	if wants, ok := p.(initializer.WantsQuotaConfiguration); ok {
		wants.SetQuotaConfiguration(quota.NewConfiguration(nil))
	}
	if wants, ok := p.(initializer.WantsExcludedAdmissionResources); ok {
		wants.SetExcludedAdmissionResources(excluded())
	}
	if wants, ok := p.(initializer.WantsSchemaResolver); ok && i.o.SchemaResolver != nil {
		wants.SetSchemaResolver(i.o.SchemaResolver)
	}
	if wants, ok := p.(initializer.WantsManifestLoaders); ok {
		wants.SetManifestLoaders(&initializer.ManifestLoaders{})
	}
}

// excluded are what policies and webhooks are not asked about: a policy that refused them could not be undone by
// anybody.
func excluded() []schema.GroupResource {
	return []schema.GroupResource{
		{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"},
		{Group: "authentication.k8s.io", Resource: "tokenreviews"},
		{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"},
		{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"},
		{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"},
		{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
	}
}

// defaultOnRead fills in the defaults of webhooks and policies as they are read. One that was stored without them, by
// whatever way, would match nothing, and so let everything pass.
func defaultOnRead(f informers.SharedInformerFactory) error {
	registration := f.Admissionregistration().V1()
	for kind, informer := range map[string]cache.SharedIndexInformer{
		"ValidatingWebhookConfiguration":   registration.ValidatingWebhookConfigurations().Informer(),
		"MutatingWebhookConfiguration":     registration.MutatingWebhookConfigurations().Informer(),
		"ValidatingAdmissionPolicy":        registration.ValidatingAdmissionPolicies().Informer(),
		"ValidatingAdmissionPolicyBinding": registration.ValidatingAdmissionPolicyBindings().Informer(),
		"MutatingAdmissionPolicy":          registration.MutatingAdmissionPolicies().Informer(),
		"MutatingAdmissionPolicyBinding":   registration.MutatingAdmissionPolicyBindings().Informer(),
	} {
		r, ok := rules.For(admissionv1.SchemeGroupVersion.WithKind(kind))
		if !ok {
			return fmt.Errorf("find defaults of %s: there are none", kind)
		}
		err := informer.SetTransform(func(o any) (any, error) {
			if object, ok := o.(runtime.Object); ok {
				r.Default(object)
			}
			return o, nil
		})
		if err != nil {
			return fmt.Errorf("default each %s as it is read: %w", kind, err)
		}
	}
	return nil
}
