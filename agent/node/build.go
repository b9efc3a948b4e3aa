package node

import (
	"encoding/json"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletapis "k8s.io/kubelet/pkg/apis"
)

// Annotations of the Node.
const (
	// annotationAttach has the controllers attach volumes, and not the node: there is no other way any more, and
	// without it the controllers leave the node's volumes alone.
	annotationAttach = "volumes.kubernetes.io/controller-managed-attach-detach"
	// annotationNodeIDs has the names by which drivers of CSI know the node.
	annotationNodeIDs = "csi.volume.kubernetes.io/nodeid"
)

// ownLabels are those that a node which is there already is given again: by them the cluster knows what machine it is.
// What else it was registered with may have been changed by people since.
var ownLabels = []string{
	corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable, kubeletapis.LabelOS, kubeletapis.LabelArch,
	corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
	corev1.LabelInstanceTypeStable, corev1.LabelInstanceType,
}

// Build makes the Node of facts. Before is what the API server has, nil where it has none; what others have set in it
// stays. First says that this agent has not written it yet: then it gets its own labels and annotations back.
func Build(f *Facts, before *corev1.Node, first bool, now time.Time) *corev1.Node {
	var out *corev1.Node
	if before == nil {
		out = fresh(f)
	} else {
		out = before.DeepCopy()
		if first {
			takeOver(f, out)
		}
		volumes(f, out)
	}
	s := &out.Status
	s.Addresses = addresses(f)
	s.Capacity, s.Allocatable = f.Resources.divide(s.Capacity, first)
	s.DaemonEndpoints.KubeletEndpoint.Port = f.Identity.Port
	s.NodeInfo = info(f)
	s.Images = images(f.Images)
	s.VolumesInUse = slices.Sorted(slices.Values(f.InUse))
	if status := f.Runtime.Status; status != nil {
		s.RuntimeHandlers, s.Features = handlers(status), features(status)
		s.DeclaredFeatures = declared(f)
	}
	s.Conditions = conditions(f, out, now)
	return out
}

// fresh is the Node as it is registered, without its status.
func fresh(f *Facts) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: f.Identity.Name, Labels: f.labels(), Annotations: map[string]string{annotationAttach: "true"},
		},
		Spec: corev1.NodeSpec{ProviderID: f.Identity.ProviderID, Taints: slices.Clone(f.Identity.Taints)},
	}
}

// labels are those that the node is registered with.
func (f *Facts) labels() map[string]string {
	out := map[string]string{
		corev1.LabelHostname: f.Identity.Name, corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH,
		kubeletapis.LabelOS: runtime.GOOS, kubeletapis.LabelArch: runtime.GOARCH,
	}
	maps.Copy(out, f.Identity.Labels)
	return out
}

// takeOver gives a Node that was there before the agent what is the agent's in it. Its taints are others' from then on:
// the API server has nodes change none.
func takeOver(f *Facts, out *corev1.Node) {
	have := f.labels()
	for _, key := range ownLabels {
		if v, ok := have[key]; ok {
			setLabel(out, key, v)
		}
	}
	setAnnotation(out, annotationAttach, "true")
}

func setLabel(n *corev1.Node, key, value string) {
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[key] = value
}

func setAnnotation(n *corev1.Node, key, value string) {
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	n.Annotations[key] = value
}

// volumes says by what names drivers know the node, and where it is by their word. A label that says another thing
// already stays as it is: see [csiNode]. It is not for the Node as it is registered, which a driver's word is not to
// have refused.
func volumes(f *Facts, out *corev1.Node) {
	ids := map[string]string{}
	for _, d := range f.Drivers {
		if d.unfit() != "" {
			continue
		}
		ids[d.Name] = d.NodeID
		for key, value := range d.Topology {
			if _, has := out.Labels[key]; !has && mayHave(key) {
				setLabel(out, key, value)
			}
		}
	}
	if len(ids) == 0 {
		delete(out.Annotations, annotationNodeIDs)
		return
	}
	// Whoever reads it reads JSON, in which the order of keys says nothing; this one is always the same.
	if text, err := json.Marshal(ids); err == nil {
		setAnnotation(out, annotationNodeIDs, string(text))
	}
}

// addresses are those by which the node is reached, its name last, as kubelet has them.
func addresses(f *Facts) []corev1.NodeAddress {
	var out []corev1.NodeAddress
	for _, ip := range f.Addresses {
		out = append(out, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	return append(out, corev1.NodeAddress{Type: corev1.NodeHostName, Address: f.Identity.Name})
}

func info(f *Facts) corev1.NodeSystemInfo {
	m := &f.Machine
	out := corev1.NodeSystemInfo{
		MachineID: m.ID, SystemUUID: m.UUID, BootID: m.BootID, KernelVersion: m.Kernel, OSImage: m.OS,
		KubeletVersion: f.Identity.Version, OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
		ContainerRuntimeVersion: scheme(f.Runtime.Name) + "://" + known(f.Runtime.Version),
		// Of a proxy's version the agent knows nothing, and kubelet says nothing any more.
	}
	if m.Swap > 0 {
		out.Swap = &corev1.NodeSwapStatus{Capacity: &m.Swap}
	}
	return out
}

func scheme(name string) string {
	if name == "" {
		return "unknown"
	}
	return strings.ToLower(name)
}

func known(version string) string {
	if version == "" {
		return "Unknown"
	}
	return version
}

// maxNames is how many names the Node has of an image.
const maxNames = 5

// images are in the order of the facts.
func images(list []Image) []corev1.ContainerImage {
	var out []corev1.ContainerImage
	for _, i := range list {
		out = append(out, corev1.ContainerImage{Names: i.Names[:min(len(i.Names), maxNames)], SizeBytes: i.Size})
	}
	return out
}

// handlers are in the order of their names: runtimes have them in any.
func handlers(s *runtimeapi.StatusResponse) []corev1.NodeRuntimeHandler {
	var out []corev1.NodeRuntimeHandler
	for _, h := range s.GetRuntimeHandlers() {
		one := corev1.NodeRuntimeHandler{Name: h.GetName()}
		if from := h.GetFeatures(); from != nil {
			one.Features = &corev1.NodeRuntimeHandlerFeatures{
				RecursiveReadOnlyMounts: &from.RecursiveReadOnlyMounts, UserNamespaces: &from.UserNamespaces,
			}
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b corev1.NodeRuntimeHandler) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func features(s *runtimeapi.StatusResponse) *corev1.NodeFeatures {
	from := s.GetFeatures()
	if from == nil {
		return nil
	}
	return &corev1.NodeFeatures{SupplementalGroupsPolicy: &from.SupplementalGroupsPolicy}
}
