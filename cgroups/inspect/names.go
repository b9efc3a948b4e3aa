package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// name finds out which pods the groups belong to. The agent knows best; without it the directories that runtimes and kubelets
// leave on the disk tell names, but no specifications.
func (l Live) name(ctx context.Context, s *Snapshot) error {
	s.Names = map[string]Identity{}
	l.fromLogs(s)
	l.fromBundles(s)
	l.fromSandboxes(s)
	if l.PodsFile != "" {
		data, err := os.ReadFile(l.PodsFile)
		if err != nil {
			return fmt.Errorf("read pods: %w", err)
		}
		pods, err := parsePods(data)
		if err != nil {
			return fmt.Errorf("read pods of %s: %w", l.PodsFile, err)
		}
		s.use(pods, l.PodsFile)
		return nil
	}
	if pods, err := l.fromAgent(ctx); err == nil {
		s.use(pods, "agent")
	} else if !errors.Is(err, os.ErrNotExist) && !isRefused(err) {
		return fmt.Errorf("ask agent for pods: %w", err)
	}
	return nil
}

func isRefused(err error) bool {
	var op *net.OpError
	return errors.As(err, &op)
}

// use takes specifications and the names in them.
func (s *Snapshot) use(pods []corev1.Pod, from string) {
	s.Pods, s.PodsFrom = pods, from
	for i := range pods {
		p := &pods[i]
		id := s.identity(string(p.UID))
		id.Namespace, id.Name = p.Namespace, p.Name
		for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
			for _, c := range list {
				if _, cid, ok := strings.Cut(c.ContainerID, "://"); ok {
					id.Containers[cid] = c.Name
				}
			}
		}
		s.Names[string(p.UID)] = id
	}
}

func (s *Snapshot) identity(uid string) Identity {
	id := s.Names[uid]
	if id.Containers == nil {
		id.Containers = map[string]string{}
	}
	return id
}

func parsePods(data []byte) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := yaml.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("decode pods: %w", err)
	}
	if len(list.Items) == 0 && list.Kind == "Pod" {
		var p corev1.Pod
		if err := yaml.Unmarshal(data, &p); err != nil {
			return nil, fmt.Errorf("decode pod: %w", err)
		}
		return []corev1.Pod{p}, nil
	}
	return list.Items, nil
}

// fromAgent asks the agent's local API.
func (l Live) fromAgent(ctx context.Context) ([]corev1.Pod, error) {
	if l.RunDir == "" {
		return nil, os.ErrNotExist
	}
	socket := filepath.Join(l.RunDir, "berth.sock")
	if _, err := os.Stat(socket); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://berth/pods", nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("agent answers %s", resp.Status)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxCapture))
	if err != nil {
		return nil, err
	}
	return parsePods(data)
}

// fromLogs reads names like default_web-0_<uid>: neither namespaces, names nor uids can hold an underscore.
func (l Live) fromLogs(s *Snapshot) {
	dir := l.LogDir
	if dir == "" {
		dir = "/var/log/pods"
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		parts := strings.Split(e.Name(), "_")
		if !e.IsDir() || len(parts) != 3 {
			continue
		}
		id := s.identity(parts[2])
		id.Namespace, id.Name = parts[0], parts[1]
		s.Names[parts[2]] = id
	}
}

// bundleAnnotations are the names the CRI runtimes give in a container's OCI configuration.
type bundleAnnotations struct {
	Annotations map[string]string `json:"annotations"`
}

// fromBundles reads the OCI configurations of running containers, ours and containerd's.
func (l Live) fromBundles(s *Snapshot) {
	var files []string
	for _, pattern := range []string{filepath.Join(l.RunDir, "containers/*/config.json"), "/run/containerd/io.containerd.runtime.v2.task/k8s.io/*/config.json"} {
		found, _ := filepath.Glob(pattern)
		files = append(files, found...)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		var b bundleAnnotations
		if err := json.Unmarshal(data, &b); err != nil {
			continue
		}
		get := func(key string) string { return b.Annotations["io.kubernetes.cri."+key] }
		uid := get("sandbox-uid")
		if uid == "" {
			continue
		}
		id := s.identity(uid)
		if id.Name == "" {
			id.Namespace, id.Name = get("sandbox-namespace"), get("sandbox-name")
		}
		name := get("container-name")
		if get("container-type") == "sandbox" {
			name = sandboxName
		}
		id.Containers[filepath.Base(filepath.Dir(f))] = name
		s.Names[uid] = id
	}
}

// fromSandboxes tells the groups of our pods' own processes, which no container's bundle names.
func (l Live) fromSandboxes(s *Snapshot) {
	files, _ := filepath.Glob(filepath.Join(l.RunDir, "sandboxes/*/cgroup"))
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		uid, ok := podOf(filepath.Base(filepath.Dir(strings.TrimSpace(string(data)))))
		if !ok {
			continue
		}
		id := s.identity(uid)
		id.Containers[filepath.Base(filepath.Dir(f))] = sandboxName
		s.Names[uid] = id
	}
}

// podOf is the uid in the name of a pod's group. systemd reads dashes as levels, so its units have underscores in their place.
func podOf(group string) (uid string, ok bool) {
	name, unit := strings.CutSuffix(group, ".slice")
	if unit {
		_, uid, ok = strings.Cut(name, "-pod")
		return strings.ReplaceAll(uid, "_", "-"), ok && uid != ""
	}
	uid, ok = strings.CutPrefix(name, "pod")
	return uid, ok && uid != ""
}

// sandboxName stands for the pod's own process: the keeper, or the pause container of other runtimes.
const sandboxName = "(sandbox)"
