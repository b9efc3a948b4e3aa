package certificates

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net"
	"net/netip"
	"net/url"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func request(t *testing.T, r x509.CertificateRequest) *x509.CertificateRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &r, key)
	if err != nil {
		t.Fatal(err)
	}
	out, err := parse(&certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
		Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func subject(common string, organizations ...string) pkix.Name {
	return pkix.Name{CommonName: common, Organization: organizations}
}

func TestShape(t *testing.T) {
	const sign, encipher = certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment
	const client, server = certificatesv1.UsageClientAuth, certificatesv1.UsageServerAuth
	good := subject("system:node:a", "system:nodes")
	unit := good
	unit.OrganizationalUnit = []string{"u"}
	twice := good
	twice.ExtraNames = []pkix.AttributeTypeAndValue{
		{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: "system:node:a"}, {Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: "system:node:b"},
	}
	address := []net.IP{net.IPv4(192, 0, 2, 1)}
	type usages = []certificatesv1.KeyUsage
	for name, c := range map[string]struct {
		request         x509.CertificateRequest
		usages          usages
		client, serving bool
	}{
		"client":                 {x509.CertificateRequest{Subject: good}, usages{sign, client}, true, false},
		"client, RSA":            {x509.CertificateRequest{Subject: good}, usages{sign, encipher, client}, true, false},
		"serving":                {x509.CertificateRequest{Subject: good, IPAddresses: address}, usages{sign, server}, false, true},
		"serving by name":        {x509.CertificateRequest{Subject: good, DNSNames: []string{"a"}}, usages{sign, encipher, server}, false, true},
		"serving nowhere":        {x509.CertificateRequest{Subject: good}, usages{sign, server}, false, false},
		"both":                   {x509.CertificateRequest{Subject: good, IPAddresses: address}, usages{sign, server, client}, false, false},
		"client with an address": {x509.CertificateRequest{Subject: good, IPAddresses: address}, usages{sign, client}, false, false},
		"no purpose":             {x509.CertificateRequest{Subject: good}, usages{sign}, false, false},
		"authority":              {x509.CertificateRequest{Subject: good}, usages{client, certificatesv1.UsageCertSign}, false, false},
		"masters":                {x509.CertificateRequest{Subject: subject("system:node:a", "system:nodes", "system:masters")}, usages{client}, false, false},
		"no organization":        {x509.CertificateRequest{Subject: subject("system:node:a")}, usages{client}, false, false},
		"no node":                {x509.CertificateRequest{Subject: subject("system:node:", "system:nodes")}, usages{client}, false, false},
		"another user":           {x509.CertificateRequest{Subject: subject("admin", "system:nodes")}, usages{client}, false, false},
		"a unit":                 {x509.CertificateRequest{Subject: unit}, usages{client}, false, false},
		"two names":              {x509.CertificateRequest{Subject: twice}, usages{client}, false, false},
		"mail":                   {x509.CertificateRequest{Subject: good, EmailAddresses: []string{"a@example.com"}}, usages{client}, false, false},
		"URI":                    {x509.CertificateRequest{Subject: good, URIs: []*url.URL{{Scheme: "spiffe", Host: "a"}}}, usages{client}, false, false},
	} {
		r := request(t, c.request)
		if err := checkNodeClient(r, c.usages); (err == nil) != c.client {
			t.Errorf("%s: as a client it is %v", name, err)
		}
		if err := checkNodeServing(r, c.usages); (err == nil) != c.serving {
			t.Errorf("%s: as a server it is %v", name, err)
		}
	}
}

func TestOwnHosts(t *testing.T) {
	node := func(name string, addresses ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, a := range addresses {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Address: a})
		}
		return n
	}
	nodes := []*corev1.Node{
		node("a", "a.example.com", "192.0.2.1", "2001:db8::1", "kubernetes", "192.0.2.2", "b", "127.0.0.1", "A2.example.com",
			"Kubernetes", "kubernetes.", "*.default.svc", "*", "kuber*", "hook.ns.svc", "hook.ns.svc.cluster.local", "hook.ns.SVC", "B",
			"LocalHost", "10.96.0.10", "203.0.113.1", "server.example.com", "169.254.1.1%eth0", "fe80::1%1", "224.0.0.1", "a..example.com", "é.example.com", "ns.svc", ""),
		node("b", "192.0.2.2"), node("host", "203.0.113.1"), node("control", "203.0.113.3", "kubernetes"),
	}
	nodes[3].Labels = map[string]string{controlLabel: ""}
	reserved := Reserved{
		Never: []string{"kubernetes", "localhost"}, Ranges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		Servers: []string{"203.0.113.1", "203.0.113.3", "Server.example.com"}, Host: "Host",
	}
	for host, want := range map[string]bool{
		"a.example.com": true, "192.0.2.1": true, "2001:0db8:0::1": true, // its own
		"192.0.2.2": false, "b": false, "203.0.113.1": false, // another one's, too
		"server.example.com": false, "10.96.0.10": false, // an API server's, a service's
		"kubernetes": false, "127.0.0.1": false, // never a node's
		"A.Example.com": true, "a2.example.com": true, // names are the same in whatever letters
		"Kubernetes": false, "B": false, "LocalHost": false, "localhost": false,
		"*.default.svc": false, "*": false, "kuber*": false, "*.example.com": false, // they are of many
		"hook.ns.svc": false, "hook.ns.svc.cluster.local": false, "hook.ns.SVC": false, "ns.svc": false, // of services
		"kubernetes.": false, "a..example.com": false, "é.example.com": false, "": false, "224.0.0.1": false,
		"c": false, "192.0.2.9": false,
	} {
		if got := ownHosts("a", []string{"192.0.2.1", host}, nodes, reserved); got != want {
			t.Errorf("%s: %v", host, got)
		}
	}
	nodes[0].Status.Addresses = nodes[0].Status.Addresses[:2]
	for node, host := range map[string]string{"host": "203.0.113.1", "control": "203.0.113.3"} {
		if !ownHosts(node, []string{host}, nodes, reserved) || ownHosts(node, []string{host, "kubernetes"}, nodes, reserved) {
			t.Errorf("the node of an API server has not the address %s, or names that are nobody's", host)
		}
	}
	if ownHosts("c", []string{"192.0.2.1"}, nodes, Reserved{}) {
		t.Error("a node that is not there has addresses")
	}
}

func TestLife(t *testing.T) {
	usual, brief := &signer{longest: Longest}, &signer{longest: time.Minute}
	for seconds, want := range map[int32]time.Duration{1: shortest, 3600: time.Hour, 1 << 30: Longest} {
		if got := usual.life(&seconds); got != want {
			t.Errorf("%d: %s", seconds, got)
		}
		if got := brief.life(&seconds); got != time.Minute {
			t.Errorf("%d, of a minute at most: %s", seconds, got)
		}
	}
	if usual.life(nil) != Longest || brief.life(nil) != time.Minute {
		t.Error("what nobody asks for is not the longest")
	}
}

func TestEnds(t *testing.T) {
	made := time.Unix(1_700_000_000, 0)
	o := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(made)}}
	if got := ends(o); !got.Equal(made.Add(undecidedStays)) {
		t.Errorf("undecided: %s", got)
	}
	for _, kind := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed} {
		o.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
			Type: kind, Status: corev1.ConditionTrue, LastUpdateTime: metav1.NewTime(made.Add(time.Minute)),
		}}
		if got := ends(o); !got.Equal(made.Add(time.Minute + decidedStays)) {
			t.Errorf("%s: %s", kind, got)
		}
	}
}
