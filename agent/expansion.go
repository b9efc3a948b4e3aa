package agent

import (
	"context"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/expand"
	"github.com/berth-node/berth/agent/object"
	volumecsi "github.com/berth-node/berth/agent/volume/csi"
	"github.com/berth-node/berth/csi"
)

// openExpander opens what expands the volumes of an API server's claims on the node. c says whom it asks and tells.
func openExpander(c expand.Config, v *csiVolumes) *expand.Expander {
	of := v.objects.Of(desired.API)
	c.Volumes, c.Objects, c.Settled = v.volumes, of, v.ring
	c.OnNode = func(driver string) bool {
		d, err := v.drivers.Get(driver)
		return err == nil && d.Node(spec.NodeServiceCapability_RPC_EXPAND_VOLUME)
	}
	x := expand.New(c)
	of.Subscribe(func(ref object.Ref) {
		switch ref.Kind {
		case object.PersistentVolumeClaim, object.PersistentVolume:
			x.Look()
		case object.Secret:
			x.SecretCame()
		}
	})
	v.drivers.Subscribe(func(e csi.Event) {
		if e.Here {
			x.Again()
		}
	})
	return x
}

// volumes is what the volumes of pods know of those of CSI drivers, and whom they tell.
func (m *managers) volumes() volumecsi.Config {
	out := m.provisioner.freeing(m.csi.kind())
	if m.expander != nil {
		out.Served.Sizes, out.Served.Given = m.csi.sizes, m.expander.Look
	}
	return out
}

// runCSI runs the CSI drivers, and what expands their volumes.
func (m *managers) runCSI(ctx context.Context) error {
	if m.expander == nil {
		return m.csi.run(ctx)
	}
	return m.csi.run(ctx, m.expander.Run)
}

// sizes are how many bytes a volume of the API server has by its claim, and how many it is to have on the node.
func (v *csiVolumes) sizes(pv *corev1.PersistentVolume) (has, due int64) {
	c, now, err := v.objects.Of(desired.API).Claimed(pv.Name)
	if err != nil {
		return 0, 0
	}
	return expand.Sizes(c, now)
}
