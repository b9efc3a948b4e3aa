package control

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	mathrand "math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/berth-node/berth/agent/cluster"
	"github.com/berth-node/berth/agent/desired"
	have "github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/source/apiserver"
	"github.com/berth-node/berth/agent/source/apiserver/kept"
	"github.com/berth-node/berth/control/pki"
)

// nodeClient is what a node asks the control plane with: as itself, so that the Node authorizer judges.
func (p *plane) nodeClient(t *testing.T, node string) *cluster.Client {
	t.Helper()
	store, err := pki.Open(filepath.Join(p.dir, "pki"), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ca, signer, err := store.Authority(pki.ClusterAuthority)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		Subject:     pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.NewClient(&rest.Config{
		Host: p.config.Host, QPS: 50, Burst: 100,
		ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"},
		TLSClientConfig: rest.TLSClientConfig{
			CAData:   p.config.CAData,
			CAFile:   p.config.CAFile,
			CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			KeyData:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// wanted is what a node is told of.
type wanted struct {
	mu      sync.Mutex
	cond    *sync.Cond
	pods    map[string]*corev1.Pod
	objects map[have.Ref]have.Object
	synced  bool
	early   []string // pods that came before a ConfigMap or Secret that they refer to
}

// follow runs the origin of a node's pods until the test ends.
func (p *plane) follow(t *testing.T, node string) *wanted {
	t.Helper()
	w, stop := follow(t, p.nodeClient(t, node), node, nil)
	t.Cleanup(stop)
	w.wait(t, "all is known", func() bool { return w.synced })
	return w
}

// follow runs the origin of a node's pods until it is stopped.
func follow(t *testing.T, client *cluster.Client, node string, keep apiserver.Store) (w *wanted, stop func()) {
	w = &wanted{pods: map[string]*corev1.Pod{}, objects: map[have.Ref]have.Object{}}
	w.cond = sync.NewCond(&w.mu)
	s := apiserver.New(apiserver.Config{
		Client: client, NodeName: node, Keep: keep, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	ctx, cancel := context.WithCancel(context.Background())
	out := make(chan desired.Update)
	var wait sync.WaitGroup
	wait.Go(func() {
		if err := s.Run(ctx, out); err != nil {
			t.Errorf("Run: %v", err)
		}
		close(out)
	})
	wait.Go(func() {
		for u := range out {
			w.take(t, u)
		}
	})
	return w, func() { cancel(); wait.Wait() }
}

func (w *wanted) take(t *testing.T, u desired.Update) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.cond.Broadcast()
	switch {
	case u.Synced:
		w.synced = true
	case u.Listed:
	case u.Kind != have.Pod && u.Object == nil:
		delete(w.objects, u.Ref())
	case u.Kind != have.Pod:
		w.objects[u.Ref()] = u.Object
	case u.Pod == nil:
		delete(w.pods, u.Key.Name)
	default:
		before := w.pods[u.Key.Name]
		if before != nil && before.UID != u.Pod.UID {
			t.Errorf("pod %s takes the place of another one that was not removed", u.Key)
		}
		for _, ref := range desired.Refs(u.Pod) {
			if before == nil && (ref.Kind == have.ConfigMap || ref.Kind == have.Secret) && w.objects[ref] == nil && u.Pod.DeletionTimestamp == nil {
				w.early = append(w.early, u.Key.Name+" before "+ref.String())
			}
		}
		w.pods[u.Key.Name] = u.Pod
	}
}

func (w *wanted) wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	end := time.Now().Add(patience)
	timer := time.AfterFunc(patience, w.cond.Broadcast)
	defer timer.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	for !ok() {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s", what, patience)
		}
		w.cond.Wait()
	}
}

// boundPod is one that refers to a ConfigMap and a Secret of these numbers.
func boundPod(node, name string, m, s int) *corev1.Pod {
	no := false
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns},
		Spec: corev1.PodSpec{
			NodeName: node, AutomountServiceAccountToken: &no, TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{Name: "main", Image: "image:1", EnvFrom: []corev1.EnvFromSource{
				{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: fmt.Sprintf("m%d", m)}}},
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: fmt.Sprintf("s%d", s)}}},
			}}},
		},
	}
}

const (
	nodePods    = 200
	nodeObjects = 20
)

// TestNodeSource has a node follow its pods, and what they refer to, as the Node authorizer lets it, while both change
// and the server is killed.
func TestNodeSource(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startAlone(t, dir, "0")
	ctx := t.Context()
	p.namespace(t)
	for i := range nodeObjects {
		p.objects(t, i, 0)
	}
	w := p.follow(t, "node1")
	other := p.follow(t, "node2")
	r := mathrand.New(mathrand.NewPCG(1, uint64(time.Now().UnixNano())))
	for i := range nodePods {
		p.create(t, boundPod("node1", fmt.Sprintf("p%d", i), r.IntN(nodeObjects), r.IntN(nodeObjects)))
	}
	p.agree(t, w, "node1")
	w.mu.Lock()
	if len(w.early) > 0 {
		t.Errorf("%d pods came too early: %v", len(w.early), w.early[:min(len(w.early), 5)])
	}
	w.mu.Unlock()
	for round := range 3 {
		for range 100 {
			p.disturb(t, r, round)
		}
		if round == 1 {
			port := p.port(t)
			p.kill()
			p = startAlone(t, dir, port)
		}
		p.agree(t, w, "node1")
	}
	if other.mu.Lock(); len(other.pods)+len(other.objects) > 0 {
		t.Errorf("a node hears of %d pods and %d objects of another", len(other.pods), len(other.objects))
	}
	other.mu.Unlock()
	p.volumes(t, w)
	zero := int64(0)
	until(t, "all pods are deleted", func() error { // the server gives one request a minute
		return p.client.CoreV1().Pods(ns).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &zero}, metav1.ListOptions{})
	})
	w.wait(t, "all is forgotten", func() bool { return len(w.pods)+len(w.objects) == 0 })
}

// TestNodeOffline has a node start without its control plane.
func TestNodeOffline(t *testing.T) {
	t.Parallel()
	dir, offline := t.TempDir(), t.TempDir()
	p := startAlone(t, dir, "0")
	p.namespace(t)
	p.objects(t, 0, 1)
	p.create(t, boundPod("node1", "stays", 0, 0))
	p.create(t, boundPod("node1", "goes", 0, 0))
	client, port := p.nodeClient(t, "node1"), p.port(t)
	run := func() (*wanted, func()) {
		keep, err := kept.Open(kept.Config{Dir: offline, Node: "node1"})
		if err != nil {
			t.Fatal(err)
		}
		return follow(t, client, "node1", keep)
	}
	w, stop := run()
	w.wait(t, "all is known", func() bool { return w.synced && len(w.pods) == 2 })
	stop()
	zero := int64(0)
	if err := p.client.CoreV1().Pods(ns).Delete(t.Context(), "goes", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	p.objects(t, 0, 2)
	p.kill()
	w, stop = run()
	defer stop()
	w.wait(t, "the pods that were kept", func() bool { return len(w.pods) == 2 && !w.synced })
	p = startAlone(t, dir, port)
	w.wait(t, "the server's word counts", func() bool { return w.synced && len(w.pods) == 1 && w.pods["stays"] != nil })
	p.agree(t, w, "node1")
}

// namespace waits until pods can be made.
func (p *plane) namespace(t *testing.T) {
	t.Helper()
	until(t, "the namespace is there", func() error {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		_, err := p.client.CoreV1().ServiceAccounts(ns).Create(t.Context(), account, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

func (p *plane) create(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if _, err := p.client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// object makes or changes a ConfigMap and a Secret.
func (p *plane) objects(t *testing.T, i, value int) {
	t.Helper()
	ctx := t.Context()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m%d", i), Namespace: ns}, Data: map[string]string{"k": fmt.Sprint(value)}}
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d", i), Namespace: ns}, StringData: map[string]string{"k": fmt.Sprint(value)}}
	_, err := p.client.CoreV1().ConfigMaps(ns).Update(ctx, m, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = p.client.CoreV1().ConfigMaps(ns).Create(ctx, m, metav1.CreateOptions{})
	}
	_, err2 := p.client.CoreV1().Secrets(ns).Update(ctx, s, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err2) {
		_, err2 = p.client.CoreV1().Secrets(ns).Create(ctx, s, metav1.CreateOptions{})
	}
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
}

// disturb changes something.
func (p *plane) disturb(t *testing.T, r *mathrand.Rand, round int) {
	t.Helper()
	ctx, pods, name := t.Context(), p.client.CoreV1().Pods(ns), fmt.Sprintf("p%d", r.IntN(nodePods))
	zero := int64(0)
	var err error
	switch r.IntN(5) {
	case 0:
		err = pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
	case 1:
		_ = pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
		p.create(t, boundPod("node1", name, r.IntN(nodeObjects), r.IntN(nodeObjects)))
	case 2, 3:
		patch := fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"}}}`, r.IntN(1000))
		_, err = pods.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	case 4:
		p.objects(t, r.IntN(nodeObjects), round*1000+r.IntN(1000))
	}
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

// agree waits until the node has what the server has, and no objects but those that its pods refer to.
func (p *plane) agree(t *testing.T, w *wanted, node string) {
	t.Helper()
	pods, err := p.client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		t.Fatal(err)
	}
	versions := map[have.Ref]string{}
	maps, err := p.client.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range maps.Items {
		versions[have.RefTo(have.ConfigMap, ns, m.Name)] = m.ResourceVersion
	}
	secrets, err := p.client.CoreV1().Secrets(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range secrets.Items {
		versions[have.RefTo(have.Secret, ns, s.Name)] = s.ResourceVersion
	}
	w.wait(t, "the node has what the server has", func() bool {
		refs := map[have.Ref]bool{}
		for i := range pods.Items {
			pod := &pods.Items[i]
			if has := w.pods[pod.Name]; has == nil || has.UID != pod.UID || has.ResourceVersion != pod.ResourceVersion {
				return false
			}
			for _, ref := range desired.Refs(pod) {
				if o := w.objects[ref]; ref.Kind != have.PriorityClass && (o == nil || o.GetResourceVersion() != versions[ref]) {
					return false
				}
				refs[ref] = true
			}
		}
		for ref := range w.objects {
			if !refs[ref] && ref.Kind != have.Service {
				return false
			}
		}
		return len(w.pods) == len(pods.Items)
	})
}

// volumes has a pod refer to a claim that is bound later, to a volume whose attachment is waited for.
func (p *plane) volumes(t *testing.T, w *wanted) {
	t.Helper()
	ctx, core := t.Context(), p.client.CoreV1()
	size := corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	class := ""
	claim, err := core.PersistentVolumeClaims(ns).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "c"},
		Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: modes, Resources: size, StorageClassName: &class},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := boundPod("node1", "claims", 0, 0)
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	p.create(t, pod)
	w.wait(t, "the pod", func() bool { return w.pods["claims"] != nil })
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "of-volume"}}
	if _, err := core.Secrets(ns).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := core.PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "v"},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: modes, Capacity: size.Requests, ClaimRef: &corev1.ObjectReference{Namespace: ns, Name: "c", UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: "csi.example.com", VolumeHandle: "h", NodeStageSecretRef: &corev1.SecretReference{Namespace: ns, Name: "of-volume"},
			}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	claim.Spec.VolumeName = "v"
	if claim, err = core.PersistentVolumeClaims(ns).Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	claim.Status.Phase = corev1.ClaimBound
	if _, err := core.PersistentVolumeClaims(ns).UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.wait(t, "the volume and its secret", func() bool {
		return w.objects[have.RefTo(have.PersistentVolume, "", "v")] != nil && w.objects[have.RefTo(have.Secret, ns, "of-volume")] != nil
	})
	volume := "v"
	name := have.AttachmentName("h", "csi.example.com", "node1")
	a, err := p.client.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: "csi.example.com", NodeName: "node1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a.Status.Attached = true
	if _, err := p.client.StorageV1().VolumeAttachments().UpdateStatus(ctx, a, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.wait(t, "the volume is attached", func() bool {
		a, ok := w.objects[have.RefTo(have.VolumeAttachment, "", name)].(*storagev1.VolumeAttachment)
		return ok && a.Status.Attached
	})
}
