package inspect

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtimeTimeout is how long a runtime may take to answer. One that hangs is no reason to show nothing.
const runtimeTimeout = 2 * time.Second

// sockets are those that runtimes listen on, if nobody has said which.
func (l Live) sockets() []string {
	return []string{filepath.Join(l.RunDir, "cri.sock"), "/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/cri-dockerd.sock"}
}

// fromRuntime asks the container runtimes of the machine whom they know. One that was named has to answer.
func (l Live) fromRuntime(ctx context.Context, s *Snapshot) error {
	if l.Endpoint != "" {
		if err := askRuntime(ctx, l.Endpoint, s); err != nil {
			return fmt.Errorf("ask runtime %s for pods: %w", l.Endpoint, err)
		}
		return nil
	}
	for _, socket := range l.sockets() {
		if fi, err := os.Stat(socket); err == nil && fi.Mode().Type() == os.ModeSocket {
			_ = askRuntime(ctx, "unix://"+socket, s) // it may serve no CRI, or not us
		}
	}
	return nil
}

// askRuntime takes the names of all sandboxes and containers of a runtime.
func askRuntime(ctx context.Context, endpoint string, s *Snapshot) error {
	if !strings.Contains(endpoint, "://") {
		endpoint = "unix://" + endpoint
	}
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	pods, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	containers, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return err
	}
	uids := map[string]string{}
	for _, p := range pods.GetItems() {
		uid := p.GetMetadata().GetUid()
		if uid == "" {
			continue
		}
		uids[p.GetId()] = uid
		id := s.identity(uid)
		id.InRuntime = true
		id.Static = id.Static || p.GetAnnotations()[sourceAnnotation] == "file"
		if id.Name == "" {
			id.Namespace, id.Name = p.GetMetadata().GetNamespace(), p.GetMetadata().GetName()
		}
		id.Containers[p.GetId()] = sandboxName
		s.Names[uid] = id
	}
	for _, c := range containers.GetContainers() {
		if uid := uids[c.GetPodSandboxId()]; uid != "" {
			s.Names[uid].Containers[c.GetId()] = c.GetMetadata().GetName()
		}
	}
	s.Runtimes = append(s.Runtimes, endpoint)
	return nil
}
