package agent

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/api"
	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/event"
	"github.com/berth-node/berth/agent/source"
	"github.com/berth-node/berth/agent/source/url"
)

// The reasons of events about manifests.
const (
	manifestRefused = "ManifestRefused"
	manifestFlawed  = "ManifestFlawed"
	manifestInOrder = "ManifestInOrder"
)

// manifests are what pods are asked for by, and what is wrong with it.
type manifests struct {
	source *source.Source
	files  files
	dir    string // what is wrong with the directory itself has its name
	node   string
	pods   func() []*corev1.Pod
	events *event.Recorder
}

// openManifests opens what reads them. Nothing is read before the source runs.
func openManifests(c *Config, pods func() []*corev1.Pod, events *event.Recorder) (*manifests, error) {
	m := &manifests{
		files: files{of: map[types.NamespacedName]string{}},
		dir:   c.ManifestDir, node: c.NodeName, pods: pods, events: events,
	}
	headers, err := url.ParseHeaders(c.ManifestHeaders)
	if err != nil {
		return nil, fmt.Errorf("--manifest-url-header: %w", err)
	}
	m.source = source.New(source.Config{
		URL: c.ManifestURL, Header: headers,
		Dir: c.ManifestDir, NodeName: c.NodeName, StateDir: config.KeptManifests(c.RootDir), Log: c.Log,
		Credentials: os.Getenv("CREDENTIALS_DIRECTORY"), Report: m.report,
	})
	return m, nil
}

// problems are what is wrong with manifests now.
func (m *manifests) problems() []api.Problem {
	var out []api.Problem
	for _, p := range m.source.Problems() {
		out = append(out, api.Problem{
			File: p.File, Pod: p.Pod, Errors: p.Errors, Warnings: p.Warnings, Kept: p.Kept,
			Node: m.node, UID: refusedUID(p), Directory: p.File == m.dir,
		})
	}
	return out
}

// refusedUID is what events have for the UID of a pod that a manifest asks for and that there is none of, "" where it
// names none.
func refusedUID(p source.Problem) types.UID {
	if _, _, ok := splitPod(p.Pod); !ok {
		return ""
	}
	return types.UID(p.File + "#" + p.Pod)
}

// splitPod takes namespace/name apart. What has a kind before it is no pod.
func splitPod(pod string) (ns, name string, ok bool) {
	ns, name, ok = strings.Cut(pod, "/")
	return ns, name, ok && !strings.Contains(ns, " ")
}

// report makes events of what is wrong with a manifest: of the pods that run on without the change, else of the pod
// that does not run, else of the node.
func (m *manifests) report(p source.Problem) {
	typ, reason := corev1.EventTypeWarning, manifestRefused
	message := p.File + ": " + strings.Join(slices.Concat(p.Errors, p.Warnings), "; ")
	switch {
	case len(p.Errors)+len(p.Warnings) == 0:
		typ, reason, message = corev1.EventTypeNormal, manifestInOrder, p.File+": nothing is wrong with it any more"
	case len(p.Errors) == 0:
		reason = manifestFlawed
	case len(p.Kept) > 0:
		message += "; what runs stays as the file had it before"
	}
	of := p.Kept
	if len(of) == 0 && refusedUID(p) != "" {
		of = []string{p.Pod}
	}
	if len(of) == 0 {
		if _, named, ok := strings.Cut(p.Pod, " "); ok && named != "" {
			message = p.Pod + ": " + message
		}
		m.events.Node(typ, reason, "%s", message)
		return
	}
	running := m.pods()
	for _, key := range of {
		ns, name, _ := splitPod(key)
		about := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: ns, Name: name, UID: refusedUID(source.Problem{File: p.File, Pod: key}),
		}}
		// An event of a file that another's pod has taken the name from is not that pod's.
		known := func(r *corev1.Pod) bool {
			return r.Namespace == ns && r.Name == name &&
				(len(p.Kept) > 0 || m.files.get(types.NamespacedName{Namespace: ns, Name: name}) == p.File)
		}
		if i := slices.IndexFunc(running, known); i >= 0 {
			about = running[i]
		}
		m.events.Event(about, typ, reason, "%s", message)
	}
}

// files knows which manifest asks for a pod.
type files struct {
	mu sync.Mutex
	of map[types.NamespacedName]string
}

func (f *files) set(u desired.Update) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if u.Pod == nil {
		delete(f.of, u.Key)
		return
	}
	f.of[u.Key] = u.File
}

func (f *files) get(key types.NamespacedName) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.of[key]
}
