package spec

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Resolver is a resolver configuration.
type Resolver struct{ Servers, Searches, Options []string }

// Warning is something about a pod that its owner should know.
type Warning struct{ Reason, Message string }

// What resolvers take: glibc reads three servers, and 32 search domains with 2048 characters together is what the API
// allows.
const (
	maxServers     = 3
	maxSearches    = 32
	maxSearchChars = 2048
)

// ParseResolvConf reads resolv.conf(5). Lines that are not understood are skipped, as resolvers do.
func ParseResolvConf(data []byte) Resolver {
	var r Resolver
	for line := range strings.Lines(string(data)) {
		if i := strings.IndexAny(line, "#;"); i >= 0 {
			line = line[:i]
		}
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			r.Servers = append(r.Servers, f[1])
		case "search", "domain":
			// The last one counts.
			r.Searches = nil
			for _, s := range f[1:] {
				if s != "." {
					s = strings.TrimSuffix(s, ".")
				}
				r.Searches = append(r.Searches, s)
			}
		case "options":
			r.Options = append(r.Options, f[1:]...)
		}
	}
	return r
}

// OnlyLoopback says whether the resolver is one that a pod with a network of its own cannot reach.
func (r Resolver) OnlyLoopback() bool {
	return len(r.Servers) > 0 && !slices.ContainsFunc(r.Servers, func(s string) bool {
		a, err := netip.ParseAddr(s)
		return err != nil || !a.IsLoopback()
	})
}

// dnsConfig is the pod's resolver configuration, and what is to be told about it.
func dnsConfig(pod *corev1.Pod, node *Node) (*runtimeapi.DNSConfig, []Warning) {
	var warnings []Warning
	policy := pod.Spec.DNSPolicy
	switch {
	case policy == corev1.DNSClusterFirst && pod.Spec.HostNetwork:
		policy = corev1.DNSDefault
	case policy == corev1.DNSClusterFirstWithHostNet:
		policy = corev1.DNSClusterFirst
	}
	var r Resolver
	switch policy {
	case corev1.DNSNone:
	case corev1.DNSDefault:
		r = node.Resolver.clone()
	default:
		if len(node.ClusterDNS) == 0 {
			r = node.Resolver.clone()
			warnings = append(warnings, Warning{"MissingClusterDNS", fmt.Sprintf("pod: %q. The node has no cluster DNS configured and cannot create a pod with the "+
				"%q policy. Falling back to the %q policy.", PodName(pod), corev1.DNSClusterFirst, corev1.DNSDefault)})
			break
		}
		r = clusterResolver(pod, node)
	}
	if own := pod.Spec.DNSConfig; own != nil {
		r.add(own)
	}
	warnings = append(warnings, r.limit()...)
	return &runtimeapi.DNSConfig{Servers: r.Servers, Searches: r.Searches, Options: r.Options}, warnings
}

func (r Resolver) clone() Resolver {
	return Resolver{slices.Clone(r.Servers), slices.Clone(r.Searches), slices.Clone(r.Options)}
}

func clusterResolver(pod *corev1.Pod, node *Node) Resolver {
	r := Resolver{Servers: slices.Clone(node.ClusterDNS), Options: []string{"ndots:5"}}
	if d := node.ClusterDomain; d != "" {
		r.Searches = []string{pod.Namespace + ".svc." + d, "svc." + d, d}
	}
	r.Searches = unique(append(r.Searches, node.Resolver.Searches...))
	return r
}

// add merges the pod's own settings: servers and domains behind those of the policy, options over them.
func (r *Resolver) add(own *corev1.PodDNSConfig) {
	r.Servers = unique(append(r.Servers, own.Nameservers...))
	r.Searches = unique(append(r.Searches, own.Searches...))
	for _, o := range own.Options {
		text := o.Name
		if o.Value != nil && *o.Value != "" {
			text += ":" + *o.Value
		}
		i := slices.IndexFunc(r.Options, func(had string) bool {
			name, _, _ := strings.Cut(had, ":")
			return name == o.Name
		})
		if i < 0 {
			r.Options = append(r.Options, text)
		} else {
			r.Options[i] = text
		}
	}
}

func unique(list []string) []string {
	var out []string
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// limit leaves out what resolvers would not read, and says so.
func (r *Resolver) limit() []Warning {
	var warnings []Warning
	if len(r.Servers) > maxServers {
		r.Servers = r.Servers[:maxServers]
		warnings = append(warnings, Warning{"DNSConfigForming", "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: " +
			strings.Join(r.Servers, " ")})
	}
	kept, chars := 0, 0
	for _, s := range r.Searches {
		if chars += len(s) + 1; kept == maxSearches || chars-1 > maxSearchChars {
			break
		}
		kept++
	}
	if kept < len(r.Searches) {
		r.Searches = r.Searches[:kept]
		warnings = append(warnings, Warning{"DNSConfigForming", "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: " +
			strings.Join(r.Searches, " ")})
	}
	return warnings
}
