package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// The networks of --network.
const (
	NetworkAuto    = "auto"
	NetworkBuiltin = "builtin"
	NetworkCNI     = "cni"
)

// DefaultCNIConfDir is where programs of all kinds leave network configurations, podman's of Debian for one.
const DefaultCNIConfDir = "/etc/cni/net.d"

// Station is what a node is to those who want pods of it, which says whose network is meant where no setting does.
type Station int

// The stations.
const (
	Alone  Station = iota // its pods are its own
	Member                // of a cluster, whose pods have the cluster's network, or none until it is there
	// a runtime alone, for a kubelet or another client of the CRI, which take what is in the directory if there is
	// anything
	Served
)

// PodNetwork is the network that pods of the embedded runtime get.
type PodNetwork struct {
	Kind string `json:"network"` // [NetworkBuiltin] or [NetworkCNI]
	Why  string `json:"reason"`
	// Dir has the configuration of [NetworkCNI].
	Dir string `json:"directory,omitempty"`
	// Required: while there is no configuration, pods wait. Else the network built in is used then.
	Required bool `json:"required,omitempty"`
	// Passed is a configuration that is there and not used.
	Passed string `json:"notUsed,omitempty"`
}

// PodNetwork says which network pods get, and why.
func (e *Embedded) PodNetwork(s Station) PodNetwork {
	n := PodNetwork{Kind: NetworkCNI, Dir: e.CNIConfDir}
	switch {
	case e.Network == NetworkCNI:
		n.Required, n.Why = true, "--network says so"
	case e.Network == NetworkBuiltin:
		n.Kind, n.Why = NetworkBuiltin, "--network says so"
	case e.CNIConfDir == "":
		n.Kind, n.Why = NetworkBuiltin, "--cni-conf-dir is empty"
	case s == Member:
		n.Required, n.Why = true, "a node of a cluster has the cluster's network"
	case e.CNIConfDir != DefaultCNIConfDir:
		n.Why = "--cni-conf-dir says so"
	case s == Served:
		n.Why = "clients of the runtime expect it"
	default:
		n.Kind, n.Why = NetworkBuiltin, "a node on its own takes it unless told otherwise"
	}
	if n.Kind == NetworkCNI && !n.Required && NetworkConfiguration(n.Dir) == "" {
		n.Why += "; while " + n.Dir + " has no configuration, the one built in"
	}
	if n.Kind == NetworkBuiltin {
		n.Dir, n.Passed = "", NetworkConfiguration(e.CNIConfDir)
	}
	return n
}

func (e *Embedded) completeNetwork() error {
	switch {
	case !slices.Contains([]string{NetworkAuto, NetworkBuiltin, NetworkCNI}, e.Network):
		return fmt.Errorf("--network %q: must be %s, %s or %s", e.Network, NetworkBuiltin, NetworkCNI, NetworkAuto)
	case e.Network == NetworkCNI && e.CNIConfDir == "":
		return fmt.Errorf("--network %s: --cni-conf-dir is empty, and must be the directory with the configuration",
			NetworkCNI)
	}
	return nil
}

// NetworkConfiguration is the first CNI configuration in a directory, which is the one that runtimes take; "" when
// there is none.
func NetworkConfiguration(dir string) string {
	entries, err := os.ReadDir(dir)
	if dir == "" || err != nil {
		return ""
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() &&
			slices.Contains([]string{".conflist", ".conf", ".json"}, filepath.Ext(path)) {
			return path
		}
	}
	return ""
}
