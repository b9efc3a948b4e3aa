package node

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"unicode/utf8"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/berth-node/berth/csi"
)

// maxHandle is the specification's bound of a volume's ID, in bytes; that of PersistentVolumes is no tighter.
const maxHandle = 4 << 10

func isHandle(s string) bool { return s != "" && len(s) <= maxHandle && utf8.ValidString(s) }

// complete gives a request what it may leave out, and says what is wrong with it.
func (r *Request) complete(l layout) error {
	if r.Ephemeral && r.Handle == "" {
		r.Handle = ephemeralHandle(r.Pod.UID, r.Name)
	}
	if r.AccessMode == "" {
		r.AccessMode = ReadWriteOnce
	}
	if err := csi.CheckName(r.Driver); err != nil {
		return err
	}
	switch {
	case !isHandle(r.Handle):
		return fmt.Errorf("volume handle: must be a text of 1 to %d bytes", maxHandle)
	case !isName(r.Name):
		return fmt.Errorf("%q is no name of a volume", r.Name)
	case !isName(r.Pod.UID):
		return fmt.Errorf("%q is no UID of a pod", r.Pod.UID)
	case r.PodDir != filepath.Join(l.root, "pods", r.Pod.UID):
		return fmt.Errorf("%s is not the directory of pod %s", r.PodDir, r.Pod.UID)
	case r.Ephemeral && r.Block:
		return errors.New("an ephemeral volume cannot be a block device")
	}
	return nil
}

// capability is how a volume is to be used, for the service of the node.
func (v *volume) capability(d *csi.Driver) *spec.VolumeCapability {
	return v.capabilityFor(d.Node(spec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER))
}

// attachment is that for the controller, which may know of other access modes than the node's service.
func (v *volume) attachment(d *csi.Driver) *spec.VolumeCapability {
	return v.capabilityFor(d.Controller(spec.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER))
}

func (v *volume) capabilityFor(tells bool) *spec.VolumeCapability {
	out := &spec.VolumeCapability{AccessMode: &spec.VolumeCapability_AccessMode{Mode: v.Mode.Spec(tells)}}
	if v.Block {
		out.AccessType = &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}}
		return out
	}
	out.AccessType = &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{
		FsType: v.FSType, MountFlags: v.Flags, VolumeMountGroup: v.Group,
	}}
	return out
}

// volume is what is recorded of the request's.
func (r *Request) volume(d *csi.Driver) volume {
	v := volume{
		Driver: r.Driver, Handle: r.Handle, Name: r.Name, Ephemeral: r.Ephemeral, Block: r.Block, Mode: r.AccessMode,
		FSType: r.FSType, Flags: r.MountFlags,
	}
	if r.mountGroup(d) {
		v.Group = strconv.FormatInt(*r.Group, 10)
	}
	return v
}

// mountGroup says whether the driver gives the files to the pod's group.
func (r *Request) mountGroup(d *csi.Driver) bool {
	return r.Group != nil && !r.Block && d.Node(spec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
}

// context is what the driver is told of the volume when it is published: with who uses it, where it wants that, by
// kubelet's names.
func (r *Request) context() map[string]string {
	if !r.PodInfo && (r.Tokens == "" || r.TokensInSecrets) {
		return r.Attributes
	}
	out := maps.Clone(r.Attributes)
	if out == nil {
		out = map[string]string{}
	}
	if r.PodInfo {
		out["csi.storage.k8s.io/pod.name"] = r.Pod.Name
		out["csi.storage.k8s.io/pod.namespace"] = r.Pod.Namespace
		out["csi.storage.k8s.io/pod.uid"] = r.Pod.UID
		out["csi.storage.k8s.io/serviceAccount.name"] = r.Pod.ServiceAccount
		out["csi.storage.k8s.io/ephemeral"] = strconv.FormatBool(r.Ephemeral)
	}
	if r.Tokens != "" && !r.TokensInSecrets {
		out[csi.TokensKey] = r.Tokens
	}
	return out
}

func (r *Request) publishSecrets() map[string]string {
	if r.Tokens == "" || !r.TokensInSecrets {
		return r.Secrets.Publish
	}
	out := maps.Clone(r.Secrets.Publish)
	if out == nil {
		out = map[string]string{}
	}
	out[csi.TokensKey] = r.Tokens
	return out
}
