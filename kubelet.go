package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/berth-node/berth/agent/node"
)

// isKubelet says whether this program was started by kubelet's name: kubeadm calls that, and may find a link to us.
func isKubelet(program string) bool { return filepath.Base(program) == "kubelet" }

// kubelet is what kubelet's arguments come to for us. What is asked for with --version is answered here: kubeadm
// compares it with the control plane's, and a kubelet must not be newer than that.
func kubelet(args []string, out io.Writer) (ours []string, answered bool) {
	for _, a := range args {
		if a == "--version" || a == "--version=true" {
			fmt.Fprintln(out, "Kubernetes "+node.Oldest)
			return nil, true
		}
	}
	return append([]string{"agent"}, args...), false
}
