package api

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// run runs a command in a container and answers with all that it wrote.
func (e *entrance) run(w http.ResponseWriter, r *http.Request) error {
	id, err := e.pods.running(r)
	if err != nil {
		return err
	}
	cmd := strings.Fields(r.FormValue("cmd"))
	if len(cmd) == 0 {
		return badRequest("cmd: nothing to execute")
	}
	resp, err := e.runtime.ExecSync(r.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: cmd})
	if err != nil {
		return fmt.Errorf("run: %w", err)
	}
	out := slices.Concat(resp.GetStdout(), resp.GetStderr())
	if code := resp.GetExitCode(); code != 0 {
		msg := fmt.Sprintf("command '%s' exited with %d: %s", strings.Join(cmd, " "), code, out)
		return &failure{http.StatusInternalServerError, metav1.StatusReasonInternalError, msg}
	}
	w.Header().Set("Content-Type", "text/plain")
	_, err = w.Write(out)
	return err
}

// runningPods lists what the runtime runs, whatever is wanted.
func (s *Server) runningPods(w http.ResponseWriter, r *http.Request) error {
	sandboxes, err := s.cfg.Runtime.ListPodSandbox(r.Context(),
		&runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
			State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
		}})
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	containers, err := s.cfg.Runtime.ListContainers(r.Context(),
		&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		}})
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []corev1.Pod{}}
	for _, sb := range sandboxes.GetItems() {
		m := sb.GetMetadata()
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: m.GetName(), Namespace: m.GetNamespace(),
			UID: types.UID(m.GetUid()),
		}}
		for _, c := range containers.GetContainers() {
			if c.GetPodSandboxId() != sb.GetId() {
				continue
			}
			image := c.GetImage().GetUserSpecifiedImage()
			if image == "" {
				image = c.GetImage().GetImage()
			}
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: c.GetMetadata().GetName(), Image: image})
		}
		if len(p.Spec.Containers) > 0 {
			list.Items = append(list.Items, p)
		}
	}
	return writeJSON(w, list)
}

// checkpoint writes the state of a container to a file and answers with its path.
func (e *entrance) checkpoint(w http.ResponseWriter, r *http.Request) error {
	p, err := e.pods.find(r)
	if err != nil {
		return err
	}
	id, err := e.pods.running(r)
	if err != nil {
		return err
	}
	var timeout int64
	if v := r.FormValue("timeout"); v != "" {
		if timeout, err = strconv.ParseInt(v, 10, 64); err != nil || timeout < 0 {
			return badRequest("timeout: %q is not a number of seconds", v)
		}
	}
	if err := os.MkdirAll(e.checkpoints, 0o700); err != nil {
		return fmt.Errorf("make directory of checkpoints: %w", err)
	}
	name := fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", p.Name, p.Namespace, r.PathValue("container"),
		time.Now().Format(time.RFC3339))
	path := filepath.Join(e.checkpoints, name)
	_, err = e.runtime.CheckpointContainer(r.Context(),
		&runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: path, Timeout: timeout})
	if grpcstatus.Code(err) == codes.Unimplemented {
		return &failure{
			http.StatusNotImplemented, metav1.StatusReasonInternalError,
			"the runtime cannot checkpoint containers: " + grpcstatus.Convert(err).Message(),
		}
	}
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return writeJSON(w, map[string][]string{"items": {path}})
}
