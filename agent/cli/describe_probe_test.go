package cli

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestProbeText(t *testing.T) {
	service := "s"
	for want, handler := range map[string]corev1.ProbeHandler{
		"exec [sh -c x]":          {Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "x"}}},
		"http-get http://:http/p": {HTTPGet: &corev1.HTTPGetAction{Path: "/p", Port: intstr.FromString("http")}},
		"http-get https://[::1]:80/": {HTTPGet: &corev1.HTTPGetAction{
			Scheme: corev1.URISchemeHTTPS, Host: "::1", Port: intstr.FromInt32(80),
		}},
		"tcp-socket :9":         {TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(9)}},
		"grpc :9":               {GRPC: &corev1.GRPCAction{Port: 9}},
		"grpc :9 s":             {GRPC: &corev1.GRPCAction{Port: 9, Service: &service}},
		"nothing that is known": {},
	} {
		p := &corev1.Probe{
			ProbeHandler: handler, InitialDelaySeconds: 1, TimeoutSeconds: 2, PeriodSeconds: 3, SuccessThreshold: 4,
			FailureThreshold: 5,
		}
		if got := probeText(p); got != want+" delay=1s timeout=2s period=3s #success=4 #failure=5" {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestDescribeTellsProbes(t *testing.T) {
	p := web()
	p.Spec.Containers[1].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
		Exec: &corev1.ExecAction{Command: []string{"test", "\x1b[2J\nReady: True"}},
	}}
	out, _, err := newAgent(t, p).run(t, "describe", "web")
	if err != nil || strings.Count(out, "    Readiness:     exec [test ^[[2J") != 1 || strings.Contains(out, "\nReady: True") ||
		strings.Contains(out, "Liveness:") {
		t.Errorf("%v:\n%s", err, out)
	}
}
