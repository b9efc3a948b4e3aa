package inspect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/berth-node/berth/internal/quantity"
)

// sandboxName stands for the pod's own process: the keeper, or the pause container of other runtimes.
const sandboxName = "(sandbox)"

// name finds out which pods the groups belong to. The agent knows best. Without it the directories that runtimes and
// kubelets leave on the disk tell names, a container runtime's socket too, and manifests the specifications of static
// pods.
func (l Live) name(ctx context.Context, s *Snapshot) error {
	s.Names = map[string]Identity{}
	l.fromLogs(s)
	if err := l.specifications(ctx, s); err != nil {
		return err
	}
	l.fromSandboxes(s)
	if s.nameless() {
		l.fromBundles(s)
	}
	if s.PodsFrom == "" || s.nameless() {
		if err := l.fromRuntime(ctx, s); err != nil {
			return err
		}
	}
	if s.PodsFrom == "" {
		l.fromManifests(s)
	}
	return l.pins(s)
}

// specifications come from the file that was named, or else from the agent.
func (l Live) specifications(ctx context.Context, s *Snapshot) error {
	if l.PodsFile != "" {
		data, err := os.ReadFile(l.PodsFile)
		if err != nil {
			return fmt.Errorf("read pods: %w", err)
		}
		pods, err := s.parse(data)
		if err != nil {
			return fmt.Errorf("read pods of %s: %w", l.PodsFile, err)
		}
		s.use(pods, l.PodsFile)
		return nil
	}
	switch pods, err := l.fromAgent(ctx, s.parse); {
	case err == nil:
		s.use(pods, "agent")
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		s.silent = true // it is stopped or stuck: the more reason to look at what its pods do
	case !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) && !isRefused(err):
		return fmt.Errorf("ask agent for pods: %w", err)
	}
	return nil
}

// use takes specifications and the names in them.
func (s *Snapshot) use(pods []corev1.Pod, from string) {
	for i := range pods {
		p := &pods[i]
		if !s.nameOnly {
			setDefaults(p)
		}
		// The API server knows a static pod by its mirror, which has a uid of its own; the groups have the one kubelet
		// gave it.
		if hash := p.Annotations[hashAnnotation]; hash != "" && s.hasPod(hash) {
			p.UID = types.UID(hash)
		}
	}
	s.Pods, s.PodsFrom = s.ofThisNode(pods), from
	for i := range s.Pods {
		p := &s.Pods[i]
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

// The annotations by which kubelet marks static pods.
const (
	hashAnnotation   = "kubernetes.io/config.hash"
	sourceAnnotation = "kubernetes.io/config.source"
)

// ofThisNode leaves out the pods of other nodes, of which a list of the whole cluster is full. Which node this is tell
// the pods that have a group here: its name there need not be the machine's.
func (s *Snapshot) ofThisNode(pods []corev1.Pod) []corev1.Pod {
	votes := map[string]int{}
	for i := range pods {
		if s.hasPod(string(pods[i].UID)) {
			votes[pods[i].Spec.NodeName]++
		}
	}
	here, most := s.nodeName(), 0
	for node, n := range votes {
		if node != "" && n > most {
			here, most = node, n
		}
	}
	return slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool {
		return p.Spec.NodeName != "" && p.Spec.NodeName != here && !s.hasPod(string(p.UID))
	})
}

// nodeName is what the node is called where nothing better is known.
func (s *Snapshot) nodeName() string {
	return cmp.Or(s.Machine.Node, strings.ToLower(s.Machine.Host))
}

// hasPod says whether a pod with this uid has a group here.
func (s *Snapshot) hasPod(uid string) bool {
	if s.uids == nil || s.uidsOf != len(s.Groups) {
		s.uids, s.uidsOf = map[string]bool{}, len(s.Groups)
		for p := range s.Groups {
			if found, ok := podOf(path.Base(p)); ok {
				s.uids[found] = true
			}
		}
	}
	return s.uids[uid]
}

// nameless says whether a pod or one of its containers has a group and no name.
func (s *Snapshot) nameless() bool {
	for p := range s.Groups {
		base := path.Base(p)
		if uid, ok := podOf(base); ok {
			if s.Names[uid].Name == "" {
				return true
			}
			continue
		}
		if uid, ok := podOf(path.Base(path.Dir(p))); ok {
			if _, known := s.Names[uid].Containers[containerID(base)]; !known {
				return true
			}
		}
	}
	return false
}

// unnamed are the ids of groups in pods' that have no name yet, and the pods' uids.
func (s *Snapshot) unnamed() map[string]string {
	out := map[string]string{}
	for p := range s.Groups {
		uid, ok := podOf(path.Base(path.Dir(p)))
		if !ok {
			continue
		}
		id := containerID(path.Base(p))
		if _, named := s.Names[uid].Containers[id]; !named {
			out[id] = uid
		}
	}
	return out
}

func (s *Snapshot) identity(uid string) Identity {
	id := s.Names[uid]
	if id.Containers == nil {
		id.Containers = map[string]string{}
	}
	return id
}

// parse decodes of pods what the snapshot needs of them.
func (s *Snapshot) parse(data []byte) ([]corev1.Pod, error) {
	if s.nameOnly && isJSON(data) {
		return parseNames(data)
	}
	return parsePods(data)
}

func isJSON(data []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) }

func parsePods(data []byte) ([]corev1.Pod, error) {
	var list corev1.PodList
	unmarshal, inJSON := json.Unmarshal, data
	// What the agent and kubectl say is JSON, and YAML's parser takes ten times as long.
	if !isJSON(data) {
		unmarshal = func(data []byte, v any) error { return yaml.Unmarshal(data, v) }
		var err error
		if inJSON, err = yaml.YAMLToJSON(data); err != nil {
			return nil, fmt.Errorf("decode pods: %w", err)
		}
	}
	if errs := quantity.CheckJSON(inJSON, &list); len(errs) > 0 {
		return nil, fmt.Errorf("decode pods: %w", errs.ToAggregate())
	}
	if err := unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("decode pods: %w", err)
	}
	if len(list.Items) == 0 && list.Kind == "Pod" {
		var p corev1.Pod
		if errs := quantity.CheckJSON(inJSON, &p); len(errs) > 0 {
			return nil, fmt.Errorf("decode pod: %w", errs.ToAggregate())
		}
		if err := unmarshal(data, &p); err != nil {
			return nil, fmt.Errorf("decode pod: %w", err)
		}
		return []corev1.Pod{p}, nil
	}
	return list.Items, nil
}

// podOf is the uid in the name of a pod's group. systemd reads dashes as levels, so its units have underscores in their
// place.
func podOf(group string) (uid string, ok bool) {
	name, unit := strings.CutSuffix(group, ".slice")
	if unit {
		_, uid, ok = strings.Cut(name, "-pod")
		return strings.ReplaceAll(uid, "_", "-"), ok && uid != ""
	}
	uid, ok = strings.CutPrefix(name, "pod")
	return uid, ok && uid != ""
}

// containerID is the ID in the name of a container's group: runtimes call a scope <runtime>-<id>.scope, and CRI-O any
// group crio-<id>.
func containerID(group string) string {
	id, scope := strings.CutSuffix(strings.TrimPrefix(group, "crio-"), ".scope")
	if i := strings.LastIndexByte(id, '-'); i >= 0 && scope {
		return id[i+1:]
	}
	return id
}
