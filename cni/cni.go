// Package cni gives pods their network: namespaces, and what is in them.
//
// libcni drives everything. Where the configuration directory has a network configuration, that one is used, with the
// plugin binaries it names. Else the network built in is: a bridge with addresses of its own, loopback, host ports and
// masquerading, whose plugins run inside this process behind libcni's own seam for executing plugins, with the same
// JSON and environment.
//
// Nothing here waits for the kernel to take a network namespace down: dropping the last reference returns at once, and
// takes the pod's end of its veth pair, and with it the other end, along.
package cni

import (
	"log/slog"
	"net"
	"net/netip"
)

// Config is what a [Network] needs. All is required but ConfDir, BinDirs and Log.
type Config struct {
	StateDir   string       // records of addresses; belongs to the run directory
	NetNSDir   string       // where namespaces are pinned
	ConfDir    string       // CNI network configurations, /etc/cni/net.d; "" = always the network built in
	NeedConf   bool         // pods wait while there is no configuration, instead of having the network built in
	BinDirs    []string     // plugin binaries
	CacheDir   string       // results of ADD, for DEL
	RecordDir  string       // which configuration a pod was set up with; outlives a boot, as what plugins keep does
	BridgeName string       // bridge of the network built in; at most 15 bytes
	PodCIDR    netip.Prefix // addresses of the network built in; the first one is the bridge's
	Log        *slog.Logger
}

// PortMapping is one host port of a pod.
type PortMapping struct {
	HostPort      int32
	ContainerPort int32
	Protocol      string // "tcp" (or ""), "udp", "sctp"; any case
	HostIP        string // "" = all addresses of the node
}

// Pod is a sandbox as the network sees it. ID, the sandbox's, is the key of everything.
type Pod struct {
	ID           string
	Namespace    string
	Name         string
	UID          string
	NetNS        string // path of the namespace, from [Network.NewNamespace]; "" at teardown when it is gone
	Ports        []PortMapping
	Annotations  map[string]string
	CgroupParent string

	open bool // by its annotation
}

// Interface is one interface inside the pod.
type Interface struct {
	Name string
	MAC  net.HardwareAddr
	MTU  int
	IPs  []netip.Prefix
}

// Result is the network a pod got.
type Result struct {
	IPs        []netip.Addr // the first is the pod's address
	MAC        net.HardwareAddr
	Interfaces []Interface // without lo
}
