package apiserver

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-node/berth/control/apiserver/bootstrap"
	"github.com/berth-node/berth/control/apiserver/registry"
	"github.com/berth-node/berth/control/pki"
)

const (
	// keepEvery is how often what every cluster has is looked after.
	keepEvery = time.Minute
	// slowTries is how many tries of those that are out of time there are.
	slowTries = 20
	// retryFirst is how soon the first try that has failed is followed by another.
	retryFirst = 200 * time.Millisecond
	// apiPort is what clients in pods reach the API by.
	apiPort = 443
	// apiName is the name of the API's own service, its endpoints, and the first range of services.
	apiName = "kubernetes"
)

// addHooks adds what runs when the server serves.
func (s *shared) addHooks(server *genericapiserver.GenericAPIServer, repair *registry.Repair) {
	server.AddPostStartHookOrDie("reload-certificate-authorities", func(ctx genericapiserver.PostStartHookContext) error {
		go s.clientCA.Run(ctx, 1)
		go s.proxyCA.Run(ctx, 1)
		return nil
	})
	server.AddPostStartHookOrDie("bootstrap-cluster", func(ctx genericapiserver.PostStartHookContext) error {
		if err := s.first(ctx); err != nil {
			// The library ends the process without a word.
			s.options.Log.Error("the cluster has not what it begins with", "error", err)
			return err
		}
		close(s.began)
		go s.servers.run(ctx)
		s.trusted.Enqueue() // a rotation may have gone on while this server was away
		go s.keep(ctx, repair)
		return nil
	})
}

// first makes what a cluster has before anybody may count on it, as often as it takes. A try that is out of time has
// made a part, and the next one goes on there: to end for that would have a machine that is slow begin again and again.
func (s *shared) first(ctx context.Context) error {
	began := time.Now()
	for tries := 1; ; tries++ {
		late, err := s.try(ctx)
		if err == nil {
			return nil
		}
		// Where the disk of etcd is full objects can be read, and deleted to make room. What is missing is made later.
		if strings.Contains(err.Error(), rpctypes.ErrorDesc(rpctypes.ErrNoSpace)) {
			s.options.Log.Error("etcd takes no writes for want of room: the cluster can be read only", "error", err)
			return nil
		}
		switch {
		case late && tries < slowTries:
			s.options.Log.Warn("what a cluster begins with takes long", "tries", tries)
			began = time.Now()
		case late || time.Since(began) > hookTimeout:
			return fmt.Errorf("make what a cluster begins with: %w", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("make what a cluster begins with: %w", err)
		case <-time.After(retryFirst):
		}
	}
}

// try is ensure within a time, and says whether it took all of it.
func (s *shared) try(ctx context.Context) (late bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, hookTimeout)
	defer cancel()
	err = s.ensure(ctx, false)
	return errors.Is(ctx.Err(), context.DeadlineExceeded), err
}

// keep puts right what somebody has taken away, until ctx ends.
func (s *shared) keep(ctx context.Context, repair *registry.Repair) {
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.servers.changed:
			s.tellPods(ctx)
			continue
		case <-s.trusted:
			s.tellTrust(ctx)
			continue
		case <-tick.C:
		}
		ensure := func(same bool) error { return s.ensure(ctx, same) }
		if err := errors.Join(s.touched.do(ensure), repair.Run(ctx)); err != nil && ctx.Err() == nil {
			s.options.Log.Warn("what every cluster has is not put right", "error", err)
		}
	}
}

// ensure makes what is missing. Roles and flows that are the same as before it does not look at.
func (s *shared) ensure(ctx context.Context, same bool) error {
	o, err := s.bootstrap()
	if err == nil {
		o.Same = same
		err = bootstrap.Ensure(ctx, s.client, o)
	}
	if err != nil {
		return err
	}
	if err := ensureRange(ctx, s.client, s.options.ServiceRanges); err != nil {
		return err
	}
	if err := ensureTracking(ctx, s.client, time.Now()); err != nil {
		return err
	}
	return s.ensureService(ctx)
}

func (s *shared) bootstrap() (bootstrap.Options, error) {
	retired, err := s.retired()
	return bootstrap.Options{
		ClientCA: s.clientCA.CurrentCABundleContent(), RequestHeaderCA: s.proxyCA.CurrentCABundleContent(), RequestHeaderNames: frontProxyNames(),
		Retired: retired,
	}, err
}

// changes implements [dynamiccertificates.Listener]: the authorities that are trusted are others than before.
type changes chan struct{}

// Enqueue implements [dynamiccertificates.Listener].
func (c changes) Enqueue() {
	select {
	case c <- struct{}{}:
	default:
	}
}

// retired are the certificates of authorities that are trusted no more.
func (s *shared) retired() ([]byte, error) {
	var out []byte
	for _, name := range []string{pki.ClusterAuthority, pki.FrontProxyAuthority} {
		all, err := s.options.PKI.Retired(name)
		if err != nil {
			return nil, err
		}
		for _, c := range all {
			out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
		}
	}
	return out, nil
}

// tellTrust has pods and extension API servers know of the authorities. Another server may be at it, too.
func (s *shared) tellTrust(ctx context.Context) {
	o, err := s.bootstrap()
	if err == nil {
		err = errors.Join(o.EnsureTrust(ctx, s.client), bootstrap.EnsureRoots(ctx, s.client, o.ClientCA, o.Retired))
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	s.options.Log.Warn("not all are told of the authorities that are trusted", "error", err)
	time.AfterFunc(serverAgain, s.trusted.Enqueue)
}

// tellPods has the endpoints of the API be all servers that live. Another server may be at it, too.
func (s *shared) tellPods(ctx context.Context) {
	err := s.ensureService(ctx)
	if err == nil || ctx.Err() != nil {
		return
	}
	if !apierrors.IsConflict(err) {
		s.options.Log.Warn("pods are not told of all API servers", "error", err)
	}
	time.AfterFunc(serverAgain, s.servers.tell)
}

// ensureService makes the service of the API, with all servers that live as its endpoints.
func (s *shared) ensureService(ctx context.Context) error {
	if err := ensureService(ctx, s.client, s.options.ServiceRanges[0], int32(s.servers.self.Port())); err != nil {
		return fmt.Errorf("ensure service of the API: %w", err)
	}
	all, err := s.servers.list(ctx)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return nil // nobody but this machine reaches the API, and an endpoint must not say so
	}
	if err := ensureEndpoints(ctx, s.client, all); err != nil {
		return fmt.Errorf("ensure endpoints of the API: %w", err)
	}
	return nil
}

// ensureRange makes the object of the ranges that the server was started with.
func ensureRange(ctx context.Context, client kubernetes.Interface, ranges []netip.Prefix) error {
	var texts []string
	for _, r := range ranges {
		texts = append(texts, r.Masked().String())
	}
	all := client.NetworkingV1().ServiceCIDRs()
	has, err := all.Get(ctx, apiName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		has, err = all.Create(ctx, &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: apiName}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: texts}}, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("ensure range of services: %w", err)
	}
	// Whoever may change it may have added another family, which cannot be undone. The server goes by its own.
	if len(has.Spec.CIDRs) < len(texts) || !slices.Equal(has.Spec.CIDRs[:len(texts)], texts) {
		return fmt.Errorf("ensure range of services: the cluster has %v and the server was started with %v: "+
			"start it with those, or add a ServiceCIDR object", has.Spec.CIDRs, texts)
	}
	if len(has.Status.Conditions) > 0 {
		return nil
	}
	has.Status.Conditions = []metav1.Condition{{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Message: "Kubernetes Service CIDR is ready",
		LastTransitionTime: metav1.Now(),
	}}
	if _, err := all.UpdateStatus(ctx, has, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("ensure range of services: %w", err)
	}
	return nil
}

// ensureService makes the service by which pods reach the API, which has the first address of the range.
func ensureService(ctx context.Context, client kubernetes.Interface, in netip.Prefix, port int32) error {
	services := client.CoreV1().Services(metav1.NamespaceDefault)
	if _, err := services.Get(ctx, apiName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	single := corev1.IPFamilyPolicySingleStack
	_, err := services.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: apiName, Labels: map[string]string{"provider": "kubernetes", "component": "apiserver"}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: in.Masked().Addr().Next().String(), IPFamilyPolicy: &single,
			SessionAffinity: corev1.ServiceAffinityNone,
			Ports:           []corev1.ServicePort{{Name: "https", Port: apiPort, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(port)}},
		},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func ensureEndpoints(ctx context.Context, client kubernetes.Interface, all []netip.AddrPort) error {
	port := int32(all[0].Port())
	var addresses []corev1.EndpointAddress
	for _, a := range all {
		addresses = append(addresses, corev1.EndpointAddress{IP: a.Addr().String()})
	}
	endpoints := client.CoreV1().Endpoints(metav1.NamespaceDefault)
	want := []corev1.EndpointSubset{{
		Addresses: addresses,
		Ports:     []corev1.EndpointPort{{Name: "https", Port: port, Protocol: corev1.ProtocolTCP}},
	}}
	has, err := endpoints.Get(ctx, apiName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		// It is not to be mirrored: the slice is made here, too.
		meta := metav1.ObjectMeta{Name: apiName, Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"}}
		_, err = endpoints.Create(ctx, &corev1.Endpoints{ObjectMeta: meta, Subsets: want}, metav1.CreateOptions{})
	case err == nil && !equality.Semantic.DeepEqual(has.Subsets, want):
		has.Subsets = want
		_, err = endpoints.Update(ctx, has, metav1.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	return ensureSlice(ctx, client, all)
}

func ensureSlice(ctx context.Context, client kubernetes.Interface, all []netip.AddrPort) error {
	name, protocol, ready, family := "https", corev1.ProtocolTCP, true, discoveryv1.AddressTypeIPv4
	port := int32(all[0].Port())
	if all[0].Addr().Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	var endpoints []discoveryv1.Endpoint
	for _, a := range all {
		endpoints = append(endpoints, discoveryv1.Endpoint{
			Addresses: []string{a.Addr().String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	slices := client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	want := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: apiName, Labels: map[string]string{discoveryv1.LabelServiceName: apiName}},
		AddressType: family,
		Endpoints:   endpoints,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
	has, err := slices.Get(ctx, apiName, metav1.GetOptions{})
	if err == nil && has.AddressType != family {
		if err = slices.Delete(ctx, apiName, metav1.DeleteOptions{}); err == nil {
			_, err = slices.Create(ctx, want, metav1.CreateOptions{})
		}
		return err
	}
	switch {
	case apierrors.IsNotFound(err):
		_, err = slices.Create(ctx, want, metav1.CreateOptions{})
	case err == nil && (!equality.Semantic.DeepEqual(has.Endpoints, want.Endpoints) || !equality.Semantic.DeepEqual(has.Ports, want.Ports)):
		want.ResourceVersion = has.ResourceVersion
		_, err = slices.Update(ctx, want, metav1.UpdateOptions{})
	}
	return err
}
