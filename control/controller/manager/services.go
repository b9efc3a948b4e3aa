package manager

import (
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/controller/endpoints"
	"github.com/berth-node/berth/control/controller/endpointslice"
	"github.com/berth-node/berth/control/controller/mirroring"
	"github.com/berth-node/berth/control/controller/nodeipam"
	"github.com/berth-node/berth/control/controller/podautoscaler"
	"github.com/berth-node/berth/control/controller/servicecidr"
	"github.com/berth-node/berth/control/controller/verticalautoscaler"
)

// serviceKinds are the controllers of services and what they lead to.
func serviceKinds() []kind {
	return []kind{
		{name: "endpoints-controller", account: "endpoint-controller", make: makeEndpoints},
		{name: "endpointslice-controller", account: "endpointslice-controller", make: makeSlices},
		{name: "endpointslice-mirroring-controller", account: "endpointslicemirroring-controller", make: makeMirror},
		{name: "horizontal-pod-autoscaler-controller", account: "horizontal-pod-autoscaler", make: makeAutoscaler},
		{name: "node-ipam-controller", account: "node-controller", make: makeNodeRanges},
		{name: "service-cidr-controller", account: "service-cidrs-controller", make: makeServiceRanges},
		// It waits for custom resources, for which others may have a recommender running already.
		{name: "vertical-pod-autoscaler-controller", account: "vertical-pod-autoscaler", off: true, make: makeVerticalAutoscaler},
	}
}

func makeEndpoints(p parts) (controller.Controller, error) {
	return controller.WithEvents(p.client, "endpoint-controller", func(events record.EventRecorder) (controller.Controller, error) {
		return endpoints.New(endpoints.Deps{
			Client: p.client, Pods: p.m.options.Informers.Core().V1().Pods(), Services: p.own.Core().V1().Services(),
			Endpoints: p.own.Core().V1().Endpoints(), Events: events, Log: p.log,
		})
	})
}

func makeSlices(p parts) (controller.Controller, error) {
	return controller.WithEvents(p.client, "endpoint-slice-controller", func(events record.EventRecorder) (controller.Controller, error) {
		return endpointslice.New(endpointslice.Deps{
			Client: p.client, Core: p.m.options.Informers.Core().V1(), Services: p.own.Core().V1().Services(),
			Slices: p.own.Discovery().V1().EndpointSlices(), Events: events, Log: p.log,
		})
	})
}

func makeMirror(p parts) (controller.Controller, error) {
	return controller.WithEvents(p.client, "endpoint-slice-mirroring-controller", func(events record.EventRecorder) (controller.Controller, error) {
		return mirroring.New(mirroring.Deps{
			Client: p.client, Services: p.own.Core().V1().Services(), Endpoints: p.own.Core().V1().Endpoints(),
			Slices: p.own.Discovery().V1().EndpointSlices(), Events: events, Log: p.log,
		})
	})
}

func makeAutoscaler(p parts) (controller.Controller, error) {
	return controller.WithEvents(p.client, "horizontal-pod-autoscaler", func(events record.EventRecorder) (controller.Controller, error) {
		return podautoscaler.New(podautoscaler.Deps{
			Client: p.client, Mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(p.client.Discovery())),
			Pods: p.m.options.Informers.Core().V1().Pods(), Scaler: p.own.Autoscaling().V2().HorizontalPodAutoscalers(),
			Events: events, Log: p.log,
		})
	})
}

func makeVerticalAutoscaler(p parts) (controller.Controller, error) {
	return controller.WithEvents(p.client, "vertical-pod-autoscaler", func(events record.EventRecorder) (controller.Controller, error) {
		return verticalautoscaler.New(verticalautoscaler.Deps{
			Config: p.config, Pods: p.m.options.Informers.Core().V1().Pods(), Own: p.own, Events: events, Log: p.log,
		})
	})
}

// makeNodeRanges makes nothing where the cluster has no ranges for pods: its network has them, or each node.
func makeNodeRanges(p parts) (controller.Controller, error) {
	o := p.m.options
	if len(o.PodRanges) == 0 {
		return nil, nil
	}
	return controller.WithEvents(p.client, "cidrAllocator", func(events record.EventRecorder) (controller.Controller, error) {
		return nodeipam.New(nodeipam.Deps{
			Client: p.client, Nodes: o.Informers.Core().V1().Nodes(), Ranges: o.PodRanges, Apart: o.ServiceRanges, Events: events, Log: p.log,
		}), nil
	})
}

func makeServiceRanges(p parts) (controller.Controller, error) {
	return servicecidr.New(p.client, p.own.Networking().V1(), p.log), nil
}
