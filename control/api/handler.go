package api

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

// lifecycle validates probes and the handlers of lifecycle events.
func (v containers) lifecycle(c *corev1.Container, k kind, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if k == initial {
		forbid := func(set bool, name string) {
			if set {
				errs = append(errs, field.Forbidden(path.Child(name), "may not be set for init containers without restartPolicy=Always"))
			}
		}
		forbid(c.Lifecycle != nil, "lifecycle")
		forbid(c.LivenessProbe != nil, "livenessProbe")
		forbid(c.ReadinessProbe != nil, "readinessProbe")
		forbid(c.StartupProbe != nil, "startupProbe")
		return errs
	}
	errs = append(errs, v.probe(c.LivenessProbe, path.Child("livenessProbe"), true)...)
	errs = append(errs, v.probe(c.StartupProbe, path.Child("startupProbe"), true)...)
	errs = append(errs, v.probe(c.ReadinessProbe, path.Child("readinessProbe"), false)...)
	l := c.Lifecycle
	if l == nil {
		return errs
	}
	if l.PostStart != nil {
		errs = append(errs, v.hook(l.PostStart, path.Child("lifecycle", "postStart"))...)
	}
	if l.PreStop != nil {
		errs = append(errs, v.hook(l.PreStop, path.Child("lifecycle", "preStop"))...)
	}
	if l.StopSignal != nil {
		errs = append(errs, v.stopSignal(*l.StopSignal, path.Child("lifecycle", "stopSignal"))...)
	}
	return errs
}

// stopSignal depends on the kind of node, so that must be said.
func (v containers) stopSignal(s corev1.Signal, path *field.Path) field.ErrorList {
	switch {
	case v.spec.OS == nil:
		return field.ErrorList{field.Forbidden(path, "may not be set for containers with empty spec.os.name")}
	case v.spec.OS.Name == corev1.Windows:
		return check.OneOf(path, s, corev1.SIGTERM, corev1.SIGKILL)
	}
	return check.OneOf(path, s, linuxSignals()...)
}

func linuxSignals() []corev1.Signal {
	out := []corev1.Signal{
		"SIGABRT", "SIGALRM", "SIGBUS", "SIGCHLD", "SIGCLD", "SIGCONT", "SIGFPE", "SIGHUP", "SIGILL", "SIGINT", "SIGIO",
		"SIGIOT", "SIGKILL", "SIGPIPE", "SIGPOLL", "SIGPROF", "SIGPWR", "SIGQUIT", "SIGSEGV", "SIGSTKFLT", "SIGSTOP", "SIGSYS",
		"SIGTERM", "SIGTRAP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGWINCH",
		"SIGXCPU", "SIGXFSZ", "SIGRTMIN", "SIGRTMAX",
	}
	for i := 1; i <= 15; i++ {
		out = append(out, corev1.Signal(fmt.Sprintf("SIGRTMIN+%d", i)))
	}
	for i := 1; i <= 14; i++ {
		out = append(out, corev1.Signal(fmt.Sprintf("SIGRTMAX-%d", i)))
	}
	return out
}

// probe validates one probe; kills says that its failure ends the container, which leaves no room for a second success.
func (v containers) probe(p *corev1.Probe, path *field.Path, kills bool) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := v.handlers(path, p.Exec, p.HTTPGet, p.TCPSocket, p.GRPC, nil)
	errs = append(errs, check.AtLeast(path.Child("initialDelaySeconds"), p.InitialDelaySeconds, 0)...)
	errs = append(errs, check.AtLeast(path.Child("timeoutSeconds"), p.TimeoutSeconds, 0)...)
	errs = append(errs, check.AtLeast(path.Child("periodSeconds"), p.PeriodSeconds, 0)...)
	errs = append(errs, check.AtLeast(path.Child("successThreshold"), p.SuccessThreshold, 0)...)
	errs = append(errs, check.AtLeast(path.Child("failureThreshold"), p.FailureThreshold, 0)...)
	if kills && p.SuccessThreshold != 1 {
		errs = append(errs, field.Invalid(path.Child("successThreshold"), p.SuccessThreshold, "must be 1"))
	}
	if t := p.TerminationGracePeriodSeconds; t != nil {
		switch at := path.Child("terminationGracePeriodSeconds"); {
		case !kills:
			errs = append(errs, field.Invalid(at, *t, "must not be set for readinessProbes"))
		case *t <= 0:
			errs = append(errs, field.Invalid(at, *t, "must be greater than 0"))
		}
	}
	return errs
}

func (v containers) hook(h *corev1.LifecycleHandler, path *field.Path) field.ErrorList {
	return v.handlers(path, h.Exec, h.HTTPGet, h.TCPSocket, nil, h.Sleep)
}

// handlers wants exactly one of them.
func (v containers) handlers(path *field.Path, exec *corev1.ExecAction, http *corev1.HTTPGetAction, tcp *corev1.TCPSocketAction,
	grpc *corev1.GRPCAction, sleep *corev1.SleepAction,
) field.ErrorList {
	var errs field.ErrorList
	n := 0
	// first refuses a handler beside another one, and has only the first one looked at.
	first := func(name string, set bool) bool {
		if !set {
			return false
		}
		if n++; n > 1 {
			errs = append(errs, field.Forbidden(path.Child(name), "may not specify more than 1 handler type"))
		}
		return n == 1
	}
	if first("exec", exec != nil) && len(exec.Command) == 0 {
		errs = append(errs, field.Required(path.Child("exec", "command"), ""))
	}
	if first("httpGet", http != nil) {
		errs = append(errs, validateHTTP(http, path.Child("httpGet"))...)
	}
	if first("tcpSocket", tcp != nil) {
		errs = append(errs, port(path.Child("tcpSocket", "port"), tcp.Port)...)
	}
	if first("grpc", grpc != nil) {
		errs = append(errs, check.Invalid(path.Child("grpc", "port"), grpc.Port, validation.IsValidPortNum(int(grpc.Port)))...)
		if grpc.Mode != nil {
			errs = append(errs, check.OneOf(path.Child("grpc", "mode"), *grpc.Mode, corev1.GRPCProbeModePlaintext, corev1.GRPCProbeModeTLS)...)
		}
	}
	if first("sleep", sleep != nil) {
		if grace := v.spec.TerminationGracePeriodSeconds; sleep.Seconds < 0 || grace != nil && sleep.Seconds > *grace {
			most := int64(0)
			if grace != nil {
				most = *grace
			}
			errs = append(errs, field.Invalid(path.Child("sleep", "seconds"), sleep.Seconds,
				fmt.Sprintf("must be non-negative and at most terminationGracePeriodSeconds (%d)", most)))
		}
	}
	if n == 0 {
		errs = append(errs, field.Required(path, "must specify a handler type"))
	}
	return errs
}

func validateHTTP(h *corev1.HTTPGetAction, path *field.Path) field.ErrorList {
	errs := check.Required(path.Child("path"), h.Path)
	errs = append(errs, port(path.Child("port"), h.Port)...)
	errs = append(errs, check.OneOf(path.Child("scheme"), h.Scheme, corev1.URISchemeHTTP, corev1.URISchemeHTTPS)...)
	for i, header := range h.HTTPHeaders {
		errs = append(errs, check.Invalid(path.Child("httpHeaders").Index(i).Child("name"), header.Name, validation.IsHTTPHeaderName(header.Name))...)
	}
	if h.Protocol != nil {
		errs = append(errs, check.OneOf(path.Child("protocol"), *h.Protocol, corev1.HTTPProtocolHTTP1, corev1.HTTPProtocolHTTP2)...)
		if *h.Protocol == corev1.HTTPProtocolHTTP2 && h.Scheme == corev1.URISchemeHTTPS {
			errs = append(errs, field.Invalid(path.Child("protocol"), *h.Protocol, "must be used with scheme HTTP"))
		}
	}
	return errs
}
