package node

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// said is what is said of a condition, one way or the other.
type said struct{ reason, message string }

// pressures is kubelet's wording, which people's alerts look for.
var pressures = []struct {
	of         corev1.NodeConditionType
	not, holds said
	event      [2]string // that it does not hold, and that it does
}{
	{
		corev1.NodeMemoryPressure,
		said{"KubeletHasSufficientMemory", "kubelet has sufficient memory available"},
		said{"KubeletHasInsufficientMemory", "kubelet has insufficient memory available"},
		[2]string{"NodeHasSufficientMemory", "NodeHasInsufficientMemory"},
	},
	{
		corev1.NodeDiskPressure,
		said{"KubeletHasNoDiskPressure", "kubelet has no disk pressure"},
		said{"KubeletHasDiskPressure", "kubelet has disk pressure"},
		[2]string{"NodeHasNoDiskPressure", "NodeHasDiskPressure"},
	},
	{
		corev1.NodePIDPressure,
		said{"KubeletHasSufficientPID", "kubelet has sufficient PID available"},
		said{"KubeletHasInsufficientPID", "kubelet has insufficient PID available"},
		[2]string{"NodeHasSufficientPID", "NodeHasInsufficientPID"},
	},
}

// isOurs says whether a condition is one of the node's own. Others have theirs in the same list.
func isOurs(of corev1.NodeConditionType) bool {
	return of == corev1.NodeReady || of == corev1.NodeMemoryPressure || of == corev1.NodeDiskPressure || of == corev1.NodePIDPressure
}

// conditions are those of the node, whose capacity is in out already, behind what others have said; Ready is the last.
func conditions(f *Facts, out *corev1.Node, now time.Time) []corev1.NodeCondition {
	before := out.Status.Conditions
	list := slices.DeleteFunc(slices.Clone(before), func(c corev1.NodeCondition) bool { return isOurs(c.Type) })
	add := func(of corev1.NodeConditionType, is bool, what said) {
		list = append(list, condition(before, of, is, what, now))
	}
	for _, p := range pressures {
		holds := slices.Contains(f.Pressure, Pressure{Type: p.of, Holds: true})
		if holds {
			add(p.of, true, p.holds)
		} else {
			add(p.of, false, p.not)
		}
	}
	if why := notReady(f, out); len(why) > 0 {
		add(corev1.NodeReady, false, said{reasonNotReady, aggregate(why)})
	} else {
		add(corev1.NodeReady, true, said{reasonReady, messageReady})
	}
	return list
}

func condition(before []corev1.NodeCondition, of corev1.NodeConditionType, is bool, what said, now time.Time) corev1.NodeCondition {
	at := metav1.NewTime(now)
	c := corev1.NodeCondition{
		Type: of, Status: corev1.ConditionFalse, Reason: what.reason, Message: what.message,
		LastHeartbeatTime: at, LastTransitionTime: at,
	}
	if is {
		c.Status = corev1.ConditionTrue
	}
	if i := slices.IndexFunc(before, func(b corev1.NodeCondition) bool { return b.Type == of }); i >= 0 && before[i].Status == c.Status {
		c.LastTransitionTime = before[i].LastTransitionTime
	}
	return c
}

// notReady is why the node takes no pods.
func notReady(f *Facts, out *corev1.Node) []string {
	var why []string
	if f.Runtime.Down != "" {
		why = append(why, f.Runtime.Down)
	}
	for _, one := range []struct {
		what string
		name string
	}{{"container runtime not ready", runtimeapi.RuntimeReady}, {"container runtime network not ready", runtimeapi.NetworkReady}} {
		if w := unmet(f.Runtime.Status, one.name); w != "" && f.Runtime.Down == "" {
			why = append(why, one.what+": "+w)
		}
	}
	why = append(why, f.NotReady...)
	if m := missing(out); len(m) > 0 {
		why = append(why, "missing node capacity for resources: "+strings.Join(m, ", "))
	}
	return why
}

// unmet is how kubelet shows a condition of the runtime that is not met; "": it is met. A runtime that does not say
// that it is ready is not.
func unmet(s *runtimeapi.StatusResponse, of string) string {
	for _, c := range s.GetStatus().GetConditions() {
		if c.GetType() != of {
			continue
		}
		if c.GetStatus() {
			return ""
		}
		return fmt.Sprintf("%s=false reason:%s message:%s", of, c.GetReason(), c.GetMessage())
	}
	return fmt.Sprintf("%s=false reason: message:it does not say", of)
}

// maxMessage is what the API lets a condition's message have.
const maxMessage = 32 << 10

// aggregate is how Kubernetes' errors are joined.
func aggregate(why []string) string {
	text := why[0]
	if len(why) > 1 {
		text = "[" + strings.Join(why, ", ") + "]"
	}
	return strings.ToValidUTF8(text[:min(len(text), maxMessage)], "")
}
