package node

import (
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Facts are what a node is.
type Facts struct {
	Identity  Identity
	Machine   Machine
	Addresses []string // the main one first
	Resources Resources
	Pressure  []Pressure
	Runtime   Runtime
	Images    []Image // in the order of the Node
	Drivers   []Driver
	InUse     []corev1.UniqueVolumeName
	NotReady  []string // why it takes no pods
}

// Identity is what settings say of the node.
type Identity struct {
	Name       string
	Labels     map[string]string // those of its own, and further ones that it is registered with
	Taints     []corev1.Taint    // that it is registered with
	ProviderID string
	Version    string          // of the agent, as [Version] has it
	Port       int32           // of the API; 0: there is none
	Features   map[string]bool // gates of Kubernetes whose features the agent has
}

// Machine is what the machine says of itself.
type Machine struct {
	ID, UUID, BootID string
	Kernel, OS       string
	Swap             int64 // bytes
}

// Resources are what the node has, and what of it pods may ask for.
type Resources struct {
	Capacity, Allocatable corev1.ResourceList
	// Devices are those of plugins, Well those of them that can be given out. Gone are the resources that plugins have
	// had devices of, and have no more.
	Devices, Well corev1.ResourceList
	Gone          []corev1.ResourceName
	// Fresh says that it is not known what plugins have had, as on a machine that was set up again under its old name.
	Fresh bool
}

// The reasons and messages that kubelet has are made of these.
const (
	reasonReady    = "KubeletReady"
	reasonNotReady = "KubeletNotReady"
	messageReady   = "kubelet is posting ready status"
)

// Pressure is a condition that eviction has a say in.
type Pressure struct {
	Type  corev1.NodeConditionType
	Holds bool
}

// Runtime is what the runtime says of itself.
type Runtime struct {
	Name, Version string
	Status        *runtimeapi.StatusResponse // nil: it has not said
	Down          string                     // why it is not known how it is; "": it is known
}

// Image is one that the node has.
type Image struct {
	Names []string // digests before tags
	Size  int64
}

// Driver is a driver of CSI that is registered.
type Driver struct {
	Name, NodeID string
	Topology     map[string]string
	MaxVolumes   int64 // 0: it does not say
}
