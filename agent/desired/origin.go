package desired

import (
	corev1 "k8s.io/api/core/v1"
)

// The annotations that tell a static pod from one of an API server, under the names other tools look for.
const (
	AnnotationSource = "kubernetes.io/config.source" // the pod's [Origin]
	AnnotationHash   = "kubernetes.io/config.hash"
	AnnotationSeen   = "kubernetes.io/config.seen"
	AnnotationMirror = "kubernetes.io/config.mirror" // of the copy of a static pod that an API server has
)

// Origin is where a pod or another object comes from. The values are those that kubelet writes into [AnnotationSource].
type Origin string

// The origins there are.
const (
	File Origin = "file" // a file of the manifest directory
	URL  Origin = "http" // the manifest of a URL
	API  Origin = "api"  // an API server
)

// OriginOf is where a pod comes from, by its annotation: so the pod says it too when it is found again in the runtime,
// with no source that asks for it. Each source writes the annotation over what the pod says of itself. A pod without
// one is a file's.
func OriginOf(pod *corev1.Pod) Origin {
	switch o := Origin(pod.Annotations[AnnotationSource]); o {
	case URL, API:
		return o
	default:
		return File
	}
}

// RulesOf are the rules of where a pod comes from, for those who have no [Update] of it at hand.
func RulesOf(pod *corev1.Pod) Rules { return OriginOf(pod).Rules() }

// Rules are what differs by where a pod comes from. Nobody but this package asks which origin it is.
type Rules struct {
	// Waits is whether a pod that the node does not take for the moment waits until it does: nobody makes another one
	// in place of a static pod. A pod of an API server fails, for its controller to make another one, maybe for another
	// node.
	Waits bool
	// Returns is whether a pod that the node has ended may run again once the cause is gone, for the same reason.
	Returns bool
	// KeepsOld is whether the pod of a name goes on until the node takes the one that replaces it. With an API
	// server the one before was deleted, and has to end.
	KeepsOld bool
	// Critical is whether a pod counts as critical whatever its priority is, as static pods do for kubelet. Only
	// critical pods have others end for them, and one that is not ends for each that is.
	Critical bool
	// Spared is whether the pod is not evicted when the node runs short, whatever its priority is, on a node that has
	// an API server: as kubelet spares static pods, which are what such a node's control plane runs as. Where all pods
	// are static it would spare all of them, so that there the priority alone decides, and the kernel does not have to.
	Spared bool
	// CountedElsewhere is whether an extended resource that no plugin of the node has ever had is somebody else's to
	// count, so that the pod runs without the node giving it any: a scheduler has counted what people have written on
	// the Node, or what the cluster has as a whole. A static pod no scheduler has seen: it waits for the plugin.
	CountedElsewhere bool
	// Manifest is whether a manifest decides that the pod runs, so that only its removal ends the pod.
	Manifest bool
}

// Rules are those of pods of this origin.
func (o Origin) Rules() Rules {
	if o == API {
		return Rules{CountedElsewhere: true}
	}
	return Rules{Waits: true, Returns: true, KeepsOld: true, Critical: true, Spared: true, Manifest: true}
}

// Cluster says whether it is an API server: what [object.Stores] tells objects apart by.
func (o Origin) Cluster() bool { return o == API }

// IsMirror says whether a pod is only the copy of a static pod that an API server has. Such a pod is never run.
func IsMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[AnnotationMirror]
	return ok
}
