package main

import (
	"slices"
	"strings"
	"testing"
)

// TestKubelet: kubeadm takes what it reads of a kubelet's version by a pattern, and starts it with flags alone.
func TestKubelet(t *testing.T) {
	if !isKubelet("/usr/local/bin/kubelet") || isKubelet("/usr/bin/berth") {
		t.Error("the name kubelet is not told from ours")
	}
	var out strings.Builder
	if _, answered := kubelet([]string{"--version"}, &out); !answered || out.String() != "Kubernetes v1.36.0\n" {
		t.Errorf("--version: %v, %q", answered, out.String())
	}
	ours, answered := kubelet([]string{"--config=/c"}, &out)
	if answered || !slices.Equal(ours, []string{"agent", "--config=/c"}) {
		t.Errorf("%v, %v", ours, answered)
	}
}
