package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-node/berth/control/pki"
	"github.com/berth-node/berth/internal/atomicfile"
	"github.com/berth-node/berth/internal/commandline"
)

func newKubeconfig(d *data) *cobra.Command {
	var server string
	c := &cobra.Command{
		Use: "kubeconfig", Short: "Write the administrator's kubeconfig, with its keys in it, to standard output", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if u, err := url.Parse(server); server != "" && (err != nil || u.Scheme != "https" || u.Host == "") {
				return commandline.Usagef("--server %q: a URL such as https://api.example.org:6443 is wanted", server)
			}
			if server == "" {
				s, err := readServing(*d)
				if err != nil {
					return err
				}
				server = "https://" + net.JoinHostPort(s.Reach, strconv.Itoa(s.Port))
			}
			out, err := kubeconfig(*d, server, filepath.Join(d.pki(), pki.Admin+".pem"))
			if err != nil {
				return fmt.Errorf("make kubeconfig: %w", err)
			}
			_, err = c.OutOrStdout().Write(out)
			return err
		},
	}
	c.Flags().StringVar(&server, "server", "", "URL of the API; that which others reach it by, if empty")
	return c
}

func readServing(d data) (serving, error) {
	var s serving
	text, err := atomicfile.Read(d.state(), maxFile)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return s, fmt.Errorf("find the server of %s: %w; berth-control serve makes it", d.dir, err)
	}
	return s, nil
}

// kubeconfig is a file for clients that has all that it needs in it.
func kubeconfig(d data, server, pair string) ([]byte, error) {
	keys, err := atomicfile.Read(pair, maxFile)
	if err != nil {
		return nil, err
	}
	trust, err := atomicfile.Read(d.trust(), maxFile)
	if err != nil {
		return nil, err
	}
	const name = "berth"
	return clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: server, CertificateAuthorityData: trust}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"admin": {ClientCertificateData: keys, ClientKeyData: keys}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: "admin"}},
		CurrentContext: name,
	})
}

// admin is a client of the server that runs on the data directory.
func admin(d data) (kubernetes.Interface, error) {
	c, err := clientcmd.BuildConfigFromFlags("", d.kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w; berth-control serve makes it", err)
	}
	return kubernetes.NewForConfig(c)
}
