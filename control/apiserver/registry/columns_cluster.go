package registry

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// inTable is how many of something a cell has.
const inTable = 3

func some(all []string) string {
	if len(all) > inTable {
		return fmt.Sprintf("%s + %d more...", strings.Join(all[:inTable], ","), len(all)-inTable)
	}
	return listed(all)
}

func nodeColumns() []column {
	address := func(t corev1.NodeAddressType) func(*corev1.Node) any {
		return func(o *corev1.Node) any {
			for _, a := range o.Status.Addresses {
				if a.Type == t {
					return a.Address
				}
			}
			return none
		}
	}
	info := func(f func(corev1.NodeSystemInfo) string) func(*corev1.Node) any {
		return func(o *corev1.Node) any {
			if text := f(o.Status.NodeInfo); text != "" {
				return text
			}
			return unknown
		}
	}
	return []column{
		col("Status", "string", nodeStatus),
		col("Roles", "string", func(o *corev1.Node) any {
			var roles []string
			for k, v := range o.Labels {
				switch role, ok := strings.CutPrefix(k, "node-role.kubernetes.io/"); {
				case ok && role != "":
					roles = append(roles, role)
				case k == "kubernetes.io/role" && v != "":
					roles = append(roles, v)
				}
			}
			slices.Sort(roles)
			return listed(roles)
		}),
		ageHere(),
		col("Version", "string", func(o *corev1.Node) any { return o.Status.NodeInfo.KubeletVersion }),
		wide(col("Internal-IP", "string", address(corev1.NodeInternalIP))),
		wide(col("External-IP", "string", address(corev1.NodeExternalIP))),
		wide(col("OS-Image", "string", info(func(i corev1.NodeSystemInfo) string { return i.OSImage }))),
		wide(col("Kernel-Version", "string", info(func(i corev1.NodeSystemInfo) string { return i.KernelVersion }))),
		wide(col("Container-Runtime", "string", info(func(i corev1.NodeSystemInfo) string { return i.ContainerRuntimeVersion }))),
	}
}

func nodeStatus(o *corev1.Node) any {
	text := "Unknown"
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.NodeReady {
			text = "NotReady"
			if c.Status == corev1.ConditionTrue {
				text = "Ready"
			}
		}
	}
	if o.Spec.Unschedulable {
		text += ",SchedulingDisabled"
	}
	return text
}

func serviceColumns() []column {
	type kind = corev1.Service
	return []column{
		col("Type", "string", func(o *kind) any { return string(o.Spec.Type) }),
		col("Cluster-IP", "string", func(o *kind) any { return orNone(o.Spec.ClusterIP) }),
		col("External-IP", "string", externalIP),
		col("Port(s)", "string", func(o *kind) any {
			var all []string
			for _, p := range o.Spec.Ports {
				text := strconv.Itoa(int(p.Port))
				if p.NodePort > 0 {
					text += ":" + strconv.Itoa(int(p.NodePort))
				}
				all = append(all, text+"/"+string(p.Protocol))
			}
			return listed(all)
		}),
		wide(col("Selector", "string", func(o *kind) any { return pairs(o.Spec.Selector) })),
	}
}

func externalIP(o *corev1.Service) any {
	all := slices.Clone(o.Spec.ExternalIPs)
	switch o.Spec.Type {
	case corev1.ServiceTypeExternalName:
		return o.Spec.ExternalName
	case corev1.ServiceTypeLoadBalancer:
		for _, i := range o.Status.LoadBalancer.Ingress {
			if i.IP != "" {
				all = append(all, i.IP)
			} else {
				all = append(all, i.Hostname)
			}
		}
		if len(all) == 0 {
			return "<pending>"
		}
	}
	return listed(all)
}

func endpointsColumns() []column {
	return []column{col("Endpoints", "string", func(o *corev1.Endpoints) any {
		var all []string
		for _, s := range o.Subsets {
			for _, a := range s.Addresses {
				if len(s.Ports) == 0 {
					all = append(all, a.IP)
				}
				for _, p := range s.Ports {
					all = append(all, net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port))))
				}
			}
		}
		return some(all)
	})}
}

func endpointSliceColumns() []column {
	type kind = discoveryv1.EndpointSlice
	return []column{
		col("AddressType", "string", func(o *kind) any { return string(o.AddressType) }),
		col("Ports", "string", func(o *kind) any {
			var all []string
			for _, p := range o.Ports {
				if p.Port == nil {
					all = append(all, "*")
				} else {
					all = append(all, strconv.Itoa(int(*p.Port)))
				}
			}
			if len(all) == 0 {
				return unset
			}
			return some(all)
		}),
		col("Endpoints", "string", func(o *kind) any {
			var all []string
			for _, e := range o.Endpoints {
				all = append(all, e.Addresses...)
			}
			if len(all) == 0 {
				return unset
			}
			return some(all)
		}),
	}
}

func volumeColumns() []column {
	type kind = corev1.PersistentVolume
	return []column{
		col("Capacity", "string", func(o *kind) any { q := o.Spec.Capacity[corev1.ResourceStorage]; return q.String() }),
		col("Access Modes", "string", func(o *kind) any { return accessModes(o.Spec.AccessModes) }),
		col("Reclaim Policy", "string", func(o *kind) any { return string(o.Spec.PersistentVolumeReclaimPolicy) }),
		col("Status", "string", func(o *kind) any { return phase(string(o.Status.Phase), o.DeletionTimestamp) }),
		col("Claim", "string", func(o *kind) any {
			if o.Spec.ClaimRef == nil {
				return ""
			}
			return o.Spec.ClaimRef.Namespace + "/" + o.Spec.ClaimRef.Name
		}),
		col("StorageClass", "string", func(o *kind) any { return o.Spec.StorageClassName }),
		col("VolumeAttributesClass", "string", func(o *kind) any { return or(o.Spec.VolumeAttributesClassName, unset) }),
		col("Reason", "string", func(o *kind) any { return o.Status.Reason }),
		wide(col("VolumeMode", "string", func(o *kind) any { return or(o.Spec.VolumeMode, unset) })),
	}
}

func volumeClaimColumns() []column {
	type kind = corev1.PersistentVolumeClaim
	bound := func(o *kind, text string) string {
		if o.Spec.VolumeName == "" {
			return ""
		}
		return text
	}
	return []column{
		col("Status", "string", func(o *kind) any { return phase(string(o.Status.Phase), o.DeletionTimestamp) }),
		col("Volume", "string", func(o *kind) any { return o.Spec.VolumeName }),
		col("Capacity", "string", func(o *kind) any {
			q := o.Status.Capacity[corev1.ResourceStorage]
			return bound(o, q.String())
		}),
		col("Access Modes", "string", func(o *kind) any { return bound(o, accessModes(o.Status.AccessModes)) }),
		col("StorageClass", "string", func(o *kind) any { return or(o.Spec.StorageClassName, "") }),
		col("VolumeAttributesClass", "string", func(o *kind) any { return or(o.Spec.VolumeAttributesClassName, unset) }),
		wide(col("VolumeMode", "string", func(o *kind) any { return or(o.Spec.VolumeMode, unset) })),
	}
}

func phase(p string, deleted *metav1.Time) string {
	if deleted != nil {
		return "Terminating"
	}
	return p
}

func accessModes(modes []corev1.PersistentVolumeAccessMode) string {
	short := map[corev1.PersistentVolumeAccessMode]string{
		corev1.ReadWriteOnce: "RWO", corev1.ReadOnlyMany: "ROX", corev1.ReadWriteMany: "RWX", corev1.ReadWriteOncePod: "RWOP",
	}
	var all []string
	for _, m := range modes {
		if !slices.Contains(all, short[m]) {
			all = append(all, short[m])
		}
	}
	return strings.Join(all, ",")
}

func classColumns() []column {
	type kind = storagev1.StorageClass
	return []column{
		col("Name", "string", func(o *kind) any {
			if o.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
				return o.Name + " (default)"
			}
			return o.Name
		}),
		col("Provisioner", "string", func(o *kind) any { return o.Provisioner }),
		col("ReclaimPolicy", "string", func(o *kind) any { return or(o.ReclaimPolicy, "Delete") }),
		col("VolumeBindingMode", "string", func(o *kind) any { return or(o.VolumeBindingMode, "Immediate") }),
		col("AllowVolumeExpansion", "string", func(o *kind) any { return deref(o.AllowVolumeExpansion) }),
	}
}

func attributesColumns() []column {
	return []column{col("DriverName", "string", func(o *storagev1.VolumeAttributesClass) any { return o.DriverName })}
}

func driverColumns() []column {
	type kind = storagev1.CSIDriver
	return []column{
		col("AttachRequired", "boolean", func(o *kind) any { return o.Spec.AttachRequired == nil || *o.Spec.AttachRequired }),
		col("PodInfoOnMount", "boolean", func(o *kind) any { return deref(o.Spec.PodInfoOnMount) }),
		col("StorageCapacity", "boolean", func(o *kind) any { return deref(o.Spec.StorageCapacity) }),
		col("TokenRequests", "string", func(o *kind) any {
			var all []string
			for _, t := range o.Spec.TokenRequests {
				all = append(all, t.Audience)
			}
			if len(all) == 0 {
				return unset
			}
			return strings.Join(all, ",")
		}),
		col("RequiresRepublish", "boolean", func(o *kind) any { return deref(o.Spec.RequiresRepublish) }),
		col("Modes", "string", func(o *kind) any {
			var all []string
			for _, m := range o.Spec.VolumeLifecycleModes {
				all = append(all, string(m))
			}
			return listed(all)
		}),
	}
}

func driversColumns() []column {
	return []column{col("Drivers", "integer", func(o *storagev1.CSINode) any { return int64(len(o.Spec.Drivers)) })}
}

func attachmentColumns() []column {
	type kind = storagev1.VolumeAttachment
	return []column{
		named(col("Attacher", "string", func(o *kind) any { return o.Spec.Attacher })),
		col("PV", "string", func(o *kind) any { return deref(o.Spec.Source.PersistentVolumeName) }),
		col("Node", "string", func(o *kind) any { return o.Spec.NodeName }),
		col("Attached", "boolean", func(o *kind) any { return o.Status.Attached }),
	}
}

func ingressColumns() []column {
	type kind = networkingv1.Ingress
	return []column{
		col("Class", "string", func(o *kind) any { return or(o.Spec.IngressClassName, none) }),
		col("Hosts", "string", func(o *kind) any {
			var all []string
			for _, r := range o.Spec.Rules {
				if r.Host != "" {
					all = append(all, r.Host)
				}
			}
			if len(all) == 0 {
				return "*"
			}
			return some(all)
		}),
		col("Address", "string", func(o *kind) any {
			var all []string
			for _, i := range o.Status.LoadBalancer.Ingress {
				if i.IP != "" {
					all = append(all, i.IP)
				} else {
					all = append(all, i.Hostname)
				}
			}
			return strings.Join(all, ",")
		}),
		col("Ports", "string", func(o *kind) any {
			if len(o.Spec.TLS) > 0 {
				return "80, 443"
			}
			return "80"
		}),
	}
}

func ingressClassColumns() []column {
	type kind = networkingv1.IngressClass
	return []column{
		col("Controller", "string", func(o *kind) any { return o.Spec.Controller }),
		col("Parameters", "string", func(o *kind) any {
			p := o.Spec.Parameters
			if p == nil {
				return none
			}
			if p.APIGroup != nil {
				return p.Kind + "." + *p.APIGroup + "/" + p.Name
			}
			return p.Kind + "/" + p.Name
		}),
	}
}

func policyColumns() []column {
	return []column{col("Pod-Selector", "string", func(o *networkingv1.NetworkPolicy) any {
		return metav1.FormatLabelSelector(&o.Spec.PodSelector)
	})}
}

func addressColumns() []column {
	return []column{noAge(), col("ParentRef", "string", func(o *networkingv1.IPAddress) any {
		p := o.Spec.ParentRef
		if p == nil {
			return none
		}
		text := strings.ToLower(p.Resource)
		if p.Group != "" {
			text += "." + p.Group
		}
		return text + "/" + p.Namespace + "/" + p.Name
	})}
}

func rangeColumns() []column {
	return []column{col("CIDRs", "string", func(o *networkingv1.ServiceCIDR) any { return strings.Join(o.Spec.CIDRs, ",") })}
}
