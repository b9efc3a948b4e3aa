package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/berth-node/berth/agent/api/access"
)

// Server is how the API is served to others than root on this machine. Names and values are kubelet's where it has
// them.
type Server struct {
	Enabled        bool
	Address        string
	Port           int32 // 0: no HTTPS
	ReadOnlyPort   int32
	HealthzAddress string
	HealthzPort    int32

	CertDir         string
	TLSCertFile     string
	TLSKeyFile      string
	TLSMinVersion   string
	TLSCipherSuites []string
	TLSCurves       []int32
	ClientCAFile    string
	TokenFile       string
	Anonymous       bool
	TokenWebhook    bool
	TokenTTL        time.Duration
	AuthorizeMode   string
	AllowedTTL      time.Duration
	ForbiddenTTL    time.Duration
	Allow           []string
	Debugging       bool
	SystemLogs      bool
	Profiling       bool
}

// DefaultPort is kubelet's.
const DefaultPort = 10250

// CertDir is where the node's own certificates are in the root directory, when nothing else is said.
const CertDir = "pki"

const (
	modeWebhook     = "Webhook"
	modeAlwaysAllow = "AlwaysAllow"
)

func defaultServer() Server {
	return Server{
		Enabled: true, Address: "0.0.0.0", HealthzAddress: "127.0.0.1",
		TokenWebhook: true, TokenTTL: 2 * time.Minute,
		AuthorizeMode: modeWebhook, AllowedTTL: 5 * time.Minute, ForbiddenTTL: 30 * time.Second,
		Allow:     []string{"group:system:masters=*", "group:system:monitoring=get:metrics,stats,healthz"},
		Debugging: true, SystemLogs: true,
	}
}

// AddFlags adds the flags of the server to fs.
func (s *Server) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&s.Enabled, "enable-server", s.Enabled,
		"serve the API beyond the socket in the run directory, where a port is given")
	fs.StringVar(&s.Address, "address", s.Address,
		"address that the API is served on by HTTPS, and by HTTP on the read-only port")
	fs.Int32Var(&s.Port, "port", s.Port, "port that the API is served on by HTTPS, kubelet's is 10250 (0: off)")
	fs.Int32Var(&s.ReadOnlyPort, "read-only-port", s.ReadOnlyPort,
		"port for pods, statistics and metrics, without any authentication (0: off)")
	fs.StringVar(&s.HealthzAddress, "healthz-bind-address", s.HealthzAddress, "address of the port for /healthz")
	fs.Int32Var(&s.HealthzPort, "healthz-port", s.HealthzPort,
		"port for /healthz alone, without authentication, kubelet's is 10248 (0: off)")
	fs.StringVar(&s.CertDir, "cert-dir", s.CertDir,
		"the node's own certificates (default "+CertDir+" in the root directory)")
	fs.StringVar(&s.TLSCertFile, "tls-cert-file", s.TLSCertFile,
		"serving certificate, read again when it is replaced (empty: one is made)")
	fs.StringVar(&s.TLSKeyFile, "tls-private-key-file", s.TLSKeyFile, "its key")
	fs.StringVar(&s.TLSMinVersion, "tls-min-version", s.TLSMinVersion,
		"least version of TLS, VersionTLS12 or VersionTLS13 (default VersionTLS12)")
	fs.StringSliceVar(&s.TLSCipherSuites, "tls-cipher-suites", s.TLSCipherSuites,
		"cipher suites for TLS 1.2, by their IANA names (empty: Go's)")
	fs.Int32SliceVar(&s.TLSCurves, "tls-curve-preferences", s.TLSCurves,
		"key exchanges by their IANA numbers, such as 29 for X25519 (empty: Go's)")
	fs.StringVar(&s.ClientCAFile, "client-ca-file", s.ClientCAFile,
		"authorities whose client certificates are good, read again when replaced; without --kubeconfig the node's own is, "+
			"too")
	fs.StringVar(&s.TokenFile, "token-auth-file", s.TokenFile,
		`bearer tokens, lines of token,user,uid,"group1,group2"; of mode 0600, read again when replaced`)
	fs.BoolVar(&s.Anonymous, "anonymous-auth", s.Anonymous,
		"take requests without credentials for those of system:anonymous")
	fs.BoolVar(&s.TokenWebhook, "authentication-token-webhook", s.TokenWebhook, "with --kubeconfig, ask for tokens")
	fs.DurationVar(&s.TokenTTL, "authentication-token-webhook-cache-ttl", s.TokenTTL,
		"how long an answer about a token is good")
	fs.StringVar(&s.AuthorizeMode, "authorization-mode", s.AuthorizeMode,
		"Webhook: --kubeconfig's server says who may do what, without one --api-allow; AlwaysAllow: whoever is known may "+
			"do everything")
	fs.DurationVar(&s.AllowedTTL, "authorization-webhook-cache-authorized-ttl", s.AllowedTTL, "how long a yes is good")
	fs.DurationVar(&s.ForbiddenTTL, "authorization-webhook-cache-unauthorized-ttl", s.ForbiddenTTL,
		"how long a no is good")
	fs.StringArrayVar(&s.Allow, "api-allow", s.Allow,
		"without --kubeconfig, who may do what: user:NAME=WHAT,... or group:NAME=WHAT,... where WHAT is *, checkpoint, "+
			"configz, healthz, log, metrics, pods, proxy or stats; get: before the list for reading alone")
	fs.BoolVar(&s.Debugging, "enable-debugging-handlers", s.Debugging,
		"serve what shows logs and reaches into pods over the network, too")
	fs.BoolVar(&s.SystemLogs, "enable-system-log-handler", s.SystemLogs, "serve /var/log at /logs/")
	fs.BoolVar(&s.Profiling, "profiling", s.Profiling, "serve profiles of the agent at /debug/pprof/")
}

// Complete makes paths absolute and says what is wrong with the settings.
func (s *Server) Complete(rootDir string) error {
	var errs []error
	for flag, p := range map[string]*string{
		"tls-cert-file": &s.TLSCertFile, "tls-private-key-file": &s.TLSKeyFile, "client-ca-file": &s.ClientCAFile,
		"token-auth-file": &s.TokenFile, "cert-dir": &s.CertDir,
	} {
		if *p != "" {
			errs = append(errs, absolute(flag, p))
		}
	}
	if s.CertDir == "" {
		s.CertDir = filepath.Join(rootDir, CertDir)
	}
	for flag, port := range map[string]int32{
		"port": s.Port, "read-only-port": s.ReadOnlyPort,
		"healthz-port": s.HealthzPort,
	} {
		if port < 0 || port > 65535 {
			errs = append(errs, fmt.Errorf("--%s %d: must be a port from 1 to 65535, or 0", flag, port))
		}
	}
	if s.Port != 0 && (s.Port == s.ReadOnlyPort || s.Port == s.HealthzPort) {
		errs = append(errs, fmt.Errorf("--port %d: --read-only-port and --healthz-port must be others", s.Port))
	}
	for flag, a := range map[string]string{"address": s.Address, "healthz-bind-address": s.HealthzAddress} {
		if net.ParseIP(a) == nil {
			errs = append(errs, fmt.Errorf("--%s %q: must be an IP address", flag, a))
		}
	}
	if (s.TLSCertFile == "") != (s.TLSKeyFile == "") {
		errs = append(errs, errors.New("--tls-cert-file and --tls-private-key-file need each other"))
	}
	if !slices.Contains([]string{modeWebhook, modeAlwaysAllow}, s.AuthorizeMode) {
		errs = append(errs, fmt.Errorf("--authorization-mode %q: must be %s or %s", s.AuthorizeMode, modeWebhook,
			modeAlwaysAllow))
	}
	_, err := s.TLS()
	_, ruleErr := s.Rules()
	return errors.Join(append(errs, err, ruleErr)...)
}

// Rules are who may do what without an API server.
func (s *Server) Rules() (access.Rules, error) {
	var out access.Rules
	for _, a := range s.Allow {
		r, err := access.ParseRule(a)
		if err != nil {
			return nil, fmt.Errorf("--api-allow %w", err)
		}
		out = append(out, r)
	}
	return out, nil
}

// AllowAll says that whoever is known may do everything.
func (s *Server) AllowAll() bool { return s.AuthorizeMode == modeAlwaysAllow }

// Listen is the address for one of the ports.
func Listen(address string, port int32) string {
	return net.JoinHostPort(address, strconv.Itoa(int(port)))
}

// TLS is what the settings say of TLS, without certificates.
func (s *Server) TLS() (*tls.Config, error) {
	c := &tls.Config{
		MinVersion: tls.VersionTLS12, ClientAuth: tls.RequestClientCert,
		NextProtos: []string{"h2", "http/1.1"},
	}
	switch s.TLSMinVersion {
	case "", "VersionTLS12":
	case "VersionTLS13":
		c.MinVersion = tls.VersionTLS13
	default:
		return nil, fmt.Errorf("--tls-min-version %q: must be VersionTLS12 or VersionTLS13", s.TLSMinVersion)
	}
	for _, name := range s.TLSCipherSuites {
		i := slices.IndexFunc(tls.CipherSuites(), func(c *tls.CipherSuite) bool { return c.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("--tls-cipher-suites %q: must be among %s", name, strings.Join(cipherNames(), ", "))
		}
		c.CipherSuites = append(c.CipherSuites, tls.CipherSuites()[i].ID)
	}
	for _, id := range s.TLSCurves {
		if id <= 0 || id > 0xffff {
			return nil, fmt.Errorf("--tls-curve-preferences %d: must be the number of a key exchange, such as 29 for X25519", id)
		}
		c.CurvePreferences = append(c.CurvePreferences, tls.CurveID(id))
	}
	return c, nil
}

func cipherNames() []string {
	var out []string
	for _, c := range tls.CipherSuites() {
		out = append(out, c.Name)
	}
	return out
}
