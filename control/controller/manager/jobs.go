package manager

import (
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/controller/garbagecollector"
	"github.com/berth-node/berth/control/controller/job"
)

// jobsKinds are the controllers of what ends: by its owners, by its work, or by the clock.
func jobsKinds() []kind {
	return []kind{
		{name: "garbage-collector-controller", account: "generic-garbage-collector", make: makeGarbage},
		{name: "job-controller", account: "job-controller", make: makeJobs},
	}
}

func makeJobs(p parts) (controller.Controller, error) {
	return job.New(p.client, p.own.Batch().V1().Jobs(), p.m.options.Informers.Core().V1().Pods(), p.log)
}

func makeGarbage(p parts) (controller.Controller, error) {
	objects, err := metadata.NewForConfig(p.config)
	if err != nil {
		return nil, err
	}
	known, err := discovery.NewDiscoveryClientForConfig(p.config)
	if err != nil {
		return nil, err
	}
	return controller.WithEvents(p.client, "garbage-collector-controller", func(events record.EventRecorder) (controller.Controller, error) {
		return garbagecollector.New(garbagecollector.Deps{Metadata: objects, Discovery: known, Events: events, Log: p.log}), nil
	})
}
