package pod

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/pod/podtest"
	"github.com/berth-node/berth/agent/token"
)

// tokens are those of a node in memory.
type tokens struct {
	made  atomic.Int64
	hangs atomic.Bool
}

func (s *tokens) ask(ctx context.Context, _ types.NamespacedName, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	if s.hangs.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	out := r.DeepCopy()
	out.Status.Token = fmt.Sprintf("%s-%d", r.Spec.BoundObjectRef.Name, s.made.Add(1))
	return out, nil
}

// served runs a test on a node that has an API server.
func served(t *testing.T, s *tokens, test func(*testNode)) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it mounts volumes in memory")
	}
	onNode(t, func(n *testNode) {
		n.stop()
		m := token.New(token.Config{Ask: s.ask, Renewed: func(uid types.UID) { n.m.Renew(uid) }})
		n.cfg.Issued.Tokens, n.cfg.MaxParallelStarts = m, 1
		n.start()
		ctx, cancel := context.WithCancel(n.t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); m.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		test(n)
	})
}

// accessing is a pod as the admission of an API server makes it.
func accessing(name string) *corev1.Pod {
	p := podtest.New(name)
	p.Spec.NodeName, p.Spec.ServiceAccountName = "node", "robot"
	p.Spec.Volumes = []corev1.Volume{{Name: "kube-api-access-x", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: new(int32(0o644)), Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(3607))}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}},
		},
	}}}}
	return fromAPI(p)[0]
}

func (n *testNode) rootCA() {
	n.updates <- desired.Update{
		Kind: object.ConfigMap, Key: types.NamespacedName{Namespace: "default", Name: "kube-root-ca.crt"}, Origin: desired.API,
		Object: &corev1.ConfigMap{Data: map[string]string{"ca.crt": "the ca"}},
	}
}

// file is what a container reads.
func (n *testNode) file(pod *corev1.Pod, name string) string {
	n.t.Helper()
	v := filepath.Join(n.cfg.RootDir, "pods", string(pod.UID), "volumes", "kubernetes.io~projected", pod.Spec.Volumes[0].Name)
	data, err := os.ReadFile(filepath.Join(v, name))
	if err != nil {
		n.t.Error(err)
	}
	return string(data)
}

// TestTokenVolume wants a pod to have a token, another one before that ends, and none to be made when it is gone.
func TestTokenVolume(t *testing.T) {
	var s tokens
	served(t, &s, func(n *testNode) {
		pod, other := accessing("a"), accessing("b")
		n.rootCA()
		n.apply(pod, other)
		n.is("a", "Running main:0:running")
		first := n.file(pod, "token")
		if first == "" || n.file(pod, "ca.crt") != "the ca" || n.file(pod, "namespace") != "default" {
			t.Errorf("the token is %q, the authority %q, the namespace %q", first, n.file(pod, "ca.crt"), n.file(pod, "namespace"))
		}
		n.restart()
		n.rootCA()
		n.pass(50 * time.Minute)
		n.is("a", "Running main:0:running")
		if now := n.file(pod, "token"); now == first {
			t.Errorf("the token is still %q", now)
		}
		n.remove(pod, other)
		n.pass(time.Minute)
		made := s.made.Load()
		n.pass(24 * time.Hour)
		if s.made.Load() != made {
			t.Errorf("%d tokens were made for pods that are gone", s.made.Load()-made)
		}
		if left, _ := filepath.Glob(filepath.Join(n.cfg.RootDir, "pods", "*")); len(left) > 0 {
			t.Errorf("there is still %v", left)
		}
	})
}

// TestTokenServerHangs wants a server that does not answer to hold up no pod that needs nothing of it, and its own pods
// no longer than that lasts; pods that have tokens go on.
func TestTokenServerHangs(t *testing.T) {
	var s tokens
	served(t, &s, func(n *testNode) {
		n.rootCA()
		had := accessing("had")
		n.apply(had)
		n.is("had", "Running main:0:running")
		s.hangs.Store(true)
		waits := accessing("waits")
		n.apply(waits)
		n.apply(podtest.New("static"))
		n.is("static", "Running main:0:running")
		n.is("waits", "Pending main:0:ContainerCreating")
		n.pass(55 * time.Minute)
		n.is("had", "Running main:0:running")
		s.hangs.Store(false)
		n.pass(6 * time.Minute)
		n.is("waits", "Running main:0:running")
		n.remove(had, waits)
		n.pass(time.Minute)
	})
}
