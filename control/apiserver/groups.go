package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	extensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	clientset "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/berth-node/berth/control/apiserver/registry"
)

// The order in which clients are told of groups and, within one, of versions: the higher comes first.
const (
	ownPriority, customPriority        = 15000, 1000
	versionPriority, oldPriority       = 15, 10
	customVersionPriority        int32 = 100
	// metricsPriority is below all: pods are those of the core group.
	metricsPriority = 100
	// registerers is how many groups are registered at once.
	registerers = 5
)

// groupPriorities are of groups that clients are told of before others.
func groupPriorities() map[string]int32 {
	return map[string]int32{
		"": 18000, "apps": 17800, "events.k8s.io": 17750, "authentication.k8s.io": 17700, "authorization.k8s.io": 17600,
		"autoscaling": 17500, "batch": 17400, "certificates.k8s.io": 17300, "networking.k8s.io": 17200, "policy": 17100,
		"rbac.authorization.k8s.io": 17000, "storage.k8s.io": 16800, "apiextensions.k8s.io": 16700, "admissionregistration.k8s.io": 16700,
		"scheduling.k8s.io": 16600, "coordination.k8s.io": 16500, "node.k8s.io": 16300, "discovery.k8s.io": 16200,
		"flowcontrol.apiserver.k8s.io": 16100, "resource.k8s.io": 15900,
	}
}

// apiService is the object by which the aggregator knows a group's version that this process serves.
func apiService(gv schema.GroupVersion, group, version int32) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: group, VersionPriority: version,
		},
	}
}

// register has the aggregator know all groups of the servers behind it: those of the table, and those of custom
// resources as they come and go.
func (s *shared) register(front *aggregator.APIAggregator, own *genericapiserver.GenericAPIServer, custom *extensions.CustomResourceDefinitions) error {
	client, err := clientset.NewForConfig(s.config.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("make client of API services: %w", err)
	}
	services := front.APIRegistrationInformers.Apiregistration().V1().APIServices()
	keeper := autoregister.NewAutoRegisterController(services, client.ApiregistrationV1())
	names := map[string]bool{}
	for _, gv := range served(own.ListedPaths()) {
		if gv == metricsv1beta1.SchemeGroupVersion {
			// It has no object, which would be in the way of who installs a server of metrics of their own: theirs is
			// asked then, and this one otherwise.
			s.config.AggregatedDiscoveryGroupManager.SetGroupVersionPriority(metav1.GroupVersion(gv), metricsPriority, metricsPriority)
			continue
		}
		group, ok := groupPriorities()[gv.Group]
		if !ok {
			group = ownPriority
		}
		version := int32(versionPriority)
		if gv.Group == "autoscaling" && gv.Version == "v1" {
			version = oldPriority
		}
		if slices.Contains(registry.OnRequest(), gv) {
			version = oldPriority
		}
		service := apiService(gv, group, version)
		keeper.AddAPIServiceToSyncOnStart(service)
		names[service.Name] = true
		s.config.AggregatedDiscoveryGroupManager.SetGroupVersionPriority(metav1.GroupVersion(gv), int(group), int(version))
	}
	crds := &customGroups{custom: custom, keeper: keeper}
	if err := front.GenericAPIServer.AddPostStartHook("kube-apiserver-autoregistration", func(ctx genericapiserver.PostStartHookContext) error {
		go crds.run(ctx, func() { keeper.Run(registerers, ctx.Done()) })
		return nil
	}); err != nil {
		return err
	}
	return front.GenericAPIServer.AddBootSequenceHealthChecks(available(names, services.Informer()))
}

// served are the group-versions of a server's paths.
func served(paths []string) []schema.GroupVersion {
	var all []schema.GroupVersion
	for _, p := range paths {
		switch parts := strings.Split(p, "/"); {
		case p == "/api/v1":
			all = append(all, schema.GroupVersion{Version: "v1"})
		case len(parts) == 4 && parts[1] == "apis":
			all = append(all, schema.GroupVersion{Group: parts[2], Version: parts[3]})
		}
	}
	return all
}

// available is ready when the aggregator has seen all of these services available.
func available(names map[string]bool, informer cache.SharedIndexInformer) healthz.HealthChecker {
	var mu sync.Mutex
	see := func(o any) {
		service, ok := o.(*apiregistrationv1.APIService)
		if !ok {
			return
		}
		for _, c := range service.Status.Conditions {
			if c.Type == apiregistrationv1.Available && c.Status == apiregistrationv1.ConditionTrue {
				mu.Lock()
				delete(names, service.Name)
				mu.Unlock()
			}
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, o any) { see(o) }})
	return healthz.NamedCheck("autoregister-completion", func(*http.Request) error {
		mu.Lock()
		defer mu.Unlock()
		if err != nil || len(names) > 0 {
			return fmt.Errorf("%d API services are not available yet: %w", len(names), err)
		}
		return nil
	})
}

// customGroups registers the groups of custom resources.
type customGroups struct {
	custom *extensions.CustomResourceDefinitions
	keeper autoregister.AutoAPIServiceRegistration
	mu     sync.Mutex
	known  map[schema.GroupVersion]bool
}

// run keeps them registered until ctx ends. What is to begin with the groups that there are begins when they are known:
// it would take those away that it has not heard of.
func (c *customGroups) run(ctx context.Context, begin func()) {
	informer := c.custom.Informers.Apiextensions().V1().CustomResourceDefinitions()
	sync := func() {
		all, err := informer.Lister().List(labels.Everything())
		if err == nil {
			c.update(all)
		}
	}
	_, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { sync() }, UpdateFunc: func(any, any) { sync() }, DeleteFunc: func(any) { sync() },
	})
	if err != nil || !cache.WaitForCacheSync(ctx.Done(), informer.Informer().HasSynced) {
		return
	}
	sync()
	begin()
}

// update makes the registered groups those of the definitions.
func (c *customGroups) update(crds []*extensionsv1.CustomResourceDefinition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := map[schema.GroupVersion]bool{}
	for _, crd := range crds {
		for _, v := range crd.Spec.Versions {
			if v.Served {
				now[schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}] = true
			}
		}
	}
	for gv := range now {
		if !c.known[gv] {
			c.keeper.AddAPIServiceToSync(apiService(gv, customPriority, customVersionPriority))
		}
	}
	for gv := range c.known {
		if !now[gv] {
			c.keeper.RemoveAPIServiceToSync(gv.Version + "." + gv.Group)
		}
	}
	c.known = now
}
