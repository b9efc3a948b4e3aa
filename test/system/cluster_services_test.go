package system

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

// services are a cluster's Services for its pods and for its API server, on one node: a table of the kernel in which
// the address of each leads to the first of its endpoints that is ready, for as long as the test runs. The range of
// their addresses has to be the cluster's own, as all that run on the machine have the table.
type services struct {
	t      *testing.T
	table  string
	all    corelisters.ServiceLister
	slices discoverylisters.EndpointSliceLister
	last   string
}

// lead has Services of the cluster lead to their endpoints.
func (m *member) lead() {
	m.t.Helper()
	factory := informers.NewSharedInformerFactory(m.plane.Client, 0)
	s := &services{
		t: m.t, table: "berth-services-" + m.Bridge,
		all: factory.Core().V1().Services().Lister(), slices: factory.Discovery().V1().EndpointSlices().Lister(),
	}
	changed := make(chan struct{}, 1)
	tell := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	for _, i := range []cache.SharedIndexInformer{factory.Core().V1().Services().Informer(), factory.Discovery().V1().EndpointSlices().Informer()} {
		_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { tell() }, UpdateFunc: func(any, any) { tell() }, DeleteFunc: func(any) { tell() },
		})
		if err != nil {
			m.t.Fatal(err)
		}
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	s.write()
	go func() {
		defer close(ended)
		for {
			select {
			case <-changed:
				s.write()
			case <-stop:
				return
			}
		}
	}()
	m.t.Cleanup(func() {
		close(stop)
		<-ended
		factory.Shutdown()
		if out, err := exec.Command("nft", "delete", "table", "ip", s.table).CombinedOutput(); err != nil {
			m.t.Errorf("nft delete table: %v\n%s", err, out)
		}
	})
}

// write has the table be as the Services are.
func (s *services) write() {
	rules := s.rules()
	if rules == s.last {
		return
	}
	text := fmt.Sprintf("table ip %[1]s {}\ndelete table ip %[1]s\ntable ip %[1]s {\n", s.table)
	for _, hook := range []string{"prerouting", "output"} {
		text += fmt.Sprintf("chain %[1]s {\ntype nat hook %[1]s priority -100;\n%[2]s}\n", hook, rules)
	}
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text + "}\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Errorf("nft: %v\n%s\n%s", err, out, text)
		return
	}
	s.last = rules
}

func (s *services) rules() string {
	all, err := s.all.List(labels.Everything())
	if err != nil {
		s.t.Error(err)
	}
	var rules []string
	for _, service := range all {
		if a, err := netip.ParseAddr(service.Spec.ClusterIP); err != nil || !a.Is4() {
			continue
		}
		of, err := s.slices.EndpointSlices(service.Namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service.Name}))
		if err != nil {
			s.t.Error(err)
		}
		for _, port := range service.Spec.Ports {
			if to := ready(of, port); to != "" {
				rules = append(rules, fmt.Sprintf("ip daddr %s tcp dport %d dnat to %s\n", service.Spec.ClusterIP, port.Port, to))
			}
		}
	}
	slices.Sort(rules)
	return strings.Join(rules, "")
}

// ready is where a port of a Service leads to; empty: nowhere.
func ready(all []*discoveryv1.EndpointSlice, port corev1.ServicePort) string {
	for _, slice := range all {
		for _, p := range slice.Ports {
			if p.Name == nil || *p.Name != port.Name || p.Port == nil {
				continue
			}
			for _, e := range slice.Endpoints {
				if e.Conditions.Ready == nil || *e.Conditions.Ready {
					return netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), uint16(*p.Port)).String()
				}
			}
		}
	}
	return ""
}
