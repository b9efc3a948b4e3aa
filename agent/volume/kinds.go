package volume

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/volume/csi"
	"github.com/berth-node/berth/agent/volume/iscsi"
	"github.com/berth-node/berth/agent/volume/kind"
	"github.com/berth-node/berth/internal/mount"
	"github.com/berth-node/berth/internal/patience"
)

// Kind makes the volumes of one kind. The lifecycle of a volume:
//
//  1. Makes says that it is of the kind, and Secrets, where there is that method, what Secrets it needs, which its pod
//     waits for.
//  2. Setup makes it. It is called for a new pod, again after a crash at any point of it, and for a pod that runs, when
//     what the volume is made of has changed: what is there already stays. A kind that does more on the node than to
//     make and mount in the pod's directory keeps [kind.Records] of that first; what pods share, such as the staging of
//     a disk, it does for the first of them. The context ends the call.
//  3. The pod's group gets what is in the volume, where the kind says so.
//  4. When the pod goes, Unpublish, where there is that method, has who has mounted something there unmount it, by
//     records alone. Then everything that is mounted in its directory is unmounted, and Release, where there is that
//     method, undoes the rest by the records alone: nothing but the pod's directory may be known of it any more. What
//     others share stays until the last of them goes.
//  5. The directory is removed, with what is the pod's of it.
//
// Both verbs can be repeated, and Release is safe when Setup never ran. What only some kinds have, such as a word of
// their own on what a volume takes, is an interface of its own beside those below, which those kinds alone have.
type Kind interface {
	Traits() kind.Traits
	Makes(kind.Source) bool
	Setup(context.Context, *kind.Volume) (kind.Made, error)
}

// needsSecrets is a kind whose volumes may need Secrets.
type needsSecrets interface {
	Secrets(kind.Source) []kind.SecretRef
}

// onlyRead is a kind whose volumes may be such that no container may write to them, whatever its mount says.
type onlyRead interface {
	ReadOnly(kind.Source) bool
}

// releases is a kind that does more on the node than to make and mount in the pod's directory.
type releases interface {
	// Release undoes that for all the pod's volumes of the kind. dir is the pod's directory; nothing is mounted in it.
	Release(ctx context.Context, dir string) error
}

// unpublishes is a kind whose volumes are mounted by somebody else, who is to unmount them too.
type unpublishes interface {
	// Unpublish has that done for all the pod's volumes of the kind. dir is the pod's directory; no subPath of a volume
	// is mounted in it any more.
	Unpublish(ctx context.Context, dir string) error
}

// kinds are all kinds of volumes.
func kinds(cfg Config, calls *patience.Calls) []Kind {
	own, devices := ownDirs{root: cfg.Root, own: cfg.Own, open: cfg.Open}, new(mount.Devices)
	type source = *corev1.VolumeSource
	return []Kind{
		&emptyDirs{quotas: cfg.Quotas, log: cfg.Log},
		hostPaths{own, calls},
		objectFiles{
			kind.Traits{Plugin: "configmap", PodsOwn: true}, onDisk, func(s source) bool { return s.ConfigMap != nil },
		},
		objectFiles{kind.Traits{Plugin: "secret"}, inMemory, func(s source) bool { return s.Secret != nil }},
		objectFiles{kind.Traits{Plugin: "downward-api"}, inMemory, func(s source) bool { return s.DownwardAPI != nil }},
		objectFiles{kind.Traits{Plugin: "projected"}, inMemory, func(s source) bool { return s.Projected != nil }},
		local{own, devices, calls},
		nfs{},
		iscsi.New(kind.Root(cfg.Root), devices, cfg.Log),
		csi.New(cfg.CSI),
		images{},
	}
}

// images are volumes of images, which the runtime mounts.
type images struct{}

func (images) Traits() kind.Traits      { return kind.Traits{Plugin: "image"} }
func (images) Makes(s kind.Source) bool { return s.Pod.Image != nil }

// ReadOnly is true: an image is everybody's.
func (images) ReadOnly(kind.Source) bool { return true }

func (images) Setup(context.Context, *kind.Volume) (kind.Made, error) { return kind.Made{}, nil }
