package inspect

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
)

// Kind is what a group is for.
type Kind string

const (
	kindRoot      Kind = "node"
	kindClass     Kind = "class"
	kindPod       Kind = "pod"
	kindContainer Kind = "container"
	kindOther     Kind = "group"
)

// Node is a group with its place in the tree.
type Node struct {
	Path     string             `json:"path"`
	Kind     Kind               `json:"kind"`
	Class    corev1.PodQOSClass `json:"qosClass,omitempty"`
	UID      string             `json:"uid,omitempty"`
	ID       string             `json:"id,omitempty"` // of a container
	Title    string             `json:"name"`         // namespace/pod, container, class
	Usage    cgroups.Usage      `json:"usage"`
	Children []*Node            `json:"children,omitempty"`

	files Group
	pod   *corev1.Pod
	spec  *corev1.Container
	snap  *Snapshot
}

// forest are the trees of a snapshot.
type forest []*Node

// nodes builds the trees of a snapshot, one for each driver's top that is there.
func (s *Snapshot) nodes() forest {
	if s.built != nil {
		return s.built
	}
	kids := map[string][]string{}
	for p := range s.Groups {
		kids[path.Dir(p)] = append(kids[path.Dir(p)], p)
	}
	var out forest
	for _, top := range tops(s.Machine.Root) {
		if _, ok := s.Groups[top]; ok {
			out = append(out, s.node(top, nil, kids))
		}
	}
	s.built = out
	return out
}

func (s *Snapshot) node(p string, parent *Node, kids map[string][]string) *Node {
	n := &Node{Path: p, Usage: s.usage(p), files: s.Groups[p], snap: s}
	n.classify(parent)
	slices.Sort(kids[p])
	for _, c := range kids[p] {
		n.Children = append(n.Children, s.node(c, n, kids))
	}
	if s.Machine.Mode != cgroups.Unified {
		for _, c := range n.Children {
			n.Usage.Memory.OOMKills += c.Usage.Memory.OOMKills // v1's file counts each group alone
		}
	}
	return n
}

// classify reads the group's name. The systemd driver repeats the parents in it: kubepods-burstable-pod<uid with
// _>.slice.
func (n *Node) classify(parent *Node) {
	base := strings.TrimSuffix(path.Base(n.Path), ".slice")
	n.Title = path.Base(n.Path)
	switch {
	case parent == nil:
		n.Kind, n.Title, n.Class = kindRoot, "kubepods", corev1.PodQOSGuaranteed
	case parent.Kind == kindRoot || parent.Kind == kindClass:
		n.Class = parent.Class
		last := base[strings.LastIndexByte(base, '-')+1:]
		if i := strings.LastIndex(base, "-pod"); i >= 0 && strings.HasSuffix(n.Path, ".slice") {
			last = base[i+1:]
		} else if strings.HasPrefix(base, "pod") {
			last = base
		}
		switch uid, isPod := strings.CutPrefix(last, "pod"); {
		case last == "burstable" && parent.Kind == kindRoot:
			n.Kind, n.Class, n.Title = kindClass, corev1.PodQOSBurstable, "burstable"
		case last == "besteffort" && parent.Kind == kindRoot:
			n.Kind, n.Class, n.Title = kindClass, corev1.PodQOSBestEffort, "besteffort"
		case isPod && uid != "":
			n.Kind = kindPod
			n.setPod(uid)
		default:
			n.Kind = kindOther
		}
	case parent.Kind == kindPod && !kube.IsMonitor(base):
		n.Kind, n.Class, n.UID, n.pod = kindContainer, parent.Class, parent.UID, parent.pod
		n.setContainer()
	default:
		n.Kind, n.Class, n.UID, n.pod = kindOther, parent.Class, parent.UID, parent.pod
	}
}

func (n *Node) setPod(uid string) {
	if strings.HasSuffix(n.Path, ".slice") {
		uid = strings.ReplaceAll(uid, "_", "-") // systemd reads dashes as levels
	}
	n.UID, n.Title, n.pod = uid, uid, n.snap.pod(uid)
	if id, ok := n.snap.Names[uid]; ok && id.Name != "" {
		n.Title = id.Namespace + "/" + id.Name
	}
}

func (n *Node) setContainer() {
	n.ID = containerID(path.Base(n.Path))
	n.Title = shorten(n.ID)
	names := n.snap.Names[n.UID].Containers
	name, ok := names[n.ID]
	if !ok {
		return
	}
	n.Title = name
	if n.pod == nil {
		return
	}
	for _, list := range [][]corev1.Container{n.pod.Spec.InitContainers, n.pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				n.spec = &list[i]
			}
		}
	}
}

func shorten(id string) string {
	if len(id) > 13 {
		return id[:13]
	}
	return id
}

// each visits a node and all below, parents first.
func (n *Node) each(fn func(n *Node, depth int)) { n.visit(0, fn) }

func (n *Node) visit(depth int, fn func(*Node, int)) {
	fn(n, depth)
	for _, c := range n.Children {
		c.visit(depth+1, fn)
	}
}

// all lists every node of the trees.
func (f forest) all() []*Node {
	var out []*Node
	for _, top := range f {
		top.each(func(n *Node, _ int) { out = append(out, n) })
	}
	return out
}

// pids are the processes in the node and below.
func (n *Node) pids() []int {
	var out []int
	n.each(func(m *Node, _ int) { out = append(out, m.files.Pids...) })
	return out
}
