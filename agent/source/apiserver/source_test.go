package apiserver

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/source/apiserver/follow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds waits that must come to an end; nothing asserts on time.
const patience = 30 * time.Second

func quick() timing {
	return timing{
		follow: follow.Pace{First: time.Millisecond, Most: 5 * time.Millisecond, Open: patience, Short: time.Millisecond},
		answer: patience, all: patience, read: time.Millisecond,
	}
}

// consumer runs a Source and keeps what it says.
type consumer struct {
	t    testing.TB
	stop func()
	logs *logs

	mu      sync.Mutex
	cond    *sync.Cond
	stopped bool // nothing is taken
	ready   bool // what comes next is taken, though stopped may be set meanwhile
	pods    map[string]*corev1.Pod
	objects map[object.Ref]object.Object
	history []string
	synced  int
	seen    map[string]string // pod to uid/version
	mirrors map[string]bool
	listed  int
	back    int
}

type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
	told func()
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	n, err := l.text.Write(b)
	l.mu.Unlock()
	l.told()
	return n, err
}

func (l *logs) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

func consume(t testing.TB, client Client, change func(*Config)) *consumer {
	t.Helper()
	c := &consumer{
		t: t, pods: map[string]*corev1.Pod{}, objects: map[object.Ref]object.Object{}, seen: map[string]string{},
		mirrors: map[string]bool{}, logs: &logs{},
	}
	c.cond = sync.NewCond(&c.mu)
	c.logs.told = func() { go func() { c.mu.Lock(); c.cond.Broadcast(); c.mu.Unlock() }() }
	lock := func(do func()) {
		c.mu.Lock()
		defer c.mu.Unlock()
		do()
		c.cond.Broadcast()
	}
	cfg := Config{
		Client: client, NodeName: "node1", pace: quick(), Log: slog.New(slog.NewTextHandler(c.logs, nil)),
		Seen: func(p *corev1.Pod) {
			lock(func() { c.seen[p.Namespace+"/"+p.Name] = string(p.UID) + "/" + p.ResourceVersion })
		},
		Gone: func(k types.NamespacedName, uid types.UID) {
			lock(func() {
				if !strings.HasPrefix(c.seen[k.String()], string(uid)+"/") {
					t.Errorf("%s %s has gone, and was %s", k, uid, c.seen[k.String()])
				}
				delete(c.seen, k.String())
			})
		},
		Listed: func() { lock(func() { c.listed++ }) },
		Back:   func() { lock(func() { c.back++ }) },
		Mirror: func(k types.NamespacedName, p *corev1.Pod) {
			lock(func() {
				if delete(c.mirrors, k.String()); p != nil {
					c.mirrors[k.String()] = true
				}
			})
		},
	}
	if change != nil {
		change(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	out := make(chan desired.Update)
	var wait sync.WaitGroup
	wait.Go(func() {
		if err := New(cfg).Run(ctx, out); err != nil {
			t.Errorf("Run: %v", err)
		}
		close(out)
	})
	wait.Go(func() {
		for {
			c.mu.Lock()
			for c.stopped && ctx.Err() == nil {
				c.cond.Wait()
			}
			c.ready = true
			c.cond.Broadcast()
			c.mu.Unlock()
			u, ok := <-out
			if !ok {
				return
			}
			c.take(u)
		}
	})
	c.stop = sync.OnceFunc(func() { cancel(); lock(func() {}); wait.Wait() })
	t.Cleanup(c.stop)
	return c
}

func (c *consumer) take(u desired.Update) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.cond.Broadcast()
	c.ready = false
	if u.Origin != desired.API || u.File != "" {
		c.t.Errorf("an update comes from %q, file %q", u.Origin, u.File)
	}
	switch {
	case u.Synced:
		c.synced++
		c.history = append(c.history, "synced")
	case u.Listed:
		c.history = append(c.history, "all "+string(u.Kind))
	case u.Kind != object.Pod && u.Object == nil:
		delete(c.objects, u.Ref())
		c.history = append(c.history, "-"+u.Ref().String())
	case u.Kind != object.Pod:
		c.objects[u.Ref()] = u.Object
		c.history = append(c.history, "+"+u.Ref().String())
	case u.Pod == nil:
		if c.pods[u.Key.String()] == nil {
			c.t.Errorf("%s is removed, and was not there: %v", u.Key, c.history)
		}
		delete(c.pods, u.Key.String())
		c.history = append(c.history, "-"+u.Key.Name)
	default:
		if before := c.pods[u.Key.String()]; before != nil && before.UID != u.Pod.UID {
			c.t.Errorf("%s was %s, and is %s without having been removed", u.Key, before.UID, u.Pod.UID)
		}
		if desired.OriginOf(u.Pod) != desired.API || u.Pod.Annotations[desired.AnnotationSeen] == "" || u.Pod.Kind != "Pod" {
			c.t.Errorf("%s: annotations %v", u.Key, u.Pod.Annotations)
		}
		c.pods[u.Key.String()] = u.Pod
		c.history = append(c.history, "+"+u.Key.Name+" "+string(u.Pod.UID))
	}
}

func (c *consumer) wait(what string, ok func() bool) {
	c.t.Helper()
	timer := time.AfterFunc(patience, c.cond.Broadcast)
	defer timer.Stop()
	end := time.Now().Add(patience)
	c.mu.Lock()
	defer c.mu.Unlock()
	for !ok() {
		if time.Now().After(end) {
			c.t.Fatalf("never %s; pods %v, history %v\n%s", what, len(c.pods), tail(c.history), c.logs.text.String())
		}
		c.cond.Wait()
	}
}

func tail(list []string) []string { return list[max(len(list)-40, 0):] }

func (c *consumer) waitSynced() {
	c.t.Helper()
	c.wait("synced", func() bool { return c.synced == 1 })
}

func (c *consumer) waitPod(name, uid string) *corev1.Pod {
	c.t.Helper()
	var pod *corev1.Pod
	c.wait(fmt.Sprintf("pod %s is %q", name, uid), func() bool {
		pod = c.pods["default/"+name]
		return pod == nil && uid == "" || pod != nil && string(pod.UID) == uid
	})
	return pod
}

// order fails unless these came one after another.
func (c *consumer) order(want ...string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	i := 0
	for _, h := range c.history {
		if i < len(want) && h == want[i] {
			i++
		}
	}
	if i < len(want) {
		c.t.Errorf("%v did not come in this order: %v", want, c.history)
	}
}

func cm(name string) object.Ref { return object.RefTo(object.ConfigMap, "default", name) }

func TestPodLife(t *testing.T) {
	f := newFake()
	f.put("configmaps", configMap("a", "1"))
	f.put("pods", podOn("node1", "p", "u1", envFrom("a", "missing")))
	f.put("pods", podOn("node2", "other", "u9", nil))
	c := consume(t, f, nil)
	c.waitSynced()
	c.order(`+configmap "default/a"`, "+p u1", "synced")
	if len(c.pods) != 1 || c.listed != 1 || len(c.seen) != 1 {
		t.Errorf("pods %v, seen %v, listed %d", c.pods, c.seen, c.listed)
	}
	f.put("configmaps", configMap("missing", "1"))
	c.wait("it is there", func() bool { return c.objects[cm("missing")] != nil })
	f.put("configmaps", configMap("a", "2"))
	c.wait("it has changed", func() bool {
		m, ok := c.objects[cm("a")].(*corev1.ConfigMap)
		return ok && m.Data["k"] == "2" && m.Kind == "ConfigMap"
	})
	now := metav1.Now()
	f.put("pods", podOn("node1", "p", "u1", func(p *corev1.Pod) { envFrom("a")(p); p.DeletionTimestamp = &now }))
	c.wait("it ends", func() bool { return c.pods["default/p"].DeletionTimestamp != nil })
	c.wait("missing is forgotten", func() bool { return c.objects[cm("missing")] == nil })
	f.remove("pods", "default", "p")
	c.waitPod("p", "")
	c.wait("all is forgotten", func() bool { return len(c.objects) == 0 && len(c.seen) == 0 })
	c.order("-p", `-configmap "default/a"`)
}

func TestRecreatedWhileAway(t *testing.T) {
	f := newFake()
	f.put("pods", podOn("node1", "p", "u1", nil))
	c := consume(t, f, nil)
	c.waitSynced()
	for i, compact := range []bool{false, true} {
		f.set(func() { f.down = errRefused })
		f.cut(compact)
		c.wait("the server is away", func() bool { return c.logs.count("does not answer") == i+1 })
		f.remove("pods", "default", "p")
		uid := fmt.Sprintf("u%d", i+2)
		f.put("pods", podOn("node1", "p", uid, nil))
		if compact {
			f.cut(true)
		}
		f.set(func() { f.down = nil })
		c.waitPod("p", uid)
		c.order(fmt.Sprintf("+p u%d", i+1), "-p", "+p "+uid)
	}
	c.wait("the server is back", func() bool { return c.logs.count("answers again") == 2 })
}

// TestSlowConsumer: what is not taken is told once, the latest of it, but for a pod in place of another.
func TestSlowConsumer(t *testing.T) {
	f := newFake()
	f.put("pods", podOn("node1", "p", "u1", nil))
	c := consume(t, f, nil)
	c.waitSynced()
	c.wait("it waits for the next one, and for no more", func() bool {
		c.stopped = c.ready
		return c.stopped
	})
	f.put("pods", podOn("node1", "flush", "f", nil))
	c.waitPod("flush", "f")
	for i := range 50 {
		f.put("pods", podOn("node1", "p", "u1", func(p *corev1.Pod) { p.Labels = map[string]string{"i": fmt.Sprint(i)} }))
	}
	f.remove("pods", "default", "p")
	f.put("pods", podOn("node1", "p", "u2", nil))
	f.put("pods", podOn("node1", "brief", "b", nil))
	f.remove("pods", "default", "brief")
	f.put("pods", podOn("node1", "last", "l", nil))
	c.wait("the watch goes on", func() bool { return c.seen["default/last"] != "" })
	c.mu.Lock()
	c.stopped = false
	before := len(c.history)
	c.cond.Broadcast()
	c.mu.Unlock()
	c.waitPod("last", "l")
	c.mu.Lock()
	defer c.mu.Unlock()
	if got := strings.Join(c.history[before:], " "); !strings.HasSuffix(got, "-p +p u2 +last l") || strings.Contains(got, "brief") || len(c.history)-before > 4 {
		t.Errorf("a slow consumer is told %s", got)
	}
}

func TestMirror(t *testing.T) {
	mirror := func(p *corev1.Pod) { p.Annotations = map[string]string{desired.AnnotationMirror: "x"} }
	f := newFake()
	f.put("pods", podOn("node1", "m", "u1", mirror))
	c := consume(t, f, nil)
	c.waitSynced()
	c.wait("it is told", func() bool { return c.mirrors["default/m"] && c.seen["default/m"] != "" && len(c.pods) == 0 })
	// It is made anew as a pod, and that as a mirror pod.
	f.remove("pods", "default", "m")
	f.put("pods", podOn("node1", "m", "u2", nil))
	c.waitPod("m", "u2")
	c.wait("no mirror", func() bool { return !c.mirrors["default/m"] })
	f.put("pods", podOn("node1", "m", "u2", mirror))
	c.waitPod("m", "")
	c.wait("a mirror", func() bool { return c.mirrors["default/m"] })
	f.remove("pods", "default", "m")
	c.wait("gone", func() bool { return !c.mirrors["default/m"] && len(c.seen) == 0 })
}

// TestOlderHistory: a server restored from a backup has the last word, and it is said once.
func TestOlderHistory(t *testing.T) {
	f := newFake()
	f.put("configmaps", configMap("a", "old"))
	f.put("pods", podOn("node1", "kept", "u1", envFrom("a")))
	f.put("pods", podOn("node1", "back", "u2", nil))
	c := consume(t, f, nil)
	c.waitSynced()
	var objects map[string]object.Object
	f.set(func() {
		objects = map[string]object.Object{}
		for k, o := range f.objects {
			objects[k] = copyOf(o)
		}
	})
	version := f.version
	f.remove("pods", "default", "back")
	f.put("pods", podOn("node1", "lost", "u3", nil))
	f.put("configmaps", configMap("a", "new"))
	for range 50 {
		f.put("pods", podOn("node1", "kept", "u1", envFrom("a")))
	}
	c.waitPod("lost", "u3")
	c.wait("the new value", func() bool { return c.objects[cm("a")].(*corev1.ConfigMap).Data["k"] == "new" })
	c.waitPod("back", "")
	f.notices()
	f.set(func() { f.objects, f.version, f.history, f.floor, f.down = objects, version, nil, version, nil })
	c.waitPod("lost", "")
	c.waitPod("back", "u2")
	c.wait("the old value", func() bool { return c.objects[cm("a")].(*corev1.ConfigMap).Data["k"] == "old" })
	if n := c.logs.count("older history"); n != 1 {
		t.Errorf("it is told %d times", n)
	}
	c.wait("who keeps what the server has is told", func() bool { return c.back == 1 })
	f.put("pods", podOn("node1", "next", "u4", nil))
	c.waitPod("next", "u4")
}

// TestSlowObjects: a pod waits while the server answers, and not for one that does not.
func TestSlowObjects(t *testing.T) {
	f := newFake()
	f.put("configmaps", configMap("slow", "1"))
	f.put("configmaps", configMap("fast", "1"))
	f.set(func() { f.frozen["configmaps/slow"] = true })
	f.put("pods", podOn("node1", "p", "u1", envFrom("slow", "fast")))
	c := consume(t, f, func(cfg *Config) { cfg.pace.answer = 20 * time.Millisecond })
	c.waitSynced()
	c.order(`+configmap "default/fast"`, "+p u1", "synced")
	c.wait("it is said", func() bool { return c.logs.count("has not answered for all") == 1 })
	f.set(func() { clear(f.frozen) })
	c.wait("it comes", func() bool { return c.objects[cm("slow")] != nil })
	// With patience it is waited for.
	f.set(func() { f.frozen["configmaps/b"] = true })
	f.put("configmaps", configMap("b", "1"))
	c.stop()
	c = consume(t, f, nil)
	c.waitSynced()
	f.put("pods", podOn("node1", "q", "u2", envFrom("b")))
	f.put("pods", podOn("node1", "r", "u3", nil))
	c.waitPod("r", "u3")
	c.waitPod("q", "")
	f.set(func() { clear(f.frozen) })
	c.waitPod("q", "u2")
	c.order("+r u3", `+configmap "default/b"`, "+q u2")
}

func TestForbidden(t *testing.T) {
	f := newFake()
	f.put("configmaps", configMap("a", "1"))
	f.set(func() { f.refuse["configmaps/a"] = forbidden("a") })
	f.put("pods", podOn("node1", "p", "u1", envFrom("a")))
	c := consume(t, f, nil)
	c.waitPod("p", "u1")
	f.put("pods", podOn("node1", "q", "u2", envFrom("a")))
	c.waitPod("q", "u2")
	asked := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.asked["configmaps/a"]
	}
	for asked() < 20 {
		time.Sleep(time.Millisecond)
	}
	if n := c.logs.count("does not let the node have"); n != 1 {
		t.Errorf("it is told %d times", n)
	}
	f.set(func() { clear(f.refuse) })
	c.wait("it comes", func() bool { return c.objects[cm("a")] != nil })
}

func TestImmutable(t *testing.T) {
	f, yes := newFake(), true
	m := configMap("a", "1")
	m.Immutable = &yes
	f.put("configmaps", m)
	f.put("pods", podOn("node1", "p", "u1", envFrom("a")))
	c := consume(t, f, nil)
	c.waitSynced()
	for range 3 {
		f.cut(false)
		f.put("pods", podOn("node1", "q", "u2", envFrom("a")))
		c.waitPod("q", "u2")
		f.remove("pods", "default", "q")
		c.waitPod("q", "")
	}
	if f.mu.Lock(); f.asked["configmaps/a"] != 1 || c.objects[cm("a")] == nil {
		t.Errorf("it was asked for %d times", f.asked["configmaps/a"])
	}
	f.mu.Unlock()
}

// TestVolumes follows a claim to its volume, its secrets and its attachment.
func TestVolumes(t *testing.T) {
	f := newFake()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "default", UID: "c"}}
	f.put("persistentvolumeclaims", claim)
	f.put("pods", podOn("node1", "p", "u1", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	}))
	c := consume(t, f, nil)
	c.waitSynced()
	c.order(`+persistentvolumeclaim "default/c"`, "+p u1")
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "v"}}
	pv.Spec.ClaimRef = &corev1.ObjectReference{UID: "c"}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h", NodeStageSecretRef: &corev1.SecretReference{Namespace: "sys", Name: "s"}}
	f.put("secrets", &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "sys", Name: "s", UID: "s"}})
	f.put("csidrivers", &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "d", UID: "d"}})
	attached := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: object.AttachmentName("h", "d", "node1"), UID: "a"}}
	f.put("volumeattachments", attached)
	f.put("persistentvolumes", pv)
	claim.Spec.VolumeName, claim.Status.Phase = "v", corev1.ClaimBound
	f.put("persistentvolumeclaims", claim)
	va := object.RefTo(object.VolumeAttachment, "", attached.Name)
	c.wait("the attachment is known", func() bool { return c.objects[va] != nil })
	c.wait("and the secret", func() bool { return c.objects[object.RefTo(object.Secret, "sys", "s")] != nil })
	attached.Status.Attached = true
	f.put("volumeattachments", attached)
	c.wait("it is attached", func() bool { return c.objects[va].(*storagev1.VolumeAttachment).Status.Attached })
	// A pod that comes now comes after all of it.
	f.put("pods", podOn("node1", "q", "u2", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	}))
	c.waitPod("q", "u2")
	// Without an attachment none is asked for.
	no := false
	f.put("csidrivers", &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "d", UID: "d"}, Spec: storagev1.CSIDriverSpec{AttachRequired: &no}})
	c.wait("it is forgotten", func() bool { return c.objects[va] == nil })
	f.remove("pods", "default", "p")
	f.remove("pods", "default", "q")
	c.wait("all is forgotten", func() bool { return len(c.objects) == 0 })
}

func TestServices(t *testing.T) {
	f := newFake()
	f.put("services", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "s", UID: "s", Labels: map[string]string{"a": "b"}}})
	c := consume(t, f, nil)
	c.waitSynced()
	svc := object.RefTo(object.Service, "x", "s")
	if c.objects[svc] != nil {
		t.Error("services are followed for nobody")
	}
	f.put("pods", podOn("node1", "q", "u2", nil)) // without links: it is told of the API server's own Service
	c.waitPod("q", "u2")
	if o := c.objects[svc]; o == nil || len(o.GetLabels()) > 0 {
		t.Errorf("%v", o)
	}
	c.order(`+service "x/s"`, "all Service", "+q u2")
	f.put("pods", podOn("node1", "q", "u2", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }))
	c.wait("forgotten", func() bool { return c.objects[svc] == nil })
}

// TestTrustBundles: they are followed in whatever version the server has, also with one that has another one since.
func TestTrustBundles(t *testing.T) {
	signer := "example.com/signer"
	old := &certificatesv1beta1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "b", UID: "b"}}
	old.Spec.SignerName, old.Spec.TrustBundle = signer, "old"
	now := &certificatesv1.ClusterTrustBundle{ObjectMeta: old.ObjectMeta}
	now.Spec.SignerName, now.Spec.TrustBundle = signer, "now"
	for version, plain := range map[string]bool{"v1": false, "v1beta1": false, "v1beta1 ": true} {
		t.Run(fmt.Sprint(version, plain), func(t *testing.T) {
			f := newFake()
			f.plain, f.only = plain, map[string]string{"clustertrustbundles": strings.TrimSpace(version)}
			var first object.Object = now
			if version != "v1" {
				first = old
			}
			f.put("clustertrustbundles", first)
			f.put("pods", podOn("node1", "p", "u1", func(p *corev1.Pod) {
				p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
					Sources: []corev1.VolumeProjection{{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{SignerName: &signer}}},
				}}}}
			}))
			c := consume(t, f, nil)
			c.waitSynced()
			c.order(`+clustertrustbundle "b"`, "all ClusterTrustBundle", "+p u1")
			text := func() string {
				b, _ := c.objects[object.RefTo(object.ClusterTrustBundle, "", "b")].(*certificatesv1.ClusterTrustBundle)
				if b == nil || b.Spec.SignerName != signer {
					return fmt.Sprint(b)
				}
				return b.Spec.TrustBundle
			}
			if version == "v1" {
				return
			}
			c.wait("the bundle of before", func() bool { return text() == "old" })
			f.set(func() { f.only["clustertrustbundles"] = "v1" }) // the server is another one
			f.put("clustertrustbundles", now)
			f.cut(true)
			c.wait("the bundle of the later version", func() bool { return text() == "now" })
		})
	}
}

// TestHostilePods: what a server should not say is not taken.
func TestHostilePods(t *testing.T) {
	f := newFake()
	c := consume(t, f, nil)
	c.waitSynced()
	for i, change := range []func(*corev1.Pod){
		func(p *corev1.Pod) { p.UID = "../../etc" },
		func(p *corev1.Pod) { p.UID = "" },
		func(p *corev1.Pod) { p.UID = types.UID(strings.Repeat("a", 65)) },
		func(p *corev1.Pod) { p.Name = "../x" },
		func(p *corev1.Pod) { p.Spec.Containers = named("../x") },
		func(p *corev1.Pod) { p.Spec.Containers = named("x", "x") },
		func(p *corev1.Pod) { p.Spec.Containers, p.Spec.InitContainers = named("x"), named("x") },
		func(p *corev1.Pod) {
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: ".."}}}
		},
		func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "../../../../x"}} },
		func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "x"}, {Name: "x"}} },
		func(p *corev1.Pod) { p.Annotations = map[string]string{desired.AnnotationSource: "file"} },
	} {
		f.put("pods", podOn("node1", fmt.Sprintf("p%d", i), fmt.Sprintf("u%d", i), change))
	}
	p := c.waitPod("p10", "u10")
	if len(c.pods) != 1 || desired.OriginOf(p) != desired.API {
		t.Errorf("%v", c.pods)
	}
}

func named(names ...string) []corev1.Container {
	var out []corev1.Container
	for _, name := range names {
		out = append(out, corev1.Container{Name: name})
	}
	return out
}

// TestOneUID: of two pods of one uid the first one is taken, whose status the other one's would be.
func TestOneUID(t *testing.T) {
	f := newFake()
	f.put("pods", podOn("node1", "first", "u1", nil))
	c := consume(t, f, nil)
	c.waitSynced()
	f.put("pods", podOn("node1", "second", "u1", nil))
	f.put("pods", podOn("node1", "last", "u2", nil))
	c.waitPod("last", "u2")
	if len(c.pods) != 2 {
		t.Errorf("%v", c.pods)
	}
	f.remove("pods", "default", "second")
	f.remove("pods", "default", "first")
	f.put("pods", podOn("node1", "third", "u1", nil))
	c.waitPod("third", "u1")
	c.order("+first u1", "+last u2", "-first", "+third u1")
}

func TestListedWithoutStream(t *testing.T) {
	f := newFake()
	f.plain = true
	f.put("configmaps", configMap("a", "1"))
	f.put("pods", podOn("node1", "p", "u1", envFrom("a")))
	c := consume(t, f, nil)
	c.waitSynced()
	c.order(`+configmap "default/a"`, "+p u1", "synced")
	f.cut(true)
	f.put("pods", podOn("node1", "p", "u1", func(p *corev1.Pod) { p.Labels = map[string]string{"new": ""} }))
	c.wait("it has changed", func() bool { return c.pods["default/p"].Labels != nil })
}
