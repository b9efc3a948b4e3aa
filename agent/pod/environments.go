package pod

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/environment"
)

// newEnvironments makes the environments of the node's pods.
func newEnvironments(n *node) *environment.Maker {
	var resources []environment.Resource
	for _, r := range n.resources {
		resources = append(resources, sharedOut{r, n})
	}
	return environment.New(environment.Config{
		Node: n, Runtime: n.cfg.Runtime, Cgroups: n.cfg.Cgroups, Volumes: slowVolumes{n.cfg.Volumes, n},
		Resources: resources, Objects: n.cfg.Objects, Tokens: n.tokens(), Certificates: n.cfg.Issued.Certificates,
		RootDir: n.cfg.RootDir, LogDir: n.cfg.LogDir, Domain: n.cfg.DNS.Domain,
		Labels: n.cfg.Node.Labels(), GroupFirst: n.cfg.Node.GroupFirst,
	})
}

// remover removes what pods have in the runtime.
func (n *node) remover() environment.Remover {
	return environment.Remover{Runtime: n.cfg.Runtime, Killer: n.cfg.Cgroups}
}

// Handler is part of [environment.Node].
func (n *node) Handler(pod *corev1.Pod) (string, *runtimeapi.RuntimeHandlerFeatures) {
	name := n.handlerOf(pod)
	return name, n.handlers[name]
}

// Event is part of [environment.Node].
func (n *node) Event(pod *corev1.Pod, typ, reason, format string, args ...any) {
	n.event(pod, typ, reason, format, args...)
}

// Begin is part of [environment.Node].
func (n *node) Begin(ctx context.Context, pod *corev1.Pod, part string) (context.Context, func(error)) {
	began := time.Now()
	ctx, span := startSpan(ctx, part)
	return ctx, func(err error) {
		endSpan(span, err)
		if err == nil { // else it is told where that is dealt with
			n.cfg.Log.Debug("part of the pod is done", append(logAttrs(pod), "part", part, "took", time.Since(began))...)
		}
	}
}
