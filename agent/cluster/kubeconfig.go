package cluster

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
)

// access is how an API server is reached and as whom, with all that the kubeconfig refers to read: a route that is made
// of it does not change under those who use it.
type access struct {
	config  *rest.Config          // without files
	cluster *clientcmdapi.Cluster // as the file has it, with absolute paths
	pair    *tls.Certificate      // the client certificate; nil: none, or a plugin has it
	token   string                // of a file; it may change without another route
	sum     [sha256.Size]byte     // of all that was read, but for the token's file
	written time.Time             // the last of the files of which the certificate is
}

// reader reads a kubeconfig and keeps which files it has read: a change of any of them is one of the whole.
type reader struct {
	files   []string
	all     bytes.Buffer
	written time.Time
}

// readAccess reads a kubeconfig. It returns the files that it has looked at, also those that are not there.
func readAccess(path string) (*access, []string, error) {
	r := &reader{}
	a, err := r.read(path)
	if err != nil {
		err = fmt.Errorf("read kubeconfig %s: %w", path, err)
	}
	return a, r.files, err
}

func (r *reader) file(path string) ([]byte, error) {
	r.files = append(r.files, path)
	data, st, err := readFile(path, 0)
	if err != nil {
		return nil, err
	}
	r.all.Write(data)
	if st.ModTime().After(r.written) {
		r.written = st.ModTime()
	}
	return data, nil
}

func (r *reader) read(path string) (*access, error) {
	data, err := r.file(path)
	if err != nil {
		if of, ok := errors.AsType[*fs.PathError](err); ok {
			err = of.Err // its name is said already
		}
		return nil, err
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, errors.New("it is empty")
	}
	file, err := clientcmd.Load(data)
	if err != nil {
		return nil, err
	}
	for _, c := range file.Clusters {
		c.LocationOfOrigin = path
	}
	for _, u := range file.AuthInfos {
		u.LocationOfOrigin = path
	}
	if err := clientcmd.ResolveLocalPaths(file); err != nil {
		return nil, err
	}
	c, user, err := chosen(file)
	if err != nil {
		return nil, err
	}
	a := &access{cluster: c.DeepCopy()}
	if err := r.user(file, user, a); err != nil {
		return nil, err
	}
	if err := r.cluster(file, c); err != nil {
		return nil, err
	}
	a.config, err = clientcmd.NewNonInteractiveClientConfig(*file, "", &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return nil, err
	}
	if p := a.config.ExecProvider; p != nil {
		p.StdinUnavailable, p.StdinUnavailableMessage = true, "nobody is there whom the agent could ask"
	}
	a.sum = sha256.Sum256(r.all.Bytes())
	return a, nil
}

// chosen are cluster and user of the current context.
func chosen(file *clientcmdapi.Config) (*clientcmdapi.Cluster, *clientcmdapi.AuthInfo, error) {
	if file.CurrentContext == "" {
		return nil, nil, errors.New("current-context is not set")
	}
	ctx := file.Contexts[file.CurrentContext]
	if ctx == nil {
		return nil, nil, fmt.Errorf("current-context %q is none of its contexts", file.CurrentContext)
	}
	c := file.Clusters[ctx.Cluster]
	if c == nil {
		return nil, nil, fmt.Errorf("contexts[%s].context.cluster %q is none of its clusters", file.CurrentContext, ctx.Cluster)
	}
	user := file.AuthInfos[ctx.AuthInfo]
	if user == nil && ctx.AuthInfo == "" {
		user = &clientcmdapi.AuthInfo{} // anybody
	}
	if user == nil {
		return nil, nil, fmt.Errorf("contexts[%s].context.user %q is none of its users", file.CurrentContext, ctx.AuthInfo)
	}
	return c, user, nil
}

// cluster takes what the cluster refers to into it.
func (r *reader) cluster(file *clientcmdapi.Config, c *clientcmdapi.Cluster) error {
	field := fmt.Sprintf("clusters[%s].cluster.", file.Contexts[file.CurrentContext].Cluster)
	u, err := url.Parse(c.Server)
	if err != nil {
		return fmt.Errorf("%sserver: %w", field, err)
	}
	if u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return fmt.Errorf("%sserver %q: it must be a URL of http or https", field, c.Server)
	}
	name := "certificate-authority-data"
	if len(c.CertificateAuthorityData) == 0 && c.CertificateAuthority != "" {
		name = "certificate-authority"
		if c.CertificateAuthorityData, err = r.file(c.CertificateAuthority); err != nil {
			return fmt.Errorf("%s%s: %w", field, name, err)
		}
	}
	c.CertificateAuthority = ""
	if len(c.CertificateAuthorityData) == 0 {
		return nil
	}
	if _, err := certutil.ParseCertsPEM(c.CertificateAuthorityData); err != nil {
		return fmt.Errorf("%s%s: %w", field, name, err)
	}
	return nil
}

// user takes what the user refers to into it, and into a.
func (r *reader) user(file *clientcmdapi.Config, u *clientcmdapi.AuthInfo, a *access) error {
	field := fmt.Sprintf("users[%s].user.", file.Contexts[file.CurrentContext].AuthInfo)
	for _, part := range []struct {
		name string
		path *string
		data *[]byte
	}{
		{"client-certificate", &u.ClientCertificate, &u.ClientCertificateData},
		{"client-key", &u.ClientKey, &u.ClientKeyData},
	} {
		if len(*part.data) == 0 && *part.path != "" {
			var err error
			if *part.data, err = r.file(*part.path); err != nil {
				return fmt.Errorf("%s%s: %w", field, part.name, err)
			}
		}
		*part.path = ""
	}
	if len(u.ClientCertificateData) > 0 || len(u.ClientKeyData) > 0 {
		pair, err := parsePair(u.ClientCertificateData, u.ClientKeyData)
		if err != nil {
			return fmt.Errorf("%sclient-certificate and client-key: %w", field, err)
		}
		a.pair = pair
	}
	a.written = r.written
	if u.TokenFile != "" && u.Token == "" {
		r.files = append(r.files, u.TokenFile)
		data, _, err := readFile(u.TokenFile, 0) // it is no part of the sum
		if err != nil {
			return fmt.Errorf("%stokenFile: %w", field, err)
		}
		if a.token = strings.TrimSpace(string(data)); a.token == "" {
			return fmt.Errorf("%stokenFile: %s is empty", field, u.TokenFile)
		}
	}
	u.TokenFile = ""
	return nil
}

// parsePair reads a certificate and its key, which may be in the same data.
func parsePair(cert, key []byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	if pair.Leaf == nil {
		pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0])
	}
	return &pair, err
}
