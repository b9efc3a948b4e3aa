package cni

import (
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/api/resource"
)

// The annotations by which a pod says how fast it may receive and send, in bits a second; and their limits.
const (
	ingressBandwidth = "kubernetes.io/ingress-bandwidth"
	egressBandwidth  = "kubernetes.io/egress-bandwidth"
	minBandwidth     = 1e3
	maxBandwidth     = 1e15
)

// bandwidth is the capability of this name, as CNI's conventions have it: bits a second, and bits at once.
type bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// bandwidthOf is nil for a pod that says nothing.
func bandwidthOf(annotations map[string]string) (*bandwidth, error) {
	in, err := rate(annotations, ingressBandwidth)
	if err != nil {
		return nil, err
	}
	out, err := rate(annotations, egressBandwidth)
	if err != nil || in+out == 0 {
		return nil, err
	}
	b := &bandwidth{IngressRate: in, EgressRate: out}
	// The plugin wants both or none. As the other runtimes do, what comes at once is as much as its 32 bits hold.
	if in > 0 {
		b.IngressBurst = math.MaxUint32
	}
	if out > 0 {
		b.EgressBurst = math.MaxUint32
	}
	return b, nil
}

func rate(annotations map[string]string, name string) (uint64, error) {
	text, ok := annotations[name]
	if !ok {
		return 0, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, fmt.Errorf("read annotation %s: %q is no quantity, as 10M is", name, text)
	}
	if n := q.Value(); n >= minBandwidth && n <= maxBandwidth {
		return uint64(n), nil
	}
	return 0, fmt.Errorf("read annotation %s: %s is not between 1k and 1P bits a second", name, text)
}
