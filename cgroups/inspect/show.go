package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
)

// ErrNotFound says that no pod or container goes by that name.
var ErrNotFound = errors.New("not found")

// Value is one setting with its whole way: what the spec says, what it computes to, the file, what is found there.
type Value struct {
	Group    string `json:"group"`
	Path     string `json:"path"`
	Field    string `json:"field,omitempty"`
	Computed string `json:"computed,omitempty"`
	File     string `json:"file"`
	Want     string `json:"want,omitempty"`
	Found    string `json:"found"`
	Differs  bool   `json:"differs,omitempty"`
}

// lookup finds a pod by name, namespace/name or uid (or the beginning of one), and in it a container.
func (f forest) lookup(what string) (*Node, error) {
	name, container := what, ""
	var pods []*Node
	match := func(name string) {
		for _, n := range f.all() {
			if n.Kind != kindPod {
				continue
			}
			namespace, short, _ := strings.Cut(n.Title, "/")
			// A static pod's name ends in that of its node, which people leave out.
			nick := strings.TrimSuffix(short, "-"+n.snap.nodeName()) // where the pod itself does not say
			if n.pod != nil && n.pod.Spec.NodeName != "" {
				nick = strings.TrimSuffix(short, "-"+n.pod.Spec.NodeName)
			}
			if n.Title == name || short == name || nick == name || namespace+"/"+nick == name || n.UID == name || len(name) >= 8 && strings.HasPrefix(n.UID, name) {
				pods = append(pods, n)
			}
		}
	}
	match(name)
	if i := strings.LastIndexByte(what, '/'); len(pods) == 0 && i > 0 {
		name, container = what[:i], what[i+1:]
		match(name)
	}
	if class := f.class(what); len(pods) == 0 && class != nil {
		return class, nil
	}
	switch {
	case len(pods) == 0:
		return nil, fmt.Errorf("pod %s: %w", what, ErrNotFound)
	case len(pods) > 1:
		var all []string
		for _, p := range pods {
			all = append(all, visible(p.Title+" ("+p.UID+")"))
		}
		return nil, fmt.Errorf("pod %s: several match: %s", name, strings.Join(all, ", "))
	case container == "":
		return pods[0], nil
	}
	// An id may begin as another container is named.
	for _, is := range []func(*Node) bool{
		func(c *Node) bool { return c.Title == container },
		func(c *Node) bool { return strings.HasPrefix(c.ID, container) },
	} {
		if i := slices.IndexFunc(pods[0].Children, is); i >= 0 {
			return pods[0].Children[i], nil
		}
	}
	return nil, fmt.Errorf("container %s in pod %s: %w", container, visible(pods[0].Title), ErrNotFound)
}

// class is the group of a QoS class, or of all pods, by the name that the tree has for it.
func (f forest) class(name string) *Node {
	for _, n := range f.all() {
		if (n.Kind == kindClass || n.Kind == kindRoot) && n.Title == name {
			return n
		}
	}
	return nil
}

// narrow leaves the groups of what was asked for, and what they are in.
func (s *Snapshot) narrow(what string) error {
	n, err := s.nodes().lookup(what)
	if err != nil {
		return err
	}
	groups := map[string]Group{}
	for p, g := range s.Groups {
		if n.UID != "" && below(p, n.Path) || below(n.Path, p) { // those above may limit it
			groups[p] = g
		}
	}
	s.Groups = groups
	return nil
}

// values are the settings of a group and, for a pod, of its containers.
func (n *Node) values(o kube.Options) []Value {
	m := n.snap.Machine.Mode
	o.NoCPUQuota = o.NoCPUQuota || n.exclusive()
	var out []Value
	told := map[string]bool{}
	for _, s := range n.wanted(o) {
		s = s.Under(func(file string) bool { return n.files.setting(file) != "" })
		found := n.files.setting(s.File)
		told[s.File] = true
		out = append(out, Value{n.Title, n.Path, s.Field, s.Computed, s.File, s.Want, found, !s.Matches(found)})
	}
	if v, ok := n.oomValue(); ok {
		out = append(out, v)
	}
	for _, f := range settingFiles(m) {
		if v := n.files.setting(f); v != "" && !told[f] {
			out = append(out, Value{Group: n.Title, Path: n.Path, File: f, Found: v})
		}
	}
	if n.Kind == kindPod {
		for _, c := range n.Children {
			out = append(out, c.values(o)...)
		}
	}
	return out
}

// wanted is what should be in the group's files.
func (n *Node) wanted(o kube.Options) []kube.Setting {
	m := n.snap.Machine.Mode
	switch {
	case n.Kind == kindPod && n.pod != nil:
		return n.pinned(kube.PodSettings(m, n.pod, o))
	case n.Kind == kindContainer && n.spec != nil:
		return n.pinned(kube.ContainerSettings(m, n.pod, n.spec, o))
	case n.Kind == kindClass && n.snap.PodsFrom != "" && !n.snap.Partial:
		return kube.ClassSettings(m, n.Class, n.snap.taken(), o)
	}
	return nil
}

// oomFile is where the kernel keeps of each process how much likelier it is to be killed, in thousandths of the
// machine's memory.
const oomFile = "oom_score_adj"

// oomValue is what the processes of a container have, from the one that most have down. Without processes there is
// none.
func (n *Node) oomValue() (Value, bool) {
	count := map[int]int{}
	for _, pid := range n.pids() {
		if p, ok := n.snap.Processes[pid]; ok {
			count[p.OOMScoreAdj]++
		}
	}
	if n.Kind != kindContainer || len(count) == 0 {
		return Value{}, false
	}
	adjs := slices.SortedFunc(maps.Keys(count), func(a, b int) int { return cmp.Or(count[b]-count[a], a-b) })
	v := Value{Group: n.Title, Path: n.Path, File: oomFile, Found: strings.Trim(fmt.Sprint(adjs), "[]")}
	if n.spec == nil || n.snap.Machine.Memory <= 0 {
		return v, true
	}
	want := kube.OOMScoreAdj(n.pod, n.spec, n.snap.hostMemory())
	v.Field, v.Computed, v.Want = oomOrigin(n, want)
	// A process may make itself likelier to be killed, and what may make itself less likely is privileged: one that has
	// it is enough.
	v.Differs = count[want] == 0
	return v, true
}

// oomOrigin is where a container's oom_score_adj comes from: field, arithmetic, value.
func oomOrigin(c *Node, want int) (field, computed, value string) {
	value = strconv.Itoa(want)
	class := kube.QoS(c.pod)
	if class != corev1.PodQOSBurstable || want < 0 {
		if class != corev1.PodQOSGuaranteed && want < 0 {
			return "priority of the pod", "critical for the node", value
		}
		return "class of the pod", "that of every " + string(class) + " pod", value
	}
	request := c.spec.Resources.Requests.Memory()
	computed = fmt.Sprintf("1000 - 1000 * %s / %s of the node, kept within 3..999", b(uint64(max(request.Value(), 0))), b(uint64(c.snap.hostMemory())))
	if plain := 1000 - 1000*request.Value()/c.snap.hostMemory(); int64(want) != min(max(plain, 3), 999) {
		why := "with its part of what the pod requests beside its containers"
		if slices.ContainsFunc(c.pod.Spec.InitContainers, func(ic corev1.Container) bool { return ic.Name == c.spec.Name }) {
			why = "no more than that of the containers it serves"
		}
		computed += "; " + why + ": " + value
	}
	return name("requests.memory", request), computed, value
}

func name(field string, q *resource.Quantity) string {
	if q.IsZero() {
		return "no " + field
	}
	return field + "=" + q.String()
}

// hostMemory is the memory by which the agent shares things out.
func (s *Snapshot) hostMemory() int64 { return cmp.Or(s.Machine.Options.HostMemory, s.Machine.Memory) }

// setting is the value of a file that may be on the v2 side of a hybrid machine.
func (g Group) setting(file string) string {
	if v := g.file(file); v != "" {
		return oneLine(v)
	}
	return oneLine(g.file("unified/" + file))
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// settingFiles are the files that hold settings, not figures.
func settingFiles(m cgroups.Mode) []string {
	if m == cgroups.Unified {
		return []string{
			"cpu.weight", "cpu.max", "cpu.max.burst", "cpu.idle", "cpuset.cpus", "cpuset.cpus.effective", "cpuset.mems", "cpuset.mems.effective",
			"memory.min", "memory.low", "memory.high", "memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "io.weight", "io.max",
			"hugetlb.2MB.max", "hugetlb.1GB.max", "cgroup.freeze", "cgroup.subtree_control",
		}
	}
	return []string{
		"cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us", "cpu.idle", "cpuset.cpus", "cpuset.effective_cpus", "cpuset.mems",
		"cpuset.effective_mems", "memory.limit_in_bytes", "memory.soft_limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.swappiness",
		"pids.max", "blkio.bfq.weight", "hugetlb.2MB.limit_in_bytes", "hugetlb.1GB.limit_in_bytes", "hugetlb.2MB.max", "freezer.state",
	}
}

func printValues(w io.Writer, n *Node, values []Value) error {
	switch {
	case n.UID == "":
		fmt.Fprintf(w, "%s %s\n", n.Kind, visible(n.Title))
	default:
		fmt.Fprintf(w, "%s %s, %s, uid %s\n", n.Kind, visible(n.Title), n.Class, visible(n.UID))
	}
	if n.pod == nil && n.UID != "" {
		fmt.Fprintln(w, "its specification is not known (no agent answers; --pods FILE gives one), so values are shown without their origin")
	}
	for _, t := range n.tightest() {
		if !t.Own {
			fmt.Fprintf(w, "limited to %s\n", visible(t.String()))
		}
	}
	group := ""
	var rows [][]string
	flush := func() error {
		if len(rows) == 0 {
			return nil
		}
		err := printTable(w, rows)
		rows = nil
		return err
	}
	for _, v := range values {
		if v.Path != group {
			if err := flush(); err != nil {
				return err
			}
			group = v.Path
			fmt.Fprintf(w, "\n%s  %s\n", visible(v.Group), visible(v.Path))
			rows = [][]string{{"  FILE", "FOUND", "WANTED", "FROM", "COMPUTED"}}
		}
		mark := "  "
		if v.Differs {
			mark = "! "
		}
		rows = append(rows, []string{mark + v.File, human(v.File, v.Found), human(v.File, v.Want), v.Field, v.Computed})
	}
	return flush()
}

// human adds the readable form of large byte counts.
func human(file, v string) string {
	s := kube.Setting{File: file, Want: "max"}
	switch {
	case v == "":
		return ""
	case strings.HasPrefix(file, "memory.") && s.Matches(v):
		return "max"
	case strings.HasPrefix(file, "memory.") || strings.HasPrefix(file, "hugetlb."):
		var n float64
		if _, err := fmt.Sscanf(v, "%g", &n); err == nil && n >= 1024 {
			return v + " (" + bytesText(n) + ")"
		}
	}
	return v
}

func (a *app) showCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show POD[/CONTAINER]", Short: "Every setting and where it comes from", Args: cobra.ExactArgs(1),
		Long: "Shows of a pod, of one of its containers, or of a class (kubepods, burstable, besteffort) every setting: the file, what is in it,\n" +
			"what should be, the field that it comes from and the arithmetic. ! marks what differs. POD is a name, namespace/name, a uid or\n" +
			"the beginning of one.",
		RunE: func(cmd *cobra.Command, args []string) error {
			a.need = settingsNeed()
			a.need.processes, a.need.of = true, func(s *Snapshot) (bool, error) { return false, s.narrow(args[0]) }
			s, err := a.snapshot(cmd)
			if err != nil {
				return err
			}
			n, err := s.nodes().lookup(args[0])
			if err != nil {
				return err
			}
			values := n.values(s.Machine.Options)
			v := struct {
				schema
				Tightest []Tightest `json:"tightestLimits"`
				Values   []Value    `json:"values"`
			}{thisSchema, list(n.tightest()), list(values)}
			return a.print(cmd, v, func(w io.Writer) error { return printValues(w, n, values) })
		},
	}
}
