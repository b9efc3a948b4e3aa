package manager

import (
	"fmt"
	"log/slog"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/controller/bootstraptoken"
	"github.com/berth-node/berth/control/controller/certificates"
	"github.com/berth-node/berth/control/controller/namespace"
	"github.com/berth-node/berth/control/controller/nodelifecycle"
	"github.com/berth-node/berth/control/controller/podgc"
	"github.com/berth-node/berth/control/controller/rootca"
	"github.com/berth-node/berth/control/controller/serviceaccount"
	"github.com/berth-node/berth/control/controller/tainteviction"
	"github.com/berth-node/berth/control/controller/trustbundle"
)

// kind is one controller, by the name that Kubernetes has for it.
type kind struct {
	name    string
	account string // of kube-system, whose rights it has
	off     bool   // it runs only where it is named
	make    func(parts) (controller.Controller, error)
}

// parts are what one controller is made of.
type parts struct {
	m      *Manager
	config *rest.Config
	client kubernetes.Interface
	own    informers.SharedInformerFactory // of what nobody but controllers watches
	log    *slog.Logger
}

// ofAllKinds is how objects of any kind are reached, and which kinds there are.
func (p parts) ofAllKinds() (metadata.Interface, *discovery.DiscoveryClient, error) {
	objects, err := metadata.NewForConfig(p.config)
	if err != nil {
		return nil, nil, err
	}
	known, err := discovery.NewDiscoveryClientForConfig(p.config)
	return objects, known, err
}

const (
	certificateAccount = "certificate-controller"
	trustPublisher     = "kube-apiserver-serving-clustertrustbundle-publisher"
)

func kindsOf() []kind {
	return slices.Concat([]kind{
		{name: "serviceaccount-controller", account: "service-account-controller", make: makeAccounts},
		{name: "root-ca-certificate-publisher-controller", account: "root-ca-cert-publisher", make: makeRootCA},
		{name: trustPublisher + "-controller", account: trustPublisher, make: makeTrust},
		{name: "certificatesigningrequest-approving-controller", account: certificateAccount, make: makeApprover},
		{name: "certificatesigningrequest-signing-controller", account: certificateAccount, make: makeSigner},
		{name: "certificatesigningrequest-cleaner-controller", account: certificateAccount, make: makeCleaner},
		{name: "podcertificaterequest-cleaner-controller", account: "podcertificaterequestcleaner", make: makePodCleaner},
		{name: "kubelet-serving-approver-controller", account: "kubelet-serving-approver", off: true, make: makeServingApprover},
		{name: "bootstrap-signer-controller", account: "bootstrap-signer", make: makeInfo},
		{name: "token-cleaner-controller", account: "token-cleaner", make: makeTokens},
		{name: "namespace-controller", account: "namespace-controller", make: makeNamespaces},
		{name: "node-lifecycle-controller", account: "node-controller", make: makeNodes},
		{name: "taint-eviction-controller", account: "node-controller", make: makeEvictions},
		{name: "pod-garbage-collector-controller", account: "pod-garbage-collector", make: makePods},
	}, jobsKinds(), serviceKinds(), storageKinds(), workloadKinds(),
		deviceKinds())
}

// Names are those of all controllers.
func Names() []string {
	var all []string
	for _, k := range kindsOf() {
		all = append(all, k.name)
	}
	return all
}

// OffByDefault are those that run only where they are named.
func OffByDefault() []string {
	var all []string
	for _, k := range kindsOf() {
		if k.off {
			all = append(all, k.name)
		}
	}
	return all
}

// Check refuses a list of --controllers that has words which are no controller's.
func Check(list []string) error { return controller.CheckList(list, Names()) }

func makeAccounts(p parts) (controller.Controller, error) {
	return serviceaccount.New(p.client, p.m.options.Informers.Core().V1(), p.log), nil
}

func makeRootCA(p parts) (controller.Controller, error) {
	return rootca.New(p.client, p.m.reader, p.m.options.Informers.Core().V1(), p.m.options.Bundle, p.m.changed.add, p.log)
}

func makeTrust(p parts) (controller.Controller, error) {
	return trustbundle.New(p.client, p.m.reader, p.m.options.Bundle, p.m.changed.add, p.log)
}

func makeApprover(p parts) (controller.Controller, error) {
	return certificates.NewApprover(p.client, p.own.Certificates().V1().CertificateSigningRequests(), p.log), nil
}

func makeSigner(p parts) (controller.Controller, error) {
	return certificates.NewSigner(p.client, p.own.Certificates().V1().CertificateSigningRequests(), p.m.options.Authority, p.m.options.Life, p.log), nil
}

func makeCleaner(p parts) (controller.Controller, error) {
	return certificates.NewCleaner(p.client, p.own.Certificates().V1().CertificateSigningRequests(), p.log), nil
}

func makePodCleaner(p parts) (controller.Controller, error) {
	return certificates.NewPodCleaner(p.client, p.own.Certificates().V1().PodCertificateRequests(), p.log), nil
}

func makeServingApprover(p parts) (controller.Controller, error) {
	return certificates.NewServingApprover(p.client, p.own.Certificates().V1().CertificateSigningRequests(),
		p.m.options.Informers.Core().V1().Nodes(), p.m.options.Reserved, p.log), nil
}

func makeInfo(p parts) (controller.Controller, error) {
	o := p.m.options
	return bootstraptoken.NewSigner(p.client, p.m.reader, o.Informers.Core().V1().Secrets(),
		bootstraptoken.Cluster{Server: o.Server, Bundle: o.Bundle.CurrentCABundleContent}, p.m.changed.add, p.log)
}

func makeTokens(p parts) (controller.Controller, error) {
	return bootstraptoken.NewCleaner(p.client, p.m.options.Informers.Core().V1().Secrets(), p.log), nil
}

func makeNamespaces(p parts) (controller.Controller, error) {
	objects, known, err := p.ofAllKinds()
	if err != nil {
		return nil, err
	}
	served, err := p.m.served()
	if err != nil {
		return nil, err
	}
	return namespace.New(namespace.Deps{
		Client: p.client, Metadata: objects, Discovery: known, Informers: p.m.options.Informers.Core().V1(), Served: served, Log: p.log,
	}), nil
}

// served are watches of what says which kinds are served beside the API server's own, and by whom.
func (m *Manager) served() ([]cache.SharedIndexInformer, error) {
	objects, err := metadata.NewForConfig(m.options.Config)
	if err != nil {
		return nil, fmt.Errorf("make client of controllers: %w", err)
	}
	var all []cache.SharedIndexInformer
	for _, of := range []schema.GroupVersionResource{
		{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
		{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	} {
		i := metadatainformer.NewFilteredMetadataInformer(objects, of, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
		if err := i.SetTransform(controller.WithoutManagers); err != nil {
			return nil, fmt.Errorf("watch %s: %w", of.Resource, err)
		}
		all = append(all, i)
	}
	return all, nil
}

func makeNodes(p parts) (controller.Controller, error) {
	return nodelifecycle.New(p.client, p.m.reader, p.m.options.Informers.Core().V1(), p.m.options.Nodes, p.log)
}

func makeEvictions(p parts) (controller.Controller, error) {
	return controller.WithEvents(p.client, "taint-eviction-controller", func(events record.EventRecorder) (controller.Controller, error) {
		return tainteviction.New(p.client, p.m.options.Informers.Core().V1(), events, p.log)
	})
}

func makePods(p parts) (controller.Controller, error) {
	return podgc.New(p.client, p.m.options.Informers.Core().V1(), p.log)
}
