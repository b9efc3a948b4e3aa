package spec

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups/kube"
)

// Image is what is known of a container's image.
type Image struct {
	ID       string // by which the runtime has it
	UID      *int64 // the user it runs as; with neither UID nor Username root
	Username string

	Volumes map[string]string // of the container's image volumes, by volume: the image, by which the runtime has it
}

// Input is all that a container's configuration depends on.
type Input struct {
	Pod       *corev1.Pod
	Container *corev1.Container
	Node      *Node
	Attempt   uint32 // how many there were before it
	Backoff   time.Duration
	Round     uint32
	Image     Image
	PodIPs    []string
	IDs       *IDs // of the pod, nil = the node's

	Mounts      []string        // for each of the container's volumeMounts: what is mounted there
	HostsFile   string          // "" = the runtime's
	Devices     []string        // for each of the container's volumeDevices: the device on the node
	ReadOnly    map[string]bool // the pod's volumes that no container may write to, by name
	MessageFile string          // becomes the file at terminationMessagePath; "" = none
	Injection   Injection       // for its devices
	RecursiveRO bool            // the runtime can mount recursively read-only
	BindOptions bool            // the runtime can mount with noexec, nodev and nosuid
	Target      string          // ID of the container whose processes it is to see; "" = its own, or what the pod says
	Objects     Objects
	// EnvFile reads a file in a volume of the pod, for the environment. The error is fs.ErrNotExist when there is none.
	EnvFile func(volume, path string) ([]byte, error)
}

// Objects are what pods refer to. An error says that there is no such object.
type Objects interface {
	ConfigMap(namespace, name string) (*corev1.ConfigMap, error)
	Secret(namespace, name string) (*corev1.Secret, error)
	TrustBundle(name string) (*certificatesv1.ClusterTrustBundle, error)
	// TrustBundles are those of a signer whose labels a selector matches.
	TrustBundles(signer string, which labels.Selector) []*certificatesv1.ClusterTrustBundle
	// Services are those of a namespace, once ServicesListed says that they are known.
	Services(namespace string) []*corev1.Service
	ServicesListed() bool
}

const hostsPath = "/etc/hosts"

// Container is the configuration of a container. Its errors are the user's to mend: CreateContainerConfigError.
func Container(in Input) (*runtimeapi.ContainerConfig, error) {
	c := in.Container
	if err := VerifyNonRoot(in.Pod, c, in.Image); err != nil {
		return nil, err
	}
	e, err := env(&in)
	if err != nil {
		return nil, err
	}
	e.under(in.Injection.Envs)
	command, err := expandAll(c.Command, e.lookup)
	if err != nil {
		return nil, fmt.Errorf("command: %w", err)
	}
	args, err := expandAll(c.Args, e.lookup)
	if err != nil {
		return nil, fmt.Errorf("args: %w", err)
	}
	mounts, err := mounts(&in)
	if err != nil {
		return nil, err
	}
	devices, err := devices(&in)
	if err != nil {
		return nil, err
	}
	annotations, err := containerAnnotations(&in)
	if err != nil {
		return nil, err
	}
	limits := kube.ContainerResources(in.Pod, c, in.Node.Groups)
	in.Injection.Pin.Apply(limits)
	res := resources(limits)
	res.OomScoreAdj = int64(kube.OOMScoreAdj(in.Pod, c, in.Node.Memory))
	return &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: in.Attempt},
		Image:       &runtimeapi.ImageSpec{Image: in.Image.ID, UserSpecifiedImage: c.Image},
		Command:     command,
		Args:        args,
		WorkingDir:  c.WorkingDir,
		Envs:        e.message(),
		Mounts:      mounts,
		Devices:     in.Injection.devicesBeside(devices),
		Labels:      containerLabels(in.Pod, c),
		Annotations: below(annotations, in.Injection.Annotations),
		CDIDevices:  in.Injection.cdiDevices(),
		LogPath:     LogPath(c.Name, in.Attempt),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		StopSignal:  stopSignal(c),
		Linux:       &runtimeapi.LinuxContainerConfig{Resources: res, SecurityContext: security(&in)},
	}, nil
}

// stopSignal is what asks the container to end: the CRI names each of the API's signals as the API does.
func stopSignal(c *corev1.Container) runtimeapi.Signal {
	if c.Lifecycle == nil || c.Lifecycle.StopSignal == nil {
		return runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT // the image's, else SIGTERM
	}
	return runtimeapi.Signal(runtimeapi.Signal_value["SIGNAL_"+signalName(*c.Lifecycle.StopSignal)])
}

// signalName is the CRI's for the API's: the names of real-time signals have signs in the API, and words in the CRI.
func signalName(s corev1.Signal) string {
	return strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(string(s))
}

// Resized are the resources of a container that runs. They say in words where there is no limit, for the one before to
// go.
func Resized(pod *corev1.Pod, c *corev1.Container, n *Node) *runtimeapi.LinuxContainerResources {
	res := resources(kube.Explicit(kube.ContainerResources(pod, c, n.Groups)))
	res.OomScoreAdj = int64(kube.OOMScoreAdj(pod, c, n.Memory))
	return res
}

func mounts(in *Input) ([]*runtimeapi.Mount, error) {
	var out []*runtimeapi.Mount
	taken := map[string]bool{}
	for i := range in.Container.VolumeMounts {
		m := &in.Container.VolumeMounts[i]
		v := volumeOf(in.Pod, m.Name)
		if i >= len(in.Mounts) || in.Mounts[i] == "" && v.Image == nil {
			return nil, fmt.Errorf("volume %q is not there", m.Name)
		}
		at := m.MountPath
		if !path.IsAbs(at) {
			at = path.Join("/", at)
		}
		taken[path.Clean(at)] = true
		if len(m.BindMountOptions) > 0 && !in.BindOptions {
			return nil, fmt.Errorf("volume %q is to be mounted with %s, which the runtime cannot do", m.Name, strings.Join(m.BindMountOptions, ", "))
		}
		recursive, err := recursiveReadOnly(m, in.RecursiveRO)
		if err != nil {
			return nil, err
		}
		mount := &runtimeapi.Mount{
			ContainerPath: at, HostPath: in.Mounts[i], Readonly: m.ReadOnly || in.ReadOnly[m.Name], RecursiveReadOnly: recursive,
			Propagation: propagation(m.MountPropagation), MountOptions: m.BindMountOptions,
		}
		if v.Image != nil {
			mount.HostPath = ""
			mount.Image, mount.ImageSubPath = &runtimeapi.ImageSpec{Image: in.Image.Volumes[m.Name], UserSpecifiedImage: v.Image.Reference}, in.Mounts[i]
		}
		out = append(out, mount)
	}
	if in.HostsFile != "" && !taken[hostsPath] {
		taken[hostsPath] = true
		// Who has a read-only root does not write to the hosts file either, which is the whole pod's.
		sc := in.Container.SecurityContext
		out = append(out, &runtimeapi.Mount{
			ContainerPath: hostsPath, HostPath: in.HostsFile, Readonly: sc != nil && isTrue(sc.ReadOnlyRootFilesystem),
		})
	}
	if p := in.Container.TerminationMessagePath; in.MessageFile != "" && p != "" && !taken[path.Clean(p)] {
		out = append(out, &runtimeapi.Mount{ContainerPath: path.Join("/", p), HostPath: in.MessageFile})
		taken[path.Clean(p)] = true
	}
	// Files keep their owners on the node, and are shown as if the pod's ids were those.
	for _, m := range out {
		m.UidMappings, m.GidMappings = in.IDs.mappings(), in.IDs.mappings()
	}
	return append(in.Injection.mountsBeside(taken), out...), nil
}

// devices are the block volumes of the container. One that is read-only can be opened for reading only.
func devices(in *Input) ([]*runtimeapi.Device, error) {
	var out []*runtimeapi.Device
	for i, d := range in.Container.VolumeDevices {
		if i >= len(in.Devices) || in.Devices[i] == "" {
			return nil, fmt.Errorf("volume %q is not there", d.Name)
		}
		permissions := "mrw"
		if in.ReadOnly[d.Name] {
			permissions = "mr"
		}
		out = append(out, &runtimeapi.Device{ContainerPath: path.Join("/", d.DevicePath), HostPath: in.Devices[i], Permissions: permissions})
	}
	return out, nil
}

func volumeOf(pod *corev1.Pod, name string) *corev1.Volume {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == name {
			return &pod.Spec.Volumes[i]
		}
	}
	return &corev1.Volume{}
}

// recursiveReadOnly resolves the API's three modes into what the runtime does.
func recursiveReadOnly(m *corev1.VolumeMount, able bool) (bool, error) {
	if !m.ReadOnly || m.RecursiveReadOnly == nil {
		return false, nil
	}
	switch *m.RecursiveReadOnly {
	case corev1.RecursiveReadOnlyEnabled:
		if !able {
			return false, fmt.Errorf("volume %q is to be read-only recursively, which the runtime cannot do", m.Name)
		}
		return true, nil
	case corev1.RecursiveReadOnlyIfPossible:
		return able, nil
	}
	return false, nil
}

func propagation(mode *corev1.MountPropagationMode) runtimeapi.MountPropagation {
	if mode == nil {
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
	}
	switch *mode {
	case corev1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
	case corev1.MountPropagationBidirectional:
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
	}
	return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
}

// HostsFile is where the node keeps what the containers of a pod have as their /etc/hosts.
func HostsFile(rootDir, uid string) string { return filepath.Join(rootDir, "pods", uid, "etc-hosts") }

// MessageFile is where the node keeps the termination message of one container of a pod.
func MessageFile(rootDir string, uid, container string, attempt uint32) string {
	return filepath.Join(rootDir, "pods", uid, "containers", container, fmt.Sprint(attempt))
}
