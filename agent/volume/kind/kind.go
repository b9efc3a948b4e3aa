// Package kind is what a kind of volumes is told of a volume, what it tells back, and what it stands on to find after a
// crash what it has done.
package kind

import (
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Directories in a pod's directory, in the layout that other node tools know.
const (
	volumesDir = "volumes"
	pluginHost = "kubernetes.io~"
)

// Traits are what has to be known of a kind to treat all kinds alike.
type Traits struct {
	// Plugin is the name of the kind's plugin, as kubelet has it: iscsi. The directories of the kind's volumes are in
	// one of that name.
	Plugin string
	// PodsOwn says that what is in the directories of the kind's volumes is the pod's alone, and goes with it. Data in
	// those of another kind, which nothing is mounted on any more, is not known to be anybody's: a pod with such is not
	// taken away.
	PodsOwn bool
	// Block says that a volume can be a block device (volumeMode Block).
	Block bool
	// Elsewhere says that a volume is not this machine's work alone: to make or to remove it takes what a driver, a
	// server or the disk of one takes.
	Elsewhere bool
}

// Source is what a volume is to be made of.
type Source struct {
	Pod   *corev1.VolumeSource     // what the pod says
	Bound *corev1.PersistentVolume // what the volume's claim is bound to; nil: it is not claimed
}

// Block says whether the volume is a block device, without a file system.
func (s Source) Block() bool {
	return s.Bound != nil && s.Bound.Spec.VolumeMode != nil && *s.Bound.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// MountOptions are those of the PersistentVolume.
func (s Source) MountOptions() []string {
	if s.Bound == nil {
		return nil
	}
	return s.Bound.Spec.MountOptions
}

// Volume is a volume of a pod that is to be made.
type Volume struct {
	Source
	Pod     *corev1.Pod
	Dir     string // the pod's directory
	Name    string // what the pod calls it
	Files   []File // what it is made of, where that is objects or the pod itself
	Secrets Secrets
}

// Path is the directory of the volume; that of a volume of the host is elsewhere.
func (v *Volume) Path(plugin string) string { return filepath.Join(PluginDir(v.Dir, plugin), v.Name) }

// PluginDir is the directory in a pod's directory in which those of the volumes of a kind are.
func PluginDir(podDir, plugin string) string {
	return filepath.Join(podDir, volumesDir, pluginHost+plugin)
}

// Made is a volume that has been made.
type Made struct {
	Path string // what containers mount; "": the runtime knows
	// Group says that what is in the volume is to be given to the pod's group, where it has one (fsGroup). It is no
	// matter of who made it how: each kind says whether it is to be, as a driver does.
	Group bool
}

// SecretRef is a Secret that a kind needs for a volume.
type SecretRef struct {
	Use       string // what it is for, where a kind needs several
	Namespace string // "" = the pod's
	Name      string
	// Controller says that it is for what is a controller's to do where there is an API server.
	Controller bool
}

// Secrets are the content of the Secrets that a kind needs for a volume, by what they are for.
type Secrets map[string]map[string][]byte

// File is one file of a volume that is made of objects.
type File struct {
	Path string // in the volume, with slashes
	Data []byte
	Mode uint32
	User *int64 // who owns it; nil = root
}

// IsName says whether a name of a volume leads nowhere but into its own directory.
func IsName(name string) bool {
	return name != "" && !strings.HasPrefix(name, ".") && !strings.Contains(name, "/")
}
