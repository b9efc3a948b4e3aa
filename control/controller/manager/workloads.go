package manager

import (
	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/controller/daemonset"
	"github.com/berth-node/berth/control/controller/deployment"
	"github.com/berth-node/berth/control/controller/replicaset"
	"github.com/berth-node/berth/control/controller/statefulset"
)

// workloadKinds are the controllers that keep pods running.
func workloadKinds() []kind {
	return []kind{
		{name: "daemonset-controller", account: "daemon-set-controller", make: makeDaemonSets},
		{name: "deployment-controller", account: "deployment-controller", make: makeDeployments},
		{name: "replicaset-controller", account: "replicaset-controller", make: makeReplicaSets},
		{name: "replicationcontroller-controller", account: "replication-controller", make: makeReplicationControllers},
		{name: "statefulset-controller", account: "statefulset-controller", make: makeStatefulSets},
	}
}

func makeDeployments(p parts) (controller.Controller, error) {
	return deployment.New(p.client, p.own.Apps().V1(), p.m.options.Informers.Core().V1().Pods(), p.log)
}

func makeReplicaSets(p parts) (controller.Controller, error) {
	return replicaset.NewReplicaSets(p.client, p.own.Apps().V1().ReplicaSets(), p.m.options.Informers.Core().V1().Pods(), p.log)
}

func makeReplicationControllers(p parts) (controller.Controller, error) {
	return replicaset.NewReplicationControllers(p.client, p.own.Core().V1().ReplicationControllers(), p.m.options.Informers.Core().V1().Pods(), p.log)
}

func makeDaemonSets(p parts) (controller.Controller, error) {
	return daemonset.New(p.client, p.own.Apps().V1(), p.m.options.Informers.Core().V1(), p.log)
}

func makeStatefulSets(p parts) (controller.Controller, error) {
	return statefulset.New(p.client, p.own.Apps().V1(), p.m.options.Informers.Core().V1().Pods(), p.own.Core().V1().PersistentVolumeClaims(), p.log)
}
