package system

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// objects are what cases refer to.
var objects = configMap("settings", `a: alpha, b: beta, "c.conf": "x=1"`) + "---\n" +
	secretOf("keys", "password: opensesame, token: t0")

func volume(source string) string { return "\n  volumes: [{name: v, " + source + "}]" }

// volumeCases are about what is mounted into a container, and how.
var volumeCases = []fieldCase{
	{
		name: "config-map", fields: "volumes.configMap.name volumes.configMap.defaultMode",
		spec: volume("configMap: {name: settings}") +
			prints("cd /v; echo $(ls); cat a; stat -L -c %a a; touch a 2>/dev/null || echo readonly", mountVol),
		want: []string{"a b c.conf", "alpha644", "readonly"},
	},
	{
		name: "config-map-items", fields: "volumes.configMap.items.key volumes.configMap.items.path " +
			"volumes.configMap.items.mode",
		spec: volume("configMap: {name: settings, defaultMode: 0600, items: [{key: a, path: deep/one}, {key: b, path: two, "+
			"mode: 0440}]}") +
			prints("cd /v; cat deep/one two; echo; stat -L -c %a deep/one two; ls | wc -l", mountVol),
		want: []string{"alphabeta", "600", "440", "2"},
	},
	{
		name: "config-map-optional", fields: "volumes.configMap.optional",
		spec: volume("configMap: {name: nowhere, optional: true}") + prints("ls /v | wc -l", mountVol), want: []string{"0"},
	},
	{
		name: "config-map-missing", fields: "volumes.configMap.name volumes.configMap.optional",
		spec: volume("configMap: {name: nowhere}") + runs(mountVol), until: pending, check: mountFails,
	},
	{
		name: "secret", fields: "volumes.secret.secretName volumes.secret.defaultMode",
		spec: volume("secret: {secretName: keys, defaultMode: 0400}") +
			prints("cd /v; cat password; echo; stat -L -c %a password; stat -f -c %T /v", mountVol),
		want: []string{"opensesame", "400", "tmpfs"},
	},
	{
		name: "secret-items", fields: "volumes.secret.items.key volumes.secret.items.path volumes.secret.items.mode",
		spec: volume("secret: {secretName: keys, items: [{key: token, path: a/b/c, mode: 0444}]}") +
			prints("cd /v; cat a/b/c; echo; stat -L -c %a a/b/c; ls", mountVol),
		want: []string{"t0", "444", "a"},
	},
	{
		name: "secret-optional", fields: "volumes.secret.optional",
		spec: volume("secret: {secretName: keys, optional: true, items: [{key: nokey, path: x}]}") +
			prints("ls /v | wc -l", mountVol), want: []string{"0"},
	},
	{
		name: "secret-missing", fields: "volumes.secret.optional", spec: volume("secret: {secretName: nowhere}") +
			runs(mountVol), until: pending, check: mountFails,
	},
	{
		name: "secret-group", fields: "securityContext.fsGroup volumes.secret.defaultMode",
		spec: "\n  securityContext: {runAsUser: 1000, fsGroup: 5000}" +
			volume("secret: {secretName: keys, defaultMode: 0400}") +
			prints("stat -L -c '%a %g' /v/token; cat /v/token", mountVol),
		want: []string{"440 5000", "t0"},
	},
	{
		name: "downward", fields: "volumes.downwardAPI.items.path volumes.downwardAPI.items.fieldRef.fieldPath " +
			"volumes.downwardAPI.items.fieldRef.apiVersion volumes.downwardAPI.items.mode volumes.downwardAPI.defaultMode",
		meta: ", labels: {app: web}, annotations: {note: yes-it-is}",
		spec: volume("downwardAPI: {defaultMode: 0600, items: [{path: l, fieldRef: {apiVersion: v1, fieldPath: "+
			"metadata.labels}}, {path: d/n, mode: 0444, fieldRef: {fieldPath: \"metadata.annotations['note']\"}}]}") +
			prints("cd /v; cat l; echo; cat d/n; echo; stat -L -c %a l d/n", mountVol),
		want: []string{`app="web"`, "yes-it-is", "600", "444"},
	},
	{
		name: "downward-resources", fields: fieldsBelow("volumes.downwardAPI.items.resourceFieldRef",
			"containerName resource divisor"),
		spec: volume("downwardAPI: {items: [{path: c, resourceFieldRef: {containerName: main, resource: limits.cpu, "+
			"divisor: 1m}}, {path: m, resourceFieldRef: {containerName: main, resource: requests.memory, divisor: 1Mi}}]}") +
			prints("cd /v; cat c; echo; cat m", mountVol+"resources: {limits: {cpu: 250m, memory: 48Mi}}\n"),
		want: []string{"250", "48"},
	},
	{
		name: "projected",
		fields: fieldsBelow("volumes.projected",
			"defaultMode sources.configMap.name sources.configMap.items.key sources.configMap.items.path "+
				"sources.configMap.items.mode sources.secret.name "+
				"sources.secret.items.key sources.secret.items.path sources.secret.items.mode sources.downwardAPI.items.path "+
				"sources.downwardAPI.items.mode sources.downwardAPI.items.fieldRef.fieldPath "+
				"sources.downwardAPI.items.fieldRef.apiVersion"),
		spec: volume("projected: {defaultMode: 0400, sources: [{configMap: {name: settings, items: [{key: a, path: cm/a, "+
			"mode: 0444}]}}, {secret: {name: keys, items: [{key: token, path: s/t, mode: 0440}]}}, "+
			"{downwardAPI: {items: [{path: name, mode: 0404, fieldRef: {apiVersion: v1, fieldPath: metadata.name}}]}}, "+
			"{secret: {name: keys}}]}") +
			prints("cd /v; cat cm/a s/t name password; echo; stat -L -c %a cm/a s/t name password | tr '\\n' ' '", mountVol),
		want: []string{"alphat0projected-nodeopensesame", "444 440 404 400"},
	},
	{
		name: "projected-optional", fields: "volumes.projected.sources.configMap.optional " +
			"volumes.projected.sources.secret.optional",
		spec: volume("projected: {sources: [{configMap: {name: nowhere, optional: true}}, {secret: {name: nowhere, "+
			"optional: true}}, {configMap: {name: settings}}]}") + prints("ls /v | wc -l", mountVol),
		want: []string{"3"},
	},
	{
		name: "projected-resources", fields: fieldsBelow("volumes.projected.sources.downwardAPI.items.resourceFieldRef",
			"containerName resource divisor"),
		spec: volume("projected: {sources: [{downwardAPI: {items: [{path: c, resourceFieldRef: {containerName: main, "+
			"resource: limits.cpu, divisor: 1m}}]}}]}") +
			prints("cat /v/c", mountVol+"resources: {limits: {cpu: 300m}}\n"),
		want: []string{"300"},
	},
	{
		name: "image-volume", fields: "volumes.image.reference volumes.image.pullPolicy",
		spec: volume("image: {reference: "+image+", pullPolicy: Never}") +
			prints("test -x /v/bin/busybox && echo there; touch /v/x 2>/dev/null || echo readonly", mountVol),
		want: []string{"there", "readonly"},
	},
	{
		name: "claim", fields: "volumes.persistentVolumeClaim.claimName volumes.persistentVolumeClaim.readOnly",
		objects: "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: disk}\nspec: {capacity: {storage: 1Gi}, " +
			"accessModes: [ReadWriteOnce], storageClassName: '', hostPath: {path: $HOST}}\n---\n" +
			"apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: mine}\nspec: {volumeName: disk, accessModes: " +
			"[ReadWriteOnce], storageClassName: '', resources: {requests: {storage: 1Gi}}}\n",
		host: func(t *testing.T, dir string) { write(t, dir+"/f", "kept\n") },
		spec: "\n  volumes: [{name: v, persistentVolumeClaim: {claimName: mine}}, {name: r, persistentVolumeClaim: " +
			"{claimName: mine, readOnly: true}}]" +
			prints("cat /v/f; touch /v/g && echo written; touch /r/g 2>/dev/null || echo readonly",
				"volumeMounts: [{name: v, mountPath: /v}, {name: r, mountPath: /r}]\n"),
		want: []string{"kept", "written", "readonly"},
	},
	{
		name: "claim-missing", fields: "volumes.persistentVolumeClaim.claimName",
		spec: volume("persistentVolumeClaim: {claimName: nowhere}") + runs(mountVol), until: pending, check: mountFails,
	},
	{
		name: "ephemeral", fields: fieldsBelow("volumes.ephemeral.volumeClaimTemplate",
			"metadata spec.accessModes spec.resources.requests spec.storageClassName spec.volumeMode spec.selector"),
		// The smallest that fits, and the second volume gets another one.
		objects: localVolume("eph-too-small", "1Gi", "$HOST/none", "eph", "") +
			localVolume("eph-larger", "3Gi", "$HOST/b", "eph", "") + localVolume("eph-fits", "2Gi", "$HOST/a", "eph", "") +
			localVolume("eph-other", "2Gi", "$HOST/none", "other", ""),
		host: func(t *testing.T, dir string) {
			for _, d := range []string{"a", "b"} {
				write(t, filepath.Join(mkdir(t, dir, d), "f"), d+"\n")
			}
		},
		spec: "\n  volumes: [{name: v, " + claimTemplate("2Gi", "selector: {matchLabels: {of: eph}}, volumeMode: "+
			"Filesystem") + "}, {name: w, " + claimTemplate("1500Mi", "selector: {matchLabels: {of: eph}}") + "}]" +
			prints("cat /v/f /w/f; touch /v/g && echo written",
				"volumeMounts: [{name: v, mountPath: /v}, {name: w, mountPath: /w}]\n"),
		want: []string{"a", "b", "written"},
	},
	{
		name: "ephemeral-named", fields: "volumes.ephemeral.volumeClaimTemplate.spec.volumeName",
		objects: localVolume("named-one", "1Gi", "$HOST/none", "", "") + localVolume("named-two", "2Gi", "$HOST", "", ""),
		host:    func(t *testing.T, dir string) { write(t, dir+"/f", "two\n") },
		spec:    volume(claimTemplate("1Gi", "volumeName: named-two")) + prints("cat /v/f", mountVol), want: []string{"two"},
	},
	{
		name: "ephemeral-none-fits", fields: "volumes.ephemeral.volumeClaimTemplate.spec.resources.requests",
		objects: localVolume("misfit", "1Gi", "$HOST", "misfit", ""),
		spec: volume(claimTemplate("5Gi", "selector: {matchLabels: {of: misfit}}")) +
			runs(mountVol), until: pending, check: mountFails,
	},
	{
		// It is for a driver to fill a volume or to give it attributes, and there is none of this class.
		name: "ephemeral-filled", fields: fieldsBelow("volumes.ephemeral.volumeClaimTemplate.spec",
			"dataSource.apiGroup dataSource.kind dataSource.name dataSourceRef.apiGroup dataSourceRef.kind dataSourceRef.name "+
				"dataSourceRef.namespace volumeAttributesClassName resources.limits"),
		spec: "\n  volumes: [{name: v, " + claimTemplate("1Mi", "selector: {matchLabels: {of: nobody}}, "+
			"volumeAttributesClassName: fast, dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: before}") +
			"}, {name: w, " + strings.Replace(claimTemplate("1Mi", "selector: {matchLabels: {of: nobody}}, dataSourceRef: "+
			"{apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: before, namespace: default}"), "resources: {",
			"resources: {limits: {storage: 2Mi}, ", 1) + "}]" +
			runs(mountVol), until: pending, check: mountFails,
	},
	{
		name: "block", fields: fieldsBelow("containers.volumeDevices", "name devicePath"),
		objects: localVolume("raw", "4Mi", "$HOST/disk", "raw", "Block"),
		host:    func(t *testing.T, dir string) { loopDevice(t, dir+"/disk", 4<<20) },
		spec: volume(claimTemplate("1Mi", "volumeMode: Block, selector: {matchLabels: {of: raw}}")) +
			prints("test -b /dev/raw && head -c 4 /dev/raw; echo; echo written > /dev/raw; head -c 8 /dev/raw; wc -c < /dev/raw",
				"volumeDevices: [{name: v, devicePath: /dev/raw}]\n"),
		want: []string{"disk", "written", "4194304"},
	},
	{
		name: "block-privileged", fields: "containers.volumeDevices.devicePath",
		objects: localVolume("raw-privileged", "4Mi", "$HOST/disk", "rawp", "Block"),
		host:    func(t *testing.T, dir string) { loopDevice(t, dir+"/disk", 4<<20) },
		spec: volume(claimTemplate("1Mi", "volumeMode: Block, selector: {matchLabels: {of: rawp}}")) +
			prints("head -c 4 /own/raw", "securityContext: {privileged: true}\nvolumeDevices: [{name: v, devicePath: "+
				"/own/raw}]\n"),
		want: []string{"disk"},
	},
	{
		name: "block-mounted", fields: "containers.volumeMounts.name",
		objects: localVolume("raw-mounted", "4Mi", "$HOST/disk", "rawm", "Block"),
		host:    func(t *testing.T, dir string) { loopDevice(t, dir+"/disk", 4<<20) },
		spec: volume(claimTemplate("1Mi", "volumeMode: Block, selector: {matchLabels: {of: rawm}}")) +
			runs(mountVol), until: pending, check: mountFails,
	},
	{
		name: "local-device", fields: "volumes.ephemeral.volumeClaimTemplate.spec.volumeMode",
		objects: localVolume("formatted", "16Mi", "$HOST/disk", "formatted", ""),
		host:    func(t *testing.T, dir string) { blankDevice(t, dir+"/disk", 16<<20) },
		spec: volume(claimTemplate("1Mi", "selector: {matchLabels: {of: formatted}}")) +
			prints("stat -f -c %T /v; echo x > /v/f && cat /v/f", mountVol),
		want: []string{"ext2/ext3", "x"},
	},
	{
		name: "users-of-files", fields: fieldsBelow("volumes",
			"configMap.defaultUser configMap.items.user secret.defaultUser secret.items.user downwardAPI.defaultUser "+
				"downwardAPI.items.user"),
		spec: "\n  volumes: [{name: c, configMap: {name: settings, defaultUser: 1001, items: [{key: a, path: a}, {key: b, " +
			"path: b, user: 1002}]}}, " +
			"{name: s, secret: {secretName: keys, defaultUser: 1003, defaultMode: 0400, items: [{key: token, path: t}, {key: " +
			"password, path: p, user: 0}]}}, " +
			"{name: d, downwardAPI: {defaultUser: 1004, items: [{path: name, fieldRef: {fieldPath: metadata.name}}, {path: " +
			"more, user: 1005, fieldRef: {fieldPath: metadata.name}}]}}]" +
			prints("stat -L -c %u /c/a /c/b /s/t /s/p /d/name /d/more | tr '\\n' ' '; cat /s/t; cat /s/p 2>/dev/null || echo "+
				"refused",
				"securityContext: {runAsUser: 1003}\nvolumeMounts: [{name: c, mountPath: /c}, {name: s, mountPath: /s}, {name: "+
					"d, mountPath: /d}]\n"),
		want: []string{"1001 1002 1003 0 1004 1005 t0refused"},
	},
	{
		name: "users-of-projected-files", fields: fieldsBelow("volumes.projected",
			"defaultUser sources.configMap.items.user sources.secret.items.user sources.downwardAPI.items.user"),
		spec: volume("projected: {defaultUser: 1001, sources: [{configMap: {name: settings, items: [{key: a, path: a}, "+
			"{key: b, path: b, user: 1002}]}}, {secret: {name: keys, items: [{key: token, path: t, user: 1003}]}}, "+
			"{downwardAPI: {items: [{path: name, user: 1004, fieldRef: {fieldPath: metadata.name}}]}}]}") +
			prints("stat -L -c %u /v/a /v/b /v/t /v/name | tr '\\n' ' '", mountVol),
		want: []string{"1001 1002 1003 1004"},
	},
	{
		name: "bind-mount-options", fields: "containers.volumeMounts.bindMountOptions",
		spec: volume("emptyDir: {}") + prints("cp /bin/busybox /v/busybox; /v/busybox true 2>/dev/null || echo noexec; "+
			"/w/busybox true && echo exec; grep -c ' /v .*nosuid,nodev,noexec' /proc/self/mounts",
			"volumeMounts: [{name: v, mountPath: /v, bindMountOptions: [noexec, nodev, nosuid]}, {name: v, mountPath: /w}]\n"),
		want: []string{"noexec", "exec", "1"},
	},
	{
		name: "nfs", fields: fieldsBelow("volumes.nfs", "server path readOnly"),
		// Nothing serves it: what counts is that the pod says so.
		spec: volume("nfs: {server: 127.0.0.1, path: /none, readOnly: true}") +
			runs(mountVol), until: pending, check: mountFails,
	},
	{
		name: "iscsi", fields: fieldsBelow("volumes.iscsi",
			"targetPortal iqn lun iscsiInterface fsType readOnly portals initiatorName"),
		// Nothing serves it either: TestISCSIVolume has a target.
		spec: volume("iscsi: {targetPortal: '127.0.0.1:1', portals: ['127.0.0.1:2'], iqn: 'iqn.2001-04.com.example:none', "+
			"lun: 1, iscsiInterface: default, fsType: ext4, readOnly: true, "+
			"initiatorName: 'iqn.2001-04.com.example:node'}") + runs(mountVol),
		until: pending, check: mountFails,
	},
	{
		name: "empty-dir-mode", fields: "volumes.emptyDir.mode",
		spec: volume("emptyDir: {mode: 0750}") + prints("stat -c %a /v", mountVol), want: []string{"750"},
	},
	{
		name: "empty-dir-of-containers", fields: "volumes.emptyDir.medium",
		spec: volume("emptyDir: {}") + "\n  initContainers:\n" + initWriter("one") +
			strings.TrimPrefix(prints("cat /v/log", mountVol), "\n"),
		want: []string{"one"},
	},
	{
		name: "sub-path-expr", fields: "containers.volumeMounts.subPathExpr",
		spec: volume("emptyDir: {}") + prints("echo x > /sub/f; find /v -type f",
			"env: [{name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]\n"+
				"volumeMounts: [{name: v, mountPath: /sub, subPathExpr: 'of/$(NAME)'}, {name: v, mountPath: /v}]\n"),
		want: []string{"/v/of/sub-path-expr-node/f"},
	},
	{
		name: "sub-path-file", fields: "containers.volumeMounts.subPath",
		spec: volume("configMap: {name: settings}") +
			prints("cat /etc/a.conf", "volumeMounts: [{name: v, mountPath: /etc/a.conf, subPath: a}]\n"),
		want: []string{"alpha"},
	},
	{
		name: "read-only-mount", fields: "containers.volumeMounts.readOnly",
		spec: volume("emptyDir: {}") + prints("touch /v/x 2>/dev/null || echo readonly",
			"volumeMounts: [{name: v, mountPath: /v, readOnly: true}]\n"), want: []string{"readonly"},
	},
	{
		name: "recursively-read-only", fields: "containers.volumeMounts.recursiveReadOnly",
		host: func(t *testing.T, dir string) { tmpfs(t, dir+"/below") },
		spec: volume("hostPath: {path: $HOST}") +
			prints("touch /v/below/x 2>/dev/null || echo readonly; touch /w/below/x && echo written",
				"volumeMounts: [{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: Enabled}, {name: v, mountPath: /w, "+
					"readOnly: true, recursiveReadOnly: Disabled}]\n"),
		want: []string{"readonly", "written"},
	},
	{
		name: "env-config-map", fields: fieldsBelow("containers.env.valueFrom.configMapKeyRef", "name key optional"),
		spec: prints("echo $A ${N-unset}", "env: [{name: A, valueFrom: {configMapKeyRef: {name: settings, key: a}}}, "+
			"{name: \"N\", valueFrom: {configMapKeyRef: {name: settings, key: none, optional: true}}}]\n"),
		want: []string{"alpha unset"},
	},
	{
		name: "env-secret", fields: fieldsBelow("containers.env.valueFrom.secretKeyRef", "name key optional"),
		spec: prints("echo $A ${U-unset}", "env: [{name: A, valueFrom: {secretKeyRef: {name: keys, key: password}}}, "+
			"{name: U, valueFrom: {secretKeyRef: {name: nowhere, key: none, optional: true}}}]\n"),
		want: []string{"opensesame unset"},
	},
	{
		name: "env-missing", fields: "containers.env.valueFrom.secretKeyRef.optional",
		spec: runs("env: [{name: A, valueFrom: {secretKeyRef: {name: nowhere, key: " +
			"none}}}]\n"), waits: "CreateContainerConfigError",
	},
	{
		name: "env-from", fields: fieldsBelow("containers.envFrom", "prefix configMapRef.name secretRef.name"),
		spec: prints("echo $a $b $S_password",
			"envFrom: [{configMapRef: {name: settings}}, {prefix: S_, secretRef: {name: keys}}]\n"),
		want: []string{"alpha beta opensesame"},
	},
	{
		name: "env-from-optional", fields: fieldsBelow("containers.envFrom", "configMapRef.optional secretRef.optional"),
		spec: prints("echo runs", "envFrom: [{configMapRef: {name: nowhere, optional: true}}, {secretRef: {name: nowhere, "+
			"optional: true}}]\n"), want: []string{"runs"},
	},
	{
		name: "env-from-missing", fields: "containers.envFrom.configMapRef.optional",
		spec: runs("envFrom: [{configMapRef: {name: nowhere}}]\n"), waits: "CreateContainerConfigError",
	},
	{
		name: "host-path-socket", fields: "volumes.hostPath.type",
		spec: volume("hostPath: {path: $HOST, type: Socket}") + runs(mountVol), until: pending, check: mountFails,
	},
	{
		name: "host-path-device", fields: "volumes.hostPath.type",
		spec: volume("hostPath: {path: /dev/null, type: CharDevice}") +
			prints("test -c /v && echo device", mountVol), want: []string{"device"},
	},
}

// localVolume is a PersistentVolume of a path, with a label by which a claim can select it.
func localVolume(name, size, path, of, mode string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {name: %s, labels: {of: '%s'}}\nspec: "+
		"{capacity: {storage: %s}, accessModes: [ReadWriteOnce], storageClassName: fields, "+
		"volumeMode: %s, local: {path: %s}, nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: disk, "+
		"operator: In, values: [ssd]}]}]}}}\n", name, of, size, cmp.Or(mode, "Filesystem"), path)
}

func claimTemplate(size, more string) string {
	return "ephemeral: {volumeClaimTemplate: {metadata: {labels: {a: b}}, spec: {accessModes: [ReadWriteOnce], " +
		"storageClassName: fields, resources: {requests: {storage: " + size + "}}, " + more + "}}}"
}

func mkdir(t *testing.T, elem ...string) string {
	t.Helper()
	dir := filepath.Join(elem...)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// loopDevice makes link lead to a block device that begins with "disk".
func loopDevice(t *testing.T, link string, size int64) {
	t.Helper()
	write(t, link+".img", "disk")
	attach(t, link, size)
}

// blankDevice makes link lead to a block device of zeros.
func blankDevice(t *testing.T, link string, size int64) {
	t.Helper()
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		t.Skip("needs mkfs.ext4")
	}
	write(t, link+".img", "")
	attach(t, link, size)
}

func attach(t *testing.T, link string, size int64) {
	t.Helper()
	if err := os.Truncate(link+".img", size); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", link+".img").Output()
	if err != nil {
		t.Skipf("losetup: %v", err)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
			t.Errorf("losetup: %v: %s", err, out)
		}
	})
	if err := os.Symlink(device, link); err != nil {
		t.Fatal(err)
	}
}

func pending(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodPending }

// mountFails wants the pod's events to say that a volume cannot be had.
func mountFails(_ *testing.T, n *Node, p *corev1.Pod) {
	n.eventually("FailedMount", func() error {
		if out := n.must("events", p.Name); !strings.Contains(out, "FailedMount") {
			return fmt.Errorf("events:\n%s", out)
		}
		return nil
	})
}
