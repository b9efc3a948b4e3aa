package manager

import (
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/controller/accounttoken"
	"github.com/berth-node/berth/control/controller/clusterroleaggregation"
	"github.com/berth-node/berth/control/controller/cronjob"
	"github.com/berth-node/berth/control/controller/disruption"
	"github.com/berth-node/berth/control/controller/garbagecollector"
	"github.com/berth-node/berth/control/controller/job"
	"github.com/berth-node/berth/control/controller/legacytoken"
	"github.com/berth-node/berth/control/controller/resourcequota"
	"github.com/berth-node/berth/control/controller/ttlafterfinished"
)

// jobsKinds are the controllers of what ends: by its owners, by its work, or by the clock.
func jobsKinds() []kind {
	return []kind{
		{name: "garbage-collector-controller", account: "generic-garbage-collector", make: makeGarbage},
		{name: "job-controller", account: "job-controller", make: makeJobs},
		{name: "cronjob-controller", account: "cronjob-controller", make: makeCronJobs},
		{name: "ttl-after-finished-controller", account: "ttl-after-finished-controller", make: makeFinished},
		{name: "disruption-controller", account: "disruption-controller", make: makeBudgets},
		{name: "resourcequota-controller", account: "resourcequota-controller", make: makeQuotas},
		{name: "clusterrole-aggregation-controller", account: "clusterrole-aggregation-controller", make: makeRoles},
		{name: "serviceaccount-token-controller", account: "tokens-controller", make: makeAccountTokens},
		{name: "legacy-serviceaccount-token-cleaner-controller", account: "legacy-service-account-token-cleaner", make: makeLegacyTokens},
	}
}

func makeJobs(p parts) (controller.Controller, error) {
	return job.New(p.client, p.own.Batch().V1().Jobs(), p.m.options.Informers.Core().V1().Pods(), p.log)
}

func makeGarbage(p parts) (controller.Controller, error) {
	objects, known, err := p.ofAllKinds()
	if err != nil {
		return nil, err
	}
	return controller.WithEvents(p.client, "garbage-collector-controller", func(events record.EventRecorder) (controller.Controller, error) {
		return garbagecollector.New(garbagecollector.Deps{Metadata: objects, Discovery: known, Events: events, Log: p.log}), nil
	})
}

func makeCronJobs(p parts) (controller.Controller, error) {
	return cronjob.New(p.client, p.own.Batch().V1(), p.log)
}

func makeFinished(p parts) (controller.Controller, error) {
	return ttlafterfinished.New(p.client, p.own.Batch().V1().Jobs(), p.log), nil
}

func makeBudgets(p parts) (controller.Controller, error) {
	return disruption.New(p.client, disruption.Informers{
		Budgets: p.own.Policy().V1().PodDisruptionBudgets(), Pods: p.m.options.Informers.Core().V1().Pods(), Apps: p.own.Apps().V1(),
		Controllers: p.own.Core().V1().ReplicationControllers(),
	}, p.log)
}

func makeQuotas(p parts) (controller.Controller, error) {
	objects, known, err := p.ofAllKinds()
	if err != nil {
		return nil, err
	}
	return resourcequota.New(resourcequota.Deps{
		Client: p.client, Metadata: objects, Discovery: known, Log: p.log,
		Quotas: p.own.Core().V1().ResourceQuotas(), Pods: p.m.options.Informers.Core().V1().Pods(),
	}), nil
}

func makeRoles(p parts) (controller.Controller, error) {
	return clusterroleaggregation.New(p.client, p.own.Rbac().V1().ClusterRoles(), p.log), nil
}

func makeLegacyTokens(p parts) (controller.Controller, error) {
	return legacytoken.New(p.client, p.m.options.Informers.Core().V1(), p.log), nil
}

func makeAccountTokens(p parts) (controller.Controller, error) {
	o := p.m.options
	return accounttoken.New(accounttoken.Config{
		Client: p.m.reader, Sign: o.SecretToken, Bundle: o.Bundle, Subscribe: p.m.changed.add, Log: p.log,
	}, o.Informers.Core().V1()), nil
}
