package system

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// hidden is a value that must be found in no file of the node.
const hidden = "hunter2-4f1d9c"

func configMap(name, data string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\ndata: {" + data + "}\n"
}

// applySecret writes a manifest that only root can read.
func (n *Node) applySecret(file, manifest string) {
	n.t.Helper()
	tmp := filepath.Join(n.Dir, file+".new")
	if err := os.WriteFile(tmp, []byte(manifest), 0o600); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(n.Dir, "manifests", file)); err != nil {
		n.t.Fatal(err)
	}
}

func secretOf(name, data string) string {
	return "apiVersion: v1\nkind: Secret\nmetadata: {name: " + name + "}\nstringData: {" + data + "}\n"
}

// waitSh waits until a command in a pod prints something.
func (n *Node) waitSh(pod, command, want string) {
	n.t.Helper()
	n.eventually(fmt.Sprintf("%q of %s to say %q", command, pod, want), func() error {
		out, stderr, code := n.berth("exec", pod, "--", "sh", "-c", command)
		if got := strings.TrimSpace(out); code != 0 || got != want {
			return fmt.Errorf("%d: %q %s", code, got, stderr)
		}
		return nil
	})
}

// TestObjects lets pods wait for objects, changes these under running pods, and restarts the agent meanwhile.
func TestObjects(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("web.yaml", pod("web", `
  volumes:
  - {name: c, configMap: {name: settings, items: [{key: a, path: deep/a}, {key: b, path: b, mode: 0400}]}}
  - {name: s, secret: {secretName: keys, defaultMode: 0440}}
  - name: all
    projected:
      sources:
      - {configMap: {name: settings}}
      - {secret: {name: keys}}
      - {secret: {name: none, optional: true}}
      - {downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}, {path: cpu, resourceFieldRef: {containerName: main, resource: limits.cpu, divisor: 1m}}]}}
  containers:
  - name: main
    image: `+image+`
    command: [sleep, "1000000"]
    resources: {limits: {cpu: 250m}}
    env:
    - {name: PASSWORD, valueFrom: {secretKeyRef: {name: keys, key: password}}}
    - {name: SAYS, value: "$(FROM_a)!"}
    - {name: NONE, valueFrom: {configMapKeyRef: {name: none, key: x, optional: true}}}
    envFrom: [{prefix: FROM_, configMapRef: {name: settings}}]
    volumeMounts:
    - {name: c, mountPath: /c}
    - {name: s, mountPath: /s}
    - {name: all, mountPath: /all}
    - {name: c, mountPath: /one, subPath: b}`))
	n.eventually("the pod to miss its configmap", func() error {
		out := n.must("events")
		if !strings.Contains(out, `configmap "settings" not found`) {
			return fmt.Errorf("events: %s", out)
		}
		return nil
	})
	n.apply("settings.yaml", configMap("settings", "a: '1', b: one"))
	n.applySecret("keys.yaml", secretOf("keys", "password: "+hidden))
	before := n.waitReady("web")

	for command, want := range map[string]string{
		"cat /c/deep/a": "1", "stat -L -c %a /c/b": "400", "cat /s/password": hidden, "stat -L -c %a " +
			"/s/password": "440", "echo $PASSWORD $SAYS$NONE": hidden + " 1!",
		"cat /all/b /all/password /all/cpu": "one" + hidden + "250", "readlink /c/deep": "..data/deep", "cat /one": "one",
		"touch /c/x /s/x /all/x 2>/dev/null || echo no": "no",
		`awk '$5 == "/s" || $5 == "/all" {for (i = 1; i < NF; i++) if ($i == "-") print $(i+1)}' /proc/self/mountinfo | sort -u`: "tmpfs",
	} {
		if got := strings.TrimSpace(n.sh("web", command)); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}

	// A change reaches what is mounted, but for the one file that is pinned and the environment.
	n.apply("settings.yaml", configMap("settings", "a: '2', b: two, c: new"))
	n.waitSh("web", "cat /c/deep/a /all/c /one; echo $SAYS", "2newone1!")
	n.applySecret("keys.yaml", secretOf("keys", "password: changed"))
	n.waitSh("web", "cat /s/password", "changed")
	n.requireSame(before, n.waitReady("web"))

	// What is gone, or wrong, does not take from the pod what it has.
	n.remove("settings.yaml")
	n.applySecret("keys.yaml", "kind: Secret\napiVersion: v1\nmetadata: {name: keys}\nstringData: {password: [1]}\n")
	n.logHas("keys.yaml", "stringData[password]")
	if got := n.sh("web", "cat /c/deep/a /s/password"); got != "2changed" {
		t.Errorf("%q", got)
	}

	// What changes while no agent runs is seen by the next one.
	n.stop()
	n.apply("settings.yaml", configMap("settings", "a: '3', b: three"))
	n.applySecret("keys.yaml", secretOf("keys", "password: later"))
	n.start()
	n.waitSh("web", "cat /c/deep/a /s/password", "3later")
	n.requireSame(before, n.waitReady("web"))

	n.applySecret("keys.yaml", secretOf("keys", "password: "+hidden))
	n.waitSh("web", "cat /s/password", hidden)
	n.requireNotOnDisk(hidden)
	for _, file := range []string{"web.yaml", "settings.yaml", "keys.yaml"} {
		n.remove(file)
	}
	n.waitGone("web")
	n.requireNoPods()
}

// requireNotOnDisk looks for a value in every file of the node that is not in memory, but for the manifest it came
// from. The run directory is memory on a real node.
func (n *Node) requireNotOnDisk(value string) {
	n.t.Helper()
	forms := [][]byte{[]byte(value)}
	for shift := range 3 {
		// As part of something in base64 it begins at any of three bits, and its ends depend on what is around it.
		b := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + value))
		forms = append(forms, []byte(b[shift+shift/2+1:len(b)-5]))
	}
	has := func(b []byte) bool {
		return slices.ContainsFunc(forms, func(f []byte) bool { return bytes.Contains(b, f) })
	}
	for _, dir := range []string{"root", "logs"} {
		err := filepath.WalkDir(filepath.Join(n.Dir, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil // it has gone meanwhile
			}
			if d.IsDir() && filepath.Base(path) == "kubernetes.io~secret" || filepath.Base(path) == "kubernetes.io~projected" {
				return fs.SkipDir // shown to be a tmpfs by the pod
			}
			if !d.Type().IsRegular() {
				return nil
			}
			if b, err := os.ReadFile(path); err == nil && has(b) {
				n.t.Errorf("%s has the secret", path)
			}
			return nil
		})
		if err != nil {
			n.t.Error(err)
		}
	}
	b, err := os.ReadFile(n.Log)
	if err != nil || has(b) {
		n.t.Errorf("the log has the secret, %v", err)
	}
	for _, args := range [][]string{{"describe", "web"}, {"get", "pods", "-o", "yaml"}, {"events"}} {
		if out, _, _ := n.berth(args...); has([]byte(out)) {
			n.t.Errorf("berth %v tells the secret", args)
		}
	}
}

// TestMissingObjects starts containers by themselves when what they miss comes, and refuses what must not be.
func TestMissingObjects(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("env.yaml", pod("env", `
  containers:
  - name: main
    image: `+image+`
    command: [sleep, "1000000"]
    env: [{name: A, valueFrom: {secretKeyRef: {name: keys, key: a}}}]`))
	says := func(message string) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool {
			if p == nil || len(p.Status.ContainerStatuses) == 0 {
				return false
			}
			w := p.Status.ContainerStatuses[0].State.Waiting
			return w != nil && w.Reason == "CreateContainerConfigError" && w.Message == message
		}
	}
	n.wait("env", "without its secret", says(`secret "keys" not found`))
	if err := os.WriteFile(filepath.Join(n.Dir, "manifests", "keys.yaml"), []byte(secretOf("keys", "b: x")),
		0o644); err != nil {
		t.Fatal(err)
	}
	n.logHas("keys.yaml", "the file has mode 0644", "0600")
	n.applySecret("keys.yaml", secretOf("keys", "b: x"))
	n.wait("env", "without its key", says("couldn't find key a in Secret default/keys"))
	n.applySecret("keys.yaml", secretOf("keys", "a: x"))
	n.waitReady("env")
	if got := strings.TrimSpace(n.sh("env", "echo $A")); got != "x" {
		t.Errorf("%q", got)
	}

	// A class that is not there yet.
	n.apply("late.yaml", pod("late", "\n  priorityClassName: important"+sleeping))
	n.wait("late", "waiting for its class", func(p *corev1.Pod) bool {
		return p != nil && strings.Contains(p.Status.Message, "no PriorityClass with name important")
	})
	n.apply("class.yaml", "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: important}\nvalue: "+
		"1000\n")
	if p := n.waitReady("late"); p.Spec.Priority == nil || *p.Spec.Priority != 1000 {
		t.Errorf("priority %v", p.Spec.Priority)
	}
}

// TestPersistentVolumes binds claims to a directory and to an export that the node cannot mount.
func TestPersistentVolumes(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	data := filepath.Join(n.Dir, "data")
	if err := os.MkdirAll(filepath.Join(data, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(data, "sub", "precious"), "mine")
	volume := func(name, source string) string {
		return "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: " + name +
			"}\nspec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], " + source + "}\n"
	}
	claim := func(name, volume string) string {
		return "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: " + name +
			"}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}" + volume + "}\n"
	}
	n.apply("pod.yaml", pod("db", `
  securityContext: {runAsUser: 1000, fsGroup: 2345}
  volumes: [{name: d, persistentVolumeClaim: {claimName: data}}]
  containers:
  - name: main
    image: `+image+`
    command: [sleep, "1000000"]
    volumeMounts: [{name: d, mountPath: /data}]`)+"---\n"+claim("data", ""))
	n.eventually("the claim to be told unbound", func() error {
		if out := n.must("events"); !strings.Contains(out, `persistentvolumeclaim "data": not bound`) {
			return fmt.Errorf("events: %s", out)
		}
		return nil
	})
	n.apply("pv.yaml", volume("disk", "local: {path: "+data+"}, claimRef: {namespace: default, name: data}"))
	n.waitReady("db")
	if got := n.sh("db", "cat /data/sub/precious; stat -c ' %g %a' /data/sub; echo more > /data/sub/new; ls -ln "+
		"/data/sub/new | awk '{print $4}'"); got != "mine 2345 2770\n2345\n" {
		t.Errorf("%q", got)
	}
	n.remove("pod.yaml")
	n.waitGone("db")
	if b, err := os.ReadFile(filepath.Join(data, "sub", "precious")); err != nil || string(b) != "mine" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := exec.LookPath("mount.nfs"); err != nil {
		n.requireNamed("nfs", "nfs: {server: 192.0.2.1, path: /x}", "nfs-common")
	}
	n.requireNoPods()
}

// requireNamed has a pod with a volume for which the node lacks a program, and waits until an event names its package.
func (n *Node) requireNamed(name, volume, pkg string) {
	n.t.Helper()
	n.apply(name+".yaml", pod(name, "\n  volumes: [{name: v, "+volume+"}]"+sleeping))
	n.eventually("the missing program to be named", func() error {
		if out := n.must("events"); !strings.Contains(out, pkg) {
			return fmt.Errorf("events: %s", out)
		}
		return nil
	})
	n.remove(name + ".yaml")
	n.waitGone(name)
}

// TestImageVolumesAndPullSecrets runs a private image with the pod's own credentials, and mounts another one.
func TestImageVolumesAndPullSecrets(t *testing.T) {
	t.Parallel()
	addr := guarded(t, registry(t), "me", "secret")
	n := startNode(t)
	n.apply("private.yaml", pod("private", `
  imagePullSecrets: [{name: registry}]
  volumes: [{name: img, image: {reference: `+addr+`/busybox:1}}]
  containers:
  - name: main
    image: `+addr+`/busybox:1
    command: [sleep, "1000000"]
    volumeMounts:
    - {name: img, mountPath: /img}
    - {name: img, mountPath: /bins, subPath: bin}`))
	n.wait("private", "without credentials", func(p *corev1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			strings.HasSuffix(p.Status.ContainerStatuses[0].State.Waiting.Reason, "Pull") // ErrImagePull
	})
	if out := n.must("events"); !strings.Contains(out, "FailedToRetrieveImagePullSecret") {
		t.Errorf("events: %s", out)
	}
	n.applySecret("registry.yaml", `{apiVersion: v1, kind: Secret, metadata: {name: registry}, type: kubernetes.io/dockerconfigjson,
  stringData: {.dockerconfigjson: '{"auths": {"`+addr+`": {"username": "me", "password": "secret"}}}'}}`)
	n.waitReady("private")
	if got := n.sh("private", "test -x /img/bin/busybox && echo root; test -x /bins/busybox && echo sub; touch /img/x "+
		"2>/dev/null || echo read-only"); got != "root\nsub\nread-only\n" {
		t.Errorf("%q", got)
	}

	// A class that names another handler than itself.
	n.apply("class.yaml", "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: fast}\nhandler: "+
		"crun\noverhead: {podFixed: {memory: 10Mi}}\n")
	n.apply("other.yaml", pod("other", "\n  runtimeClassName: fast"+sleeping))
	if p := n.waitReady("other"); p.Spec.Overhead.Memory().String() != "10Mi" {
		t.Errorf("overhead %v", p.Spec.Overhead)
	}
	if states, err := os.ReadDir(filepath.Join(n.Dir, "run", "runtimes", "crun")); err != nil || len(states) == 0 {
		t.Errorf("crun has no container: %v", err)
	}
	for _, name := range []string{"private", "other"} {
		n.remove(name + ".yaml")
		n.waitGone(name)
	}
	n.requireNoPods()
}

// TestSizeLimitOfEmptyDir fills a volume on the disk beyond its limit, and one in memory up to it.
func TestSizeLimitOfEmptyDir(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("full.yaml", pod("full", `
  volumes: [{name: disk, emptyDir: {sizeLimit: 1Mi}}, {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]
  containers:
  - name: main
    image: `+image+`
    command: [sleep, "1000000"]
    volumeMounts: [{name: disk, mountPath: /d}, {name: memory, mountPath: /m}]`))
	n.waitReady("full")
	if got := n.sh("full", "dd if=/dev/zero of=/m/x bs=64k count=32 2>/dev/null || wc -c < "+
		"/m/x"); strings.TrimSpace(got) != "1048576" {
		t.Errorf("in memory are %q bytes", got)
	}
	// It may be ended before the command has, and be back before that is known here.
	written := make(chan struct{})
	go func() {
		defer close(written)
		n.berth("exec", "full", "--", "sh", "-c", "dd if=/dev/zero of=/d/x bs=64k count=32 2>/dev/null; sync")
	}()
	p := n.waitPhase("full", corev1.PodFailed)
	<-written
	if p.Status.Reason != "Evicted" ||
		!strings.Contains(p.Status.Message, `Usage of EmptyDir volume "disk" exceeds the limit "1Mi"`) {
		t.Errorf("%s: %s", p.Status.Reason, p.Status.Message)
	}
	if c := condition(p, corev1.DisruptionTarget); c == nil || c.Status != corev1.ConditionTrue {
		t.Errorf("conditions %v", p.Status.Conditions)
	}
	n.waitReady("full")
	n.sh("full", "! test -e /d/x")
	n.remove("full.yaml")
	n.waitGone("full")
	n.requireNoPods()
}

// TestLimitOfEphemeralStorage has one pod write more into its file system than it may, and one into its log.
func TestLimitOfEphemeralStorage(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	limited := func(name, command string) {
		n.apply(name+".yaml", pod(name, `
  containers:
  - {name: main, image: `+image+`, command: [sh, -c, '`+command+`; sleep 1000000'], resources: {limits: {ephemeral-storage: 4Mi}}}
  - {name: other, image: `+image+`, command: [sleep, "1000000"], resources: {limits: {ephemeral-storage: 100Mi}}}`))
	}
	limited("layer", "dd if=/dev/zero of=/tmp/x bs=1M count=8")
	limited("log", "yes 0123456789012345678901234567890123456789 | head -c 8000000")
	limited("small", "dd if=/dev/zero of=/tmp/x bs=1M count=1")
	for _, name := range []string{"layer", "log"} {
		p := n.waitPhase(name, corev1.PodFailed)
		if p.Status.Reason != "Evicted" ||
			!strings.Contains(p.Status.Message, `Container main exceeded its local ephemeral storage limit "4Mi"`) {
			t.Errorf("%s: %s: %s", name, p.Status.Reason, p.Status.Message)
		}
	}
	n.waitReady("small")
	n.apply("huge.yaml", pod("huge", `
  containers: [{name: main, image: `+image+`, command: [sleep, "1000000"], resources: {requests: {ephemeral-storage: 1Ei}}}]`))
	if p := n.waitPhase("huge", corev1.PodFailed); p.Status.Reason != "OutOfephemeral-storage" {
		t.Errorf("huge: %s: %s", p.Status.Reason, p.Status.Message)
	}
	for _, name := range []string{"layer", "log", "small", "huge"} {
		n.remove(name + ".yaml")
		n.waitGone(name)
	}
	n.requireNoPods()
}
