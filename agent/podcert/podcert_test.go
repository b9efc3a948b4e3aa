package podcert

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/agent/issued/issuedtest"
)

// server has the requests, and a signer that answers as it is told to.
type server struct {
	mu    sync.Mutex
	asked int
	last  *certificatesv1.PodCertificateRequest
	sign  func(*certificatesv1.PodCertificateRequest)
	drops bool // watches end at once
	old   bool // it has v1beta1 alone
}

// is holds who asks to the version that the server has.
func (s *server) is(res schema.GroupVersionResource) error {
	if s.old != (res.Version == "v1beta1") {
		return apierrors.NewNotFound(res.GroupResource(), "")
	}
	return nil
}

// given is a request in the version that the server has.
func (s *server) given(r *certificatesv1.PodCertificateRequest) runtime.Object {
	if !s.old {
		return r.DeepCopy()
	}
	return &certificatesv1beta1.PodCertificateRequest{ObjectMeta: r.ObjectMeta, Status: certificatesv1beta1.PodCertificateRequestStatus(r.Status)}
}

func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func (s *server) Get(_ context.Context, res schema.GroupVersionResource, key types.NamespacedName, into runtime.Object) error {
	switch o := into.(type) {
	case *corev1.ServiceAccount:
		o.Name, o.UID = key.Name, "uid-of-account"
	case *corev1.Node:
		o.Name, o.UID = key.Name, "uid-of-node"
	case *certificatesv1.PodCertificateRequest:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last.DeepCopyInto(o)
		return s.is(res)
	case *certificatesv1beta1.PodCertificateRequest:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.given(s.last).(*certificatesv1beta1.PodCertificateRequest).DeepCopyInto(o)
		return s.is(res)
	default:
		return errors.New(res.Resource)
	}
	return nil
}

func (s *server) Create(_ context.Context, res schema.GroupVersionResource, o interface {
	metav1.Object
	runtime.Object
}, into runtime.Object, _ ...string,
) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.is(res); err != nil {
		return err
	}
	s.asked++
	r, ok := o.DeepCopyObject().(*certificatesv1.PodCertificateRequest)
	if was, older := o.(*certificatesv1beta1.PodCertificateRequest); older {
		text, _ := json.Marshal(was)
		r = new(certificatesv1.PodCertificateRequest)
		if err := json.Unmarshal(text, r); err != nil {
			return err
		}
	} else if !ok {
		return fmt.Errorf("it is a %T", o)
	}
	r.Name, r.UID = "req-x", types.UID(strings.Repeat("u", s.asked))
	switch into := into.(type) {
	case *certificatesv1.PodCertificateRequest:
		r.DeepCopyInto(into)
	case *certificatesv1beta1.PodCertificateRequest:
		s.given(r).(*certificatesv1beta1.PodCertificateRequest).DeepCopyInto(into)
	}
	if s.last = r; s.sign != nil {
		s.sign(r)
	}
	return nil
}

func (s *server) Watch(_ context.Context, res schema.GroupVersionResource, _ string, _ metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.is(res); err != nil {
		return nil, err
	}
	if s.drops {
		return nil, errors.New("away")
	}
	w := watch.NewFakeWithChanSize(1, false)
	w.Modify(s.given(s.last))
	w.Stop()
	return w, nil
}

// issue signs a request for a key.
func issue(r *certificatesv1.PodCertificateRequest, key any) {
	csr, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		panic(err)
	}
	if key == nil {
		key = csr.PublicKey
	}
	signer, _ := newKey("ECDSAP256")
	now := time.Now()
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now, NotAfter: now.Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, &x509.Certificate{}, key, signer)
	if err != nil {
		panic(err)
	}
	at := func(d time.Duration) *metav1.Time { return new(metav1.NewTime(now.Add(d))) }
	r.Status = certificatesv1.PodCertificateRequestStatus{
		CertificateChain: "between\n" + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		NotBefore:        at(0), BeginRefreshAt: at(12 * time.Hour), NotAfter: at(24 * time.Hour),
		Conditions: []metav1.Condition{{Type: "Issued", Status: metav1.ConditionTrue}},
	}
}

func podNamed(name string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	p.Spec.ServiceAccountName = "robot"
	return p
}

func in(t *testing.T, s *server, fn func(m *Manager, renewed func() int)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		n := 0
		m := New(Config{Client: s, Node: "here", Renewed: func(types.UID) { mu.Lock(); n++; mu.Unlock() }})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); m.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		fn(m, func() int { mu.Lock(); defer mu.Unlock(); return n })
	})
}

var want = &corev1.PodCertificateProjection{SignerName: "example.com/s", KeyType: "ECDSAP256", UserAnnotations: map[string]string{"example.com/a": "b"}}

// TestCredential wants a pod to have a key with its certificate, another one when the signer says, and none to be asked
// for when the pod is gone.
func TestCredential(t *testing.T) {
	for _, old := range []bool{false, true} {
		t.Run(fmt.Sprint("old ", old), func(t *testing.T) {
			credential(t, &server{old: old, sign: func(r *certificatesv1.PodCertificateRequest) { issue(r, nil) }})
		})
	}
}

func credential(t *testing.T, s *server) {
	t.Helper()
	in(t, s, func(m *Manager, renewed func() int) {
		pod := podNamed("p")
		if _, err := m.Credential(pod, "v", 0, want); !errors.As(err, new(*Waiting)) {
			t.Fatalf("%v", err)
		}
		synctest.Wait()
		first, err := m.Credential(pod, "v", 0, want)
		if err != nil || renewed() != 1 {
			t.Fatalf("%v, told %d times", err, renewed())
		}
		if _, err := tls.X509KeyPair(first.Chain, first.Key); err != nil || strings.Contains(string(first.Chain), "between") {
			t.Errorf("%v in\n%s", err, first.Chain)
		}
		s.mu.Lock()
		spec := s.last.Spec
		s.mu.Unlock()
		if spec.PodUID != "p" || spec.NodeUID != "uid-of-node" || spec.ServiceAccountUID != "uid-of-account" || spec.UnverifiedUserAnnotations["example.com/a"] != "b" {
			t.Errorf("asked %+v", spec)
		}
		time.Sleep(12 * time.Hour)
		synctest.Wait()
		second, err := m.Credential(pod, "v", 0, want)
		if err != nil || renewed() != 2 || string(second.Key) == string(first.Key) {
			t.Errorf("%v, told %d times", err, renewed())
		}
		m.Forget(pod.UID)
		time.Sleep(48 * time.Hour)
		if s.count() != 2 {
			t.Errorf("asked %d times", s.count())
		}
	})
}

// TestRefusals wants what is no certificate of the key to be taken for none, and signers not to be asked all the time.
func TestRefusals(t *testing.T) {
	deny := func(r *certificatesv1.PodCertificateRequest) {
		r.Status.Conditions = []metav1.Condition{{Type: "Denied", Status: metav1.ConditionTrue, Reason: "UnsupportedKeyType", Message: "use RSA3072"}}
	}
	fail := func(r *certificatesv1.PodCertificateRequest) {
		r.Status.Conditions = []metav1.Condition{{Type: "Failed", Status: metav1.ConditionTrue, Reason: "Broken", Message: "no"}}
	}
	other, _ := newKey("ED25519")
	for name, c := range map[string]struct {
		sign  func(*certificatesv1.PodCertificateRequest)
		drops bool
		want  string
	}{
		"denied":        {deny, false, "Denied: UnsupportedKeyType: use RSA3072"},
		"failed":        {fail, false, "Failed: Broken: no"},
		"another key":   {func(r *certificatesv1.PodCertificateRequest) { issue(r, other.Public()) }, false, "for another key"},
		"nothing in it": {func(r *certificatesv1.PodCertificateRequest) { issue(r, nil); r.Status.CertificateChain = "x" }, false, "no certificate"},
		"100 MB": {func(r *certificatesv1.PodCertificateRequest) {
			issue(r, nil)
			r.Status.CertificateChain = strings.Repeat("x", 100<<20)
		}, false, "104857600 bytes"},
		"nobody answers":  {nil, false, "nobody has answered"},
		"nobody is there": {nil, true, "nobody has answered"},
	} {
		s := &server{sign: c.sign, drops: c.drops}
		in(t, s, func(m *Manager, renewed func() int) {
			pod := podNamed("p")
			_, _ = m.Credential(pod, "v", 0, want)
			time.Sleep(signing + time.Second)
			synctest.Wait()
			if _, err := m.Credential(pod, "v", 0, want); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", name, err)
			}
			if time.Sleep(time.Hour); s.count() > 20 || renewed() != 1 {
				t.Errorf("%s: asked %d times, told %d times", name, s.count(), renewed())
			}
			if name == "denied" || name == "failed" { // that stays: another pod may do better
				if m.Again(); s.count() != 1 {
					t.Errorf("%s: asked %d times", name, s.count())
				}
				return
			}
			s.mu.Lock()
			s.sign, s.drops = func(r *certificatesv1.PodCertificateRequest) { issue(r, nil) }, false
			s.mu.Unlock()
			time.Sleep(time.Hour)
			synctest.Wait()
			if _, err := m.Credential(pod, "v", 0, want); err != nil {
				t.Errorf("%s, and then granted: %v", name, err)
			}
		})
	}
}

// TestRefresh wants nonsense of a signer not to have it be asked all the time.
func TestRefresh(t *testing.T) {
	now := time.Unix(1e9, 0)
	at := func(d time.Duration) *metav1.Time { return new(metav1.NewTime(now.Add(d))) }
	for _, c := range []struct {
		begin, after *metav1.Time
		want         time.Duration
	}{
		{at(time.Hour), at(10 * time.Hour), time.Hour},
		{at(9 * time.Hour), at(10 * time.Hour), 8 * time.Hour},
		{at(-time.Hour), at(10 * time.Hour), soonest},
		{nil, at(10 * time.Hour), 8 * time.Hour},
		{at(time.Hour), at(-time.Hour), soonest},
		{nil, nil, 12 * time.Hour},
	} {
		if got := refreshIn(&certificatesv1.PodCertificateRequestStatus{BeginRefreshAt: c.begin, NotAfter: c.after}, now); got != c.want {
			t.Errorf("%v, %v: %s, want %s", c.begin, c.after, got, c.want)
		}
	}
	// A clock that is years behind, or ahead, when the signer answers is set right after it.
	for _, off := range []time.Duration{-9e4 * time.Hour, 9e4 * time.Hour} {
		st := &certificatesv1.PodCertificateRequestStatus{NotBefore: at(0), NotAfter: at(10 * time.Hour)}
		if got := refreshIn(st, now.Add(off)); got != 8*time.Hour {
			t.Errorf("clock off by %s: %s", off, got)
		}
		st.BeginRefreshAt = at(5 * time.Hour)
		if got := refreshIn(st, now.Add(off)); got != 5*time.Hour {
			t.Errorf("clock off by %s: %s", off, got)
		}
	}
	for _, kind := range []string{"RSA3072", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"} {
		if key, err := newKey(kind); err != nil || key.Public() == nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if _, err := newKey("DSA"); err == nil {
		t.Error("a key of a type that nobody knows")
	}
}

// TestKept: after a boot a pod has the certificate that it had, and its signer is asked when it is time, or when the
// server is back. A certificate that has ended does for as long, and what asks for another one is not given it.
func TestKept(t *testing.T) {
	var d issuedtest.Store
	pod := podNamed("p")
	s := &server{sign: func(r *certificatesv1.PodCertificateRequest) { issue(r, nil) }}
	var had Credential
	in(t, s, func(m *Manager, _ func() int) {
		m.cfg.Keep = &d
		_, _ = m.Credential(pod, "v", 0, want)
		synctest.Wait()
		had, _ = m.Credential(pod, "v", 0, want)
	})
	in(t, s, func(m *Manager, renewed func() int) {
		m.cfg.Keep = &d
		got, err := m.Credential(pod, "v", 0, want)
		synctest.Wait()
		if err != nil || string(got.Key) != string(had.Key) || s.count() != 1 {
			t.Errorf("%v, the key is another: %v, asked %d times", err, string(got.Key) != string(had.Key), s.count())
		}
		time.Sleep(12 * time.Hour)
		synctest.Wait()
		if got, err := m.Credential(pod, "v", 0, want); err != nil || string(got.Key) == string(had.Key) || renewed() != 1 {
			t.Errorf("%v, told %d times", err, renewed())
		}
		other := want.DeepCopy()
		other.SignerName = "example.com/other"
		if _, err := m.Credential(podNamed("q"), "v", 0, want); !errors.As(err, new(*Waiting)) {
			t.Errorf("another pod: %v", err)
		}
		m.Forget(pod.UID)
		if _, err := m.Credential(pod, "v", 0, other); !errors.As(err, new(*Waiting)) {
			t.Errorf("of another signer: %v", err)
		}
	})
	away := &server{drops: true}
	in(t, away, func(m *Manager, renewed func() int) {
		time.Sleep(100 * time.Hour) // it has ended
		var log issuedtest.Log
		m.cfg.Keep, m.cfg.Log = &d, slog.New(slog.NewTextHandler(&log, nil))
		_, err := m.Credential(pod, "v", 0, want)
		if text := log.String(); err != nil || strings.Count(text, "has ended") != 1 {
			t.Errorf("%v, %s", err, text)
		}
		time.Sleep(3 * time.Hour)
		if _, err := m.Credential(pod, "v", 0, want); err != nil {
			t.Error(err)
		}
		away.mu.Lock()
		away.drops, away.sign = false, func(r *certificatesv1.PodCertificateRequest) { issue(r, nil) }
		away.mu.Unlock()
		before := renewed()
		m.Again()
		synctest.Wait()
		time.Sleep(signing)
		synctest.Wait()
		if renewed() == before {
			t.Error("it is not renewed when the server is back")
		}
	})
}

// TestKeptByAnotherClock: at a boot with a clock that is years behind, as of a machine that has none while it is off, a
// certificate that was kept seems to be good for years. Another one is asked for.
func TestKeptByAnotherClock(t *testing.T) {
	var d issuedtest.Store
	pod := podNamed("p")
	s := &server{sign: func(r *certificatesv1.PodCertificateRequest) { issue(r, nil) }}
	in(t, s, func(m *Manager, _ func() int) {
		time.Sleep(9e4 * time.Hour)
		m.cfg.Keep = &d
		_, _ = m.Credential(pod, "v", 0, want)
		synctest.Wait()
	})
	in(t, s, func(m *Manager, renewed func() int) {
		m.cfg.Keep = &d
		had, err := m.Credential(pod, "v", 0, want)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if got, err := m.Credential(pod, "v", 0, want); err != nil || string(got.Key) == string(had.Key) || renewed() == 0 {
			t.Errorf("%v, told %d times", err, renewed())
		}
	})
}
