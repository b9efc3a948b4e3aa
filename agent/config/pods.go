package config

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/spf13/pflag"
)

// Pods is what pods find, and what they may ask for.
type Pods struct {
	ClusterDNS     []string
	ClusterDomain  string
	ResolvConf     string // "": pods have no resolvers of the node
	Sysctls        []string
	SeccompDefault bool
}

// AddFlags adds the flags to fs.
func (p *Pods) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&p.ClusterDNS, "cluster-dns", p.ClusterDNS, "name servers of pods with dnsPolicy ClusterFirst (none: the node's)")
	fs.StringVar(&p.ClusterDomain, "cluster-domain", p.ClusterDomain, "domain that those pods search")
	fs.StringVar(&p.ResolvConf, "resolv-conf", p.ResolvConf, "resolver configuration of the node that pods get")
	fs.StringSliceVar(&p.Sysctls, "allowed-unsafe-sysctls", p.Sysctls, "sysctls that pods may set beyond the safe ones, such as net.core.somaxconn or kernel.msg*")
	fs.BoolVar(&p.SeccompDefault, "seccomp-default", p.SeccompDefault, "confine containers that name no seccomp profile by the runtime's")
}

// Complete says what is wrong with the settings.
func (p *Pods) Complete() error {
	var errs []error
	for _, a := range p.ClusterDNS {
		if net.ParseIP(a) == nil {
			errs = append(errs, fmt.Errorf("--cluster-dns %q: must be an IP address", a))
		}
	}
	for _, s := range p.Sysctls {
		if s == "" || strings.ContainsAny(strings.TrimSuffix(s, "*"), "* ") {
			errs = append(errs, fmt.Errorf("--allowed-unsafe-sysctls %q: must be a name, or the beginning of one and *", s))
		}
	}
	if p.ResolvConf != "" {
		errs = append(errs, absolute("resolv-conf", &p.ResolvConf))
	}
	return errors.Join(errs...)
}
