package agent

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/api"
	"github.com/berth-node/berth/agent/source"
)

// The reasons of events about manifests.
const (
	manifestRefused = "ManifestRefused"
	manifestFlawed  = "ManifestFlawed"
	manifestInOrder = "ManifestInOrder"
)

func (a *Agent) problems() []api.Problem {
	var out []api.Problem
	for _, p := range a.source.Problems() {
		out = append(out, api.Problem{
			File: p.File, Pod: p.Pod, Errors: p.Errors, Warnings: p.Warnings, Kept: p.Kept, Node: a.cfg.NodeName, UID: refusedUID(p),
			Directory: p.File == a.cfg.ManifestDir,
		})
	}
	return out
}

// refusedUID is what events have for the UID of a pod that a manifest asks for and that there is none of, "" where it names none.
func refusedUID(p source.Problem) types.UID {
	if _, _, ok := splitPod(p.Pod); !ok {
		return ""
	}
	return types.UID(p.File + "#" + p.Pod)
}

// splitPod takes namespace/name apart. What has a kind before it is no pod.
func splitPod(pod string) (ns, name string, ok bool) {
	ns, name, ok = strings.Cut(pod, "/")
	return ns, name, ok && !strings.Contains(ns, " ")
}

// reportProblem makes events of what is wrong with a manifest: of the pods that run on without the change, else of the pod that does
// not run, else of the node.
func (a *Agent) reportProblem(p source.Problem) {
	typ, reason, message := corev1.EventTypeWarning, manifestRefused, p.File+": "+strings.Join(slices.Concat(p.Errors, p.Warnings), "; ")
	switch {
	case len(p.Errors)+len(p.Warnings) == 0:
		typ, reason, message = corev1.EventTypeNormal, manifestInOrder, p.File+": nothing is wrong with it any more"
	case len(p.Errors) == 0:
		reason = manifestFlawed
	case len(p.Kept) > 0:
		message += "; what runs stays as the file had it before"
	}
	of := p.Kept
	if len(of) == 0 && refusedUID(p) != "" {
		of = []string{p.Pod}
	}
	if len(of) == 0 {
		if _, named, ok := strings.Cut(p.Pod, " "); ok && named != "" {
			message = p.Pod + ": " + message
		}
		a.events.Node(typ, reason, "%s", message)
		return
	}
	running := a.pods.List()
	for _, key := range of {
		ns, name, _ := splitPod(key)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: refusedUID(source.Problem{File: p.File, Pod: key})}}
		// An event of a file that another's pod has taken the name from is not that pod's.
		known := func(r *corev1.Pod) bool { return r.Namespace == ns && r.Name == name }
		if i := slices.IndexFunc(running, known); i >= 0 && (len(p.Kept) > 0 || a.files.get(types.NamespacedName{Namespace: ns, Name: name}) == p.File) {
			pod = running[i]
		}
		a.events.Event(pod, typ, reason, "%s", message)
	}
}
