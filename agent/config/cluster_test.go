package config

import (
	"strings"
	"testing"
)

func TestClusterRefused(t *testing.T) {
	for args, want := range map[string]string{
		"--bootstrap-kubeconfig=/b":                            "needs --kubeconfig",
		"--register-with-taints=a=b":                           "must be key=value:effect",
		"--register-with-taints=a=b:NoSchedule,a=c:NoSchedule": "twice",
		"--node-ip=10.0.0.1,10.0.0.2":                          "different families",
		"--node-ip=host":                                       "must be an IP address",
		"--node-lease-duration=3s":                             "at least 4",
		"--node-status-report-frequency=0s":                    "must be positive",
		"--kube-api-qps=-1":                                    "must not be negative",
		"--kube-api-content-type=text/html":                    "--kube-api-content-type",
		"--offline=maybe":                                      "--offline",
		"--kubeconfig=/k --node-labels=node-role.kubernetes.io/control-plane=": "node-role.kubernetes.io/control-plane",
		"--kubeconfig=/k --node-labels=a.k8s.io/b=":                            "a.k8s.io/b",
	} {
		if _, err := parse(t, append(strings.Fields(args), "--node-name=n")...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

func TestClusterTaken(t *testing.T) {
	c, err := parse(t, "--node-name=n", "--kubeconfig=/k", "--node-labels=zone.example/a=b,node.kubernetes.io/x=y,kubernetes.io/arch=amd64",
		"--register-with-taints=a=b:NoSchedule,a:NoExecute", "--node-ip=10.0.0.1,fd00::1")
	if err != nil {
		t.Fatal(err)
	}
	taints, err := c.ParsedTaints()
	if err != nil || len(taints) != 2 || taints[1].Key != "a" || taints[1].Value != "" || c.Port != DefaultPort {
		t.Errorf("taints %v, port %d, %v", taints, c.Port, err)
	}
	// Without a cluster nobody refuses a label of any name.
	if _, err := parse(t, "--node-name=n", "--node-labels=node-role.kubernetes.io/control-plane="); err != nil {
		t.Error(err)
	}
}
