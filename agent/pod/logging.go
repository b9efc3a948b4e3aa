package pod

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// logAttrs name a pod in the log.
func logAttrs(p *corev1.Pod) []any {
	return []any{"pod", p.Namespace + "/" + p.Name, "uid", string(p.UID)}
}

type logKey struct{}

// withLogAttrs has calls of the runtime know what they are made for.
func withLogAttrs(ctx context.Context, p *corev1.Pod, container string) context.Context {
	attrs := logAttrs(p)
	if container != "" {
		attrs = append(attrs, "container", container)
	}
	return context.WithValue(ctx, logKey{}, attrs)
}

// LogAttrs name in the log the pod that a call of the runtime is made for, and the container if it is for one; nil: it
// is for none.
func LogAttrs(ctx context.Context) []any {
	attrs, _ := ctx.Value(logKey{}).([]any)
	return attrs
}
