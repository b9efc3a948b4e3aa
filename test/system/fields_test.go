package system

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
)

// A fieldCase is a pod that uses fields of the v1 Pod API, and what must then be true of it: inside the container, or
// by the kernel's word.
type fieldCase struct {
	name string
	// the fields that the case proves, as paths below the Pod's spec; init containers' are those of containers
	fields  string
	meta    string // more of the metadata
	objects string // manifests that come with it
	spec    string // lines of the pod's spec, from "  " on; "$HOST" is a directory of the host that the test made

	// want is what the pod's main container (named main) must have printed when the pod has succeeded.
	want []string
	// check looks at the pod that has become ready, and that is all; ends at the one that has ended. When both are nil
	// the pod is to succeed. ready does something to the pod in between.
	check, ends, ready func(t *testing.T, n *Node, p *corev1.Pod)
	// waits is why the container is never started, until what there is to be waited for instead of readiness.
	waits string
	until func(*corev1.Pod) bool
	grace int // the pod's termination grace period in seconds; 0 = 1
	// host prepares the host's directory.
	host func(t *testing.T, dir string)
}

// prints is a spec of one container that runs the shell script and ends; extra are more lines of the container.
func prints(script, extra string) string {
	var lines strings.Builder
	for line := range strings.Lines(extra) {
		lines.WriteString("    " + line)
	}
	return `
  restartPolicy: Never
  containers:
  - name: main
    image: ` + image + `
    command: [sh, -c, '` + strings.ReplaceAll(script, "'", "''") + `']
` + lines.String()
}

// runs is a spec of one container that stays.
func runs(extra string) string {
	return strings.Replace(prints("trap 'exit 0' TERM; while :; do sleep 1000 & wait; done", extra),
		"  restartPolicy: Never\n", "", 1)
}

func TestFields(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--node-labels=disk=ssd")
	// Root of a pod with users of its own has to pass to its root file system.
	if err := os.Chmod(n.Dir, 0o711); err != nil {
		t.Fatal(err)
	}
	n.start()
	ports := startServers(t)
	n.applySecret("objects.yaml", objects)
	// Most of them wait most of the time, so there are more at a time than the machine has CPUs.
	var g errgroup.Group
	g.SetLimit(16)
	cases := allFieldCases()
	if n.peer != nil && !long() {
		// All of them are run by the embedded runtime; what they need of a runtime, test/conformance asks of each.
		chances(t).Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
		cases = cases[:len(cases)/6]
	}
	for _, c := range cases {
		g.Go(func() error {
			t.Run(c.name, func(t *testing.T) { n.runCase(t, c, ports) })
			return nil
		})
	}
	_ = g.Wait()
	n.requireNoPods()
}

func allFieldCases() []fieldCase {
	return slices.Concat(fieldCases, processCases, securityCases, networkCases, volumeCases, lifeCases)
}

func (n *Node) runCase(t *testing.T, c fieldCase, ports *strings.Replacer) {
	sub := *n
	sub.t = t
	n = &sub
	if n.peer != nil {
		if why := peerLacks[c.name][n.peer.Release]; why != "" {
			t.Skipf("%s %s", n.peer.Release, why)
		}
	}
	host := filepath.Join(n.Dir, "host", c.name)
	if err := os.MkdirAll(host, 0o755); err != nil {
		t.Fatal(err)
	}
	if c.host != nil {
		c.host(t, host)
	}
	file := c.name + ".yaml"
	manifest := strings.Replace(pod(c.name, c.spec), "{name: "+c.name+"}", "{name: "+c.name+c.meta+"}", 1)
	if c.grace != 0 {
		manifest = strings.Replace(manifest, "GracePeriodSeconds: 1\n", fmt.Sprintf("GracePeriodSeconds: %d\n", c.grace), 1)
	}
	if strings.Contains(manifest, "$FREE") {
		manifest = strings.ReplaceAll(manifest, "$FREE", strconv.Itoa(freePort(t)))
	}
	if c.objects != "" {
		manifest += "---\n" + c.objects
	}
	n.applySecret(file, ports.Replace(strings.ReplaceAll(manifest, "$HOST", host)))
	t.Cleanup(func() {
		n.remove(file)
		n.waitGone(c.name)
	})
	switch {
	case c.until != nil:
		p := n.wait(c.name, "as it is to be", c.until)
		if c.check != nil {
			c.check(t, n, p)
		}
		return
	case c.check != nil:
		c.check(t, n, n.waitReady(c.name))
		return
	case c.waits != "":
		n.wait(c.name, "waiting for "+c.waits, waiting("main", c.waits))
		return
	case c.ready != nil:
		c.ready(t, n, n.waitReady(c.name))
	}
	ended := n.wait(c.name, "ended", func(p *corev1.Pod) bool {
		return p != nil && (p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed)
	})
	if c.ends != nil {
		c.ends(t, n, ended)
		return
	}
	if ended.Status.Phase != corev1.PodSucceeded {
		t.Errorf("%s: %s %s", ended.Status.Phase, ended.Status.Reason, ended.Status.Message)
	}
	log := n.must("logs", c.name, "-c", "main")
	lines := strings.Split(strings.TrimSpace(log), "\n")
	for i, w := range c.want {
		if i >= len(lines) || strings.TrimSpace(lines[i]) != w {
			t.Errorf("%s: line %d: want %q in\n%s", c.fields, i+1, w, log)
		}
	}
}

var fieldCases = []fieldCase{
	{
		name: "command-args", fields: "containers.name containers.image containers.command containers.args " +
			"containers.env.name containers.env.value",
		spec: `
  restartPolicy: Never
  containers:
  - name: main
    image: ` + image + `
    command: [echo, "$(GREETING)", "$$(GREETING)", "$(MISSING)"]
    args: ["$(SECOND)"]
    env: [{name: GREETING, value: hello}, {name: SECOND, value: "$(GREETING) again"}]`,
		want: []string{"hello $(GREETING) $(MISSING) hello again"},
	},
	{
		name: "downward-env", fields: "containers.env.valueFrom.fieldRef.fieldPath " +
			"containers.env.valueFrom.resourceFieldRef.resource containers.env.valueFrom.resourceFieldRef.divisor",
		spec: prints(`echo $NAME $NS $NODE; test -n "$UID_" && echo uid; test -n "$IP" && echo ip; test -n "$HOSTIP" && echo hostip; echo $CPU $MEM`, `env:
- {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: NS, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
- {name: UID_, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
- {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
- {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: HOSTIP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
- {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}
- {name: MEM, valueFrom: {resourceFieldRef: {resource: requests.memory, divisor: 1Mi}}}
resources: {limits: {cpu: 250m, memory: 64Mi}, requests: {memory: 32Mi}}
`),
		want: []string{"downward-env-node default node", "uid", "ip", "hostip", "250 32"},
	},
	{
		name: "working-dir", fields: "containers.workingDir",
		spec: prints("pwd", "workingDir: /tmp/new/dir\n"), want: []string{"/tmp/new/dir"},
	},
	{
		name: "hostname", fields: "hostname subdomain",
		spec: "\n  hostname: named\n  subdomain: sub" +
			prints("hostname; cat /etc/hostname", ""), want: []string{"named", "named"},
	},
	{
		name: "host-aliases", fields: "hostAliases.ip hostAliases.hostnames",
		spec: "\n  hostAliases: [{ip: 10.1.2.3, hostnames: [foo.local, bar.local]}]" +
			prints("grep -o '10.1.2.3.*' /etc/hosts | tr '\\t' ' '", ""),
		want: []string{"10.1.2.3 foo.local bar.local"},
	},
	{
		name: "dns-none", fields: "dnsPolicy dnsConfig.nameservers dnsConfig.searches dnsConfig.options.name " +
			"dnsConfig.options.value",
		spec: "\n  dnsPolicy: None\n  dnsConfig: {nameservers: [192.0.2.1], searches: [a.example, b.example], options: " +
			"[{name: ndots, value: '3'}]}" + prints("cat /etc/resolv.conf", ""),
		want: []string{"search a.example b.example", "nameserver 192.0.2.1", "options ndots:3"},
	},
	{
		name: "run-as", fields: "securityContext.runAsUser securityContext.runAsGroup securityContext.supplementalGroups " +
			"securityContext.fsGroup",
		spec: "\n  securityContext: {runAsUser: 1000, runAsGroup: 3000, supplementalGroups: [4000], fsGroup: 5000}" +
			"\n  volumes: [{name: v, emptyDir: {}}]" +
			prints("id -u; id -g; id -G; stat -c %g /v; echo $HOME; touch /v/f && stat -c %g /v/f",
				"volumeMounts: [{name: v, mountPath: /v}]\n"),
		want: []string{"1000", "3000", "3000 2000 4000 5000", "5000", "/home/app", "5000"},
	},
	{
		name: "read-only-root", fields: "containers.securityContext.readOnlyRootFilesystem",
		spec: prints("touch /x 2>/dev/null || echo refused",
			"securityContext: {readOnlyRootFilesystem: true}\n"), want: []string{"refused"},
	},
	{
		name: "caps-default", fields: "containers.securityContext.capabilities.add",
		spec: prints("grep CapEff /proc/self/status | cut -f2", ""), want: []string{"00000000a80425fb"},
	},
	{
		name: "caps-changed", fields: "containers.securityContext.capabilities.add " +
			"containers.securityContext.capabilities.drop",
		spec: prints("grep CapEff /proc/self/status | cut -f2",
			"securityContext: {capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}}\n"), want: []string{"0000000000000400"},
	},
	{
		name: "no-new-privs", fields: "containers.securityContext.allowPrivilegeEscalation",
		spec: prints("grep NoNewPrivs /proc/self/status | cut -f2",
			"securityContext: {allowPrivilegeEscalation: false}\n"), want: []string{"1"},
	},
	{
		name: "seccomp-default", fields: "containers.securityContext.seccompProfile.type",
		spec: prints("grep Seccomp: /proc/self/status | cut -f2; unshare -U true 2>/dev/null || echo refused",
			"securityContext: {seccompProfile: {type: RuntimeDefault}}\n"), want: []string{"2", "refused"},
	},
	{
		name: "seccomp-unconfined", fields: "containers.securityContext.seccompProfile.type",
		spec: prints("grep Seccomp: /proc/self/status | cut -f2",
			"securityContext: {seccompProfile: {type: Unconfined}}\n"), want: []string{"0"},
	},
	{
		name: "masked-paths", fields: "containers.securityContext.procMount",
		spec: prints("test -s /proc/kcore && echo readable || echo masked; { echo x > /proc/sys/kernel/hostname; } "+
			"2>/dev/null || echo readonly", ""),
		want: []string{"masked", "readonly"},
	},
	{
		name: "privileged", fields: "containers.securityContext.privileged",
		spec: prints("test -e /dev/loop-control -o -e /dev/kmsg && echo devices; test -w /proc/sys/kernel/hostname && echo "+
			"unmasked; mkdir /t && mount -t tmpfs t /t && echo mounted", "securityContext: {privileged: true}\n"),
		want: []string{"devices", "unmasked", "mounted"},
	},
	{
		name: "devices", fields: "",
		spec: prints("for d in null zero full random urandom tty ptmx; do test -e /dev/$d || echo missing $d; done; echo x "+
			"> /dev/null; mount | grep -c ' /dev/shm '; test -e /dev/mem && echo mem; echo done", ""),
		want: []string{"1", "done"},
	},
	{
		name: "sysctl", fields: "securityContext.sysctls.name securityContext.sysctls.value",
		spec: "\n  securityContext: {sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: '80'}, {name: " +
			"kernel.shm_rmid_forced, value: '1'}]}" +
			prints("cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shm_rmid_forced", ""),
		want: []string{"80", "1"},
	},
	{
		name: "empty-dir", fields: "volumes.name volumes.emptyDir.medium containers.volumeMounts.name " +
			"containers.volumeMounts.mountPath",
		spec: "\n  volumes: [{name: v, emptyDir: {}}]" +
			prints("echo x > /v/f; stat -c %a /v; cat /v/f", "volumeMounts: [{name: v, mountPath: /v}]\n"),
		want: []string{"777", "x"},
	},
	{
		name: "empty-dir-memory", fields: "volumes.emptyDir.medium volumes.emptyDir.sizeLimit",
		spec: "\n  volumes: [{name: v, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]" +
			prints("stat -f -c %T /v; dd if=/dev/zero of=/v/f bs=1k count=2048 2>/dev/null || echo full",
				"volumeMounts: [{name: v, mountPath: /v}]\n"),
		want: []string{"tmpfs", "full"},
	},
	{
		name: "host-path", fields: "volumes.hostPath.path volumes.hostPath.type containers.volumeMounts.readOnly",
		spec: "\n  volumes: [{name: v, hostPath: {path: $HOST, type: Directory}}]" +
			prints("cat /v/f; echo y > /w/g; touch /v/x 2>/dev/null || echo readonly",
				"volumeMounts: [{name: v, mountPath: /v, readOnly: true}, {name: v, mountPath: /w}]\n"),
		host: func(t *testing.T, dir string) { write(t, dir+"/f", "from the host\n") },
		want: []string{"from the host", "readonly"},
	},
	{
		name: "host-path-created", fields: "volumes.hostPath.type",
		spec: "\n  volumes: [{name: d, hostPath: {path: $HOST/d, type: DirectoryOrCreate}}, {name: f, hostPath: {path: " +
			"$HOST/f, type: FileOrCreate}}]" +
			prints("touch /d/x && echo dir; echo y > /f && echo file",
				"volumeMounts: [{name: d, mountPath: /d}, {name: f, mountPath: /f}]\n"),
		want: []string{"dir", "file"},
	},
	{
		name: "sub-path", fields: "containers.volumeMounts.subPath",
		spec: "\n  volumes: [{name: v, emptyDir: {}}]" +
			prints("echo in > /sub/f; cat /v/a/b/f",
				"volumeMounts: [{name: v, mountPath: /sub, subPath: a/b}, {name: v, mountPath: /v}]\n"), want: []string{"in"},
	},
	{
		name: "share-pid", fields: "shareProcessNamespace",
		spec: "\n  shareProcessNamespace: true" +
			strings.Replace(prints("until ps | grep -c ' sleep 4711$'; do sleep 0.1; done | grep -v 0; test $(cut -d' ' -f4 "+
				"/proc/self/stat) != 1 && echo not-one; ls /proc/1/root/var/tmp 2>/dev/null; kill $(ps | awk '/ sleep 4711$/ "+
				"{print $1}'); echo end", ""), "  containers:\n",
				"  containers:\n  - {name: other, image: "+image+", command: [sh, -c, 'sleep 4711 & wait']}\n", 1),
		want: []string{"1", "not-one", "end"},
	},
	{
		name: "own-pid", fields: "",
		spec: prints("cut -d' ' -f1 /proc/self/stat", ""), want: []string{"1"},
	},
	{
		name: "host-namespaces", fields: "hostNetwork hostPID hostIPC",
		spec: "\n  hostNetwork: true\n  hostPID: true\n  hostIPC: true" + runs(""),
		check: func(t *testing.T, n *Node, p *corev1.Pod) {
			for _, ns := range []string{"net", "pid", "ipc"} {
				want, _ := os.Readlink("/proc/self/ns/" + ns)
				if got := strings.TrimSpace(n.must("exec", "host-namespaces", "--", "readlink", "/proc/self/ns/"+ns)); got != want {
					t.Errorf("%s namespace: got %s, the host's is %s", ns, got, want)
				}
			}
			if p.Status.PodIP != p.Status.HostIP {
				t.Errorf("pod IP %s is not the host's %s", p.Status.PodIP, p.Status.HostIP)
			}
		},
	},
	{
		name: "mount-propagation", fields: "containers.volumeMounts.mountPropagation",
		spec: "\n  volumes: [{name: v, hostPath: {path: $HOST, type: Directory}}]" +
			runs("volumeMounts: [{name: v, mountPath: /v, mountPropagation: HostToContainer}]\n"),
		host: func(t *testing.T, dir string) { bindShared(t, dir) },
		check: func(t *testing.T, n *Node, p *corev1.Pod) {
			dir := filepath.Join(n.Dir, "host", "mount-propagation", "late")
			tmpfs(t, dir)
			if got := n.sh("mount-propagation", "stat -f -c %T /v/late"); strings.TrimSpace(got) != "tmpfs" {
				t.Errorf("a mount made later on the host is not seen: %s", got)
			}
		},
	},
	{
		name: "resources", fields: "containers.resources.requests containers.resources.limits",
		spec: runs("resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 500m, memory: 64Mi}}\n"),
		check: func(t *testing.T, n *Node, p *corev1.Pod) {
			if p.Status.QOSClass != corev1.PodQOSBurstable {
				t.Errorf("QoS class: %s", p.Status.QOSClass)
			}
			n.requireCgroup(p, "main")
			group := n.groupOf(p, p.Status.ContainerStatuses[0])
			requireOneOf(t, group, "memory", map[string]string{"memory.limit_in_bytes": "67108864", "memory.max": "67108864"})
			requireOneOf(t, group, "cpu", map[string]string{"cpu.shares": "102", "cpu.weight": "*"})
			requireOneOf(t, group, "cpu", map[string]string{"cpu.cfs_quota_us": "50000", "cpu.max": "50000 100000"})
		},
	},
	{
		name: "stop-signal", fields: "os.name containers.lifecycle.stopSignal", grace: 60,
		spec: "\n  os: {name: linux}\n  containers:\n  - name: main\n    image: " + image +
			"\n    lifecycle: {stopSignal: SIGUSR1}\n    command: [sh, -c, 'trap \"echo told; exit 0\" USR1; trap \"\" TERM; " +
			"touch /ready; while :; do sleep 1000 & wait; done']" +
			"\n    readinessProbe: {exec: {command: [test, -e, /ready]}, timeoutSeconds: 30}\n    livenessProbe: {exec: {command: [test, '!', -e, " +
			"/fail]}, periodSeconds: 1, timeoutSeconds: 60, failureThreshold: 1}",
		check: func(t *testing.T, n *Node, p *corev1.Pod) {
			if s := p.Status.ContainerStatuses[0].StopSignal; s == nil || *s != corev1.SIGUSR1 {
				t.Errorf("stop signal in the status: %v", s)
			}
			// The container that it makes fail may end it too.
			n.berth("exec", "stop-signal", "--", "touch", "/fail")
			n.wait("stop-signal", "restarted",
				func(p *corev1.Pod) bool { return isReady(p) && p.Status.ContainerStatuses[0].RestartCount > 0 })
			if got := n.must("logs", "--previous", "stop-signal"); strings.TrimSpace(got) != "told" {
				t.Errorf("the container's last words: %q", got)
			}
		},
	},
	{
		name: "hostname-override", fields: "hostnameOverride",
		spec: "\n  hostnameOverride: db.example\n  hostname: named\n  subdomain: sub" +
			prints("hostname; grep -c sub /etc/hosts; true", ""), want: []string{"db.example", "0"},
	},
	{
		name: "deadline", fields: "activeDeadlineSeconds",
		spec: "\n  activeDeadlineSeconds: 1\n  terminationGracePeriodSeconds: 1" + prints("sleep 1000", ""),
		ends: func(t *testing.T, n *Node, p *corev1.Pod) {
			if p.Status.Phase != corev1.PodFailed || p.Status.Reason != "DeadlineExceeded" {
				t.Errorf("phase %s, reason %s", p.Status.Phase, p.Status.Reason)
			}
		},
	},
	{
		name: "own-restart-policy", fields: "containers.restartPolicy containers.restartPolicyRules.action " +
			"containers.restartPolicyRules.exitCodes.operator containers.restartPolicyRules.exitCodes.values",
		spec: "\n  volumes: [{name: v, emptyDir: {}}]" + prints("test -e /v/again && { echo second; exit 7; }; touch /v/again; exit 42", `volumeMounts: [{name: v, mountPath: /v}]
restartPolicy: Never
restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]
`),
		ends: func(t *testing.T, n *Node, p *corev1.Pod) {
			s := p.Status.ContainerStatuses[0]
			if p.Status.Phase != corev1.PodFailed || s.RestartCount != 1 || s.State.Terminated == nil ||
				s.State.Terminated.ExitCode != 7 {
				t.Errorf("phase %s, %+v", p.Status.Phase, s)
			}
		},
	},
	{
		name: "restart-all", fields: "containers.restartPolicyRules.action",
		spec: "\n  volumes: [{name: v, emptyDir: {}}]\n  initContainers:\n  - {name: i, image: " + image +
			", command: [sh, -c, 'echo x >> /v/inits'], volumeMounts: [{name: v, mountPath: /v}]}" +
			strings.Replace(prints("test $(wc -l < /v/inits) = 2 && { echo inits: 2; exit 0; }; exit 9", `volumeMounts: [{name: v, mountPath: /v}]
restartPolicy: Never
restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [9]}}]
`), "  containers:\n", "  containers:\n  - {name: other, image: "+image+", volumeMounts: [{name: v, mountPath: /v}], command: [sh, -c, 'test $(wc -l < /v/inits) = 2 || exec sleep 1000']}\n", 1),
		ends: func(t *testing.T, n *Node, p *corev1.Pod) {
			if p.Status.Phase != corev1.PodSucceeded || p.Status.ContainerStatuses[0].RestartCount != 1 ||
				p.Status.ContainerStatuses[1].RestartCount != 1 {
				t.Errorf("phase %s, %+v", p.Status.Phase, p.Status.ContainerStatuses)
			}
		},
	},
	{
		name: "pod-resources", fields: "resources.limits resources.requests overhead",
		spec: "\n  overhead: {memory: 16Mi, cpu: 50m}\n  resources: {limits: {cpu: 200m, memory: 64Mi}, requests: {cpu: " +
			"100m, memory: 64Mi}}" + runs(""),
		check: func(t *testing.T, n *Node, p *corev1.Pod) {
			if p.Status.QOSClass != corev1.PodQOSBurstable {
				t.Errorf("QoS class: %s", p.Status.QOSClass)
			}
			group := n.podGroup(p)
			requireOneOf(t, group, "memory", map[string]string{"memory.limit_in_bytes": "83886080", "memory.max": "83886080"})
			requireOneOf(t, group, "cpu", map[string]string{"cpu.shares": "153", "cpu.weight": "*"})
			requireOneOf(t, group, "cpu", map[string]string{"cpu.cfs_quota_us": "25000", "cpu.max": "25000 100000"})
		},
	},
	{
		name: "chosen", fields: "nodeSelector affinity.nodeAffinity",
		spec: "\n  nodeSelector: {disk: ssd, kubernetes.io/os: linux}\n  affinity: {nodeAffinity: " +
			"{requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: " +
			"NotIn, values: [hdd]}]}]}}}" + prints("echo here", ""),
		want: []string{"here"},
	},
	{
		name: "not-chosen", fields: "nodeSelector",
		spec: "\n  nodeSelector: {disk: hdd}" + prints("echo here", ""),
		ends: func(t *testing.T, n *Node, p *corev1.Pod) {
			if p.Status.Phase != corev1.PodFailed || p.Status.Reason != "NodeAffinity" {
				t.Errorf("phase %s, reason %s", p.Status.Phase, p.Status.Reason)
			}
		},
	},
	{
		name: "guaranteed", fields: "containers.resources.limits",
		spec: runs("resources: {limits: {cpu: 100m, memory: 64Mi}}\n"),
		check: func(t *testing.T, n *Node, p *corev1.Pod) {
			if p.Status.QOSClass != corev1.PodQOSGuaranteed {
				t.Errorf("QoS class: %s", p.Status.QOSClass)
			}
			n.requireCgroup(p, "main")
		},
	},
	{
		name: "tty", fields: "containers.tty containers.stdin",
		spec: runs("tty: true\nstdin: true\n"),
		check: func(t *testing.T, n *Node, p *corev1.Pod) {
			if got := n.sh("tty", "readlink /proc/1/fd/0"); !strings.HasPrefix(got, "/dev/pts/") &&
				!strings.HasPrefix(got, "/dev/console") {
				t.Errorf("stdin of a tty container: %s", got)
			}
		},
	},
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// requireOneOf checks the file of a cgroup that exists on this machine's version against its value; "*" is any.
func requireOneOf(t *testing.T, group, controller string, values map[string]string) {
	t.Helper()
	for file, want := range values {
		for _, dir := range []string{"/sys/fs/cgroup/" + controller + group, "/sys/fs/cgroup" + group} {
			b, err := os.ReadFile(dir + "/" + file)
			if err != nil {
				continue
			}
			if got := strings.TrimSpace(string(b)); got != want && want != "*" {
				t.Errorf("%s/%s: got %s, want %s", dir, file, got, want)
			}
			return
		}
	}
	t.Errorf("none of %v in %s", values, group)
}
