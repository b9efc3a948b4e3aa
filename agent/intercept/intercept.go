// Package intercept has what the agent asks of its runtime and does to its cgroups go through interceptors: what is wanted of all
// calls, to count them or to tell of them, is written once.
package intercept

import (
	"context"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ListSandboxes is the operation by which kubelet's loop that looks for changes is known.
const ListSandboxes = "list_podsandbox"

// Call is what is about to be done.
type Call struct {
	Operation string      // by kubelet's names
	Request   any         // of the CRI; nil: it is none
	Pod       *corev1.Pod // nil: the request tells, or nothing does
	UID       types.UID   // where only that is known
}

// Interceptor is called around a call, which do makes. It returns the error of do.
type Interceptor func(c Call, do func() error) error

// chain is one interceptor of many, the first one outermost.
func chain(all []Interceptor) Interceptor {
	whole := func(_ Call, do func() error) error { return do() }
	for _, outer := range slices.Backward(all) {
		inner := whole
		whole = func(c Call, do func() error) error { return outer(c, func() error { return inner(c, do) }) }
	}
	return whole
}

// Log tells of every call that has ended, at the level of debugging, but for those of quiet.
func Log(log *slog.Logger, message string) Interceptor {
	return func(c Call, do func() error) error {
		if quiet[c.Operation] || !log.Enabled(context.Background(), slog.LevelDebug) {
			return do()
		}
		began := time.Now()
		err := do()
		attrs := append(c.attrs(), "operation", c.Operation, "took", time.Since(began))
		if err != nil {
			attrs = append(attrs, "error", err)
		}
		log.Debug(message, attrs...)
		return err
	}
}

// quiet are the operations that change nothing, and the commands of probes: who looks on would see little else.
var quiet = map[string]bool{
	"exec_sync":         true,
	"podsandbox_status": true, ListSandboxes: true, "list_containers": true, "container_status": true, "image_status": true, "list_images": true,
	"image_fs_info": true, "container_stats": true, "list_container_stats": true, "podsandbox_stats": true, "list_podsandbox_stats": true,
	"version": true, "status": true, "runtime_config": true,
}

// attrs are the fields of a log that say what a call is about.
func (c Call) attrs() []any {
	var out []any
	add := func(field, value string) {
		if value != "" {
			out = append(out, field, value)
		}
	}
	uid := c.UID
	if c.Pod != nil {
		add("pod", c.Pod.Namespace+"/"+c.Pod.Name)
		uid = c.Pod.UID
	}
	add("uid", string(uid))
	if q, ok := c.Request.(*runtimeapi.RunPodSandboxRequest); ok {
		addSandbox(add, q.GetConfig())
	}
	if q, ok := c.Request.(*runtimeapi.CreateContainerRequest); ok {
		addSandbox(add, q.GetSandboxConfig())
		add("container", q.GetConfig().GetMetadata().GetName())
	}
	if q, ok := c.Request.(interface{ GetPodSandboxId() string }); ok {
		add("sandbox", q.GetPodSandboxId())
	}
	if q, ok := c.Request.(interface{ GetContainerId() string }); ok {
		add("id", q.GetContainerId())
	}
	if q, ok := c.Request.(interface {
		GetImage() *runtimeapi.ImageSpec
	}); ok {
		add("image", q.GetImage().GetImage())
	}
	return out
}

func addSandbox(add func(field, value string), c *runtimeapi.PodSandboxConfig) {
	m := c.GetMetadata()
	add("pod", m.GetNamespace()+"/"+m.GetName())
	add("uid", m.GetUid())
}
