package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-node/berth/agent/api/client"
)

func (c *commands) cert() *cobra.Command {
	var groups []string
	var ttl time.Duration
	var out string
	cmd := &cobra.Command{
		Use: "cert USER", Short: "Make a client certificate for the API of the node",
		Long: `Make a client certificate with which the API of the node can be used over HTTPS. The key is made here and stays here; the agent signs
with the node's own authority. What the user may do is said by 'berth agent --api-allow'; without it, the group system:masters may do
everything, and system:monitoring read metrics and statistics.

There is no revocation: a certificate is good until it ends.`,
		Example: "  berth cert ann --out ann\n  curl --cert ann.crt --key ann.key --cacert ann-ca.crt " +
			"https://localhost:10250/pods\n" +
			"  berth cert prometheus --group system:monitoring --ttl 720h --out /etc/prometheus/berth",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, request, err := certificateRequest(args[0], groups)
			if err != nil {
				return err
			}
			cert, authorities, err := c.client().SignCertificate(cmd.Context(), request, ttl)
			var answer *client.Error
			if errors.As(err, &answer) && answer.Code == http.StatusNotFound {
				return errors.New("the agent has no authority of its own: it serves no HTTPS (--port), or an API server says who " +
					"may do what (--kubeconfig)")
			}
			if err != nil {
				return err
			}
			if out == "" {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s%s%s", cert, key, authorities)
				return err
			}
			return writeCertificate(cmd.ErrOrStderr(), out, cert, key, authorities)
		},
	}
	cmd.Flags().StringSliceVar(&groups, "group", []string{"system:masters"}, "groups of the user")
	cmd.Flags().DurationVar(&ttl, "ttl", 24*time.Hour, "how long the certificate is good, at most a year")
	cmd.Flags().StringVarP(&out, "out", "o", "",
		"write PREFIX.crt, PREFIX.key and PREFIX-ca.crt (default all of it to the standard output)")
	return cmd
}

// certificateRequest makes a key and asks for a certificate for it, both in PEM.
func certificateRequest(user string, groups []string) (key, request []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, nil, fmt.Errorf("encode key: %w", err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: user, Organization: groups}}, k)
	if err != nil {
		return nil, nil, fmt.Errorf("make certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}), nil
}

func writeCertificate(say io.Writer, prefix string, cert, key, authorities []byte) error {
	for _, f := range []struct {
		suffix string
		data   []byte
		mode   fs.FileMode
	}{{".key", key, 0o600}, {".crt", cert, 0o644}, {"-ca.crt", authorities, 0o644}} {
		// One that is there may be in use, and may be readable by others.
		if err := os.Remove(prefix + f.suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("replace %s%s: %w", prefix, f.suffix, err)
		}
		if err := os.WriteFile(prefix+f.suffix, f.data, f.mode); err != nil {
			return fmt.Errorf("write certificate: %w", err)
		}
	}
	fmt.Fprintf(say, "wrote %[1]s.crt, %[1]s.key and %[1]s-ca.crt\n", prefix)
	return nil
}
