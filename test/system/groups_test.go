package system

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/systemd"
)

// driverNodes runs fn on a node with each cgroup driver that this machine has.
func driverNodes(t *testing.T, args []string, fn func(n *Node, driver string)) {
	for _, driver := range []string{"cgroupfs", "systemd"} {
		t.Run(driver, func(t *testing.T) {
			if _, err := os.Stat("/run/systemd/system"); driver == "systemd" && err != nil {
				t.Skip("needs systemd: its driver makes units")
			}
			n := newNode(t, args...)
			n.useDriver(driver)
			n.start()
			fn(n, driver)
		})
	}
}

// useDriver is called before the agent starts; what $BERTH_CGROUP_DRIVER names is every node's.
func (n *Node) useDriver(driver string) {
	n.driver = driver
	if driver == cgroups.DriverSystemd {
		n.CgroupRoot = systemd.SlicePath(n.CgroupRoot)
	}
}

// units lists the node's units.
func (n *Node) units() []string {
	if n.driver != cgroups.DriverSystemd {
		return nil
	}
	stem := strings.TrimSuffix(filepath.Base(n.CgroupRoot), ".slice")
	b, err := exec.Command("systemctl", "list-units", "--all", "--no-legend", "--plain", stem+".slice", stem+"-*").Output()
	if err != nil {
		n.t.Error(err)
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		out = append(out, "unit "+strings.TrimSpace(line))
	}
	return out
}

// containerGroup is the group of a pod's first container, by the kernel's word; the pod's is the one above.
func (n *Node) containerGroup(p *corev1.Pod) string {
	n.t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range files {
		b, err := os.ReadFile(file)
		id := p.Status.ContainerStatuses[0].ContainerID
		id = id[strings.LastIndexByte(id, '/')+1:]
		if err != nil || !strings.Contains(string(b), id) {
			continue
		}
		for line := range strings.Lines(string(b)) {
			parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if strings.Contains(parts[2], id) && (parts[1] == "" || strings.Contains(parts[1], "memory")) {
				return parts[2]
			}
		}
	}
	n.t.Fatalf("no process of pod %s", p.Name)
	return ""
}

// groupValue is one of a group's files and what it has to be, by the version of the interface; "" is not asked for.
type groupValue struct {
	controller, v1, want1, v2, want2 string
}

// at is the file in a group, and what it has to be.
func (v groupValue) at(group string) (file, want string) {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return "/sys/fs/cgroup" + group + "/" + v.v2, v.want2
	}
	return "/sys/fs/cgroup/" + v.controller + group + "/" + v.v1, v.want1
}

func (v groupValue) check(group string) error {
	file, want := v.at(group)
	if want == "" {
		return nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if got := strings.Join(strings.Fields(string(b)), " "); got != want {
		return fmt.Errorf("%s is %q, want %q", file, got, want)
	}
	return nil
}

// waitValues waits until a group has values that others than its own pods' workers give it.
func (n *Node) waitValues(what, group string, values []groupValue) {
	n.t.Helper()
	n.eventually(what+" to have its values", func() error {
		for _, v := range values {
			if err := v.check(group); err != nil {
				return err
			}
		}
		return nil
	})
}

func (n *Node) requireValues(what, group string, values []groupValue) {
	n.t.Helper()
	for _, v := range values {
		if err := v.check(group); err != nil {
			n.t.Errorf("%s: %v", what, err)
		}
	}
}

func sharesOf(shares, weight string) groupValue {
	return groupValue{"cpu", "cpu.shares", shares, "cpu.weight", weight}
}

func quotaOf(v1, v2 string) groupValue {
	return groupValue{"cpu", "cpu.cfs_quota_us", v1, "cpu.max", v2}
}

func limitOf(v string) groupValue {
	return groupValue{"memory", "memory.limit_in_bytes", v, "memory.max", v}
}

const sleeper = "containers: [{name: c, image: " + image + ", command: [sleep, '1000'], resources: %s}]"

// Every class of pods, and every setting that a field, an annotation or a flag leads to, is read back from the kernel's
// files.
func TestGroups(t *testing.T) {
	t.Parallel()
	args := []string{
		"--pod-max-pids=321", "--cpu-cfs-quota-period=50ms", "--memory-qos", "--oom-group=none",
		"--system-reserved=memory=100Mi,pid=100", "--kube-reserved=memory=28Mi", "--max-pods=3", "--qos-reserved=memory=50%",
	}
	driverNodes(t, args, func(n *Node, driver string) {
		for _, tt := range []struct {
			name, resources, annotations string
			class                        []string // what the path has, by driver
			pod, container               []groupValue
			score                        string
		}{
			{
				name: "guaranteed", resources: "{limits: {cpu: 500m, memory: 64Mi}}",
				class: []string{"/kubepods/pod", "kubepods.slice/"},
				pod: []groupValue{
					sharesOf("512", "50"), quotaOf("25000", "25000 50000"), limitOf("67108864"),
					{"pids", "pids.max", "321", "pids.max", "321"},
					{v2: "memory.min", want2: "67108864"},
				},
				container: []groupValue{
					sharesOf("512", "50"), quotaOf("25000", "25000 50000"), limitOf("67108864"),
					{v2: "memory.min", want2: "67108864"},
					{v2: "memory.high", want2: "max"},
					{"memory", "memory.memsw.limit_in_bytes", "67108864", "memory.swap.max", "0"},
					{v2: "memory.oom.group", want2: "0"},
				},
				score: "-997",
			},
			{
				name: "burstable", resources: "{requests: {cpu: 250m, memory: 32Mi}, limits: {cpu: 1500m, memory: 64Mi}}",
				annotations: "berth.node/cpu-burst: 20ms, berth.node/oom-group: container, berth.node/io-weight: '250'",
				class:       []string{"/kubepods/burstable/pod", "kubepods-burstable.slice/"},
				pod: []groupValue{
					sharesOf("256", "25"), quotaOf("75000", "75000 50000"), limitOf("67108864"),
					{"cpu", "cpu.cfs_burst_us", "20000", "cpu.max.burst", "20000"},
					{v2: "io.weight", want2: "default 250"},
				},
				container: []groupValue{
					sharesOf("256", "25"), quotaOf("75000", "75000 50000"), limitOf("67108864"),
					{"cpu", "cpu.cfs_burst_us", "20000", "cpu.max.burst", "20000"},
					{v2: "memory.high", want2: "63750144"},
					{v2: "memory.oom.group", want2: "1"},
				},
			},
			{
				name: "besteffort", resources: "{}", annotations: "berth.node/oom-group: pod",
				class:     []string{"/kubepods/besteffort/pod", "kubepods-besteffort.slice/"},
				pod:       []groupValue{sharesOf("2", "1"), quotaOf("-1", "max 100000"), {v2: "memory.oom.group", want2: "1"}},
				container: []groupValue{sharesOf("2", "1"), quotaOf("-1", "max 100000"), {v2: "memory.swap.max", want2: "0"}},
				score:     "1000",
			},
		} {
			n.apply(tt.name+".yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: "+tt.name+", annotations: "+
				"{"+tt.annotations+"}}\nspec:\n  terminationGracePeriodSeconds: 0\n  "+fmt.Sprintf(sleeper, tt.resources)+"\n")
			p := n.waitReady(tt.name)
			group := n.containerGroup(p)
			if want := tt.class[map[string]int{"cgroupfs": 0, "systemd": 1}[driver]]; !strings.Contains(group, want) {
				n.t.Errorf("%s is in %s", tt.name, group)
			}
			if driver == "systemd" && !strings.Contains(group, "/cri-berth-") {
				n.t.Errorf("%s is in no scope: %s", tt.name, group)
			}
			n.requireValues(tt.name, filepath.Dir(group), tt.pod)
			n.requireValues(tt.name+"'s container", group, tt.container)
			if score := n.sh(tt.name, "cat /proc/1/oom_score_adj"); tt.score != "" && strings.TrimSpace(score) != tt.score {
				// Without CAP_SYS_RESOURCE it is as low as the agent's.
				if own, _ := os.ReadFile("/proc/self/oom_score_adj"); strings.TrimSpace(score) != strings.TrimSpace(string(own)) {
					n.t.Errorf("%s has oom_score_adj %s, want %s", tt.name, score, tt.score)
				}
			}
		}
		n.requireClasses()
		n.requireDrift()
		n.apply("more.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: more}\nspec:\n  "+fmt.Sprintf(sleeper, "{}")+"\n")
		n.wait("more", "to find no room", func(p *corev1.Pod) bool {
			return p != nil && p.Status.Reason == "OutOfpods" &&
				strings.HasPrefix(p.Status.Message, "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3")
		})
		n.remove("more.yaml")
		// Neither does a refused pod count in its class, nor does the keeper count in its pod.
		n.apply("more.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: more}\nspec:\n  "+fmt.Sprintf(sleeper,
			"{requests: {cpu: 500m, memory: 64Mi}}")+"\n")
		n.wait("more", "to find no room again",
			func(p *corev1.Pod) bool { return p != nil && p.Status.Reason == "OutOfpods" })
		n.requireClasses()
		n.remove("more.yaml")
		n.requireKeeperShares("burstable")
		n.remove("besteffort.yaml")
		n.waitGone("besteffort")
		n.apply("huge.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: huge}\nspec:\n  "+fmt.Sprintf(sleeper,
			"{requests: {cpu: '1000'}}")+"\n")
		n.wait("huge", "to be refused", func(p *corev1.Pod) bool {
			return p != nil && p.Status.Phase == corev1.PodFailed && p.Status.Reason == "OutOfcpu" &&
				strings.Contains(p.Status.Message, "requested: 1000000, used: ")
		})
		n.requireClasses()
		// Without the setting its limits go with the next start.
		burstable := filepath.Dir(filepath.Dir(n.containerGroup(n.pod("burstable"))))
		n.stop()
		n.args = slices.DeleteFunc(slices.Clone(n.args),
			func(a string) bool { return strings.HasPrefix(a, "--qos-reserved") })
		n.start()
		n.waitValues("burstable without --qos-reserved", burstable,
			[]groupValue{{"memory", "memory.limit_in_bytes", "9223372036854771712", "memory.max", "max"}})
	})
}

// requireKeeperShares reads back that beside its containers a pod's keeper has the least share there is.
func (n *Node) requireKeeperShares(name string) {
	n.t.Helper()
	container := n.containerGroup(n.pod(name))
	var groups []string
	for _, dir := range []string{"/sys/fs/cgroup/cpu", "/sys/fs/cgroup"} {
		entries, err := os.ReadDir(dir + filepath.Dir(container))
		if err != nil {
			continue
		}
		for _, e := range entries {
			if e.IsDir() && e.Name() != filepath.Base(container) {
				groups = append(groups, filepath.Dir(container)+"/"+e.Name())
			}
		}
		break
	}
	if len(groups) != 1 {
		n.t.Fatalf("beside its container pod %s has the groups %v, want the keeper's", name, groups)
	}
	n.eventually("the keeper to have the least share", func() error {
		if got := groupFile("cpu", groups[0], "cpu.shares", "cpu.weight"); got != "2" && got != "1" {
			return fmt.Errorf("it has %q", got)
		}
		return nil
	})
}

// requireClasses reads back what the pods together have: the node's memory less what is reserved, and the Burstable
// class's share.
func (n *Node) requireClasses() {
	n.t.Helper()
	burstable := filepath.Dir(filepath.Dir(n.containerGroup(n.pod("burstable"))))
	n.eventually("the Burstable class to have its pods' share", func() error {
		got := groupFile("cpu", burstable, "cpu.shares", "cpu.weight")
		if got != "256" && got != "25" {
			return fmt.Errorf("it has %q", got)
		}
		return nil
	})
	all := filepath.Dir(burstable)
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		n.t.Fatal(err)
	}
	var kib int64
	if _, err := fmt.Sscanf(string(b), "MemTotal: %d kB", &kib); err != nil {
		n.t.Fatal(err)
	}
	limit := (kib<<10 - 128<<20) / 4096 * 4096
	n.requireValues("kubepods", all, []groupValue{limitOf(fmt.Sprint(limit))})
	n.waitValues("burstable", burstable,
		[]groupValue{limitOf(fmt.Sprint((limit - 32<<20) / 4096 * 4096)), {v2: "memory.min", want2: fmt.Sprint(32 << 20)}})
}

// requireDrift changes values behind the agent's back, which tells of it and corrects them.
func (n *Node) requireDrift() {
	n.t.Helper()
	group := n.containerGroup(n.pod("guaranteed"))
	all := filepath.Dir(filepath.Dir(group))
	burstable, besteffort := filepath.Dir(filepath.Dir(n.containerGroup(n.pod("burstable")))), filepath.Dir(filepath.Dir(n.containerGroup(n.pod("besteffort"))))
	tasks, memory := groupFile("pids", all, "pids.max", "pids.max"), groupFile("memory", all, "memory.limit_in_bytes",
		"memory.max")
	for _, v := range []struct {
		group string
		groupValue
		bad string
	}{
		{filepath.Dir(group), sharesOf("512", "50"), "77"},
		{filepath.Dir(group), limitOf("67108864"), "99999744"},
		{group, sharesOf("512", "50"), "78"},
		{group, limitOf("67108864"), "33554432"},
		{group, groupValue{"cpu", "cpu.cfs_quota_us", "25000", "cpu.max", "25000 50000"}, "20000"},
		{burstable, sharesOf("256", "25"), "79"},
		{besteffort, sharesOf("2", "1"), "80"},
		{all, groupValue{"pids", "pids.max", tasks, "pids.max", tasks}, "9999"},
		{all, limitOf(memory), "4294967296"},
	} {
		file, _ := v.at(v.group)
		if err := os.WriteFile(file, []byte(v.bad), 0); err != nil {
			n.t.Fatal(err)
		}
		n.eventually(file+" to be told of and corrected", func() error {
			events := n.must("events")
			if !strings.Contains(events, "Group "+v.group+": ") || !strings.Contains(events, filepath.Base(file)+" is "+v.bad) ||
				!strings.Contains(events, "; corrected") {
				return fmt.Errorf("events:\n%s", events)
			}
			return v.check(v.group)
		})
	}
}

// What a crash has left of a pod's group goes when the next agent has read the manifests, and nobody else's does.
func TestOrphanGroups(t *testing.T) {
	t.Parallel()
	driverNodes(t, nil, func(n *Node, driver string) {
		n.apply("a.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  terminationGracePeriodSeconds: 0\n  "+
			""+fmt.Sprintf(sleeper, "{}")+"\n")
		class := filepath.Dir(filepath.Dir(n.containerGroup(n.waitReady("a"))))
		n.kill()
		orphan, stranger := class+"/pod11111111-2222-4333-8444-555555555555", class+"/somebody"
		if driver == "systemd" {
			orphan = class + "/" + strings.TrimSuffix(filepath.Base(class), ".slice") +
				"-pod11111111_2222_4333_8444_555555555555.slice"
			if out, err := exec.Command("systemctl", "start", filepath.Base(orphan)).CombinedOutput(); err != nil {
				n.t.Fatalf("%v: %s", err, out)
			}
		}
		mount := "/sys/fs/cgroup"
		if _, err := os.Stat(mount + "/cgroup.controllers"); err != nil {
			mount += "/memory"
		}
		for _, dir := range []string{mount + orphan, mount + stranger} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				n.t.Fatal(err)
			}
		}
		n.start()
		n.eventually("the orphan to be gone", func() error {
			if _, err := os.Stat(mount + orphan); err == nil {
				return fmt.Errorf("%s is there", orphan)
			}
			return nil
		})
		if err := os.Remove(mount + stranger); err != nil {
			n.t.Errorf("somebody else's group: %v", err)
		}
		n.waitReady("a")
	})
}
