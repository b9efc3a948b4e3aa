package api

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/node/util/sysctl"

	"github.com/berth-node/berth/control/api/check"
)

const (
	maxSysctlName = 253
	maxAppArmor   = 4095 // PATH_MAX without the end of the string
)

var sysctlName = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`)

// osFits says which options do not fit the kind of node that the pod names.
func osFits(s *corev1.PodSpec, windows *corev1.WindowsSecurityContextOptions, path *field.Path) field.ErrorList {
	if s.OS != nil && s.OS.Name == corev1.Linux && windows != nil {
		return field.ErrorList{field.Forbidden(path.Child("windowsOptions"), "windows options cannot be set for a linux pod")}
	}
	return nil
}

func userID(path *field.Path, id *int64) field.ErrorList {
	if id == nil {
		return nil
	}
	return check.Invalid(path, *id, validation.IsValidUserID(*id))
}

func groupID(path *field.Path, id *int64) field.ErrorList {
	if id == nil {
		return nil
	}
	return check.Invalid(path, *id, validation.IsValidGroupID(*id))
}

func validatePodSecurity(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	path = path.Child("securityContext")
	c := s.SecurityContext
	if c == nil {
		return nil
	}
	var errs field.ErrorList
	errs = append(errs, userID(path.Child("runAsUser"), c.RunAsUser)...)
	errs = append(errs, groupID(path.Child("runAsGroup"), c.RunAsGroup)...)
	errs = append(errs, groupID(path.Child("fsGroup"), c.FSGroup)...)
	for i, g := range c.SupplementalGroups {
		errs = append(errs, groupID(path.Child("supplementalGroups").Index(i), &g)...)
	}
	if p := c.SupplementalGroupsPolicy; p != nil {
		errs = append(errs, check.OneOf(path.Child("supplementalGroupsPolicy"), *p, corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict)...)
	}
	if p := c.FSGroupChangePolicy; p != nil {
		errs = append(errs, check.OneOf(path.Child("fsGroupChangePolicy"), *p, corev1.FSGroupChangeOnRootMismatch, corev1.FSGroupChangeAlways)...)
	}
	if p := c.SELinuxChangePolicy; p != nil {
		errs = append(errs, check.OneOf(path.Child("seLinuxChangePolicy"), *p, corev1.SELinuxChangePolicyRecursive, corev1.SELinuxChangePolicyMountOption)...)
	}
	errs = append(errs, validateSysctls(s, path.Child("sysctls"))...)
	errs = append(errs, validateSeccomp(c.SeccompProfile, path.Child("seccompProfile"))...)
	errs = append(errs, validateAppArmor(c.AppArmorProfile, path.Child("appArmorProfile"))...)
	return append(errs, osFits(s, c.WindowsOptions, path)...)
}

// validateSysctls also refuses those that would change the host, because the pod has no namespace of its own for them.
func validateSysctls(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	for i, c := range s.SecurityContext.Sysctls {
		at := path.Index(i).Child("name")
		if c.Name == "" {
			errs = append(errs, field.Required(at, ""))
			continue
		}
		if len(c.Name) > maxSysctlName || !sysctlName.MatchString(c.Name) {
			errs = append(errs, field.Invalid(at, c.Name, "must be the name of a kernel parameter such as net.ipv4.tcp_syncookies"))
			continue
		}
		if names.Has(c.Name) {
			errs = append(errs, field.Duplicate(at, c.Name))
		}
		names.Insert(c.Name)
		switch ns, _, _ := sysctl.GetNamespace(sysctl.NormalizeName(c.Name)); {
		case ns == sysctl.NetNamespace && s.HostNetwork:
			errs = append(errs, field.Invalid(at, c.Name, "may not be specified when 'hostNetwork' is set to true"))
		case ns == sysctl.IPCNamespace && s.HostIPC:
			errs = append(errs, field.Invalid(at, c.Name, "may not be specified when 'hostIPC' is set to true"))
		}
	}
	return errs
}

func validateSeccomp(p *corev1.SeccompProfile, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := check.OneOf(path.Child("type"), p.Type, corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined)
	at := path.Child("localhostProfile")
	switch {
	case p.Type == corev1.SeccompProfileTypeLocalhost && p.LocalhostProfile == nil:
		errs = append(errs, field.Required(at, "must be set when seccomp type is Localhost"))
	case p.Type == corev1.SeccompProfileTypeLocalhost:
		errs = append(errs, localPath(at, *p.LocalhostProfile)...)
	case p.LocalhostProfile != nil:
		errs = append(errs, field.Invalid(at, *p.LocalhostProfile, "can only be set when seccomp type is Localhost"))
	}
	return errs
}

func validateAppArmor(p *corev1.AppArmorProfile, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := check.OneOf(path.Child("type"), p.Type, corev1.AppArmorProfileTypeLocalhost, corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined)
	at := path.Child("localhostProfile")
	switch {
	case p.Type != corev1.AppArmorProfileTypeLocalhost:
		if p.LocalhostProfile != nil {
			errs = append(errs, field.Invalid(at, *p.LocalhostProfile, "can only be set when AppArmor type is Localhost"))
		}
	case p.LocalhostProfile == nil || strings.TrimSpace(*p.LocalhostProfile) == "":
		errs = append(errs, field.Required(at, "must be set when AppArmor type is Localhost"))
	case strings.TrimSpace(*p.LocalhostProfile) != *p.LocalhostProfile:
		errs = append(errs, field.Invalid(at, *p.LocalhostProfile, "must not be padded with whitespace"))
	case len(*p.LocalhostProfile) > maxAppArmor:
		errs = append(errs, field.TooLong(at, *p.LocalhostProfile, maxAppArmor))
	}
	return errs
}

func validateSecurity(c *corev1.SecurityContext, s *corev1.PodSpec, path *field.Path) field.ErrorList {
	if c == nil {
		return nil
	}
	var errs field.ErrorList
	errs = append(errs, userID(path.Child("runAsUser"), c.RunAsUser)...)
	errs = append(errs, groupID(path.Child("runAsGroup"), c.RunAsGroup)...)
	errs = append(errs, validateSeccomp(c.SeccompProfile, path.Child("seccompProfile"))...)
	errs = append(errs, validateAppArmor(c.AppArmorProfile, path.Child("appArmorProfile"))...)
	if p := c.ProcMount; p != nil {
		errs = append(errs, check.OneOf(path.Child("procMount"), *p, corev1.DefaultProcMount, corev1.UnmaskedProcMount)...)
		if *p == corev1.UnmaskedProcMount && (s.HostUsers == nil || *s.HostUsers) {
			errs = append(errs, field.Invalid(path.Child("procMount"), *p, "`hostUsers` must be false to use `Unmasked`"))
		}
	}
	if c.AllowPrivilegeEscalation != nil && !*c.AllowPrivilegeEscalation {
		if c.Privileged != nil && *c.Privileged {
			errs = append(errs, field.Invalid(path, "", "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"))
		}
		if c.Capabilities != nil {
			for _, name := range c.Capabilities.Add {
				if name == "CAP_SYS_ADMIN" {
					errs = append(errs, field.Invalid(path, "", "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"))
				}
			}
		}
	}
	return append(errs, osFits(s, c.WindowsOptions, path)...)
}
