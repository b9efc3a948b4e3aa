package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pod/podtest"
)

// The first check that has anything against a pod is the one that counts, and none behind it is asked: the last may end
// other pods.
func TestChecks(t *testing.T) {
	asked := ""
	check := func(name string, v *Verdict) Check {
		return func(*Request) *Verdict {
			asked += name
			return v
		}
	}
	no := waits("No", "not now")
	for _, c := range []struct {
		checks Checks
		ran    bool
		want   *Verdict
		asked  string
	}{
		{checks: Checks{}},
		{checks: Checks{check("a", nil), check("b", nil)}, asked: "ab"},
		{checks: Checks{check("a", nil), check("b", no), check("c", nil)}, want: no, asked: "ab"},
		{checks: Checks{ForNew(check("a", no)), check("b", nil)}, want: no, asked: "a"},
		{checks: Checks{ForNew(check("a", no)), check("b", nil)}, ran: true, asked: "b"},
	} {
		asked = ""
		if got := c.checks.Judge(&Request{Pod: podtest.New("p"), Ran: c.ran}); got != c.want || asked != c.asked {
			t.Errorf("%+v after %q, want %+v after %q", got, asked, c.want, c.asked)
		}
	}
}

func TestPorts(t *testing.T) {
	port := func(name, ip string, number int32, protocol corev1.Protocol) *corev1.Pod {
		return podtest.New(name, func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: number, HostIP: ip, Protocol: protocol}}
		})
	}
	here := ShareOf(port("here", "10.0.0.1", 80, ""))
	check := Ports(func(*Request) []*Share { return []*Share{here} })
	for _, c := range []struct {
		pod  *corev1.Pod
		want bool
	}{
		{podtest.New("none"), true},
		{port("same", "10.0.0.1", 80, corev1.ProtocolTCP), false},
		{port("any", "0.0.0.0", 80, ""), false},
		{port("other address", "10.0.0.2", 80, ""), true},
		{port("other protocol", "10.0.0.1", 80, corev1.ProtocolUDP), true},
		{port("other port", "10.0.0.1", 81, ""), true},
	} {
		v := check(&Request{Pod: c.pod})
		if (v == nil) != c.want || v != nil && (v.Reason != "NodePorts" || v.Final) {
			t.Errorf("%s: %+v", c.pod.Name, v)
		}
	}
}
