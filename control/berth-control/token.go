package main

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/control/pki"
)

func newToken(d *data) *cobra.Command {
	c := &cobra.Command{Use: "token", Short: "Tokens by which nodes join the cluster"}
	var (
		ttl   time.Duration
		about string
		join  bool
	)
	create := &cobra.Command{
		Use: "create", Short: "Make a bootstrap token and print it", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := admin(*d)
			if err != nil {
				return err
			}
			id, secret := letters(6), letters(16)
			_, err = client.CoreV1().Secrets(metav1.NamespaceSystem).Create(c.Context(), tokenSecret(id, secret, about, ttl), metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("make token: %w", err)
			}
			if !join {
				fmt.Fprintln(c.OutOrStdout(), id+"."+secret)
				return nil
			}
			command, err := joinCommand(*d, id+"."+secret)
			if err != nil {
				return err
			}
			fmt.Fprintln(c.OutOrStdout(), command)
			return nil
		},
	}
	create.Flags().DurationVar(&ttl, "ttl", 24*time.Hour, "how long the token is good; 0: for ever")
	create.Flags().StringVar(&about, "description", "", "what the token is for")
	create.Flags().BoolVar(&join, "print-join-command", false, "print kubeadm's join command, with the hash of the authority's key")
	c.AddCommand(create)
	return c
}

func tokenSecret(id, secret, about string, ttl time.Duration) *corev1.Secret {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id, Namespace: metav1.NamespaceSystem},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
			"auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
		},
	}
	if about != "" {
		s.StringData["description"] = about
	}
	if ttl > 0 {
		s.StringData["expiration"] = time.Now().Add(ttl).UTC().Format(time.RFC3339)
	}
	return s
}

// letters makes a part of a token, of those characters that one may have.
func letters(n int) string {
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	out := make([]byte, 0, n)
	for random := make([]byte, 1); len(out) < n; {
		_, _ = rand.Read(random) // it never fails
		// As many of the 256 values for each character: what is beyond is thrown away.
		if b := int(random[0]); b < 256/len(alphabet)*len(alphabet) {
			out = append(out, alphabet[b%len(alphabet)])
		}
	}
	return string(out)
}

// joinCommand has the hash of the authority's key, by which a node knows that it speaks to this cluster.
func joinCommand(d data, token string) (string, error) {
	s, err := readServing(d)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(d.pki(), pki.ClusterAuthority+".crt"))
	if err != nil {
		return "", fmt.Errorf("read certificate authority: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return "", errors.New("read certificate authority: there is no certificate")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("read certificate authority: %w", err)
	}
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return fmt.Sprintf("kubeadm join %s --token %s --discovery-token-ca-cert-hash sha256:%s",
		net.JoinHostPort(s.Reach, strconv.Itoa(s.Port)), token, hex.EncodeToString(sum[:])), nil
}
