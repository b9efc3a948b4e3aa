package csi

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-node/berth/csi/node"
)

// behaviour is how the volumes of a driver are to be treated: what its CSIDriver object says, or, without one, what
// kubelet does then.
type behaviour struct {
	object                            bool // there is a CSIDriver object
	attach, podInfo, republish, label bool
	groups                            storagev1.FSGroupPolicy
	modes                             []storagev1.VolumeLifecycleMode
	tokens                            []storagev1.TokenRequest
	tokensInSecrets                   bool
}

func (k *Kind) behaviour(pod *corev1.Pod, driver string) behaviour {
	out := behaviour{
		attach: true, groups: storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy,
		modes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
	}
	if k.cfg.Driver == nil {
		return out
	}
	o, err := k.cfg.Driver(pod, driver)
	if err != nil || o == nil {
		return out
	}
	s := &o.Spec
	out.object, out.tokens = true, s.TokenRequests
	for _, f := range []struct{ says, to *bool }{
		{s.AttachRequired, &out.attach},
		{s.PodInfoOnMount, &out.podInfo},
		{s.RequiresRepublish, &out.republish},
		{s.SELinuxMount, &out.label},
		{s.ServiceAccountTokenInSecrets, &out.tokensInSecrets},
	} {
		if f.says != nil {
			*f.to = *f.says
		}
	}
	if s.FSGroupPolicy != nil {
		out.groups = *s.FSGroupPolicy
	}
	if len(s.VolumeLifecycleModes) > 0 {
		out.modes = s.VolumeLifecycleModes
	}
	return out
}

// takes says why the driver cannot have such a volume: a driver that does not expect inline volumes may take what a pod
// says of one for that of somebody else.
func (b *behaviour) takes(r *node.Request) error {
	mode := storagev1.VolumeLifecyclePersistent
	if r.Ephemeral {
		mode = storagev1.VolumeLifecycleEphemeral
	}
	if slices.Contains(b.modes, mode) {
		return nil
	}
	if !b.object {
		return fmt.Errorf("CSI driver %s: inline volumes need a CSIDriver object of that name with Ephemeral in its "+
			"spec.volumeLifecycleModes, and there is none: a manifest may have it", r.Driver)
	}
	return fmt.Errorf("CSI driver %s: the CSIDriver object's spec.volumeLifecycleModes are %v, and this volume is %s",
		r.Driver, b.modes, mode)
}

// group says whether what is in a volume is to be given to the pod's group (fsGroup).
func (b *behaviour) group(r *node.Request) bool {
	if r.Block || r.ReadOnly {
		return false
	}
	switch b.groups {
	case storagev1.NoneFSGroupPolicy:
		return false
	case storagev1.FileFSGroupPolicy:
		return true
	}
	return r.FSType != "" && (r.AccessMode == node.ReadWriteOnce || r.AccessMode == node.ReadWriteOncePod)
}

// quoted is the value of a mount option, which ends at a comma otherwise.
func quoted(value string) string {
	if strings.Contains(value, ",") {
		return `"` + value + `"`
	}
	return value
}
