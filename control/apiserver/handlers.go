package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
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
type dialer struct{ kubelet, workload http.RoundTripper }

// Kubelet implements [registry.NodeDialer].
func (d dialer) Kubelet() http.RoundTripper { return d.kubelet }

// Workload implements [registry.NodeDialer].
func (d dialer) Workload() http.RoundTripper { return d.workload }

const (
	nodeDialTimeout = 10 * time.Second
	nodeIdle        = 90 * time.Second
)

func newDialer(o Options) (dialer, error) {
	path := o.PKI.Path(pki.Kubelet)
	kubelet := &tls.Config{
		MinVersion: tls.VersionTLS12,
		// It is read for each connection, so that a renewed one counts at once.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(path, path)
			return &c, err
		},
		InsecureSkipVerify: o.KubeletCA == "", //nolint:gosec // as Options.KubeletCA has it
	}
	if o.KubeletCA != "" {
		if _, err := kubeletRoots(o.KubeletCA); err != nil {
			return dialer{}, err
		}
		// The authorities are read for each connection, too: they may be rotated.
		kubelet.InsecureSkipVerify = true //nolint:gosec // VerifyConnection verifies
		kubelet.VerifyConnection = func(c tls.ConnectionState) error { return verifyKubelet(o.KubeletCA, c) }
	}
	return dialer{transport(kubelet), transport(&tls.Config{InsecureSkipVerify: true})}, nil //nolint:gosec // a workload's certificate is anybody's
}

func kubeletRoots(file string) (*x509.CertPool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read certificate authority of kubelets: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("read certificate authority of kubelets %s: %w", file, errors.New("no certificate is in it"))
	}
	return roots, nil
}

// verifyKubelet verifies what a kubelet has shown, as the library does by itself.
func verifyKubelet(file string, c tls.ConnectionState) error {
	roots, err := kubeletRoots(file)
	if err != nil {
		return err
	}
	between := x509.NewCertPool()
	for _, other := range c.PeerCertificates[1:] {
		between.AddCert(other)
	}
	_, err = c.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, DNSName: c.ServerName})
	return err
}

// transport is for streams, too: HTTP/1.1, which can be upgraded.
func transport(c *tls.Config) http.RoundTripper {
	return &http.Transport{
		TLSClientConfig: c, DialContext: (&net.Dialer{Timeout: nodeDialTimeout}).DialContext,
		IdleConnTimeout: nodeIdle, TLSHandshakeTimeout: nodeDialTimeout, MaxIdleConnsPerHost: 10,
	}
}
