// Package intercept has what the agent asks of its runtime and does to its cgroups go through interceptors: what is
// wanted of all calls, to count them or to tell of them, is written once.
package intercept

import (
	"context"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod"
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
type Interceptor func(ctx context.Context, c Call, do func() error) error

// chain is one interceptor of many, the first one outermost.
func chain(all []Interceptor) Interceptor {
	whole := func(_ context.Context, _ Call, do func() error) error { return do() }
	for _, outer := range slices.Backward(all) {
		inner := whole
		whole = func(ctx context.Context, c Call, do func() error) error {
			return outer(ctx, c, func() error { return inner(ctx, c, do) })
		}
	}
	return whole
}

// Log tells of every call that has ended, at the level of debugging, but for those of quiet.
func Log(log *slog.Logger, message string) Interceptor {
	return func(ctx context.Context, c Call, do func() error) error {
		if quiet[c.Operation] || !log.Enabled(ctx, slog.LevelDebug) {
			return do()
		}
		began := time.Now()
		err := do()
		attrs := append(c.attrs(ctx), "operation", c.Operation, "took", time.Since(began))
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

// attrs are the fields of a log that say what a call is about: by its context, else by what is in it.
func (c Call) attrs(ctx context.Context) []any {
	out := slices.Clone(pod.LogAttrs(ctx))
	known := len(out) > 0
	add := func(field, value string) {
		if value != "" {
			out = append(out, field, value)
		}
	}
	if !known {
		c.addPod(add)
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

func (c Call) addPod(add func(field, value string)) {
	var sandbox *runtimeapi.PodSandboxMetadata
	switch q := c.Request.(type) {
	case *runtimeapi.RunPodSandboxRequest:
		sandbox = q.GetConfig().GetMetadata()
	case *runtimeapi.CreateContainerRequest:
		sandbox = q.GetSandboxConfig().GetMetadata()
		defer func() { add("container", q.GetConfig().GetMetadata().GetName()) }()
	}
	switch {
	case sandbox != nil:
		add("pod", sandbox.GetNamespace()+"/"+sandbox.GetName())
		add("uid", sandbox.GetUid())
	case c.Pod != nil:
		add("pod", c.Pod.Namespace+"/"+c.Pod.Name)
		add("uid", string(c.Pod.UID))
	default:
		add("uid", string(c.UID))
	}
}
