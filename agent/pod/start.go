package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/environment"
	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/status"
	"github.com/berth-node/berth/agent/volume"
	"github.com/berth-node/berth/cgroups/kube"
)

// containerTimeout is how long the runtime may take before it is asked again. A call that hangs must not hold up other
// pods for ever.
const containerTimeout = 2 * time.Minute

func (w *worker) podIPs() []string {
	if w.observer.seen == nil {
		return nil
	}
	return status.PodIPs(w.pod, w.observer.seen.Sandbox(), w.node.nodeIPs())
}

// launch is all that the start of one container needs.
type launch struct {
	worker *worker
	step   plan.Step
	pod    *corev1.Pod
	c      *corev1.Container
	env    *environment.Environment
	image  spec.Image
	ips    []string
	pin    *kube.Pin // with which it was made; nil: not known

	target string // ID of the container whose processes it sees; "": its own
}

// start creates and starts a container, and runs its postStart hook.
func (a acts) start(s plan.Step) act {
	w := a.worker
	l := &launch{
		worker: w, step: s, pod: w.pod, c: spec.FindContainer(w.pod, s.Container), env: w.place.env,
		image: w.tries.images[s.Container], ips: w.podIPs(),
	}
	l.target = a.targetOf(s.Container)
	delete(w.tries.images, s.Container) // the next start asks again
	return func(ctx context.Context) (func(), error) {
		id, err := l.run(ctx)
		if err == nil && l.c.Lifecycle != nil && l.c.Lifecycle.PostStart != nil {
			err = l.postStart(ctx, id)
		}
		var r *reasoned
		if id == "" || !errors.As(err, &r) {
			return nil, err
		}
		// The container is there, so the delays of its restarts apply.
		f := plan.Failure{Reason: r.reason, Message: err.Error(), At: time.Now()}
		return func() { w.tries.refused[id] = f }, nil
	}
}

// run creates and starts the container. It returns the ID when there is a container, also with an error.
func (l *launch) run(ctx context.Context) (string, error) {
	if err := l.worker.node.starting.enter(ctx, false); err != nil {
		return "", err
	}
	defer l.worker.node.starting.leave()
	id := l.step.ID
	if id == "" {
		creating, cancel := context.WithTimeout(ctx, containerTimeout)
		defer cancel()
		err := l.worker.node.withRoom(creating, func() (err error) {
			id, err = l.create(creating)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	if ctx.Err() != nil {
		return id, ctx.Err()
	}
	// An order that the pod end does not cut this off at once: the container might run, and be ended as one that never
	// did, without its hook. One that is stuck is given the pod's grace.
	wanted := workerContext(ctx)
	ordered := ctx
	ctx, cancel := context.WithTimeout(wanted, containerTimeout)
	defer cancel()
	stop := context.AfterFunc(ordered, func() {
		select {
		case <-ctx.Done():
		case <-time.After(spec.Grace(l.pod)):
			cancel()
		}
	})
	defer stop()
	_, err := l.worker.node.cfg.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
	if err != nil {
		if ctx.Err() == nil {
			l.worker.node.containerEvent(l.pod, l.c.Name, corev1.EventTypeWarning, "Failed", "Error: %v", err)
		} else if ordered.Err() == nil {
			err = errors.Join(err, l.callOff(wanted, id))
		}
		return id, &reasoned{plan.ReasonRun, err}
	}
	l.worker.node.cfg.Given.Pins.Started(id, l.pod.UID, l.c.Name, l.pin)
	l.worker.node.containerEvent(l.pod, l.c.Name, corev1.EventTypeNormal, "Started", "Started container %s", l.c.Name)
	return id, nil
}

// callOff ends a start that nobody waits for any more. The runtime goes on with it, and the container may run in the
// end, beside the next one, with the same volumes.
func (l *launch) callOff(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, containerTimeout)
	defer cancel()
	_, err := l.worker.node.cfg.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id})
	if err != nil {
		return fmt.Errorf("call off start of container: %w", err)
	}
	return nil
}

func (l *launch) create(ctx context.Context) (string, error) {
	ctx, span := startSpan(ctx, "create")
	config, err := l.config(ctx)
	if err != nil {
		endSpan(span, err)
		return "", &reasoned{plan.ReasonConfig, err}
	}
	r, err := l.worker.node.cfg.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: l.env.Sandbox(), Config: config, SandboxConfig: l.sandboxConfig(),
	})
	endSpan(span, err)
	if err != nil {
		return "", &reasoned{plan.ReasonCreate, err}
	}
	l.worker.node.containerEvent(l.pod, l.c.Name, corev1.EventTypeNormal, "Created", "Created container: %s", l.c.Name)
	return r.GetContainerId(), nil
}

// sandboxConfig is that of the sandbox, as it would be made for the pod with the containers that were added to it:
// runtimes look there whether a container may be privileged.
func (l *launch) sandboxConfig() *runtimeapi.PodSandboxConfig {
	sc := l.c.SecurityContext
	config := l.env.SandboxConfig()
	if sc == nil || sc.Privileged == nil || !*sc.Privileged || config.GetLinux().GetSecurityContext().GetPrivileged() {
		return config
	}
	out := proto.CloneOf(config)
	out.Linux.SecurityContext.Privileged = true
	return out
}

func (l *launch) config(ctx context.Context) (*runtimeapi.ContainerConfig, error) {
	in := spec.Input{
		Pod: l.pod, Container: l.c, Node: l.worker.node.Spec(), Image: l.image, PodIPs: l.ips,
		Attempt: l.step.Attempt, Backoff: l.step.Backoff, Round: l.step.Round,
		IDs: l.env.IDs(), HostsFile: l.env.HostsFile(), RecursiveRO: l.env.Features().GetRecursiveReadOnlyMounts(),
		BindOptions: l.worker.node.mountOptions, Objects: l.worker.node.objects(l.pod), EnvFile: l.envFile, Target: l.target,
		ReadOnly: l.env.ReadOnly(),
	}
	injection, err := l.worker.node.resources.inject(ctx, l.pod, l.c)
	if err != nil {
		return nil, err
	}
	in.Injection, l.pin = injection, &injection.Pin
	if in.Attempt == 0 {
		in.Attempt = l.attemptByLogs()
	}
	for i := range l.c.VolumeMounts {
		path, err := l.mount(ctx, i)
		if err != nil {
			return nil, err
		}
		in.Mounts = append(in.Mounts, path)
	}
	for _, d := range l.c.VolumeDevices {
		device, _ := l.env.Volume(d.Name)
		in.Devices = append(in.Devices, device)
	}
	if l.c.TerminationMessagePath != "" {
		if in.MessageFile, err = l.env.MakeMessage(l.c.Name, in.Attempt); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(filepath.Join(l.env.SandboxConfig().GetLogDirectory(), l.c.Name), 0o755); err != nil {
		return nil, fmt.Errorf("make log directory: %w", err)
	}
	return spec.Container(in)
}

// mount is what one of the container's mounts shows.
func (l *launch) mount(ctx context.Context, i int) (string, error) {
	m := &l.c.VolumeMounts[i]
	path, ok := l.env.Volume(m.Name)
	if !ok {
		return "", fmt.Errorf("volume %q is not there", m.Name)
	}
	sub := m.SubPath
	if m.SubPathExpr != "" {
		var err error
		in := spec.Input{
			Pod: l.pod, Container: l.c, Node: l.worker.node.Spec(), PodIPs: l.ips, Objects: l.worker.node.objects(l.pod),
			EnvFile: l.envFile,
		}
		if sub, err = spec.ExpandSubPath(m.SubPathExpr, &in); err != nil {
			return "", err
		}
	}
	// In an image the runtime looks for it.
	if v := spec.FindVolume(l.pod, m.Name); v != nil && v.Image != nil {
		return sub, nil
	}
	if sub == "" {
		return path, nil
	}
	return l.worker.node.cfg.Volumes.SubPath(ctx, l.pod, l.c.Name, i, path, sub)
}

// envFile reads a file in a volume of the pod, as it is now.
func (l *launch) envFile(name, path string) ([]byte, error) {
	at, ok := l.env.Volume(name)
	if !ok {
		return nil, fmt.Errorf("volume %q is not there", name)
	}
	return volume.ReadFile(at, path, spec.MaxEnvFile)
}

// attemptByLogs is the attempt after those that have left logs, for when the runtime has lost its records of them.
func (l *launch) attemptByLogs() uint32 {
	entries, err := os.ReadDir(filepath.Join(l.env.SandboxConfig().GetLogDirectory(), l.c.Name))
	if err != nil {
		return 0
	}
	next := uint32(0)
	for _, e := range entries {
		name, _, _ := strings.Cut(e.Name(), ".")
		if n, err := strconv.ParseUint(name, 10, 32); err == nil {
			next = max(next, uint32(n)+1)
		}
	}
	return next
}

// postStart runs the hook; a container whose hook fails is ended.
func (l *launch) postStart(ctx context.Context, id string) error {
	err := runHook(ctx, l.worker.node.cfg.Runtime, l.c.Lifecycle.PostStart, target{id, l.c, l.ips})
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	l.worker.node.containerEvent(l.pod, l.c.Name, corev1.EventTypeWarning, "FailedPostStartHook",
		"PostStartHook failed: %v", err)
	l.worker.node.containerEvent(l.pod, l.c.Name, corev1.EventTypeNormal, "Killing", "FailedPostStartHook")
	if stopErr := l.worker.node.stopContainer(ctx, l.pod.UID, id, int64(spec.Grace(l.pod)/time.Second)); stopErr != nil {
		err = errors.Join(err, stopErr)
	}
	return &reasoned{plan.ReasonPostStart, err}
}

// targetOf is the ID of the container whose processes an ephemeral one is to see, "" when it names none.
func (a acts) targetOf(name string) string {
	w := a.worker
	for i := range w.pod.Spec.EphemeralContainers {
		e := &w.pod.Spec.EphemeralContainers[i]
		if e.Name != name || e.TargetContainerName == "" {
			continue
		}
		if now := w.observer.seen.Latest(e.TargetContainerName); now != nil {
			return now.GetId()
		}
	}
	return ""
}
