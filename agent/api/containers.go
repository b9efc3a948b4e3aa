package api

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/berth-node/berth/agent/api/logs"
)

// podUIDLabel is the label by which every sandbox says whose it is.
const podUIDLabel = "io.kubernetes.pod.uid"

// status returns the status of a container of the pod, of whichever kind it is.
func status(p *corev1.Pod, name string) (corev1.ContainerStatus, error) {
	for _, list := range [][]corev1.ContainerStatus{
		p.Status.ContainerStatuses, p.Status.InitContainerStatuses,
		p.Status.EphemeralContainerStatuses,
	} {
		for _, s := range list {
			if s.Name == name {
				return s, nil
			}
		}
	}
	specs := slices.Concat(p.Spec.Containers, p.Spec.InitContainers)
	added := slices.ContainsFunc(p.Spec.EphemeralContainers,
		func(c corev1.EphemeralContainer) bool { return c.Name == name })
	if added || slices.ContainsFunc(specs, func(c corev1.Container) bool { return c.Name == name }) {
		return corev1.ContainerStatus{}, badRequest("container %q in pod %q has not been started yet", name, p.Name)
	}
	return corev1.ContainerStatus{}, notFound("container %s is not one of pod %s", name, p.Name)
}

// runtimeID strips the runtime's name from the ID of a container's status.
func runtimeID(id string) string { return id[strings.LastIndex(id, "/")+1:] }

// running returns the runtime's ID of a running container of the request's pod.
func (l lookup) running(r *http.Request) (string, error) {
	p, err := l.find(r)
	if err != nil {
		return "", err
	}
	name := r.PathValue("container")
	st, err := status(p, name)
	if err != nil {
		return "", err
	}
	if st.State.Running == nil || st.ContainerID == "" {
		return "", badRequest("container %q in pod %q is not running: %s", name, p.Name, describe(st.State))
	}
	return runtimeID(st.ContainerID), nil
}

func describe(s corev1.ContainerState) string {
	if s.Terminated != nil {
		return fmt.Sprintf("it ended with exit code %d (%s)", s.Terminated.ExitCode, s.Terminated.Reason)
	}
	return "it is waiting" + because(s)
}

// because is the reason of a container that waits, where there is one.
func because(s corev1.ContainerState) string {
	if s.Waiting == nil || s.Waiting.Reason == "" {
		return ""
	}
	return ": " + s.Waiting.Reason
}

// logged returns the ID of the instance of a container whose log is wanted.
func logged(p *corev1.Pod, name string, previous bool) (string, error) {
	st, err := status(p, name)
	if err != nil {
		return "", err
	}
	last := ""
	if t := st.LastTerminationState.Terminated; t != nil {
		last = t.ContainerID
	}
	switch {
	case previous && last == "":
		return "", badRequest("previous terminated container %q in pod %q not found", name, p.Name)
	case previous:
		return runtimeID(last), nil
	case st.State.Terminated != nil && st.State.Terminated.ContainerID != "":
		return runtimeID(st.State.Terminated.ContainerID), nil
	case st.State.Running != nil && st.ContainerID != "":
		return runtimeID(st.ContainerID), nil
	case last != "": // between two tries, what people want to see is why the last one failed
		return runtimeID(last), nil
	default:
		return "", badRequest("container %q in pod %q is waiting to start%s", name, p.Name, because(st.State))
	}
}

// containerLog shows what containers have written.
type containerLog struct {
	pods    lookup
	runtime Runtime
}

func (c *containerLog) read(w http.ResponseWriter, r *http.Request) error {
	p, err := c.pods.find(r)
	if err != nil {
		return err
	}
	o, err := logOptions(r)
	if err != nil {
		return err
	}
	name := r.PathValue("container")
	id, err := logged(p, name, wants(r, "previous"))
	if err != nil {
		return err
	}
	st, err := c.runtime.ContainerStatus(r.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return fmt.Errorf("find log: %w", err)
	}
	path := st.GetStatus().GetLogPath()
	if path == "" {
		return badRequest("container %q in pod %q has no log", name, p.Name)
	}
	ctx, cancel := context.WithCancel(r.Context())
	if wants(r, "follow") && st.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
		ended, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			defer close(ended)
			c.awaitEnd(ctx, p, name, id)
		}()
		defer func() { <-done }()
		o.Ended = ended
	}
	defer cancel()
	w.Header().Set("Content-Type", "text/plain")
	if o.Ended != nil {
		if err := http.NewResponseController(w).Flush(); err != nil {
			return err
		}
	}
	return logs.Read(ctx, path, o, w)
}

// awaitEnd returns when the pod's container with that ID has ended, or with ctx.
func (c *containerLog) awaitEnd(ctx context.Context, p *corev1.Pod, name, id string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	follow := c.pods.feed.Subscribe()
	if !slices.ContainsFunc(c.pods.feed.List(), func(q *corev1.Pod) bool { return q.UID == p.UID }) {
		cancel() // it had gone before, so nothing would tell of it
	}
	_ = follow(ctx, func(t watch.EventType, q *corev1.Pod) error { return endOf(t, q, p, name, id) })
}

type ended struct{}

func (ended) Error() string { return "ended" }

// endOf returns an error when a change of a pod tells that the container with that ID has ended.
func endOf(t watch.EventType, q, p *corev1.Pod, name, id string) error {
	if q.Namespace != p.Namespace || q.Name != p.Name {
		return nil
	}
	st, err := status(q, name)
	if t == watch.Deleted || q.UID != p.UID || err != nil || runtimeID(st.ContainerID) != id || st.State.Running == nil {
		return ended{}
	}
	return nil
}

// maxSince is further back than any log begins, in seconds, and not more than a duration can be.
const maxSince = math.MaxInt64 / int64(time.Second)

func logOptions(r *http.Request) (logs.Options, error) {
	o := logs.Options{Tail: -1, Timestamps: wants(r, "timestamps")}
	for _, f := range []struct {
		name string
		set  func(int64)
	}{
		{"tailLines", func(n int64) { o.Tail = n }},
		{"limitBytes", func(n int64) { o.Limit = n }},
		{"sinceSeconds", func(n int64) { o.Since = time.Now().Add(-time.Duration(min(n, maxSince)) * time.Second) }},
	} {
		v := r.FormValue(f.name)
		if v == "" {
			continue
		}
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < 0 {
			return o, badRequest("%s: %q is not a number from 0 up", f.name, v)
		}
		f.set(n)
	}
	if v := r.FormValue("sinceTime"); v != "" {
		t, err := time.Parse(time.RFC3339Nano, v)
		if err != nil {
			return o, badRequest("sinceTime: %q is not a time", v)
		}
		o.Since = t
	}
	switch v := r.FormValue("stream"); v {
	case "", "All":
	case "Stdout", "Stderr":
		o.Stream = strings.ToLower(v)
	default:
		return o, badRequest("stream: %q is none of All, Stdout, Stderr", v)
	}
	return o, nil
}

// entrance is the way into pods: it has something run in one, connected to one, or taken out of one.
type entrance struct {
	pods        lookup
	runtime     Runtime
	checkpoints string // directory that they are written to
	log         *slog.Logger
}

func (e *entrance) exec(w http.ResponseWriter, r *http.Request) error {
	id, err := e.pods.running(r)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	if len(q["command"]) == 0 {
		return badRequest("command: nothing to execute")
	}
	want, err := streams(r)
	if err != nil {
		return err
	}
	resp, err := e.runtime.Exec(r.Context(), &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: q["command"], Tty: want.tty, Stdin: want.stdin, Stdout: want.stdout, Stderr: want.stderr,
	})
	if err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	return e.stream(w, r, resp.GetUrl(), want)
}

func (e *entrance) attach(w http.ResponseWriter, r *http.Request) error {
	id, err := e.pods.running(r)
	if err != nil {
		return err
	}
	want, err := streams(r)
	if err != nil {
		return err
	}
	resp, err := e.runtime.Attach(r.Context(), &runtimeapi.AttachRequest{
		ContainerId: id, Tty: want.tty, Stdin: want.stdin, Stdout: want.stdout, Stderr: want.stderr,
	})
	if err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	return e.stream(w, r, resp.GetUrl(), want)
}

func (e *entrance) portForward(w http.ResponseWriter, r *http.Request) error {
	p, err := e.pods.find(r)
	if err != nil {
		return err
	}
	var ports []int32
	for _, v := range r.URL.Query()["port"] {
		n, err := strconv.ParseUint(v, 10, 16)
		if err != nil || n == 0 {
			return badRequest("port: %q is not a port", v)
		}
		ports = append(ports, int32(n))
	}
	list, err := e.runtime.ListPodSandbox(r.Context(),
		&runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
			LabelSelector: map[string]string{podUIDLabel: string(p.UID)},
			State:         &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
		}})
	if err != nil {
		return fmt.Errorf("find sandbox: %w", err)
	}
	if len(list.GetItems()) == 0 {
		return badRequest("pod %q has no network: it is %s", p.Name, p.Status.Phase)
	}
	resp, err := e.runtime.PortForward(r.Context(),
		&runtimeapi.PortForwardRequest{PodSandboxId: list.GetItems()[0].GetId(), Port: ports})
	if err != nil {
		return fmt.Errorf("port-forward: %w", err)
	}
	if wsstream.IsWebSocketRequestWithTunnelingProtocol(r) {
		return e.tunnel(w, r, resp.GetUrl())
	}
	return handOver(w, r, resp.GetUrl())
}
