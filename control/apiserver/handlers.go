package apiserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/proxy"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/berth-node/berth/control/apiserver/auth"
	"github.com/berth-node/berth/control/apiserver/registry"
	"github.com/berth-node/berth/control/pki"
)

// notFoundHandler answers for paths that no server of the chain knows.
func notFoundHandler(codecs runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{}, "", "the server could not find the requested resource", 0, false)
		responsewriters.ErrorNegotiated(err, codecs, schema.GroupVersion{Version: "v1"}, w, r)
	})
}

// serviceResolver finds services of webhooks and aggregated servers by their cluster addresses.
type serviceResolver struct{ services corelisters.ServiceLister }

// ResolveEndpoint is the URL of a service's port. The API's own service is this server, whatever the network is.
func (r serviceResolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	return proxy.ResolveCluster(r.services, namespace, name, port)
}

// issuer signs tokens with what the authenticator verifies them by.
type issuer struct{ tokens auth.TokenGenerator }

// Issue implements [registry.TokenIssuer].
func (i issuer) Issue(ctx context.Context, r registry.TokenRequest) (string, error) {
	to := auth.Bindings{Pod: r.Pod, Secret: r.Secret, Node: r.Node}
	claims, err := auth.Claims(r.Account, to, r.Audiences, r.Seconds, r.WarnAfter, r.Now)
	if err != nil {
		return "", err
	}
	return i.tokens.Generate(ctx, claims)
}

// openID serves what others verify tokens of service accounts by.
func (s *shared) openID(server *genericapiserver.GenericAPIServer) {
	serve := func(path, kind string, body func() ([]byte, error)) {
		server.Handler.NonGoRestfulMux.Handle(path, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			data, err := body()
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Cache-Control", "public, max-age=3600")
			_, _ = w.Write(data) // who has gone needs no answer
		}))
	}
	serve("/openid/v1/jwks", "application/jwk-set+json", s.auth.JWKS)
	serve("/.well-known/openid-configuration", "application/json", func() ([]byte, error) {
		return s.auth.OpenIDMetadata(s.servers.self.String())
	})
}

// dialer implements [registry.NodeDialer].
type dialer struct {
	pair      string // file of the certificate for kubelets
	authority string // file of the authorities of kubelets; empty: they are not verified
	workload  http.RoundTripper
	log       *slog.Logger

	mu      sync.Mutex
	trusted []byte // what the file had in it when the transport was made
	kubelet *http.Transport
}

// Kubelet implements [registry.NodeDialer]. The authorities may be rotated: the file counts as it is. One that cannot
// be read leaves those of before.
func (d *dialer) Kubelet() http.RoundTripper {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.read(); err != nil {
		d.log.Error("certificate authority of kubelets is not read again", "error", err)
	}
	return d.kubelet
}

// Workload implements [registry.NodeDialer].
func (d *dialer) Workload() http.RoundTripper { return d.workload }

const (
	nodeDialTimeout = 10 * time.Second
	nodeIdle        = 90 * time.Second
)

func newDialer(o Options) (*dialer, error) {
	d := &dialer{
		pair: o.PKI.Path(pki.Kubelet), authority: o.KubeletCA, log: o.Log,
		// A workload's certificate is anybody's.
		workload: transport(&tls.Config{InsecureSkipVerify: true}, onlyOutside),
	}
	return d, d.read()
}

// read makes the transport for kubelets, if the authorities are others than before.
func (d *dialer) read() error {
	var text []byte
	if d.authority != "" {
		var err error
		if text, err = os.ReadFile(d.authority); err != nil {
			return fmt.Errorf("read certificate authority of kubelets: %w", err)
		}
	}
	if d.kubelet != nil && bytes.Equal(text, d.trusted) {
		return nil
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12,
		// It is read for each connection, so that a renewed one counts at once.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(d.pair, d.pair)
			return &c, err
		},
		InsecureSkipVerify: d.authority == "", // as Options.KubeletCA has it
		VerifyConnection:   noAPIServer,
	}
	if d.authority != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return fmt.Errorf("read certificate authority of kubelets %s: %w", d.authority, errors.New("no certificate is in it"))
		}
	}
	if d.kubelet != nil {
		d.kubelet.CloseIdleConnections()
	}
	d.kubelet, d.trusted = transport(config, nil), text
	return nil
}

// onlyOutside keeps clients of the API from this machine's own services, and those of its link, when a name has become
// an address: a node's, an endpoint's or a pod's may be any name or address that its owner has written.
func onlyOutside(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err == nil && registry.Outside(at.Addr()) {
		return nil
	}
	return fmt.Errorf("address not allowed: %s", address)
}

// noAPIServer refuses an API server in a kubelet's place. A node writes its own address and port. By those of an API
// server whoever may reach the kubelet of that node would speak to the API with the rights of the API server itself.
func noAPIServer(s tls.ConnectionState) error {
	c := s.PeerCertificates[0]
	if c.Subject.CommonName == pki.ServingName || slices.Contains(c.DNSNames, genericapiserver.LoopbackClientServerNameOverride) {
		return errors.New("verify kubelet: it is an API server")
	}
	return nil
}

// transport is for streams, too: HTTP/1.1, which can be upgraded. What dialing looks at is an address that is connected
// to next; nil: at nothing.
func transport(c *tls.Config, look func(network, address string, c syscall.RawConn) error) *http.Transport {
	return &http.Transport{
		TLSClientConfig: c, DialContext: (&net.Dialer{Timeout: nodeDialTimeout, Control: look}).DialContext,
		IdleConnTimeout: nodeIdle, TLSHandshakeTimeout: nodeDialTimeout, MaxIdleConnsPerHost: 10,
	}
}
