package agent

import (
	spec "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/expand"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/csi"
)

// openExpander opens what expands the volumes of the API server's claims on the node, where there is one.
func (a *Agent) openExpander(objects *object.Stores) {
	if a.member == nil {
		return
	}
	v, of := a.managers.csi, objects.Of(desired.API)
	v.expander = expand.New(expand.Config{
		Volumes: v.volumes, Objects: of, Client: a.member.client, Events: a.events, Node: a.cfg.NodeName, Log: a.log,
		Settled: v.ring,
		OnNode: func(driver string) bool {
			d, err := v.drivers.Get(driver)
			return err == nil && d.Node(spec.NodeServiceCapability_RPC_EXPAND_VOLUME)
		},
	})
	of.Subscribe(func(ref object.Ref) {
		switch ref.Kind {
		case object.PersistentVolumeClaim, object.PersistentVolume:
			v.expander.Look()
		case object.Secret:
			v.expander.SecretCame()
		}
	})
	v.drivers.Subscribe(func(e csi.Event) {
		if e.Here {
			v.expander.Again()
		}
	})
}

// sizes are how many bytes a volume of the API server has by its claim, and how many it is to have on the node.
func (v *csiVolumes) sizes(pv *corev1.PersistentVolume) (has, due int64) {
	c, now, err := v.objects.Of(desired.API).Claimed(pv.Name)
	if err != nil {
		return 0, 0
	}
	return expand.Sizes(c, now)
}
