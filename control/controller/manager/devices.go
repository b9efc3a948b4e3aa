package manager

import (
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/controller/devicetainteviction"
	"github.com/berth-node/berth/control/controller/resourceclaim"
)

// deviceKinds are the controllers of claims of devices.
func deviceKinds() []kind {
	return []kind{
		{name: "resourceclaim-controller", account: "resource-claim-controller", make: makeResourceClaims},
		{name: "device-taint-eviction-controller", account: "device-taint-eviction-controller", make: makeDeviceEvictions},
	}
}

func makeResourceClaims(p parts) (controller.Controller, error) {
	return controller.WithEvents(p.client, "resource_claim", func(events record.EventRecorder) (controller.Controller, error) {
		return resourceclaim.New(resourceclaim.Deps{
			Client: p.client, Pods: p.m.options.Informers.Core().V1().Pods(), Claims: p.own.Resource().V1().ResourceClaims(),
			Templates: p.own.Resource().V1().ResourceClaimTemplates(), Events: events, Log: p.log,
		})
	})
}

func makeDeviceEvictions(p parts) (controller.Controller, error) {
	return controller.WithEvents(p.client, "device-taint-eviction", func(events record.EventRecorder) (controller.Controller, error) {
		r := p.own.Resource().V1()
		return devicetainteviction.New(devicetainteviction.Deps{
			Client: p.client, Pods: p.m.options.Informers.Core().V1().Pods(), Claims: r.ResourceClaims(), Slices: r.ResourceSlices(),
			Rules: r.DeviceTaintRules(), Events: events, Log: p.log,
		})
	})
}
