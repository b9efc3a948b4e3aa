package oci

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// confinement hides and protects paths, and sets the labels of the kernel's security modules.
func confinement(in *Input, s *specs.Spec) error {
	sc := security(in.Container)
	if sc.GetPrivileged() {
		if !in.Privileged && !in.Sandbox.GetLinux().GetSecurityContext().GetPrivileged() {
			return errors.New("no privileged container allowed in sandbox")
		}
		return nil
	}
	s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = sc.GetMaskedPaths(), slices.Concat(s.Linux.ReadonlyPaths, sc.GetReadonlyPaths())

	profile, err := appArmor(in)
	if err != nil {
		return err
	}
	s.Process.ApparmorProfile = profile
	s.Process.SelinuxLabel = seLinux(sc.GetSelinuxOptions(), in.Host)
	return nil
}

// seLinux is the label that the options ask for, none where nothing is labelled: manifests that are for any node name
// one, and expect it to be ignored there, as all runtimes do.
func seLinux(o *runtimeapi.SELinuxOption, h Host) string {
	if !h.SELinux || !asksForLabel(o) {
		return ""
	}
	or := func(v, def string) string {
		if v == "" {
			return def
		}
		return v
	}
	return strings.Join([]string{or(o.GetUser(), "system_u"), or(o.GetRole(), "system_r"), or(o.GetType(), "container_t"), or(o.GetLevel(), "s0")}, ":")
}

func asksForLabel(o *runtimeapi.SELinuxOption) bool {
	return o.GetUser() != "" || o.GetRole() != "" || o.GetType() != "" || o.GetLevel() != ""
}

// Unlabelled says that a container asks for a label of SELinux and has none, as this kernel has no SELinux or no
// policy.
func Unlabelled(in *Input) bool {
	sc := security(in.Container)
	return !in.Host.SELinux && !sc.GetPrivileged() && asksForLabel(sc.GetSelinuxOptions())
}

// oldProfile reads the notation profiles had before they had a message of their own.
func oldProfile(s string) (*runtimeapi.SecurityProfile, error) {
	switch {
	case s == "":
		return nil, nil
	case s == "runtime/default" || s == "docker/default":
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case s == "unconfined":
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	case strings.HasPrefix(s, "localhost/"):
		return &runtimeapi.SecurityProfile{
			ProfileType:  runtimeapi.SecurityProfile_Localhost,
			LocalhostRef: strings.TrimPrefix(s, "localhost/"),
		}, nil
	}
	return nil, fmt.Errorf("profile %q is neither runtime/default, unconfined nor localhost/NAME", s)
}

func seccompProfile(sc *runtimeapi.LinuxContainerSecurityContext) (*runtimeapi.SecurityProfile, error) {
	if sc.GetPrivileged() {
		return nil, nil
	}
	if p := sc.GetSeccomp(); p != nil {
		return p, nil
	}
	p, err := oldProfile(sc.GetSeccompProfilePath()) //nolint:staticcheck // older clients set only this field
	if err != nil {
		return nil, fmt.Errorf("seccomp: %w", err)
	}
	return p, nil
}

// LocalhostProfile is the file with the container's seccomp profile, "" when it has none of its own.
func LocalhostProfile(c *runtimeapi.ContainerConfig) (string, error) {
	p, err := seccompProfile(security(c))
	if err != nil || p.GetProfileType() != runtimeapi.SecurityProfile_Localhost {
		return "", err
	}
	return strings.TrimPrefix(p.GetLocalhostRef(), "localhost/"), nil
}

func seccompFilter(in *Input, s *specs.Spec) error {
	p, err := seccompProfile(security(in.Container))
	if err != nil || p == nil {
		return err
	}
	switch p.GetProfileType() {
	case runtimeapi.SecurityProfile_Unconfined:
	case runtimeapi.SecurityProfile_RuntimeDefault:
		if s.Linux.Seccomp, err = seccomp.GetDefaultProfile(s); err != nil {
			return fmt.Errorf("seccomp default profile: %w", err)
		}
	case runtimeapi.SecurityProfile_Localhost:
		if s.Linux.Seccomp, err = seccomp.LoadProfile(string(in.Seccomp), s); err != nil {
			return fmt.Errorf("seccomp profile %s: %w", p.GetLocalhostRef(), err)
		}
	default:
		return fmt.Errorf("seccomp profile type %s is not known", p.GetProfileType())
	}
	return nil
}
