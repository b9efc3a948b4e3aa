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
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/cluster"
	agentnode "github.com/berth-node/berth/agent/node"
)

const nodeName = "kept"

// wire are the requests of a node, as "VERB path status".
type wire struct {
	mu   sync.Mutex
	list []string
}

func (w *wire) RoundTrip(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(r)
		status := "failed"
		if err == nil {
			status = fmt.Sprint(resp.StatusCode)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.list = append(w.list, r.Method+" "+r.URL.Path+" "+status)
		return resp, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(q *http.Request) (*http.Response, error) { return r(q) }

// since are the requests after the first n.
func (w *wire) since(n int) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.list[n:])
}

// asNode is a client with a certificate of a node, whose requests are kept.
func (p *plane) asNode(t *testing.T, name string, w *wire) *cluster.Client {
	t.Helper()
	both := filepath.Join(p.dir, "pki/ca.pem")
	ca, err := tls.LoadX509KeyPair(both, both)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		Subject:  pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.NewClient(&rest.Config{
		Host: p.config.Host, WrapTransport: w.RoundTrip, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"},
		TLSClientConfig: rest.TLSClientConfig{
			CAData: p.config.CAData, CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			KeyData: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// keeperClient has the client be what a agentnode.Node calls.
type keeperClient struct{ *cluster.Client }

func (c keeperClient) Create(ctx context.Context, of schema.GroupVersionResource, o agentnode.Object, into runtime.Object) error {
	return c.Client.Create(ctx, of, o, into)
}

func (c keeperClient) Update(ctx context.Context, of schema.GroupVersionResource, o agentnode.Object, into runtime.Object) error {
	return c.Client.Update(ctx, of, o, into)
}

// keptNode is a node whose objects are kept at a control plane, with facts that the test says.
type keptNode struct {
	node *agentnode.Node
	wire wire
	back chan struct{} // the server knows less than it has known

	mu        sync.Mutex
	addresses []string
	drivers   []agentnode.Driver
	ready     bool
}

func (k *keptNode) set(fn func(k *keptNode)) {
	k.mu.Lock()
	fn(k)
	k.mu.Unlock()
	k.node.ImagesChanged()
	k.node.DriversChanged()
}

// Node implements [agentnode.Events].
func (*keptNode) Node(string, string, string, ...any) {}

func (k *keptNode) runtime(context.Context) (agentnode.Runtime, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := func(of string) *runtimeapi.RuntimeCondition {
		return &runtimeapi.RuntimeCondition{Type: of, Status: k.ready, Reason: "Test"}
	}
	return agentnode.Runtime{Name: "berth", Version: "1", Status: &runtimeapi.StatusResponse{
		Status:          &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{c("RuntimeReady"), c("NetworkReady")}},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true}}},
		Features:        &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true, MountOptions: true},
	}}, nil
}

func (k *keptNode) sources() agentnode.Sources {
	resources := corev1.ResourceList{
		"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("110"),
		"ephemeral-storage": resource.MustParse("10Gi"), "hugepages-2Mi": resource.MustParse("2Mi"),
	}
	return agentnode.Sources{
		Machine: func() agentnode.Machine { return agentnode.ReadMachine("/") },
		Addresses: func() []string {
			k.mu.Lock()
			defer k.mu.Unlock()
			return k.addresses
		},
		Resources: func() agentnode.Resources {
			return agentnode.Resources{
				Capacity: resources, Allocatable: resources,
				Devices: corev1.ResourceList{"example.com/gpu": resource.MustParse("2")},
				Well:    corev1.ResourceList{"example.com/gpu": resource.MustParse("1")},
			}
		},
		Runtime: k.runtime,
		Images: func(context.Context) ([]agentnode.Image, error) {
			return []agentnode.Image{{Names: []string{"registry.example.com/a@sha256:0", "registry.example.com/a:1"}, Size: 5}}, nil
		},
		Drivers: func() []agentnode.Driver {
			k.mu.Lock()
			defer k.mu.Unlock()
			return k.drivers
		},
		InUse: func() []corev1.UniqueVolumeName { return []corev1.UniqueVolumeName{"kubernetes.io/csi/d^v"} },
	}
}

// keep keeps a node until the test ends.
func keep(t *testing.T, p *plane) *keptNode {
	t.Helper()
	k := &keptNode{addresses: []string{"192.0.2.1", "2001:db8::1"}, ready: true, back: make(chan struct{}, 16)}
	k.node = agentnode.New(agentnode.Config{
		Client: keeperClient{p.asNode(t, nodeName, &k.wire)}, Sources: k.sources(), Events: k, Register: true, MaxImages: 50,
		LeaseDuration: 4 * time.Second, // renewed each second
		Identity: agentnode.Identity{
			Name: nodeName, Labels: map[string]string{"disk": "ssd", "node.kubernetes.io/x": "y"}, ProviderID: "example://1", Port: 10250,
			Taints:  []corev1.Taint{{Key: "example.com/new", Effect: corev1.TaintEffectNoSchedule}},
			Version: agentnode.Version("1"), Features: map[string]bool{"VolumeBindMountOptions": true},
		},
		WentBack: func() { k.back <- struct{}{} },
		Log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = k.node.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return k
}

// objects are those of the node, by the administrator's word.
func (p *plane) nodeObjects(ctx context.Context) (*corev1.Node, *coordinationv1.Lease, *storagev1.CSINode, error) {
	n, err := p.client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return nil, nil, nil, err
	}
	l, err := p.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return nil, nil, nil, err
	}
	c, err := p.client.StorageV1().CSINodes().Get(ctx, nodeName, metav1.GetOptions{})
	return n, l, c, err
}

func readiness(n *corev1.Node) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// whole waits for a node of another UID to be ready, with its lease and CSINode.
func (p *plane) whole(t *testing.T, not types.UID) *corev1.Node {
	t.Helper()
	var out *corev1.Node
	until(t, "the node is ready", func() error {
		n, l, c, err := p.nodeObjects(t.Context())
		switch {
		case err != nil:
			return err
		case n.UID == not || readiness(n).Status != corev1.ConditionTrue:
			return fmt.Errorf("it is %s: %+v", n.UID, readiness(n))
		case len(l.OwnerReferences) != 1 || l.OwnerReferences[0].UID != n.UID:
			return fmt.Errorf("owners of the lease: %v", l.OwnerReferences)
		case len(c.OwnerReferences) != 1 || c.OwnerReferences[0].UID != n.UID:
			return fmt.Errorf("owners of the CSINode: %v", c.OwnerReferences)
		}
		out = n
		return nil
	})
	return out
}

// refused are requests that the server has not done, but those that ask whether there is something, and those of a
// lease that had no answer in time, with what follows from that.
func refused(list []string) []string {
	late := false
	return slices.DeleteFunc(slices.Clone(list), func(line string) bool {
		late = late || isLate(line)
		return strings.HasSuffix(line, " 200") || strings.HasSuffix(line, " 201") ||
			strings.HasPrefix(line, "GET ") && strings.HasSuffix(line, " 404") || isLate(line) ||
			late && strings.HasPrefix(line, "PUT "+leasePath) && strings.HasSuffix(line, " 409")
	})
}

// leasePath is where the lease of the node is. A lease that is renewed each second is given a second each time, which
// is short for a busy machine; a renewal that was late may have been done, and then the next one conflicts with it.
const leasePath = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + nodeName

// isLate says of a request whether it is one for the lease without an answer.
func isLate(line string) bool {
	return strings.Contains(line, leasePath) && strings.HasSuffix(line, " failed")
}

// address waits until the node's address is as it should be.
func (p *plane) address(t *testing.T, want string) {
	t.Helper()
	until(t, "the address is written", func() error {
		n, err := p.client.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
		if err == nil && (len(n.Status.Addresses) == 0 || n.Status.Addresses[0].Address != want) {
			err = fmt.Errorf("%v", n.Status.Addresses)
		}
		return err
	})
}

// TestNodeObjects keeps a node as one that the authorizer of nodes and NodeRestriction judge.
func TestNodeObjects(t *testing.T) {
	t.Parallel()
	p := startAlone(t, t.TempDir(), "0")
	k := keep(t, p)
	n := p.whole(t, "")
	if n.Spec.ProviderID != "example://1" || n.Labels["node.kubernetes.io/x"] != "y" || n.Labels["kubernetes.io/hostname"] != nodeName ||
		!slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "example.com/new" }) {
		t.Errorf("%+v %+v", n.Labels, n.Spec)
	}
	if s := n.Status; len(s.Addresses) != 3 || len(s.Images) != 1 || s.DaemonEndpoints.KubeletEndpoint.Port != 10250 || s.Features == nil ||
		len(s.RuntimeHandlers) != 1 || !slices.Equal(s.DeclaredFeatures, []string{"VolumeBindMountOptions"}) || len(s.VolumesInUse) != 1 ||
		s.NodeInfo.KubeletVersion != agentnode.Version("1") || s.Allocatable.Memory().Value() != 8<<30 {
		t.Errorf("%+v", s)
	}
	gpu := n.Status.Allocatable["example.com/gpu"]
	if gpu.Value() != 1 {
		t.Errorf("allocatable %v", n.Status.Allocatable)
	}

	t.Run("changes", func(t *testing.T) {
		_, err := p.client.CoreV1().Nodes().Patch(t.Context(), nodeName, types.StrategicMergePatchType,
			[]byte(`{"metadata":{"labels":{"theirs":"1"}},"status":{"capacity":{"example.com/dongle":"3"},`+
				`"conditions":[{"type":"Theirs","status":"True"}]}}`), metav1.PatchOptions{}, "status")
		if err != nil {
			t.Fatal(err)
		}
		k.set(func(k *keptNode) {
			k.addresses = []string{"2001:db8::2", "192.0.2.2"}
			k.drivers = []agentnode.Driver{{Name: "d", NodeID: "i", Topology: map[string]string{"example.com/rack": "r"}, MaxVolumes: 7}}
		})
		p.address(t, "2001:db8::2")
		until(t, "the driver and its label are there", func() error {
			n, _, c, err := p.nodeObjects(t.Context())
			if err != nil {
				return err
			}
			dongle := n.Status.Allocatable["example.com/dongle"]
			if len(c.Spec.Drivers) != 1 || *c.Spec.Drivers[0].Allocatable.Count != 7 || n.Labels["example.com/rack"] != "r" ||
				n.Labels["theirs"] != "1" || dongle.Value() != 3 || len(n.Status.Conditions) != 5 || len(n.Status.Addresses) != 3 {
				return fmt.Errorf("%+v, %+v", c.Spec, n)
			}
			return nil
		})
		k.set(func(k *keptNode) { k.ready = false })
		until(t, "the node is not ready", func() error {
			n, err := p.client.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
			if c := readiness(n); err == nil && (c.Status != corev1.ConditionFalse || c.Reason != "KubeletNotReady") {
				err = fmt.Errorf("%+v", c)
			}
			return err
		})
		k.set(func(k *keptNode) { k.ready = true })
		p.whole(t, "")
	})

	t.Run("idle", func(t *testing.T) {
		renewals := func(list []string) (n int, other []string) {
			late := false
			for _, line := range list {
				late = late || isLate(line)
				switch {
				case line == "PUT "+leasePath+" 200":
					n++
				case !late || !strings.Contains(line, leasePath):
					other = append(other, line)
				}
			}
			return n, other
		}
		// What was done before has its echoes.
		for quiet := false; !quiet; {
			from := len(k.wire.since(0))
			until(t, "the lease is renewed", func() error {
				if n, _ := renewals(k.wire.since(from)); n < 2 {
					return fmt.Errorf("%d times", n)
				}
				return nil
			})
			_, other := renewals(k.wire.since(from))
			quiet = len(other) == 0
		}
		from := len(k.wire.since(0))
		until(t, "the lease is renewed", func() error {
			if n, _ := renewals(k.wire.since(from)); n < 12 {
				return fmt.Errorf("%d times", n)
			}
			return nil
		})
		if _, other := renewals(k.wire.since(from)); len(other) > 0 {
			t.Errorf("an idle node asks for %q", other)
		}
	})

	t.Run("deleted", func(t *testing.T) {
		for range 3 {
			is := p.whole(t, "")
			if err := p.client.CoreV1().Nodes().Delete(t.Context(), nodeName, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			again := p.whole(t, is.UID)
			if again.Labels["disk"] != "ssd" || k.node.UID() == is.UID {
				t.Errorf("%+v", again.Labels)
			}
		}
	})

	if bad := refused(k.wire.since(0)); len(bad) > 0 {
		t.Errorf("refused: %q", bad)
	}
}

// TestNodeHostileDriver has a driver ask for a label that no node may give itself.
func TestNodeHostileDriver(t *testing.T) {
	t.Parallel()
	p := startAlone(t, t.TempDir(), "0")
	k := keep(t, p)
	p.whole(t, "")
	k.set(func(k *keptNode) {
		k.addresses = []string{"192.0.2.3"}
		k.drivers = []agentnode.Driver{{Name: "d", NodeID: "i", Topology: map[string]string{"node-restriction.kubernetes.io/x": "y"}}}
	})
	p.address(t, "192.0.2.3")
	k.set(func(k *keptNode) { k.addresses = []string{"192.0.2.4"} })
	p.address(t, "192.0.2.4")
	// The node knows by itself what the server would refuse, with all else that it says.
	if bad := refused(k.wire.since(0)); len(bad) != 0 {
		t.Errorf("refused: %q", bad)
	}
	if _, _, c, err := p.nodeObjects(t.Context()); err != nil || len(c.Spec.Drivers) != 0 {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestNodeFrozenServer has the server not answer for a while, and then be started again.
func TestNodeFrozenServer(t *testing.T) {
	t.Parallel()
	p := startAlone(t, t.TempDir(), "0")
	k := keep(t, p)
	uid := p.whole(t, "").UID
	renewed := func() time.Time {
		l, err := p.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), nodeName, metav1.GetOptions{})
		if err != nil || l.Spec.RenewTime == nil {
			return time.Time{}
		}
		return l.Spec.RenewTime.Time
	}
	failures := func(from int) {
		t.Helper()
		until(t, "the lease cannot be renewed", func() error {
			n := 0
			for _, line := range k.wire.since(from) {
				if strings.Contains(line, "/leases/") && strings.HasSuffix(line, " failed") {
					n++
				}
			}
			if n < 3 {
				return fmt.Errorf("%d failures", n)
			}
			return nil
		})
	}
	alive := func(before time.Time) {
		t.Helper()
		until(t, "the lease is renewed", func() error {
			if at := renewed(); !at.After(before) {
				return fmt.Errorf("at %s", at)
			}
			return nil
		})
	}

	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	frozen := time.Now()
	k.set(func(k *keptNode) { k.addresses = []string{"192.0.2.5"} })
	failures(len(k.wire.since(0)))
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	alive(frozen)
	p.address(t, "192.0.2.5")

	port := p.port(t)
	p.kill()
	killed := time.Now()
	k.set(func(k *keptNode) { k.addresses = []string{"192.0.2.6"} })
	failures(len(k.wire.since(0)))
	p = startAlone(t, p.dir, port)
	alive(killed)
	p.address(t, "192.0.2.6")
	if is := p.whole(t, ""); is.UID != uid {
		t.Errorf("the node was registered anew: %s after %s", is.UID, uid)
	}
	if len(k.back) > 0 {
		t.Error("the server has lost nothing")
	}
}

// TestNodeOldBackup has the server's data be those of a backup from before the node was registered, and of after it.
func TestNodeOldBackup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startAlone(t, dir, "0")
	port := p.port(t)
	p.stop(t)
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.CopyFS(empty, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	p = startAlone(t, dir, port)
	k := keep(t, p)
	before := p.whole(t, "")
	p.stop(t)
	registered := filepath.Join(t.TempDir(), "registered")
	if err := os.CopyFS(registered, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	p = startAlone(t, dir, port)
	k.set(func(k *keptNode) { k.addresses = []string{"192.0.2.7"} })
	p.address(t, "192.0.2.7")
	renewals := func(n int) {
		t.Helper()
		from := len(k.wire.since(0))
		until(t, "the lease is renewed", func() error {
			got := 0
			for _, line := range k.wire.since(from) {
				if strings.Contains(line, "/leases/") && strings.HasSuffix(line, " 200") {
					got++
				}
			}
			if got < n {
				return fmt.Errorf("%d times", got)
			}
			return nil
		})
	}
	renewals(5)
	for _, backup := range []string{registered, empty} {
		p.stop(t)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(dir, os.DirFS(backup)); err != nil {
			t.Fatal(err)
		}
		p = startAlone(t, dir, port)
		p.address(t, "192.0.2.7")
		now := p.whole(t, "")
		if same := now.UID == before.UID; same != (backup == registered) || k.node.UID() != now.UID {
			t.Errorf("%s: the node is %s, was %s, and is known as %s", filepath.Base(backup), now.UID, before.UID, k.node.UID())
		}
		select {
		case <-k.back:
		case <-time.After(patience):
			t.Errorf("%s: nobody was told that the server has lost something", filepath.Base(backup))
		}
		renewals(5)
	}
}
