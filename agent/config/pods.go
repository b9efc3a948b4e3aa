package config

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/spf13/pflag"

	"github.com/berth-node/berth/agent/pulled"
)

// Pods is what pods find, and what they may ask for.
type Pods struct {
	ClusterDNS     []string
	ClusterDomain  string
	ResolvConf     string // "": pods have no resolvers of the node
	Sysctls        []string
	SeccompDefault bool
	Verify         string   // kind of [pulled.Policy]
	Unverified     []string // its images
}

// Verification says which pods may use which images that are on the machine.
func (p *Pods) Verification() (pulled.Policy, error) {
	policy, err := pulled.NewPolicy(p.Verify, p.Unverified)
	if err != nil {
		return policy, fmt.Errorf("--image-pull-credentials-verification-policy, "+
			"--preloaded-images-verification-allowlist: %w", err)
	}
	return policy, nil
}

// AddFlags adds the flags to fs.
func (p *Pods) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&p.ClusterDNS, "cluster-dns", p.ClusterDNS,
		"name servers of pods with dnsPolicy ClusterFirst (none: the node's)")
	fs.StringVar(&p.ClusterDomain, "cluster-domain", p.ClusterDomain, "domain that those pods search")
	fs.StringVar(&p.ResolvConf, "resolv-conf", p.ResolvConf, "resolver configuration of the node that pods get")
	fs.StringSliceVar(&p.Sysctls, "allowed-unsafe-sysctls", p.Sysctls,
		"sysctls that pods may set beyond the safe ones, such as net.core.somaxconn or kernel.msg*")
	fs.BoolVar(&p.SeccompDefault, "seccomp-default", p.SeccompDefault,
		"confine containers that name no seccomp profile by the runtime's")
	fs.StringVar(&p.Verify, "image-pull-credentials-verification-policy", p.Verify,
		"which images on the machine only pods may use whose credentials were good for them: "+strings.Join(pulled.Kinds(),
			", "))
	fs.StringSliceVar(&p.Unverified, "preloaded-images-verification-allowlist", p.Unverified,
		"with NeverVerifyAllowlistedImages, the images that every pod may use, such as registry.example/app or "+
			"registry.example/*")
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
	_, err := p.Verification()
	return errors.Join(append(errs, err)...)
}
