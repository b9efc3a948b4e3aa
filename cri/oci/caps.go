package oci

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// defaultCapabilities is what a container has that asks for nothing.
func defaultCapabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
		"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
	}
}

func capabilities(in *Input, s *specs.Spec) error {
	sc := security(in.Container)
	add, drop := sc.GetCapabilities().GetAddCapabilities(), sc.GetCapabilities().GetDropCapabilities()
	ambient := names(sc.GetCapabilities().GetAddAmbientCapabilities())

	caps := defaultCapabilities()
	if sc.GetPrivileged() {
		caps, add, drop = in.Host.Capabilities, nil, nil
	}
	if hasAll(add) {
		caps = in.Host.Capabilities
	}
	if hasAll(drop) {
		caps = nil
	}
	caps = slices.Concat(caps, names(add), ambient)
	dropped := names(drop)
	// What this process lacks it cannot give; asking libcontainer for it would fail the whole start.
	gone := func(c string) bool {
		return slices.Contains(dropped, c) || !slices.Contains(in.Host.Capabilities, c)
	}
	caps = slices.DeleteFunc(caps, gone)
	ambient = slices.DeleteFunc(ambient, gone)
	slices.Sort(caps)
	caps = slices.Compact(caps)

	// Inheritable stays empty: with file capabilities it would let a process without them gain them.
	s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
	if len(ambient) > 0 {
		// The kernel takes into the ambient set only what is inheritable too.
		s.Process.Capabilities.Inheritable, s.Process.Capabilities.Ambient = ambient, ambient
	}
	return nil
}

func hasAll(caps []string) bool {
	return slices.ContainsFunc(caps, func(c string) bool { return strings.EqualFold(c, "ALL") })
}

// names brings capabilities into the kernel's spelling, without "ALL".
func names(caps []string) []string {
	var out []string
	for _, c := range caps {
		c = strings.ToUpper(c)
		if c == "ALL" {
			continue
		}
		if !strings.HasPrefix(c, "CAP_") {
			c = "CAP_" + c
		}
		out = append(out, c)
	}
	return out
}

// Ungranted lists the capabilities a container asks for by name that this process cannot give.
func Ungranted(in *Input) []string {
	want := security(in.Container).GetCapabilities()
	all := slices.Concat(names(want.GetAddCapabilities()), names(want.GetAddAmbientCapabilities()))
	return slices.DeleteFunc(all, func(c string) bool { return slices.Contains(in.Host.Capabilities, c) })
}
