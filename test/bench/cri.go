package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// served is a peer that serves the CRI.
type served interface {
	peer
	Socket() string
	Parent() string // cgroup below which clients' pods have theirs
}

// criClient asks a runtime for what a kubelet asks it for.
type criClient struct {
	conn *grpc.ClientConn
	rt   runtimeapi.RuntimeServiceClient
	img  runtimeapi.ImageServiceClient
}

func dialCRI(socket string) (*criClient, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return nil, err
	}
	return &criClient{conn, runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn)}, nil
}

func (c *criClient) pull(ctx context.Context, ref string) error {
	_, err := c.img.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	return err
}

func (c *criClient) forget(ctx context.Context, ref string) error {
	_, err := c.img.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	return err
}

// criPod is a sandbox with one container.
type criPod struct {
	name, sandbox, container string
	group                    string
	config                   *runtimeapi.PodSandboxConfig
}

// criRun is one run of the CRI's calls, and how long each of them took.
type criRun struct {
	*criClient
	parent, logs string
	took         map[string][]time.Duration
	order        []string
	costs        []cost
	calls        int // for each of them
}

// cri times the calls of the CRI one by one on a runtime that has nothing else to do, and those that only look also
// with many pods there.
func (b *bench) cri(ctx context.Context, p peer) error {
	s, ok := p.(served)
	if !ok {
		return nil
	}
	client, err := dialCRI(s.Socket())
	if err != nil {
		return err
	}
	defer client.conn.Close()
	// It answers when the archives given at start have been read.
	if a, err := client.img.ImageStatus(ctx,
		&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}}); err != nil || a.GetImage() == nil {
		return fmt.Errorf("find image %s: %w", image, err)
	}
	logs, err := os.MkdirTemp(b.dir, "logs-")
	if err != nil {
		return err
	}
	r := &criRun{criClient: client, parent: s.Parent(), logs: logs, took: map[string][]time.Duration{}, calls: costCalls}
	for i := range b.runs + 2 {
		if i == 2 {
			clear(r.took) // the first pods are discarded, as elsewhere
		}
		x, err := r.up(ctx, fmt.Sprintf("cri-%d", i))
		if err == nil {
			err = r.look(ctx, x, "")
		}
		if err = errors.Join(err, r.down(ctx, x)); err != nil {
			return err
		}
	}
	if err := r.crowd(ctx, b.many, p.Processes); err != nil {
		return err
	}
	for _, what := range r.order {
		b.report.record(p, "CRI "+what+", median", "ms", median(r.took[what]))
	}
	for _, c := range r.costs {
		b.report.record(p, "CRI "+c.what+", CPU of the runtime a call", "µs", c.micros)
	}
	if in, ok := p.(inProcess); ok {
		return b.criInside(ctx, p, in, logs)
	}
	return nil
}

// crowd looks while n pods are there. processes are those whose CPU time is taken.
func (r *criRun) crowd(ctx context.Context, n int, processes func() []int) (err error) {
	var pods []criPod
	defer func() {
		quiet := criRun{criClient: r.criClient, took: map[string][]time.Duration{}}
		for _, x := range pods {
			err = errors.Join(err, quiet.down(ctx, x))
		}
	}()
	quiet := criRun{criClient: r.criClient, parent: r.parent, logs: r.logs, took: map[string][]time.Duration{}}
	for i := range n {
		x, err := quiet.up(ctx, fmt.Sprintf("crowd-%d", i))
		pods = append(pods, x)
		if err != nil {
			return err
		}
	}
	when := fmt.Sprintf(" at %d pods", n)
	for i := range max(n, 20) {
		if err := r.look(ctx, pods[i%n], when); err != nil {
			return err
		}
	}
	return r.cost(ctx, pods[0], when, processes())
}

// cost is what a call takes of the runtime's own CPU time, which on a busy machine says more than how long it took.
type cost struct {
	what   string
	micros float64
}

// How often a call is made for its cost to be taken. The kernel adds a running thread's time up at each of its ticks
// only, some milliseconds, so calls that take microseconds are made more often.
const (
	costCalls       = 500
	costCallsInside = 20000
)

func (r *criRun) cost(ctx context.Context, x criPod, when string, pids []int) error {
	for _, c := range r.quick(ctx, x) {
		before := cpu(pids)
		for range r.calls {
			if err := c.call(); err != nil {
				return fmt.Errorf("%s: %w", c.what, err)
			}
		}
		r.costs = append(r.costs, cost{c.what + when, float64((cpu(pids) - before).Nanoseconds()) / 1000 / float64(r.calls)})
	}
	return nil
}

func (r *criRun) time(what string, call func() error) error {
	begin := time.Now()
	if err := call(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if !slices.Contains(r.order, what) {
		r.order = append(r.order, what)
	}
	r.took[what] = append(r.took[what], time.Since(begin))
	return nil
}

func (r *criRun) up(ctx context.Context, name string) (criPod, error) {
	x := criPod{name: name, group: r.parent + "/pod" + name}
	x.config = &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name},
		LogDirectory: r.logs + "/" + name,
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: x.group},
	}
	if err := os.MkdirAll(x.config.LogDirectory, 0o755); err != nil {
		return x, err
	}
	err := r.time("RunPodSandbox", func() error {
		a, err := r.rt.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: x.config})
		x.sandbox = a.GetPodSandboxId()
		return err
	})
	if err != nil {
		return x, err
	}
	err = r.time("CreateContainer", func() error {
		a, err := r.rt.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
			PodSandboxId: x.sandbox, SandboxConfig: x.config,
			Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
				Image:    &runtimeapi.ImageSpec{Image: image},
				Command:  []string{"sleep", "1000000"},
				LogPath:  "main.log",
				Linux:    &runtimeapi.LinuxContainerConfig{},
			},
		})
		x.container = a.GetContainerId()
		return err
	})
	if err != nil {
		return x, err
	}
	return x, r.time("StartContainer", func() error {
		_, err := r.rt.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: x.container})
		return err
	})
}

type criCall struct {
	what string
	call func() error
}

// quick are the calls that change nothing.
func (r *criRun) quick(ctx context.Context, x criPod) []criCall {
	return []criCall{
		// What any call takes between these two processes: the floor of the others.
		{"Version", func() error {
			_, err := r.rt.Version(ctx, &runtimeapi.VersionRequest{})
			return err
		}},
		{"PodSandboxStatus", func() error {
			_, err := r.rt.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: x.sandbox})
			return err
		}},
		{"ContainerStatus", func() error {
			_, err := r.rt.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: x.container})
			return err
		}},
		{"ListPodSandbox", func() error {
			_, err := r.rt.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
			return err
		}},
		{"ListContainers", func() error {
			_, err := r.rt.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
			return err
		}},
	}
}

// look makes the calls that change nothing, and runs a command.
func (r *criRun) look(ctx context.Context, x criPod, when string) error {
	exec := criCall{"ExecSync", func() error {
		a, err := r.rt.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
			ContainerId: x.container, Cmd: []string{"true"},
			Timeout: 30,
		})
		if err == nil && a.GetExitCode() != 0 {
			err = fmt.Errorf("exit code %d: %s", a.GetExitCode(), a.GetStderr())
		}
		return err
	}}
	for _, c := range append(r.quick(ctx, x), exec) {
		if err := r.time(c.what+when, c.call); err != nil {
			return err
		}
	}
	return nil
}

// down takes a pod away. The container is killed at once: how long it would take to answer its stop signal is its own
// affair.
func (r *criRun) down(ctx context.Context, x criPod) error {
	var errs []error
	if x.container != "" {
		errs = append(errs, r.time("StopContainer", func() error {
			_, err := r.rt.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: x.container})
			return err
		}), r.time("RemoveContainer", func() error {
			_, err := r.rt.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: x.container})
			return err
		}))
	}
	if x.sandbox != "" {
		errs = append(errs, r.time("StopPodSandbox", func() error {
			_, err := r.rt.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: x.sandbox})
			return err
		}), r.time("RemovePodSandbox", func() error {
			_, err := r.rt.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: x.sandbox})
			return err
		}))
	}
	// The group of a pod is its client's.
	removeGroups(x.group)
	return errors.Join(errs...)
}
