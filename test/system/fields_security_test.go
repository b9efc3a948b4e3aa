package system

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const (
	capsNow  = "grep CapEff /proc/self/status | cut -f2"
	emptyVol = "\n  volumes: [{name: v, emptyDir: {}}]"
	mountVol = "volumeMounts: [{name: v, mountPath: /v}]\n"
)

// securityCases are about who a container's process is and what it may do.
var securityCases = []fieldCase{
	{
		name: "user-of-container", fields: "containers.securityContext.runAsUser containers.securityContext.runAsGroup " +
			"securityContext.runAsUser",
		spec: "\n  securityContext: {runAsUser: 1000, runAsGroup: 1000}" +
			prints("id -u; id -g", "securityContext: {runAsUser: 2000, runAsGroup: 3000}\n"),
		want: []string{"2000", "3000"},
	},
	{
		name: "user-alone", fields: "securityContext.runAsUser",
		// The group and the further groups are those that the image has for the user.
		spec: "\n  securityContext: {runAsUser: 1000}" +
			prints("id -u; id -g; id -G", ""), want: []string{"1000", "1000", "1000 2000"},
	},
	{
		name: "unknown-user", fields: "securityContext.runAsUser",
		spec: "\n  securityContext: {runAsUser: 4321}" + prints("id -u; id -g", ""), want: []string{"4321", "0"},
	},
	{
		name: "non-root", fields: "securityContext.runAsNonRoot",
		spec: "\n  securityContext: {runAsNonRoot: true, runAsUser: 1000}" + prints("id -u", ""), want: []string{"1000"},
	},
	{
		name: "non-root-refused", fields: "containers.securityContext.runAsNonRoot",
		spec:  runs("securityContext: {runAsNonRoot: true}\n"),
		waits: "CreateContainerConfigError",
	},
	{
		name: "groups-merged", fields: "securityContext.supplementalGroupsPolicy securityContext.supplementalGroups",
		spec: "\n  securityContext: {runAsUser: 1000, runAsGroup: 3000, supplementalGroups: [4000], " +
			"supplementalGroupsPolicy: Merge}" + prints("id -G", ""),
		want: []string{"3000 2000 4000"},
	},
	{
		name: "groups-strict", fields: "securityContext.supplementalGroupsPolicy",
		spec: "\n  securityContext: {runAsUser: 1000, runAsGroup: 3000, supplementalGroups: [4000], " +
			"supplementalGroupsPolicy: Strict}" + prints("id -G", ""),
		want: []string{"3000 4000"},
	},
	{
		name: "fs-group", fields: "securityContext.fsGroup",
		spec: "\n  securityContext: {runAsUser: 1000, fsGroup: 5000}" + emptyVol +
			prints("stat -c '%g %a' /v; touch /v/f; stat -c %g /v/f; mkdir /v/d; stat -c %g /v/d", mountVol),
		want: []string{"5000 2777", "5000", "5000"},
	},
	{
		name: "fs-group-root-matches", fields: "securityContext.fsGroupChangePolicy",
		spec: "\n  securityContext: {fsGroup: 5000, fsGroupChangePolicy: OnRootMismatch}" + emptyVol +
			prints("stat -c %g /v", mountVol), want: []string{"5000"},
	},
	{
		name: "host-path-keeps-group", fields: "securityContext.fsGroup volumes.hostPath.path",
		spec: "\n  securityContext: {fsGroup: 5000}\n  volumes: [{name: v, hostPath: {path: $HOST}}]" +
			prints("stat -c %g /v", mountVol), want: []string{"0"},
	},
	{
		name: "caps-added", fields: "containers.securityContext.capabilities.add",
		spec: prints(capsNow, "securityContext: {capabilities: {add: [NET_ADMIN, "+
			"SYS_TIME]}}\n"), want: []string{"00000000aa0435fb"},
	},
	{
		name: "caps-dropped", fields: "containers.securityContext.capabilities.drop",
		spec: prints(capsNow, "securityContext: {capabilities: {drop: [CHOWN, KILL]}}\n"), want: []string{"00000000a80425da"},
	},
	{
		name: "caps-none", fields: "containers.securityContext.capabilities.drop",
		spec: prints(capsNow+"; chown 1 /tmp 2>/dev/null || echo refused",
			"securityContext: {capabilities: {drop: [ALL]}}\n"), want: []string{"0000000000000000", "refused"},
	},
	{
		name: "caps-of-user", fields: "containers.securityContext.runAsUser",
		// They are in the bounding set, not in force.
		spec: prints(capsNow+"; grep CapBnd /proc/self/status | cut -f2",
			"securityContext: {runAsUser: 1000}\n"), want: []string{"0000000000000000", "00000000a80425fb"},
	},
	{
		name: "escalation-allowed", fields: "containers.securityContext.allowPrivilegeEscalation",
		spec: prints("grep NoNewPrivs /proc/self/status | cut -f2",
			"securityContext: {allowPrivilegeEscalation: true}\n"), want: []string{"0"},
	},
	{
		name: "privileged-caps", fields: "containers.securityContext.privileged",
		spec: prints("grep Seccomp: /proc/self/status | cut -f2; test -c /dev/null && test -w /sys && echo sys",
			"securityContext: {privileged: true}\n"), want: []string{"0", "sys"},
	},
	{
		name: "seccomp-of-pod", fields: "securityContext.seccompProfile.type",
		spec: "\n  securityContext: {seccompProfile: {type: RuntimeDefault}}" +
			prints("grep Seccomp: /proc/self/status | cut -f2", ""), want: []string{"2"},
	},
	{
		name: "seccomp-local", fields: "containers.securityContext.seccompProfile.localhostProfile " +
			"securityContext.seccompProfile.localhostProfile",
		host: func(t *testing.T, dir string) {
			profiles := filepath.Join(dir, "../../root/seccomp/own")
			if err := os.MkdirAll(profiles, 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, profiles+"/no-mkdir.json",
				`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]}`)
		},
		spec: prints("mkdir /x 2>/dev/null || echo refused; echo > /y && echo allowed",
			"securityContext: {seccompProfile: {type: Localhost, localhostProfile: own/no-mkdir.json}}\n"),
		want: []string{"refused", "allowed"},
	},
	{
		name: "seccomp-missing", fields: "containers.securityContext.seccompProfile.localhostProfile",
		spec:  runs("securityContext: {seccompProfile: {type: Localhost, localhostProfile: none.json}}\n"),
		waits: "CreateContainerError",
	},
	{
		name: "proc-unmasked", fields: "containers.securityContext.procMount hostUsers",
		spec: "\n  hostUsers: false" + prints("mount | grep -c ' /proc/'; awk '{print ($2 > 0) ? \"mapped\" : \"root\"}' "+
			"/proc/self/uid_map", "securityContext: {procMount: Unmasked}\n"),
		want: []string{"0", "mapped"},
	},
	{
		name: "own-users", fields: "hostUsers",
		spec: "\n  hostUsers: false" +
			prints("awk '{print $1, $3}' /proc/self/uid_map /proc/self/gid_map; id -u; touch /f && stat -c %u /f", ""),
		want: []string{"0 65536", "0 65536", "0", "0"},
	},
	{
		name: "host-users", fields: "hostUsers",
		spec: "\n  hostUsers: true" + prints("awk '{print $1, $2, $3}' /proc/self/uid_map",
			""), want: []string{"0 0 4294967295"},
	},
	{
		name: "sysctl-unsafe", fields: "securityContext.sysctls.name",
		spec: "\n  securityContext: {sysctls: [{name: net.core.somaxconn, value: '100'}]}" + prints("true", ""),
		ends: failedWith("SysctlForbidden"),
	},
	{
		name: "read-only-with-volume", fields: "containers.securityContext.readOnlyRootFilesystem",
		spec: emptyVol + prints("touch /v/f && echo volume; touch /etc/hosts 2>/dev/null || echo hosts; echo x > "+
			"/dev/shm/f && echo shm", mountVol+"securityContext: {readOnlyRootFilesystem: true}\n"),
		want: []string{"volume", "hosts", "shm"},
	},
	{
		name: "selinux", fields: fieldsBelow("containers.securityContext.seLinuxOptions", "user role type level") + " " +
			fieldsBelow("securityContext.seLinuxOptions", "user role type level"),
		spec: prints("echo runs", "securityContext: {seLinuxOptions: {user: system_u, role: system_r, type: container_t, "+
			"level: 's0:c1,c2'}}\n"), want: []string{"runs"},
	},
	{
		name: "selinux-level", fields: "containers.securityContext.seLinuxOptions.level securityContext.seLinuxOptions.level",
		spec: "\n  securityContext: {seLinuxOptions: {level: 's0:c1,c2'}}" + prints("echo runs", ""), want: []string{"runs"},
	},
	{
		name: "selinux-volumes", fields: "securityContext.seLinuxChangePolicy",
		spec: "\n  securityContext: {seLinuxChangePolicy: Recursive}" + emptyVol +
			prints("echo runs", mountVol), want: []string{"runs"},
	},
	{
		name: "app-armor-unconfined", fields: "containers.securityContext.appArmorProfile.type " +
			"securityContext.appArmorProfile.type",
		spec: "\n  securityContext: {appArmorProfile: {type: Unconfined}}" + prints("echo runs", ""), want: []string{"runs"},
	},
	{
		name: "app-armor-missing", fields: "containers.securityContext.appArmorProfile.localhostProfile " +
			"securityContext.appArmorProfile.localhostProfile",
		// Neither this profile nor, on most test machines, AppArmor is there: the pod must not run without it.
		spec:  runs("securityContext: {appArmorProfile: {type: Localhost, localhostProfile: berth-none}}\n"),
		waits: "CreateContainerError",
	},
}

// failedWith wants a pod that the node has failed for that reason.
func failedWith(reason string) func(*testing.T, *Node, *corev1.Pod) {
	return func(t *testing.T, _ *Node, p *corev1.Pod) {
		if p.Status.Phase != corev1.PodFailed || !strings.Contains(p.Status.Reason, reason) {
			t.Errorf("phase %s, reason %q, want %s: %s", p.Status.Phase, p.Status.Reason, reason, p.Status.Message)
		}
	}
}
