package environment

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/status"
)

// sandboxTimeout is how long the runtime may take before it is asked again, whose network's plugins may be slow. A call
// that hangs must not hold up other pods for ever.
const sandboxTimeout = 4 * time.Minute

// sandbox is that of one pod.
type sandbox struct {
	cfg   *Config
	pod   *corev1.Pod
	known []string // all that there may be, for their removal
	want  Wanted

	id     string
	config *runtimeapi.PodSandboxConfig
	ips    []string
}

// make makes the sandbox unless it is there, after ending the one before it.
func (s *sandbox) make(ctx context.Context, ids *spec.IDs) error {
	config, warnings, err := spec.Sandbox(
		s.pod, s.cfg.Node.SandboxSpec(), s.want.Attempt, s.cfg.Cgroups.PodPath(s.pod), ids)
	if err != nil {
		return err
	}
	s.config = config
	if s.want.ID == "" {
		if s.want.Before != "" {
			s.cfg.Node.Event(s.pod, corev1.EventTypeNormal, "SandboxChanged",
				"Pod sandbox changed, it will be killed and re-created.")
			if err := s.stop(ctx, s.want.Before); err != nil {
				return fmt.Errorf("stop the sandbox before it: %w", err)
			}
		}
		for _, w := range warnings {
			s.cfg.Node.Event(s.pod, corev1.EventTypeWarning, w.Reason, "%s", w.Message)
		}
		ctx, cancel := context.WithTimeout(ctx, sandboxTimeout)
		defer cancel()
		handler, _ := s.cfg.Node.Handler(s.pod)
		r, err := s.cfg.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
		if err != nil {
			return err
		}
		s.id = r.GetPodSandboxId()
	}
	r, err := s.cfg.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: s.id})
	if err != nil {
		return fmt.Errorf("look at the sandbox: %w", err)
	}
	s.ips = status.PodIPs(s.pod, r.GetStatus(), s.cfg.Node.Spec().IPs)
	return nil
}

func (s *sandbox) remover() Remover { return Remover{s.cfg.Runtime, s.cfg.Cgroups} }

func (s *sandbox) stop(ctx context.Context, id string) error {
	return s.remover().StopSandbox(ctx, s.pod.UID, id)
}

// remove ends and removes one sandbox of the pod.
func (s *sandbox) remove(ctx context.Context, id string) error {
	if err := s.stop(ctx, id); err != nil {
		return fmt.Errorf("stop sandbox: %w", err)
	}
	if err := s.remover().RemoveSandbox(ctx, s.pod.UID, id); err != nil {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	return nil
}

// removeAll removes every sandbox of the pod, also one whose making was cut off before anybody knew of it.
func (s *sandbox) removeAll(ctx context.Context) error {
	all := map[string]bool{}
	for _, id := range s.known {
		all[id] = true
	}
	list, err := s.cfg.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
		LabelSelector: map[string]string{spec.PodUIDLabel: string(s.pod.UID)},
	}})
	if err != nil {
		return err
	}
	for _, one := range list.GetItems() {
		all[one.GetId()] = true
	}
	for id := range all {
		if err := s.remove(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

func isNotFound(err error) bool { return grpcstatus.Code(err) == codes.NotFound }
