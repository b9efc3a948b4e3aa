package cluster

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	certutil "k8s.io/client-go/util/cert"
)

// The certificates of nodes are asked for with our own client: client-go's packages for that link its typed clientset,
// which has every type of the API.

var requests = schema.GroupVersionResource{
	Group: certificatesv1.GroupName, Version: "v1", Resource: "certificatesigningrequests",
}

const (
	nodeUser  = "system:node:"
	nodeGroup = "system:nodes"

	// approvalWithin is how long one attempt waits for approval, as kubelet's; the next finds the same request.
	approvalWithin = 15 * time.Minute
)

var (
	errDenied = errors.New("it was denied")
	errFailed = errors.New("the signer failed")
	errTaken  = errors.New("somebody else has made one of that name")
)

// want is a certificate that is asked for.
type want struct {
	signer string
	node   string
	usage  certificatesv1.KeyUsage
	dns    []string
	ips    []net.IP
}

func clientWant(node string) want {
	return want{signer: certificatesv1.KubeAPIServerClientKubeletSignerName, node: node, usage: certificatesv1.UsageClientAuth}
}

// servingWant is for names and addresses; what is no address is a name.
func servingWant(node string, addresses []string) want {
	w := want{
		signer: certificatesv1.KubeletServingSignerName, node: node, usage: certificatesv1.UsageServerAuth, dns: []string{node},
	}
	for _, a := range addresses {
		if ip := net.ParseIP(a); ip != nil {
			w.ips = append(w.ips, ip)
		} else {
			w.dns = append(w.dns, a)
		}
	}
	slices.Sort(w.dns)
	w.dns = slices.Compact(w.dns)
	slices.SortFunc(w.ips, func(a, b net.IP) int { return bytes.Compare(a.To16(), b.To16()) })
	w.ips = slices.CompactFunc(w.ips, net.IP.Equal)
	return w
}

func (w *want) user() string { return nodeUser + w.node }

// satisfied says whether a certificate is what is wanted, or what of it is not.
func (w *want) satisfied(c *x509.Certificate) error {
	usage := x509.ExtKeyUsageClientAuth
	if w.usage == certificatesv1.UsageServerAuth {
		usage = x509.ExtKeyUsageServerAuth
	}
	switch {
	case c.Subject.CommonName != w.user():
		return fmt.Errorf("it is for %q, not for %q", c.Subject.CommonName, w.user())
	case !slices.Contains(c.Subject.Organization, nodeGroup):
		return fmt.Errorf("it is not of the group %s", nodeGroup)
	case !slices.Contains(c.ExtKeyUsage, usage) && !slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny):
		return fmt.Errorf("it is not good for %s", w.usage)
	}
	for _, n := range w.dns {
		if !slices.Contains(c.DNSNames, n) {
			return fmt.Errorf("it is not for the name %s", n)
		}
	}
	for _, ip := range w.ips {
		if !slices.ContainsFunc(c.IPAddresses, ip.Equal) {
			return fmt.Errorf("it is not for the address %s", ip)
		}
	}
	return nil
}

// object is the request for the certificate of a key. Its name follows from what is asked for, so that whoever was
// killed after sending it finds it.
func (w *want) object(key crypto.Signer) (*certificatesv1.CertificateSigningRequest, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: w.user(), Organization: []string{nodeGroup}},
		DNSNames: w.dns, IPAddresses: w.ips,
	}, key)
	if err != nil {
		return nil, fmt.Errorf("make certificate request: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("make certificate request: %w", err)
	}
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, w.usage}
	if _, ok := key.(*rsa.PrivateKey); ok { // only such a key enciphers
		usages = slices.Insert(usages, 1, certificatesv1.UsageKeyEncipherment)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %q %v %v ", w.signer, w.user(), w.dns, w.ips, usages)
	h.Write(public)
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "node-csr-" + hex.EncodeToString(h.Sum(nil)[:20])},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: w.signer, Usages: usages,
		},
	}, nil
}

// ask has the API server's signer sign a certificate for the key, and waits for it. waits is called when it has the
// request and nobody has approved it.
func (w *want) ask(ctx context.Context, c *Client, key crypto.Signer, waits func(name string)) ([]byte, string, error) {
	csr, err := w.object(key)
	if err != nil {
		return nil, "", err
	}
	name := csr.Name
	got := &certificatesv1.CertificateSigningRequest{}
	err = c.Create(ctx, requests, csr, got)
	if apierrors.IsAlreadyExists(err) {
		if err = c.Get(ctx, requests, types.NamespacedName{Name: name}, got); err == nil && !sameRequest(got, csr) {
			return nil, name, wrapRequest(name, errTaken)
		}
	}
	if err != nil {
		return nil, name, fmt.Errorf("send certificate request %s: %w", name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, approvalWithin)
	defer cancel()
	for n := 0; ; n++ {
		cert, err := outcome(got)
		if err != nil || len(cert) > 0 {
			return cert, name, wrapRequest(name, err)
		}
		waits(name)
		if got, err = next(ctx, c, got, n); err != nil {
			return nil, name, wrapRequest(name, err)
		}
	}
}

func wrapRequest(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("certificate request %s: %w", name, err)
}

// sameRequest says whether two requests are for the same key by the same signer.
func sameRequest(a, b *certificatesv1.CertificateSigningRequest) bool {
	public := func(o *certificatesv1.CertificateSigningRequest) []byte {
		block, _ := pem.Decode(o.Spec.Request)
		if block == nil {
			return nil
		}
		r, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			return nil
		}
		return r.RawSubjectPublicKeyInfo
	}
	p := public(a)
	return p != nil && bytes.Equal(p, public(b)) && a.Spec.SignerName == b.Spec.SignerName
}

// outcome is the certificate; nil: there is none yet.
func outcome(csr *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	approved := false
	for _, c := range csr.Status.Conditions {
		if c.Status == corev1.ConditionFalse {
			continue
		}
		switch c.Type {
		case certificatesv1.CertificateDenied:
			return nil, fmt.Errorf("%w (%s: %s)", errDenied, clip(c.Reason), clip(c.Message))
		case certificatesv1.CertificateFailed:
			return nil, fmt.Errorf("%w (%s: %s)", errFailed, clip(c.Reason), clip(c.Message))
		case certificatesv1.CertificateApproved:
			approved = true
		}
	}
	if !approved {
		return nil, nil
	}
	return csr.Status.Certificate, nil
}

// maxCertificate is how long a certificate with those that it is signed by may be, so that its file can be read again.
const maxCertificate = maxFile / 2

// check says what is wrong with a certificate that the API server has given for the key.
func (w *want) check(data []byte, key crypto.Signer, now time.Time) error {
	if len(data) > maxCertificate {
		return fmt.Errorf("its certificate has %d bytes: more than %d are too much", len(data), maxCertificate)
	}
	certs, err := certutil.ParseCertsPEM(data)
	if err != nil {
		return fmt.Errorf("read the certificate: %w", err)
	}
	c := certs[0]
	type public interface{ Equal(crypto.PublicKey) bool }
	if p, ok := key.Public().(public); !ok || !p.Equal(c.PublicKey) {
		return errors.New("its certificate is not for the key of the request")
	}
	if now.After(c.NotAfter) {
		return fmt.Errorf("its certificate has ended at %s already, and this machine's clock says %s", stamp(c.NotAfter), stamp(now))
	}
	if err := w.satisfied(c); err != nil {
		return fmt.Errorf("its certificate: %w", err)
	}
	return nil
}

// watchFor is how long the API server is to keep a watch on a request: then it is asked anew, should the watch have
// lost something.
const watchFor = 5 * time.Minute

// next waits for another version of a request, the n-th time.
func next(
	ctx context.Context, c *Client, csr *certificatesv1.CertificateSigningRequest, n int,
) (*certificatesv1.CertificateSigningRequest, error) {
	seconds := int64(watchFor / time.Second)
	opts := metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, csr.Name).String(),
		ResourceVersion: csr.ResourceVersion, TimeoutSeconds: &seconds,
	}
	bounded, cancel := context.WithTimeout(ctx, watchFor+answerWithin) // a server need not do as it is asked
	defer cancel()
	w, err := c.Watch(bounded, requests, "", opts)
	if err == nil {
		changed, err := event(w, csr)
		w.Stop()
		if changed != nil || err != nil {
			return changed, err
		}
	}
	if ctx.Err() != nil {
		return nil, errors.New("nobody has approved it: kubectl certificate approve " + csr.Name)
	}
	// A server that has no watch for us is asked, more and more seldom.
	if err := pause(ctx, min(time.Second<<min(n, 5), 30*time.Second)); err != nil {
		return nil, err
	}
	got := &certificatesv1.CertificateSigningRequest{}
	if err := c.Get(ctx, requests, types.NamespacedName{Name: csr.Name}, got); err != nil {
		return nil, err
	}
	return got, nil
}

// event is the next version that a watch has; nil: it has ended.
func event(w watch.Interface, csr *certificatesv1.CertificateSigningRequest) (*certificatesv1.CertificateSigningRequest, error) {
	for e := range w.ResultChan() {
		got, ok := e.Object.(*certificatesv1.CertificateSigningRequest)
		switch {
		case !ok:
			return nil, nil // an error, as that the version is too old
		case got.Name != csr.Name:
		case got.UID == csr.UID && got.ResourceVersion == csr.ResourceVersion && e.Type != watch.Deleted:
			// A server that begins with what there is would be asked without a pause.
		case got.UID != csr.UID || e.Type == watch.Deleted:
			return nil, errors.New("somebody has removed it")
		default:
			return got, nil
		}
	}
	return nil, nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// same says whether two certificates are the same to who asks for them.
func (w *want) same(o want) bool {
	return slices.Equal(w.dns, o.dns) && slices.EqualFunc(w.ips, o.ips, net.IP.Equal)
}
