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

	profile, err := appArmor(sc, in.Host)
	if err != nil {
		return err
	}
	s.Process.ApparmorProfile = profile
	s.Process.SelinuxLabel, err = seLinux(sc.GetSelinuxOptions(), in.Host)
	return err
}

func appArmor(sc *runtimeapi.LinuxContainerSecurityContext, h Host) (string, error) {
	p := sc.GetApparmor()
	if p == nil {
		var err error
		if p, err = oldProfile(sc.GetApparmorProfile()); err != nil { //nolint:staticcheck // older clients set only this field
			return "", fmt.Errorf("apparmor: %w", err)
		}
	}
	if p.GetProfileType() != runtimeapi.SecurityProfile_Localhost {
		return "", nil
	}
	if !h.AppArmor {
		return "", fmt.Errorf("apparmor profile %q is asked for, but this kernel has no AppArmor", p.GetLocalhostRef())
	}
	return strings.TrimPrefix(p.GetLocalhostRef(), "localhost/"), nil
}

// seLinux is the label that the options ask for. Without SELinux there is none, and who asks for a user, a role or a type asks for
// what they allow. A level alone keeps apart what is labelled: manifests that are for any node name one, as Kubernetes' conformance
// tests do for the volumes that pods share, and expect it to be ignored where nothing is labelled.
func seLinux(o *runtimeapi.SELinuxOption, h Host) (string, error) {
	confines := o.GetUser() != "" || o.GetRole() != "" || o.GetType() != ""
	switch {
	case !confines && (o.GetLevel() == "" || !h.SELinux):
		return "", nil
	case !h.SELinux:
		return "", errors.New("SELinux options are asked for, but SELinux is not enabled here, or has no policy")
	}
	or := func(v, def string) string {
		if v == "" {
			return def
		}
		return v
	}
	return strings.Join([]string{or(o.GetUser(), "system_u"), or(o.GetRole(), "system_r"), or(o.GetType(), "container_t"), or(o.GetLevel(), "s0")}, ":"), nil
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
