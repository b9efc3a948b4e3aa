package environment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/volume"
	volumekind "github.com/berth-node/berth/agent/volume/kind"
	"github.com/berth-node/berth/internal/filetree"
)

// HasContent says whether a pod has volumes whose content is in objects or in the pod itself, or that a driver may have
// to be asked for again.
func HasContent(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil || v.CSI != nil
	})
}

// volumes are those of one pod.
type volumes struct {
	cfg   *Config
	pod   *corev1.Pod
	paths map[string]string // by name

	readOnly map[string]bool // by name
}

// objects are those that the pod may refer to.
func (v *volumes) objects() *object.Store { return v.cfg.Objects.Of(desired.OriginOf(v.pod)) }

func (v *volumes) make(ctx context.Context) (err error) {
	content, err := v.content(ctx)
	if err != nil {
		return err
	}
	v.readOnly = map[string]bool{}
	for i := range v.pod.Spec.Volumes {
		one := &v.pod.Spec.Volumes[i]
		v.readOnly[one.Name] = v.cfg.Volumes.ReadOnly(one, content.Persistent[one.Name])
	}
	v.paths, err = v.cfg.Volumes.Setup(ctx, v.pod, content)
	return err
}

func (v *volumes) remove(ctx context.Context) error {
	v.forget()
	teardown := func() error { return v.cfg.Volumes.Teardown(ctx, v.pod.UID) }
	if v.pod.Name == "" { // nobody waits for what is left of a pod that nobody knows
		teardown = func() error { return filetree.Idle(func() error { return v.cfg.Volumes.Teardown(ctx, v.pod.UID) }) }
	}
	if err := teardown(); err != nil {
		return err
	}
	// What else there may be is files of ours; a directory that is not empty then is somebody's and stays.
	err := os.Remove(directory(v.cfg, v.pod))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// content is what the pod's volumes get of objects.
func (v *volumes) content(ctx context.Context) (volume.Content, error) {
	out := volume.Content{
		Files: map[string][]volumekind.File{}, Persistent: map[string]*corev1.PersistentVolume{},
		Secrets: map[string]volumekind.Secrets{},
	}
	for i := range v.pod.Spec.Volumes {
		one := &v.pod.Spec.Volumes[i]
		if err := v.contentOf(ctx, one, out); err != nil {
			return out, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", one.Name, err)
		}
	}
	return out, nil
}

// contentOf adds what one volume gets.
func (v *volumes) contentOf(ctx context.Context, one *corev1.Volume, to volume.Content) error {
	bound, claimed, err := v.persistent(one)
	if err != nil {
		return err
	}
	if claimed {
		to.Persistent[one.Name] = bound
	}
	for _, ref := range v.cfg.Volumes.Secrets(one, bound) {
		if ref.Controller && desired.OriginOf(v.pod).Cluster() {
			continue // nobody lets a node have it
		}
		o, err := v.objects().Secret(cmp.Or(ref.Namespace, v.pod.Namespace), ref.Name)
		if err != nil {
			return err
		}
		if to.Secrets[one.Name] == nil {
			to.Secrets[one.Name] = volumekind.Secrets{}
		}
		to.Secrets[one.Name][ref.Use] = o.Data
	}
	issued, err := v.issued(ctx, one)
	if err != nil {
		return err
	}
	files, ok, err := spec.Files(v.pod, one, v.objects(), issued, v.cfg.Node.Spec())
	if ok {
		to.Files[one.Name] = files
	}
	return err
}

// persistent is the PersistentVolume that a volume of the pod is; false for a volume of any other kind.
func (v *volumes) persistent(one *corev1.Volume) (bound *corev1.PersistentVolume, ok bool, err error) {
	switch {
	case one.PersistentVolumeClaim != nil:
		bound, err = v.objects().Volume(v.pod.Namespace, one.PersistentVolumeClaim.ClaimName)
	case one.Ephemeral != nil && desired.OriginOf(v.pod).Cluster():
		bound, err = v.objects().Made(v.pod, one.Name)
	case one.Ephemeral != nil:
		claim := object.ClaimOf(v.pod, one)
		var name string
		name, err = v.cfg.Volumes.Bind(v.pod.UID, one.Name, func(taken volume.Taken) (string, error) {
			return chooseVolume(v.cfg.RootDir, v.cfg.Objects, v.cfg.Labels, v.pod, claim, taken)
		})
		if err == nil {
			bound, err = v.objects().Bound(claim, name)
		}
		if err != nil {
			err = fmt.Errorf("persistentvolumeclaim %q: %w", claim.Name, err)
		}
	default:
		return nil, false, nil
	}
	return bound, true, err
}
