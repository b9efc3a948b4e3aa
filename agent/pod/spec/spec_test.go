package spec

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/cgroups/kube"
)

func TestExpand(t *testing.T) {
	vars := map[string]string{"A": "a", "EMPTY": "", "REF": "$(A)"}
	for in, want := range map[string]string{
		"":                 "",
		"plain":            "plain",
		"$(A)":             "a",
		"x$(A)y$(A)z":      "xayaz",
		"$(EMPTY)":         "",
		"$(NONE)":          "$(NONE)",
		"$$(A)":            "$(A)",
		"$$$(A)":           "$a",
		"$$$$(A)":          "$$(A)",
		"$$":               "$",
		"$":                "$",
		"a$":               "a$",
		"$A":               "$A",
		"$(":               "$(",
		"$(A":              "$(A",
		"$(A$(A)":          "$(A$(A)",
		"$()":              "$()",
		"$(REF)":           "$(A)", // what is filled in is not looked at again
		"100$ for $(A)":    "100$ for a",
		"$(NONE)$(A)$$(A)": "$(NONE)a$(A)",
	} {
		got, err := expand(in, func(n string) (string, bool) { v, ok := vars[n]; return v, ok })
		if got != want || err != nil {
			t.Errorf("%q becomes %q, %v; want %q", in, got, err, want)
		}
	}
}

// TestExpandBomb has each variable refer to the one before ten times.
func TestExpandBomb(t *testing.T) {
	c := corev1.Container{Env: []corev1.EnvVar{{Name: "V0", Value: "ten bytes."}}}
	for i := range 12 {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("V%d", i+1), Value: strings.Repeat(fmt.Sprintf("$(V%d)", i), 10)})
	}
	if _, err := env(&Input{Objects: new(object.Store), Pod: &corev1.Pod{}, Container: &c}); err == nil || !strings.Contains(err.Error(), "environment variable V5: with its references it has more than") {
		t.Errorf("%v", err)
	}
	c.Env = c.Env[:5] // the last one has 100 kB
	for i := range 100 {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("W%d", i), Value: "$(V4)"})
	}
	if _, err := env(&Input{Objects: new(object.Store), Pod: &corev1.Pod{}, Container: &c}); !errors.Is(err, errTooMuch) {
		t.Errorf("%v", err)
	}
	long := func(string) (string, bool) { return strings.Repeat("x", maxString-1), true }
	if _, err := expandAll(slices.Repeat([]string{"$(X)"}, 100), long); !errors.Is(err, errTooMuch) {
		t.Errorf("%v", err)
	}
}

func FuzzExpand(f *testing.F) {
	f.Add("$(A)$$(A)$($(")
	f.Fuzz(func(t *testing.T, s string) {
		// With nothing known only $$ changes, and a text without it not at all.
		got, err := expand(s, func(string) (string, bool) { return "", false })
		if err != nil {
			return
		}
		if len(got) > len(s) || !strings.Contains(s, "$$") && got != s {
			t.Errorf("%q becomes %q", s, got)
		}
	})
}

func FuzzParseResolvConf(f *testing.F) {
	f.Add([]byte("nameserver 1.1.1.1\nsearch a b.\noptions ndots:5\n# x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := ParseResolvConf(data)
		for _, s := range slices.Concat(r.Servers, r.Options) {
			if s == "" || strings.ContainsAny(s, " \t\n") {
				t.Errorf("%q", s)
			}
		}
		r.OnlyLoopback()
	})
}

func testPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "web", UID: "uid-1", Labels: map[string]string{"app": "x"}, Annotations: map[string]string{"note": "y"},
		},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(12)),
			Containers: []corev1.Container{{
				Name: "main", Image: "img:1", TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile,
			}},
		},
	}
}

func testNode() *Node {
	return &Node{
		Name: "node-1", IPs: []string{"192.0.2.1", "2001:db8::1"}, Memory: 16 << 30, LogDir: "/logs", SeccompDir: "/seccomp", ClusterDomain: "cluster.local",
		Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("16Gi")},
	}
}

func testInput(change ...func(*corev1.Pod)) Input {
	pod := testPod()
	for _, f := range change {
		f(pod)
	}
	return Input{Pod: pod, Container: &pod.Spec.Containers[0], Node: testNode(), Image: Image{ID: "sha256:1"}, PodIPs: []string{"10.0.0.2", "fd00::2"}, Objects: new(object.Store)}
}

func field(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

func resourceOf(name, res, divisor string) corev1.EnvVar {
	s := &corev1.ResourceFieldSelector{Resource: res}
	if divisor != "" {
		s.Divisor = resource.MustParse(divisor)
	}
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: s}}
}

func TestEnv(t *testing.T) {
	in := testInput(func(p *corev1.Pod) {
		p.Spec.ServiceAccountName = "sa"
		c := &p.Spec.Containers[0]
		c.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m")}
		c.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("100Mi")}
		c.Env = []corev1.EnvVar{
			{Name: "A", Value: "1"},
			{Name: "B", Value: "$(A)2"},
			{Name: "C", Value: "$(LATER)"},
			{Name: "A", Value: "3"},
			{Name: "LATER", Value: "x"},
			field("NAME", "metadata.name"), field("NS", "metadata.namespace"), field("UID", "metadata.uid"),
			field("LABEL", "metadata.labels['app']"), field("NOTE", "metadata.annotations['note']"), field("NO", "metadata.labels['none']"),
			field("NODE", "spec.nodeName"), field("SA", "spec.serviceAccountName"),
			field("HOST", "status.hostIP"), field("HOSTS", "status.hostIPs"), field("IP", "status.podIP"), field("IPS", "status.podIPs"),
			resourceOf("CPU", "limits.cpu", ""), resourceOf("MILLI", "limits.cpu", "1m"), resourceOf("MEM", "limits.memory", "1Gi"),
			resourceOf("REQ", "requests.memory", "1Mi"), resourceOf("REQCPU", "requests.cpu", "1m"), resourceOf("REQROUND", "requests.memory", "64Mi"),
			{Name: "MIXED", Value: "$(IP):$(CPU)"},
		}
		c.Command = []string{"run", "$(A)", "$$(A)", "$(NOPE)"}
		c.Args = []string{"--ip=$(IP)"}
	})
	got, err := Container(in)
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for _, kv := range got.GetEnvs() {
		env[kv.GetKey()] = string(kv.GetValue())
	}
	for k, want := range map[string]string{
		"A": "3", "B": "12", "C": "$(LATER)", "NAME": "web", "NS": "ns", "UID": "uid-1", "LABEL": "x", "NOTE": "y", "NO": "", "NODE": "node-1", "SA": "sa",
		"HOST": "192.0.2.1", "HOSTS": "192.0.2.1,2001:db8::1", "IP": "10.0.0.2", "IPS": "10.0.0.2,fd00::2",
		"CPU": "2", "MILLI": "1500", "MEM": "16", "REQ": "100", "REQCPU": "1500", "REQROUND": "2", "MIXED": "10.0.0.2:2",
	} {
		if v, ok := env[k]; !ok || v != want {
			t.Errorf("%s=%q, want %q", k, v, want)
		}
	}
	if want := []string{"run", "3", "$(A)", "$(NOPE)"}; !slices.Equal(got.GetCommand(), want) || got.GetArgs()[0] != "--ip=10.0.0.2" {
		t.Errorf("command %q, args %q", got.GetCommand(), got.GetArgs())
	}
}

func TestEnvErrors(t *testing.T) {
	for _, c := range []struct {
		env  corev1.EnvVar
		want string
	}{
		{field("X", "status.nope"), `environment variable X: field path "status.nope" is not known`},
		{field("X", "spec.x['y']"), `field path "spec.x['y']" has no keys`},
		{resourceOf("X", "cpu", ""), `resource "cpu" is neither`},
		{corev1.EnvVar{Name: "X", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "cm"},
		}}}, `configmap "cm" not found`},
		{corev1.EnvVar{Name: "X", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Optional: new(true),
		}}}, ""},
	} {
		got, err := Container(testInput(func(p *corev1.Pod) { p.Spec.Containers[0].Env = []corev1.EnvVar{c.env} }))
		if c.want == "" {
			if err != nil || len(got.GetEnvs()) != 0 {
				t.Errorf("%v, %v", got.GetEnvs(), err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %s", err, c.want)
		}
	}
}

func TestRunAsNonRoot(t *testing.T) {
	const pod = `(pod: "web_ns(uid-1)", container: main)`
	for _, c := range []struct {
		pod, own *bool
		user     *int64
		image    Image
		want     string
	}{
		{nil, nil, nil, Image{}, ""},
		{new(true), nil, nil, Image{}, "container has runAsNonRoot and image will run as root " + pod},
		{new(true), new(false), nil, Image{}, ""},
		{nil, new(true), nil, Image{UID: new(int64(0))}, "container has runAsNonRoot and image will run as root " + pod},
		{nil, new(true), nil, Image{UID: new(int64(5))}, ""},
		{nil, new(true), nil, Image{Username: "app"}, "container has runAsNonRoot and image has non-numeric user (app), cannot verify user is non-root " + pod},
		{nil, new(true), new(int64(0)), Image{UID: new(int64(5))}, "container's runAsUser breaks non-root policy " + pod},
		{nil, new(true), new(int64(7)), Image{Username: "app"}, ""},
	} {
		in := testInput(func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: c.pod, RunAsUser: c.user}
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsNonRoot: c.own}
		})
		in.Image = c.image
		_, err := Container(in)
		if got := errText(err); got != c.want {
			t.Errorf("%v %v %v: %q, want %q", c.pod, c.own, c.image, got, c.want)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestSecurity(t *testing.T) {
	in := testInput(func(p *corev1.Pod) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{
			RunAsUser: new(int64(1)), RunAsGroup: new(int64(2)), FSGroup: new(int64(3)), SupplementalGroups: []int64{4},
			SupplementalGroupsPolicy: new(corev1.SupplementalGroupsPolicyStrict),
			SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			SELinuxOptions:           &corev1.SELinuxOptions{Level: "s0"},
		}
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
			RunAsUser: new(int64(5)), Privileged: new(true), ReadOnlyRootFilesystem: new(true), AllowPrivilegeEscalation: new(false),
			Capabilities:    &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}, Drop: []corev1.Capability{"ALL"}},
			SeccompProfile:  &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: new("a/b.json")},
			AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: new("prof")},
			ProcMount:       new(corev1.UnmaskedProcMount),
		}
	})
	c, err := Container(in)
	if err != nil {
		t.Fatal(err)
	}
	sc := c.GetLinux().GetSecurityContext()
	switch {
	case sc.GetRunAsUser().GetValue() != 5, sc.GetRunAsGroup().GetValue() != 2, !slices.Equal(sc.GetSupplementalGroups(), []int64{4, 3}),
		sc.GetSupplementalGroupsPolicy() != runtimeapi.SupplementalGroupsPolicy_Strict:
		t.Errorf("users and groups: %v", sc)
	case !sc.GetPrivileged(), !sc.GetReadonlyRootfs(), !sc.GetNoNewPrivs(), sc.GetSelinuxOptions().GetLevel() != "s0":
		t.Errorf("switches: %v", sc)
	case sc.GetSeccomp().GetLocalhostRef() != "/seccomp/a/b.json", sc.GetApparmor().GetLocalhostRef() != "prof":
		t.Errorf("profiles: %v", sc)
	case sc.GetCapabilities().GetAddCapabilities()[0] != "NET_ADMIN", sc.GetCapabilities().GetDropCapabilities()[0] != "ALL":
		t.Errorf("capabilities: %v", sc)
	case len(sc.GetMaskedPaths()) != 0, len(sc.GetReadonlyPaths()) != 0:
		t.Errorf("masked: %v", sc)
	}
	// By default nothing is confined but the kernel's own files, and the user is the image's, which the runtime knows
	// best.
	in = testInput()
	in.Image.UID = new(int64(9))
	c, err = Container(in)
	if err != nil {
		t.Fatal(err)
	}
	sc = c.GetLinux().GetSecurityContext()
	if sc.GetRunAsUser() != nil || sc.GetSeccomp().GetProfileType() != runtimeapi.SecurityProfile_Unconfined || sc.GetNoNewPrivs() ||
		len(sc.GetMaskedPaths()) == 0 || len(sc.GetReadonlyPaths()) == 0 {
		t.Errorf("defaults: %v", sc)
	}
	// A group without a user needs the user of the image said.
	in.Pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsGroup: new(int64(2))}
	if c, err = Container(in); err != nil || c.GetLinux().GetSecurityContext().GetRunAsUser().GetValue() != 9 {
		t.Errorf("%v, %v", c, err)
	}
}

func TestNamespaces(t *testing.T) {
	const pod, container, node = runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_NODE
	for _, c := range []struct {
		change        func(*corev1.PodSpec)
		net, ipc, pid runtimeapi.NamespaceMode
	}{
		{func(*corev1.PodSpec) {}, pod, pod, container},
		{func(s *corev1.PodSpec) { s.HostNetwork = true }, node, pod, container},
		{func(s *corev1.PodSpec) { s.HostIPC = true }, pod, node, container},
		{func(s *corev1.PodSpec) { s.HostPID = true }, pod, pod, node},
		{func(s *corev1.PodSpec) { s.ShareProcessNamespace = new(true) }, pod, pod, pod},
	} {
		in := testInput(func(p *corev1.Pod) { c.change(&p.Spec) })
		cc, err := Container(in)
		if err != nil {
			t.Fatal(err)
		}
		sc, _, err := Sandbox(in.Pod, in.Node, 0, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range []*runtimeapi.NamespaceOption{
			cc.GetLinux().GetSecurityContext().GetNamespaceOptions(), sc.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		} {
			if o.GetNetwork() != c.net || o.GetIpc() != c.ipc || o.GetPid() != c.pid {
				t.Errorf("%v, want %s %s %s", o, c.net, c.ipc, c.pid)
			}
		}
	}
}

func TestMounts(t *testing.T) {
	in := testInput(func(p *corev1.Pod) {
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
			{Name: "a", MountPath: "/a", ReadOnly: true, RecursiveReadOnly: new(corev1.RecursiveReadOnlyIfPossible)},
			{Name: "b", MountPath: "b", MountPropagation: new(corev1.MountPropagationBidirectional)},
			{Name: "c", MountPath: "/c", MountPropagation: new(corev1.MountPropagationHostToContainer)},
		}
	})
	in.Mounts, in.HostsFile, in.MessageFile, in.RecursiveRO = []string{"/v/a", "/v/b", "/v/c"}, "/p/hosts", "/p/message", true
	c, err := Container(in)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range c.GetMounts() {
		s := m.GetHostPath() + ">" + m.GetContainerPath()
		if m.GetReadonly() {
			s += " ro"
		}
		if m.GetRecursiveReadOnly() {
			s += " recursive"
		}
		got = append(got, s+" "+m.GetPropagation().String()[len("PROPAGATION_"):])
	}
	want := []string{
		"/v/a>/a ro recursive PRIVATE", "/v/b>/b BIDIRECTIONAL", "/v/c>/c HOST_TO_CONTAINER", "/p/hosts>/etc/hosts PRIVATE",
		"/p/message>/dev/termination-log PRIVATE",
	}
	if !slices.Equal(got, want) {
		t.Errorf("mounts\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	in.ReadOnly = map[string]bool{"b": true}
	if c, err = Container(in); err != nil || !c.GetMounts()[1].GetReadonly() || c.GetMounts()[2].GetReadonly() {
		t.Errorf("%v, %v", c.GetMounts(), err)
	}
	// The container's own /etc/hosts wins.
	in.Container.VolumeMounts[0].MountPath = "/etc/hosts"
	if c, err = Container(in); err != nil || len(c.GetMounts()) != 4 {
		t.Errorf("%v, %v", c.GetMounts(), err)
	}
	in.RecursiveRO = false
	in.Container.VolumeMounts[0].RecursiveReadOnly = new(corev1.RecursiveReadOnlyEnabled)
	if _, err = Container(in); err == nil {
		t.Error("what the runtime cannot do is not refused")
	}
	in.Mounts = in.Mounts[:1]
	if _, err = Container(in); err == nil {
		t.Error("a volume that is not there is not noticed")
	}
}

// TestInjection has the pod win over what comes with its devices, and the first device over the second.
func TestInjection(t *testing.T) {
	var in Injection
	for i, more := range []string{"one", "two"} {
		in.Add(&pluginapi.ContainerAllocateResponse{
			Envs:        map[string]string{"POD": more, "BOTH": more, "V" + more: more},
			Annotations: map[string]string{"a": more, hashAnnotation: more},
			Devices:     []*pluginapi.DeviceSpec{{HostPath: "/dev/" + more, ContainerPath: "/dev/x", Permissions: "rw"}, {HostPath: "/dev/" + more, ContainerPath: "/dev/" + more}},
			Mounts:      []*pluginapi.Mount{{HostPath: "/h/" + more, ContainerPath: "/data"}, {HostPath: "/h/" + more, ContainerPath: "/lib", ReadOnly: i == 0}, {HostPath: "/h", ContainerPath: "/etc/hosts"}},
			CdiDevices:  []*pluginapi.CDIDevice{{Name: "v/c=x"}, {Name: "v/c=" + more}},
		})
	}
	c := &corev1.Container{
		Name: "c", Command: []string{"$(Vone)", "$(POD)"}, VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/data/"}},
		Env: []corev1.EnvVar{{Name: "POD", Value: "pod"}, {Name: "REF", Value: "$(Vone)"}},
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{*c}, Volumes: []corev1.Volume{{Name: "v"}}}}
	got, err := Container(Input{Objects: new(object.Store), Pod: pod, Container: c, Node: &Node{}, Mounts: []string{"/volume"}, HostsFile: "/hosts", Injection: in})
	if err != nil {
		t.Fatal(err)
	}
	var parts []string
	for _, e := range got.GetEnvs() {
		parts = append(parts, e.GetKey()+"="+string(e.GetValue()))
	}
	for _, m := range got.GetMounts() {
		parts = append(parts, m.GetHostPath()+":"+m.GetContainerPath())
	}
	for _, d := range got.GetDevices() {
		parts = append(parts, d.GetHostPath()+":"+d.GetContainerPath()+":"+d.GetPermissions())
	}
	for _, d := range got.GetCDIDevices() {
		parts = append(parts, d.GetName())
	}
	want := "BOTH=one Vone=one Vtwo=two POD=pod REF=$(Vone) /h/one:/lib /volume:/data/ /hosts:/etc/hosts " +
		"/dev/one:/dev/x:rw /dev/one:/dev/one: /dev/two:/dev/two: v/c=x v/c=one v/c=two"
	if all := strings.Join(parts, " "); all != want {
		t.Errorf("got  %s\nwant %s", all, want)
	}
	if cmd := strings.Join(got.GetCommand(), " "); cmd != "one pod" {
		t.Errorf("the command is %s", cmd)
	}
	if a := got.GetAnnotations(); a["a"] != "one" || a[hashAnnotation] != Hash(c) {
		t.Errorf("annotations are %v", a)
	}
}

func TestHostname(t *testing.T) {
	long := strings.Repeat("x", 62) + "-" + strings.Repeat("y", 10)
	for _, c := range []struct {
		change func(*corev1.Pod)
		want   string // "!" for an error
	}{
		{func(*corev1.Pod) {}, "web"},
		{func(p *corev1.Pod) { p.Spec.Hostname = "host" }, "host"},
		{func(p *corev1.Pod) { p.Name = long }, strings.Repeat("x", 62)},
		{func(p *corev1.Pod) { p.Spec.HostNetwork = true }, ""},
		{func(p *corev1.Pod) { p.Spec.Subdomain = "sub" }, "web"},
		{func(p *corev1.Pod) { p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = "sub", new(true) }, "web.sub.ns.svc.cluster.local"},
		{func(p *corev1.Pod) { p.Spec.SetHostnameAsFQDN = new(true) }, "web"},
		{func(p *corev1.Pod) { p.Spec.Hostname, p.Spec.HostnameOverride = "host", new("db.example") }, "db.example"},
		{func(p *corev1.Pod) { p.Name, p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = long, "sub", new(true) }, "!"},
	} {
		pod := testPod()
		c.change(pod)
		got, err := Hostname(pod, "cluster.local")
		if err != nil {
			got = "!"
		}
		if got != c.want {
			t.Errorf("%q (%v), want %q", got, err, c.want)
		}
	}
}

func TestDNS(t *testing.T) {
	own := &corev1.PodDNSConfig{
		Nameservers: []string{"9.9.9.9", "1.1.1.1"}, Searches: []string{"own.example"},
		Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: new("2")}, {Name: "debug"}},
	}
	for _, c := range []struct {
		policy   corev1.DNSPolicy
		host     bool
		cluster  []string
		own      *corev1.PodDNSConfig
		want     string
		warnings int
	}{
		{corev1.DNSDefault, false, nil, nil, "1.1.1.1|node.example|ndots:1", 0},
		{corev1.DNSClusterFirst, false, nil, nil, "1.1.1.1|node.example|ndots:1", 1},
		{corev1.DNSClusterFirst, true, nil, nil, "1.1.1.1|node.example|ndots:1", 0},
		{corev1.DNSClusterFirst, false, []string{"10.0.0.10"}, nil, "10.0.0.10|ns.svc.cluster.local svc.cluster.local cluster.local node.example|ndots:5", 0},
		{corev1.DNSClusterFirstWithHostNet, true, []string{"10.0.0.10"}, nil, "10.0.0.10|ns.svc.cluster.local svc.cluster.local cluster.local node.example|ndots:5", 0},
		{corev1.DNSNone, false, nil, own, "9.9.9.9 1.1.1.1|own.example|ndots:2 debug", 0},
		{corev1.DNSDefault, false, nil, own, "1.1.1.1 9.9.9.9|node.example own.example|ndots:2 debug", 0},
		{corev1.DNSNone, false, nil, &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"}}, "1.1.1.1 1.1.1.2 1.1.1.3||", 1},
	} {
		pod, node := testPod(), testNode()
		pod.Spec.DNSPolicy, pod.Spec.HostNetwork, pod.Spec.DNSConfig = c.policy, c.host, c.own
		node.ClusterDNS = c.cluster
		node.Resolver = ParseResolvConf([]byte("# the node's\nsearch old.example\nsearch node.example.\nnameserver 1.1.1.1 # here\noptions ndots:1\n"))
		s, warnings, err := Sandbox(pod, node, 0, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		d := s.GetDnsConfig()
		got := strings.Join(d.GetServers(), " ") + "|" + strings.Join(d.GetSearches(), " ") + "|" + strings.Join(d.GetOptions(), " ")
		if got != c.want || len(warnings) != c.warnings {
			t.Errorf("%s: %s %q, want %s", c.policy, got, warnings, c.want)
		}
	}
	if !ParseResolvConf([]byte("nameserver 127.0.0.53\n")).OnlyLoopback() || ParseResolvConf([]byte("nameserver 127.0.0.53\nnameserver 8.8.8.8\n")).OnlyLoopback() {
		t.Error("a resolver on the loopback is not known as one")
	}
}

func TestSandbox(t *testing.T) {
	pod := testPod()
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{
		{ContainerPort: 80, HostPort: 8080}, {ContainerPort: 81}, {ContainerPort: 53, HostPort: 53, Protocol: corev1.ProtocolUDP, HostIP: "127.0.0.1"},
	}
	pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "net/ipv4/tcp_syncookies", Value: "1"}}}
	s, _, err := Sandbox(pod, testNode(), 3, "/kubepods/pod1", nil)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case s.GetMetadata().GetAttempt() != 3, s.GetHostname() != "web", s.GetLogDirectory() != "/logs/ns_web_uid-1", s.GetLinux().GetCgroupParent() != "/kubepods/pod1":
		t.Errorf("%v", s)
	case s.GetLabels()["app"] != "x", s.GetLabels()[PodUIDLabel] != "uid-1", s.GetAnnotations()["note"] != "y", len(pod.Labels) != 1:
		t.Errorf("labels %v, annotations %v", s.GetLabels(), s.GetAnnotations())
	case len(s.GetPortMappings()) != 2, s.GetPortMappings()[1].GetProtocol() != runtimeapi.Protocol_UDP, s.GetPortMappings()[1].GetHostIp() != "127.0.0.1":
		t.Errorf("ports %v", s.GetPortMappings())
	case !s.GetLinux().GetSecurityContext().GetPrivileged(), s.GetLinux().GetSysctls()["net.ipv4.tcp_syncookies"] != "1":
		t.Errorf("%v", s.GetLinux())
	}
}

func TestResources(t *testing.T) {
	in := testInput(func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m"), corev1.ResourceMemory: resource.MustParse("1Gi")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("2Gi")},
		}
	})
	c, err := Container(in)
	if err != nil {
		t.Fatal(err)
	}
	r := c.GetLinux().GetResources()
	if r.GetCpuShares() != 256 || r.GetCpuQuota() != 50000 || r.GetCpuPeriod() != 100000 || r.GetMemoryLimitInBytes() != 2<<30 || r.GetOomScoreAdj() != 938 || r.GetUnified() != nil {
		t.Errorf("%v", r)
	}
	in.Node.Groups = kube.Options{Unified: true, OOMGroup: kube.OOMContainer}
	if c, err = Container(in); err != nil || c.GetLinux().GetResources().GetUnified()["memory.oom.group"] != "1" {
		t.Errorf("%v, %v", c, err)
	}
}

func TestOwnUsers(t *testing.T) {
	in := testInput(func(p *corev1.Pod) {
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	})
	in.Mounts, in.HostsFile, in.IDs = []string{"/h"}, "/hosts", &IDs{First: 131072, Length: 65536}
	c, err := Container(in)
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := Sandbox(in.Pod, in.Node, 0, "", in.IDs)
	if err != nil {
		t.Fatal(err)
	}
	want := &runtimeapi.IDMapping{HostId: 131072, Length: 65536}
	users := c.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	if !proto.Equal(users, s.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()) ||
		users.GetMode() != runtimeapi.NamespaceMode_POD || !proto.Equal(users.GetUids()[0], want) || !proto.Equal(users.GetGids()[0], want) {
		t.Errorf("container %v, sandbox %v", users, s)
	}
	for _, m := range c.GetMounts() {
		if len(m.GetUidMappings()) != 1 || !proto.Equal(m.GetUidMappings()[0], want) || !proto.Equal(m.GetGidMappings()[0], want) {
			t.Errorf("mount %v", m)
		}
	}
}

// A pod that is not wanted any more is known only by what the runtime has kept of it.
func TestRestore(t *testing.T) {
	pod := testPod()
	side := func(name string) corev1.Container {
		return corev1.Container{Name: name, Image: "img:1", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}
	}
	pod.Spec.InitContainers = []corev1.Container{side("z"), {Name: "init", Image: "img:1"}, side("a")}
	pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"bye"}}}}
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}
	sandbox, _, err := Sandbox(pod, testNode(), 0, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	var list []*runtimeapi.Container
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		cc, err := Container(Input{Objects: new(object.Store), Pod: pod, Container: &c, Node: testNode()})
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, &runtimeapi.Container{Metadata: cc.GetMetadata(), Labels: cc.GetLabels(), Annotations: cc.GetAnnotations(), Image: cc.GetImage()})
	}
	got := Restore(&runtimeapi.PodSandbox{Metadata: sandbox.GetMetadata(), Labels: sandbox.GetLabels()}, list)
	if got.Name != "web" || got.Namespace != "ns" || got.UID != "uid-1" || *got.Spec.TerminationGracePeriodSeconds != 12 || len(got.Labels) != 1 {
		t.Errorf("%+v", got)
	}
	var names []string
	for _, c := range got.Spec.InitContainers {
		names = append(names, c.Name)
	}
	main := got.Spec.Containers[slices.IndexFunc(got.Spec.Containers, func(c corev1.Container) bool { return c.Name == "main" })]
	if !slices.Equal(names, []string{"z", "a"}) || main.Lifecycle.PreStop.Exec.Command[0] != "bye" || main.Ports[0].Name != "http" {
		t.Errorf("sidecars %v, main %+v", names, main)
	}
}

func TestAnnotations(t *testing.T) {
	in := testInput()
	in.Attempt, in.Backoff = 4, 20*time.Second
	c, err := Container(in)
	if err != nil {
		t.Fatal(err)
	}
	if c.GetLogPath() != "main/4.log" || c.GetAnnotations()["io.kubernetes.container.restartCount"] != "4" || Backoff(c.GetAnnotations()) != 20*time.Second {
		t.Errorf("%v", c)
	}
	if Changed(in.Container, c.GetAnnotations()) {
		t.Error("changed at once")
	}
	in.Container.Image = "img:2"
	if !Changed(in.Container, c.GetAnnotations()) {
		t.Error("a new image is no change")
	}
	if Backoff(map[string]string{backoffAnnotation: "-5s"}) != 0 || Backoff(nil) != 0 {
		t.Error("back-off of nonsense")
	}
}

func TestExpandSubPath(t *testing.T) {
	in := testInput(func(p *corev1.Pod) { p.Spec.Containers[0].Env = []corev1.EnvVar{field("NAME", "metadata.name")} })
	if got, err := ExpandSubPath("logs/$(NAME)", &in); err != nil || got != "logs/web" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := ExpandSubPath("$(NONE)", &in); err == nil {
		t.Error("what is not set is no error")
	}
}

func BenchmarkContainer(b *testing.B) {
	in := testInput()
	for b.Loop() {
		if _, err := Container(in); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSandbox(b *testing.B) {
	pod, node := testPod(), testNode()
	for b.Loop() {
		if _, _, err := Sandbox(pod, node, 0, "", nil); err != nil {
			b.Fatal(err)
		}
	}
}

// Every signal that the API takes is one of the CRI's.
func TestStopSignal(t *testing.T) {
	for _, c := range []struct {
		api corev1.Signal
		cri runtimeapi.Signal
	}{
		{corev1.SIGUSR1, runtimeapi.Signal_SIGNAL_SIGUSR1},
		{corev1.SIGRTMINPLUS1, runtimeapi.Signal_SIGNAL_SIGRTMINPLUS1},
		{corev1.SIGRTMAXMINUS14, runtimeapi.Signal_SIGNAL_SIGRTMAXMINUS14},
		{corev1.SIGRTMAX, runtimeapi.Signal_SIGNAL_SIGRTMAX},
	} {
		if got := stopSignal(&corev1.Container{Lifecycle: &corev1.Lifecycle{StopSignal: &c.api}}); got != c.cri {
			t.Errorf("%s: %s, want %s", c.api, got, c.cri)
		}
	}
	if got := stopSignal(&corev1.Container{}); got != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		t.Errorf("without one: %s", got)
	}
}

// TestThrottlesAreMasked: each CPU that has one.
func TestThrottlesAreMasked(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"cpu0/thermal_throttle", "cpu12/thermal_throttle", "cpu1/topology", "cpufreq/thermal_throttle"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{filepath.Join(dir, "cpu0/thermal_throttle"), filepath.Join(dir, "cpu12/thermal_throttle")}
	if got := throttles(dir); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	masked := maskedPaths()
	for _, p := range throttles("/sys/devices/system/cpu") {
		if !slices.Contains(masked, p) {
			t.Errorf("%s is not masked", p)
		}
	}
}
