package inspect

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

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
	unnamed := s.unnamed()
	for _, f := range files {
		if _, ours := unnamed[filepath.Base(filepath.Dir(f))]; !ours {
			continue
		}
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
	entries, _ := os.ReadDir(filepath.Join(l.RunDir, "sandboxes"))
	unnamed := s.unnamed()
	for _, e := range entries {
		if uid, ok := unnamed[e.Name()]; ok {
			id := s.identity(uid)
			id.Containers[e.Name()] = sandboxName
			s.Names[uid] = id
		}
	}
}

// fromManifests reads the manifests of a kubelet's static pods. What runs of them is known by name: a static pod is
// called after its node, too. They are not all pods of the node, so that nothing follows from what is not among them.
func (l Live) fromManifests(s *Snapshot) {
	files, _ := filepath.Glob(filepath.Join(l.Manifests, "*"))
	var pods []corev1.Pod
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil || strings.HasPrefix(filepath.Base(f), ".") {
			continue // kubelet passes over the same ones
		}
		list, err := parsePods(data)
		if err != nil {
			continue // other files may be there, and kubelet tells of those that are wrong
		}
		for _, p := range list {
			if uid := s.uidOfStatic(&p); uid != "" {
				p.UID = uid
				pods = append(pods, p)
			}
		}
	}
	if len(pods) > 0 {
		s.use(pods, l.Manifests)
		s.Partial = true
	}
}

// uidOfStatic finds the pod that a manifest was made into.
func (s *Snapshot) uidOfStatic(p *corev1.Pod) types.UID {
	if p.Namespace == "" {
		p.Namespace = corev1.NamespaceDefault
	}
	for uid, id := range s.Names {
		node, ok := strings.CutPrefix(id.Name, p.Name+"-")
		if ok && id.Namespace == p.Namespace && (id.Static || node == s.nodeName()) && s.hasPod(uid) {
			p.Name = id.Name
			return types.UID(uid)
		}
	}
	return ""
}
