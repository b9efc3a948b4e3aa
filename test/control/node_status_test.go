package control

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/cluster"
	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/event"
	eventapi "github.com/berth-node/berth/agent/event/apiserver"
	"github.com/berth-node/berth/agent/status"
	statusapi "github.com/berth-node/berth/agent/status/apiserver"
)

var podsAt = corev1.SchemeGroupVersion.WithResource("pods")

// asNode is how a node is known to the control plane: by a certificate that its authority has signed.
func asNode(t *testing.T, p *plane, name string) *rest.Config {
	t.Helper()
	file := p.dir + "/pki/ca.pem"
	authority, err := tls.LoadX509KeyPair(file, file)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		Subject:  pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, authority.Leaf, key.Public(), authority.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(p.config)
	config.TLSClientConfig = rest.TLSClientConfig{
		CAData:   p.config.CAData,
		CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		KeyData:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}),
	}
	config.ContentType, config.QPS, config.Burst = "application/vnd.kubernetes.protobuf", 50, 100
	return config
}

// counted is a client that remembers what was written.
type counted struct {
	*cluster.Client

	mu     sync.Mutex
	writes map[string][]string // by name of the pod: verbs
	failed []string
}

func (c *counted) note(verb, name string, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	// What was not answered in time is written again.
	if !errors.Is(err, context.DeadlineExceeded) {
		c.writes[name] = append(c.writes[name], verb)
	}
	if err != nil {
		c.failed = append(c.failed, fmt.Sprintf("%s %s: %v", verb, name, err))
	}
	return err
}

// take is what was written of a pod since it was asked last.
func (c *counted) take(name string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.writes[name]
	delete(c.writes, name)
	return out
}

// refusals are the answers of authorization and admission that somebody got.
func (c *counted) refusals() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.failed), func(s string) bool {
		return !strings.Contains(s, "forbidden") && !strings.Contains(s, "invalid")
	})
}

// gaveUp fails while no call has had to wait for too long.
func (c *counted) gaveUp() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.ContainsFunc(c.failed, func(s string) bool { return strings.Contains(s, "deadline exceeded") }) {
		return fmt.Errorf("%d calls have failed", len(c.failed))
	}
	return nil
}

func (c *counted) Create(ctx context.Context, res schema.GroupVersionResource, o cluster.Object, into runtime.Object, sub ...string) error {
	return c.note("create", o.GetName(), c.Client.Create(ctx, res, o, into, sub...))
}

func (c *counted) Patch(
	ctx context.Context, res schema.GroupVersionResource, key types.NamespacedName, kind types.PatchType, patch []byte,
	into runtime.Object, sub ...string,
) error {
	return c.note("patch", key.Name, c.Client.Patch(ctx, res, key, kind, patch, into, sub...))
}

func (c *counted) Delete(ctx context.Context, res schema.GroupVersionResource, key types.NamespacedName, o metav1.DeleteOptions) error {
	return c.note("delete", key.Name, c.Client.Delete(ctx, res, key, o))
}

// writeLimit is how long a write of a status may take: longer than it does on a busy machine, for writes are counted.
const writeLimit = 15 * time.Second

// nodeAgent is the part of an agent that this is about: its statuses, its events, and a watch.
type nodeAgent struct {
	name     string
	client   *counted
	writer   *statusapi.Writer
	statuses *status.Writer
	events   *event.Recorder
	sink     *eventapi.Sink

	mu   sync.Mutex
	seen map[types.UID]*corev1.Pod
}

func startNode(t *testing.T, p *plane, name string) *nodeAgent {
	t.Helper()
	client, err := cluster.NewClient(asNode(t, p, name))
	if err != nil {
		t.Fatal(err)
	}
	n := &nodeAgent{name: name, client: &counted{Client: client, writes: map[string][]string{}}, seen: map[types.UID]*corev1.Pod{}}
	var node corev1.Node
	err = client.Create(t.Context(), corev1.SchemeGroupVersion.WithResource("nodes"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, &node)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	n.writer = statusapi.New(statusapi.Config{Client: n.client, Node: name, NodeUID: func() types.UID { return node.UID }, Log: log, Timeout: writeLimit})
	n.statuses = status.NewWriter(n.writer)
	n.sink = eventapi.New(eventapi.Config{Client: n.client, Host: name, QPS: 50, Burst: 100, Log: log})
	n.events = event.NewRecorder(name, n.sink)
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	wait.Go(func() { n.writer.Run(ctx) })
	wait.Go(func() { n.sink.Run(ctx) })
	wait.Go(func() { n.follow(ctx) })
	t.Cleanup(func() {
		cancel()
		wait.Wait()
	})
	return n
}

// follow lists and watches the pods of the node, as a source does.
func (n *nodeAgent) follow(ctx context.Context) {
	for ctx.Err() == nil {
		version, err := n.list(ctx)
		if err == nil {
			err = n.watch(ctx, version)
		}
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
}

func (n *nodeAgent) list(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var list corev1.PodList
	opts := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", n.name).String()}
	if err := n.client.List(ctx, podsAt, "", opts, &list); err != nil {
		return "", err
	}
	there := map[types.UID]bool{}
	for i := range list.Items {
		n.tell(&list.Items[i], false)
		there[list.Items[i].UID] = true
	}
	n.mu.Lock()
	before := slices.Collect(maps.Values(n.seen))
	n.mu.Unlock()
	for _, p := range before {
		if !there[p.UID] {
			n.tell(p, true)
		}
	}
	n.writer.Listed()
	return list.ResourceVersion, nil
}

func (n *nodeAgent) watch(ctx context.Context, version string) error {
	opts := metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", n.name).String(), ResourceVersion: version, TimeoutSeconds: new(int64(10)),
	}
	w, err := n.client.Watch(ctx, podsAt, "", opts)
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		pod, ok := e.Object.(*corev1.Pod)
		if !ok {
			return fmt.Errorf("watch: %v", e.Object)
		}
		n.tell(pod, e.Type == watch.Deleted)
	}
	return nil
}

func (n *nodeAgent) tell(pod *corev1.Pod, gone bool) {
	n.mu.Lock()
	if gone {
		delete(n.seen, pod.UID)
	} else {
		n.seen[pod.UID] = pod
	}
	n.mu.Unlock()
	switch {
	case desired.IsMirror(pod) && gone:
		n.writer.Mirror(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, nil)
	case desired.IsMirror(pod):
		n.writer.Mirror(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, pod)
	case gone:
		n.writer.Gone(pod)
	default:
		n.writer.Seen(pod)
	}
}

// pod waits until the node has seen a pod, and is it as the node's source would hand it on.
func (n *nodeAgent) pod(t *testing.T, name string, is func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var found *corev1.Pod
	until(t, "the node sees "+name, func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, p := range n.seen {
			if p.Name == name && is(p) {
				found = p.DeepCopy()
				return nil
			}
		}
		return fmt.Errorf("it sees %d pods", len(n.seen))
	})
	if found.Annotations == nil {
		found.Annotations = map[string]string{}
	}
	found.Annotations[desired.AnnotationSource] = string(desired.API)
	return found
}

func anyPod(*corev1.Pod) bool { return true }

func deleting(p *corev1.Pod) bool { return p.DeletionTimestamp != nil }

// build is a status as the agent makes it, of a pod whose containers are in a state; sandbox says whether it has one.
func build(pod *corev1.Pod, old *corev1.PodStatus, sandbox bool, state runtimeapi.ContainerState, some bool) *corev1.Pod {
	pod = pod.DeepCopy()
	in := status.Input{Pod: pod, Old: old, Now: time.Now(), Runtime: "berth", HostIPs: []string{"192.0.2.1"}}
	if sandbox {
		in.Sandbox = &runtimeapi.PodSandboxStatus{
			State: runtimeapi.PodSandboxState_SANDBOX_READY, CreatedAt: time.Now().UnixNano(), Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.1.2.3"},
		}
	}
	for _, c := range pod.Spec.Containers {
		if some {
			s := &runtimeapi.ContainerStatus{
				Id: string(pod.UID) + c.Name, Metadata: &runtimeapi.ContainerMetadata{Name: c.Name}, State: state, ImageRef: "sha256:1",
				CreatedAt: time.Now().UnixNano(), StartedAt: time.Now().UnixNano(), StopSignal: runtimeapi.Signal_SIGNAL_SIGTERM,
				User:   &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{Uid: 1}},
				Labels: map[string]string{"io.kubernetes.container.name": c.Name},
			}
			if state == runtimeapi.ContainerState_CONTAINER_EXITED {
				s.FinishedAt = time.Now().UnixNano()
			}
			in.Containers = append(in.Containers, s)
		}
	}
	in.Ended = some && state == runtimeapi.ContainerState_CONTAINER_EXITED
	pod.Status = status.Build(in)
	return pod
}

// run takes a pod from bound to ready, as the agent would say it, and returns what it said last.
func (n *nodeAgent) run(pod *corev1.Pod) *corev1.Pod {
	first := build(pod, nil, false, 0, false)
	n.statuses.Put(first)
	second := build(pod, &first.Status, true, 0, false)
	n.statuses.Put(second)
	third := build(pod, &second.Status, true, runtimeapi.ContainerState_CONTAINER_RUNNING, true)
	n.statuses.Put(third)
	return third
}

// finish takes a pod to its end, as the agent would when it is deleted.
func (n *nodeAgent) finish(pod *corev1.Pod, old *corev1.PodStatus) {
	n.statuses.Put(build(pod, old, true, runtimeapi.ContainerState_CONTAINER_EXITED, true))
	n.statuses.Delete(pod)
}

func nodePod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "example.com/image"}}},
	}
}

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// TestNodeStatus has the agent's writers of statuses and events work as a node, which the authorizer of nodes and
// NodeRestriction judge.
func TestNodeStatus(t *testing.T) {
	t.Parallel()
	p := startAlone(t, t.TempDir(), "0")
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := p.client.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	n := startNode(t, p, "node-1")
	t.Run("status", func(t *testing.T) { testStatusWrites(t, p, n) })
	t.Run("mirror", func(t *testing.T) { testMirrorPods(t, p, n) })
	t.Run("events", func(t *testing.T) { testNodeEvents(t, p, n) })
	if r := n.client.refusals(); len(r) > 0 {
		t.Errorf("the server refuses %q", r)
	}
	t.Run("unreachable", func(t *testing.T) { testUnreachable(t, p, n) })
}

func testStatusWrites(t *testing.T, p *plane, n *nodeAgent) {
	ctx, pods := t.Context(), p.client.CoreV1().Pods("default")
	create := func(pod *corev1.Pod) {
		t.Helper()
		if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	gated := nodePod("a", n.name)
	gated.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}}
	gated.Finalizers = []string{"example.com/kept"}
	create(gated)
	gate := []byte(`{"status":{"conditions":[{"type":"example.com/gate","status":"True"}]}}`)
	if _, err := pods.Patch(ctx, "a", types.StrategicMergePatchType, gate, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	pod := n.pod(t, "a", func(p *corev1.Pod) bool { return len(p.Status.Conditions) > 0 })
	began := time.Now()
	last := n.run(pod)
	running := func(name string) *corev1.Pod {
		t.Helper()
		var has *corev1.Pod
		until(t, name+" runs", func() (err error) {
			if has, err = pods.Get(ctx, name, metav1.GetOptions{}); err == nil && has.Status.Phase != corev1.PodRunning {
				err = fmt.Errorf("it is %s", has.Status.Phase)
			}
			return err
		})
		return has
	}
	has := running("a")
	t.Logf("running at the server after %s", time.Since(began))
	until(t, "all is written", func() error { return n.idle() })
	if w := n.client.take("a"); len(w) > 3 {
		t.Errorf("from bound to running: %q", w)
	} else {
		t.Logf("from bound to running: %q", w)
	}
	if has.Status.Conditions[0].Type != "example.com/gate" || has.Status.QOSClass != corev1.PodQOSBestEffort || has.Status.PodIP != "10.1.2.3" {
		t.Errorf("the server has %+v", has.Status)
	}

	if err := pods.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	pod = n.pod(t, "a", deleting)
	n.finish(pod, &last.Status)
	until(t, "the node has let it go", func() error {
		has, err := pods.Get(ctx, "a", metav1.GetOptions{})
		if err == nil && *has.DeletionGracePeriodSeconds != 0 {
			err = fmt.Errorf("it has %d s", *has.DeletionGracePeriodSeconds)
		}
		return err
	})
	if w := n.written(t, "a", 2); !slices.Equal(w, []string{"patch", "delete"}) {
		t.Errorf("from deleted to gone: %q", w)
	}
	if _, err := pods.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "it is gone", func() error {
		if _, err := pods.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("get: %w", err)
		}
		return nil
	})

	// One whose every step takes longer than it is waited for.
	create(nodePod("slow", n.name))
	slow := n.pod(t, "slow", anyPod)
	steps := []*corev1.Pod{build(slow, nil, false, 0, false)}
	steps = append(steps, build(slow, &steps[0].Status, true, 0, false))
	steps = append(steps, build(slow, &steps[1].Status, true, runtimeapi.ContainerState_CONTAINER_RUNNING, true))
	for _, step := range steps {
		n.statuses.Put(step)
		until(t, "the step is written", func() error { return n.idle() })
	}
	if w := n.written(t, "slow", 3); len(w) != 3 || !isReady(running("slow")) {
		t.Errorf("from bound to ready: %q", w)
	}

	// One that never ran, and the next of its name.
	create(nodePod("b", n.name))
	first := n.pod(t, "b", anyPod)
	if err := pods.Delete(ctx, "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.statuses.Delete(n.pod(t, "b", deleting))
	until(t, "it is made again", func() error {
		_, err := pods.Create(ctx, nodePod("b", n.name), metav1.CreateOptions{})
		return err
	})
	second := n.pod(t, "b", func(p *corev1.Pod) bool { return p.UID != first.UID })
	n.statuses.Put(build(first, nil, true, runtimeapi.ContainerState_CONTAINER_EXITED, true))
	n.statuses.Delete(first)
	n.run(second)
	has = running("b")
	if has.UID != second.UID || !isReady(has) {
		t.Errorf("the second is %+v", has)
	}
	until(t, "all is written", func() error { return n.idle() })
	testUnaware(t, n, first)
	if now := running("b"); now.ResourceVersion != has.ResourceVersion {
		t.Errorf("the second became %+v", now)
	}
	n.client.take("b")
}

// testUnaware has somebody speak of a pod that there is another of by now, and who does not know of it.
func testUnaware(t *testing.T, n *nodeAgent, first *corev1.Pod) {
	ctx, cancel := context.WithCancel(t.Context())
	unaware := statusapi.New(statusapi.Config{Client: n.client, Node: n.name})
	done := make(chan struct{})
	go func() {
		defer close(done)
		unaware.Run(ctx)
	}()
	n.client.take("b")
	unaware.Seen(first)
	unaware.Put(build(first, nil, true, runtimeapi.ContainerState_CONTAINER_EXITED, true))
	gone := first.DeepCopy()
	gone.DeletionTimestamp = new(metav1.Now())
	unaware.Delete(gone)
	until(t, "it is given up", func() error {
		if c := unaware.Pending(); c > 0 {
			return fmt.Errorf("%d wait", c)
		}
		return nil
	})
	cancel()
	<-done
	if w := n.client.take("b"); !slices.Equal(w, []string{"patch"}) {
		t.Errorf("of the one before were tried: %q", w)
	}
}

// written is what was written of a pod, at least so many times. That a write has come to something may be heard by the
// watch before whoever wrote has the answer.
func (n *nodeAgent) written(t *testing.T, name string, least int) (all []string) {
	t.Helper()
	until(t, "all is written", func() error {
		if all = append(all, n.client.take(name)...); len(all) < least {
			return fmt.Errorf("there was %q", all)
		}
		return n.idle()
	})
	return append(all, n.client.take(name)...)
}

func (n *nodeAgent) idle() error {
	if c := n.writer.Pending(); c > 0 {
		return fmt.Errorf("%d wait", c)
	}
	return nil
}

// nodeStatic is a static pod as the agent has it.
func nodeStatic(name, node, hash string) *corev1.Pod {
	pod := nodePod(name, node)
	pod.UID = types.UID(hash)
	pod.Annotations = map[string]string{
		desired.AnnotationSource: string(desired.File), desired.AnnotationHash: hash, desired.AnnotationSeen: time.Now().Format(time.RFC3339Nano),
	}
	pod.Spec.Priority, pod.Spec.PriorityClassName = new(int32(2000001000)), "system-node-critical"
	pod.Spec.RestartPolicy, pod.Spec.TerminationGracePeriodSeconds = corev1.RestartPolicyAlways, new(int64(30))
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
	return pod
}

func testMirrorPods(t *testing.T, p *plane, n *nodeAgent) {
	ctx, pods := t.Context(), p.client.CoreV1().Pods("default")
	mirror := func(name string, is func(*corev1.Pod) bool) *corev1.Pod {
		t.Helper()
		var has *corev1.Pod
		until(t, "the mirror pod "+name, func() (err error) {
			if has, err = pods.Get(ctx, name, metav1.GetOptions{}); err == nil && !is(has) {
				err = fmt.Errorf("it is %+v", has)
			}
			return err
		})
		return has
	}
	static := nodeStatic("web-node-1", n.name, "0123456789abcdef")
	n.run(static)
	n.writer.Settled()
	first := mirror(static.Name, isReady)
	if first.Annotations[desired.AnnotationMirror] != string(static.UID) || *first.Spec.Priority != 2000001000 {
		t.Errorf("the mirror pod is %+v", first)
	}
	// Somebody deletes it with its grace, which only the node ends.
	if err := pods.Delete(ctx, static.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	second := mirror(static.Name, func(p *corev1.Pod) bool { return p.UID != first.UID && isReady(p) })
	if err := pods.Delete(ctx, static.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	third := mirror(static.Name, func(p *corev1.Pod) bool { return p.UID != second.UID && isReady(p) })
	changed := nodeStatic(static.Name, n.name, "fedcba9876543210")
	n.statuses.Delete(static)
	n.run(changed)
	mirror(static.Name, func(p *corev1.Pod) bool {
		return p.UID != third.UID && isReady(p) && p.Annotations[desired.AnnotationMirror] == string(changed.UID)
	})
	refers := nodeStatic("refers-node-1", n.name, "0000")
	refers.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}}
	n.run(refers)
	n.statuses.Delete(changed)
	until(t, "the mirror pod is gone", func() error {
		if _, err := pods.Get(ctx, static.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("get: %w", err)
		}
		return n.idle()
	})
	if w := n.client.take("refers-node-1"); len(w) > 0 {
		t.Errorf("of a pod that can have no mirror pod: %q", w)
	}
}

func testNodeEvents(t *testing.T, p *plane, n *nodeAgent) {
	pod := n.pod(t, "b", anyPod)
	for range 3 {
		n.events.Container(pod, "main", corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container")
	}
	for i := range 40 {
		n.events.Event(pod, corev1.EventTypeWarning, "Failed", "in other words: %d", i)
	}
	n.events.Node(corev1.EventTypeNormal, "Starting", "Starting kubelet.")
	events := p.client.CoreV1().Events("default")
	ask := func(want int, selector string) {
		t.Helper()
		until(t, selector, func() error {
			list, err := events.List(t.Context(), metav1.ListOptions{FieldSelector: selector})
			if err == nil && len(list.Items) != want {
				err = fmt.Errorf("%d events", len(list.Items))
			}
			return err
		})
	}
	ask(1, "source=kubelet,reason=BackOff,involvedObject.uid="+string(pod.UID))
	ask(10, "source=kubelet,reason=Failed,type=Warning,involvedObject.name=b")
	ask(1, "source=kubelet,involvedObject.kind=Node,involvedObject.name="+n.name)
	until(t, "it is counted", func() error {
		list, err := events.List(t.Context(), metav1.ListOptions{FieldSelector: "reason=BackOff"})
		if err == nil && list.Items[0].Count != 3 {
			err = fmt.Errorf("count %d", list.Items[0].Count)
		}
		return err
	})
}

// testUnreachable kills and freezes the server in the midst of the lives of many pods.
func testUnreachable(t *testing.T, p *plane, n *nodeAgent) {
	const count = 60
	pods, history := p.client.CoreV1().Pods("default"), &podHistory{}
	history.follow(t, p)
	for i := range count {
		if _, err := pods.Create(t.Context(), nodePod(fmt.Sprintf("many-%02d", i), n.name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var all []*corev1.Pod
	said := map[string]*corev1.Pod{}
	for i := range count {
		all = append(all, n.pod(t, fmt.Sprintf("many-%02d", i), anyPod))
	}
	for i, pod := range all {
		if i == count/3 {
			p.kill()
		}
		said[pod.Name] = n.run(pod)
		n.events.Event(pod, corev1.EventTypeNormal, "Started", "it runs")
	}
	again := startAlone(t, p.dir, p.port(t))
	began := time.Now()
	until(t, "all is written", func() error { return n.idle() })
	t.Logf("written %s after the server was back", time.Since(began))
	if err := again.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for _, pod := range all[:count/2] {
		old := said[pod.Name]
		next := build(pod, &old.Status, true, runtimeapi.ContainerState_CONTAINER_RUNNING, true)
		next.Status.ContainerStatuses[0].RestartCount = 1
		n.statuses.Put(next)
		said[pod.Name] = next
	}
	until(t, "calls are given up, which arrive nevertheless", func() error { return n.client.gaveUp() })
	for _, pod := range all[:count/2] {
		next := said[pod.Name].DeepCopy()
		next.Status.ContainerStatuses[0].RestartCount = 2
		n.statuses.Put(next)
		said[pod.Name] = next
	}
	if err := again.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	until(t, "all is written", func() error { return n.idle() })
	t.Logf("written %s after the server went on", time.Since(began))
	for _, pod := range all {
		has, err := again.client.CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want := said[pod.Name].Status.ContainerStatuses[0]
		if !isReady(has) || has.Status.ContainerStatuses[0].RestartCount != want.RestartCount {
			t.Errorf("%s has %+v, want %+v", pod.Name, has.Status.ContainerStatuses, want)
		}
	}
	testAllDeleted(t, again, n, all, said)
	history.check(t)
	until(t, "the events are written", func() error {
		list, err := again.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "source=kubelet,reason=Started"})
		if err == nil && len(list.Items) != count {
			err = fmt.Errorf("%d events", len(list.Items))
		}
		return err
	})
}

// testAllDeleted deletes all pods at once.
func testAllDeleted(t *testing.T, p *plane, n *nodeAgent, all []*corev1.Pod, said map[string]*corev1.Pod) {
	pods := p.client.CoreV1().Pods("default")
	for _, pod := range all {
		n.client.take(pod.Name)
		if err := pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	for _, pod := range all {
		n.finish(n.pod(t, pod.Name, deleting), &said[pod.Name].Status)
	}
	for _, pod := range all {
		until(t, pod.Name+" is gone", func() error {
			if _, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("get: %w", err)
			}
			return nil
		})
	}
	t.Logf("%d pods gone after %s", len(all), time.Since(began))
	until(t, "nothing is left", func() error { return n.idle() })
	for _, pod := range all {
		// Two where the steps come quickly one after the other; what is in between on a busy machine is told, too. A
		// deletion that has no answer in time is asked for again.
		w := n.client.take(pod.Name)
		if first := slices.Index(w, "delete"); first < 0 || len(slices.Compact(w[first:])) > 1 {
			t.Errorf("%s from deleted to gone: %q", pod.Name, w)
		}
	}
}

// podHistory is what a watch tells of pods.
type podHistory struct {
	mu   sync.Mutex
	seen []*corev1.Pod
}

// follow watches through restarts of the server.
func (h *podHistory) follow(t *testing.T, p *plane) {
	list, err := p.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	version := list.ResourceVersion
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	wait.Go(func() {
		for ctx.Err() == nil {
			w, err := p.client.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
			if err != nil {
				select {
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
				continue
			}
			for e := range w.ResultChan() {
				if pod, ok := e.Object.(*corev1.Pod); ok {
					version = pod.ResourceVersion
					h.mu.Lock()
					h.seen = append(h.seen, pod)
					h.mu.Unlock()
				}
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		wait.Wait()
	})
}

// check holds every pod's history to never going back.
func (h *podHistory) check(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	rank := map[corev1.PodPhase]int{corev1.PodPending: 0, corev1.PodRunning: 1, corev1.PodSucceeded: 2, corev1.PodFailed: 2}
	before := map[types.UID]*corev1.Pod{}
	for _, p := range h.seen {
		old := before[p.UID]
		before[p.UID] = p
		if old == nil {
			continue
		}
		if rank[p.Status.Phase] < rank[old.Status.Phase] {
			t.Errorf("%s went from %s to %s", p.Name, old.Status.Phase, p.Status.Phase)
		}
		for i, c := range old.Status.ContainerStatuses {
			if i < len(p.Status.ContainerStatuses) && p.Status.ContainerStatuses[i].RestartCount < c.RestartCount {
				t.Errorf("%s was restarted %d times, then %d", p.Name, c.RestartCount, p.Status.ContainerStatuses[i].RestartCount)
			}
		}
		for _, c := range old.Status.Conditions {
			for _, now := range p.Status.Conditions {
				if now.Type == c.Type && now.LastTransitionTime.Before(&c.LastTransitionTime) {
					t.Errorf("%s: condition %s changed at %s, then at %s", p.Name, c.Type, c.LastTransitionTime, now.LastTransitionTime)
				}
			}
		}
	}
	if len(before) == 0 {
		t.Error("the watch has told nothing")
	}
}
