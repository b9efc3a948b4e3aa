package cli

import (
	"cmp"
	"fmt"
	"net"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// probes tells what a container is asked, with how often and how long: when it is not ready or ended for it, that is
// what one wants to know next.
func (d *description) probes(indent string, c *corev1.Container) {
	for _, p := range []struct {
		key   string
		probe *corev1.Probe
	}{{"Liveness", c.LivenessProbe}, {"Readiness", c.ReadinessProbe}, {"Startup", c.StartupProbe}} {
		if p.probe != nil {
			d.line(indent, p.key, "%s", probeText(p.probe))
		}
	}
}

// probeText has the words and signs of kubectl.
func probeText(p *corev1.Probe) string {
	what := "nothing that is known"
	switch {
	case p.Exec != nil:
		what = "exec [" + strings.Join(p.Exec.Command, " ") + "]"
	case p.HTTPGet != nil:
		h := p.HTTPGet
		what = "http-get " + strings.ToLower(string(cmp.Or(h.Scheme, corev1.URISchemeHTTP))) + "://" +
			net.JoinHostPort(h.Host, h.Port.String()) + "/" + strings.TrimPrefix(h.Path, "/")
	case p.TCPSocket != nil:
		what = "tcp-socket " + net.JoinHostPort(p.TCPSocket.Host, p.TCPSocket.Port.String())
	case p.GRPC != nil:
		what = fmt.Sprintf("grpc :%d", p.GRPC.Port)
		if p.GRPC.Service != nil && *p.GRPC.Service != "" {
			what += " " + *p.GRPC.Service
		}
	}
	return fmt.Sprintf("%s delay=%ds timeout=%ds period=%ds #success=%d #failure=%d", what, p.InitialDelaySeconds,
		p.TimeoutSeconds, p.PeriodSeconds, p.SuccessThreshold, p.FailureThreshold)
}
