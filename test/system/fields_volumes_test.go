package system

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// objects are what cases refer to.
var objects = configMap("settings", `a: alpha, b: beta, "c.conf": "x=1"`) + "---\n" + secretOf("keys", "password: opensesame, token: t0")

func volume(source string) string { return "\n  volumes: [{name: v, " + source + "}]" }

// volumeCases are about what is mounted into a container, and how.
var volumeCases = []fieldCase{
	{
		name: "config-map", fields: "volumes.configMap.name volumes.configMap.defaultMode",
		spec: volume("configMap: {name: settings}") + prints("cd /v; echo $(ls); cat a; stat -L -c %a a; touch a 2>/dev/null || echo readonly", mountVol),
		want: []string{"a b c.conf", "alpha644", "readonly"},
	},
	{
		name: "config-map-items", fields: "volumes.configMap.items.key volumes.configMap.items.path volumes.configMap.items.mode",
		spec: volume("configMap: {name: settings, defaultMode: 0600, items: [{key: a, path: deep/one}, {key: b, path: two, mode: 0440}]}") +
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
		spec: volume("secret: {secretName: keys, defaultMode: 0400}") + prints("cd /v; cat password; echo; stat -L -c %a password; stat -f -c %T /v", mountVol),
		want: []string{"opensesame", "400", "tmpfs"},
	},
	{
		name: "secret-items", fields: "volumes.secret.items.key volumes.secret.items.path volumes.secret.items.mode",
		spec: volume("secret: {secretName: keys, items: [{key: token, path: a/b/c, mode: 0444}]}") + prints("cd /v; cat a/b/c; echo; stat -L -c %a a/b/c; ls", mountVol),
		want: []string{"t0", "444", "a"},
	},
	{
		name: "secret-optional", fields: "volumes.secret.optional",
		spec: volume("secret: {secretName: keys, optional: true, items: [{key: nokey, path: x}]}") + prints("ls /v | wc -l", mountVol), want: []string{"0"},
	},
	{
		name: "secret-missing", fields: "volumes.secret.optional", spec: volume("secret: {secretName: nowhere}") + runs(mountVol), until: pending, check: mountFails,
	},
	{
		name: "secret-group", fields: "securityContext.fsGroup volumes.secret.defaultMode",
		spec: "\n  securityContext: {runAsUser: 1000, fsGroup: 5000}" + volume("secret: {secretName: keys, defaultMode: 0400}") + prints("stat -L -c '%a %g' /v/token; cat /v/token", mountVol),
		want: []string{"440 5000", "t0"},
	},
	{
		name: "downward", fields: "volumes.downwardAPI.items.path volumes.downwardAPI.items.fieldRef.fieldPath volumes.downwardAPI.items.fieldRef.apiVersion volumes.downwardAPI.items.mode volumes.downwardAPI.defaultMode",
		meta: ", labels: {app: web}, annotations: {note: yes-it-is}",
		spec: volume("downwardAPI: {defaultMode: 0600, items: [{path: l, fieldRef: {apiVersion: v1, fieldPath: metadata.labels}}, {path: d/n, mode: 0444, fieldRef: {fieldPath: \"metadata.annotations['note']\"}}]}") +
			prints("cd /v; cat l; echo; cat d/n; echo; stat -L -c %a l d/n", mountVol),
		want: []string{`app="web"`, "yes-it-is", "600", "444"},
	},
	{
		name: "downward-resources", fields: fieldsBelow("volumes.downwardAPI.items.resourceFieldRef", "containerName resource divisor"),
		spec: volume("downwardAPI: {items: [{path: c, resourceFieldRef: {containerName: main, resource: limits.cpu, divisor: 1m}}, {path: m, resourceFieldRef: {containerName: main, resource: requests.memory, divisor: 1Mi}}]}") +
			prints("cd /v; cat c; echo; cat m", mountVol+"resources: {limits: {cpu: 250m, memory: 48Mi}}\n"),
		want: []string{"250", "48"},
	},
	{
		name: "projected",
		fields: fieldsBelow("volumes.projected", "defaultMode sources.configMap.name sources.configMap.items.key sources.configMap.items.path sources.configMap.items.mode sources.secret.name "+
			"sources.secret.items.key sources.secret.items.path sources.secret.items.mode sources.downwardAPI.items.path sources.downwardAPI.items.mode sources.downwardAPI.items.fieldRef.fieldPath sources.downwardAPI.items.fieldRef.apiVersion"),
		spec: volume("projected: {defaultMode: 0400, sources: [{configMap: {name: settings, items: [{key: a, path: cm/a, mode: 0444}]}}, {secret: {name: keys, items: [{key: token, path: s/t, mode: 0440}]}}, "+
			"{downwardAPI: {items: [{path: name, mode: 0404, fieldRef: {apiVersion: v1, fieldPath: metadata.name}}]}}, {secret: {name: keys}}]}") +
			prints("cd /v; cat cm/a s/t name password; echo; stat -L -c %a cm/a s/t name password | tr '\\n' ' '", mountVol),
		want: []string{"alphat0projected-nodeopensesame", "444 440 404 400"},
	},
	{
		name: "projected-optional", fields: "volumes.projected.sources.configMap.optional volumes.projected.sources.secret.optional",
		spec: volume("projected: {sources: [{configMap: {name: nowhere, optional: true}}, {secret: {name: nowhere, optional: true}}, {configMap: {name: settings}}]}") + prints("ls /v | wc -l", mountVol),
		want: []string{"3"},
	},
	{
		name: "projected-resources", fields: fieldsBelow("volumes.projected.sources.downwardAPI.items.resourceFieldRef", "containerName resource divisor"),
		spec: volume("projected: {sources: [{downwardAPI: {items: [{path: c, resourceFieldRef: {containerName: main, resource: limits.cpu, divisor: 1m}}]}}]}") +
			prints("cat /v/c", mountVol+"resources: {limits: {cpu: 300m}}\n"),
		want: []string{"300"},
	},
	{
		name: "image-volume", fields: "volumes.image.reference volumes.image.pullPolicy",
		spec: volume("image: {reference: "+image+", pullPolicy: Never}") + prints("test -x /v/bin/busybox && echo there; touch /v/x 2>/dev/null || echo readonly", mountVol),
		want: []string{"there", "readonly"},
	},
	{
		name: "claim", fields: "volumes.persistentVolumeClaim.claimName volumes.persistentVolumeClaim.readOnly",
		objects: "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: disk}\nspec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], storageClassName: '', hostPath: {path: $HOST}}\n---\n" +
			"apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: mine}\nspec: {volumeName: disk, accessModes: [ReadWriteOnce], storageClassName: '', resources: {requests: {storage: 1Gi}}}\n",
		host: func(t *testing.T, dir string) { write(t, dir+"/f", "kept\n") },
		spec: "\n  volumes: [{name: v, persistentVolumeClaim: {claimName: mine}}, {name: r, persistentVolumeClaim: {claimName: mine, readOnly: true}}]" +
			prints("cat /v/f; touch /v/g && echo written; touch /r/g 2>/dev/null || echo readonly", "volumeMounts: [{name: v, mountPath: /v}, {name: r, mountPath: /r}]\n"),
		want: []string{"kept", "written", "readonly"},
	},
	{
		name: "claim-missing", fields: "volumes.persistentVolumeClaim.claimName",
		spec: volume("persistentVolumeClaim: {claimName: nowhere}") + runs(mountVol), until: pending, check: mountFails,
	},
	{
		name: "nfs", fields: fieldsBelow("volumes.nfs", "server path readOnly"),
		// Nothing serves it: what counts is that the pod says so.
		spec: volume("nfs: {server: 127.0.0.1, path: /none, readOnly: true}") + runs(mountVol), until: pending, check: mountFails,
	},
	{
		name: "empty-dir-mode", fields: "volumes.emptyDir.mode",
		spec: volume("emptyDir: {mode: 0750}") + prints("stat -c %a /v", mountVol), want: []string{"750"},
	},
	{
		name: "empty-dir-of-containers", fields: "volumes.emptyDir.medium",
		spec: volume("emptyDir: {}") + "\n  initContainers:\n" + initWriter("one") + strings.TrimPrefix(prints("cat /v/log", mountVol), "\n"),
		want: []string{"one"},
	},
	{
		name: "sub-path-expr", fields: "containers.volumeMounts.subPathExpr",
		spec: volume("emptyDir: {}") + prints("echo x > /sub/f; find /v -type f", "env: [{name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]\n"+
			"volumeMounts: [{name: v, mountPath: /sub, subPathExpr: 'of/$(NAME)'}, {name: v, mountPath: /v}]\n"),
		want: []string{"/v/of/sub-path-expr-node/f"},
	},
	{
		name: "sub-path-file", fields: "containers.volumeMounts.subPath",
		spec: volume("configMap: {name: settings}") + prints("cat /etc/a.conf", "volumeMounts: [{name: v, mountPath: /etc/a.conf, subPath: a}]\n"), want: []string{"alpha"},
	},
	{
		name: "read-only-mount", fields: "containers.volumeMounts.readOnly",
		spec: volume("emptyDir: {}") + prints("touch /v/x 2>/dev/null || echo readonly", "volumeMounts: [{name: v, mountPath: /v, readOnly: true}]\n"), want: []string{"readonly"},
	},
	{
		name: "recursively-read-only", fields: "containers.volumeMounts.recursiveReadOnly",
		host: func(t *testing.T, dir string) { tmpfs(t, dir+"/below") },
		spec: volume("hostPath: {path: $HOST}") + prints("touch /v/below/x 2>/dev/null || echo readonly; touch /w/below/x && echo written",
			"volumeMounts: [{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: Enabled}, {name: v, mountPath: /w, readOnly: true, recursiveReadOnly: Disabled}]\n"),
		want: []string{"readonly", "written"},
	},
	{
		name: "env-config-map", fields: fieldsBelow("containers.env.valueFrom.configMapKeyRef", "name key optional"),
		spec: prints("echo $A ${N-unset}", "env: [{name: A, valueFrom: {configMapKeyRef: {name: settings, key: a}}}, {name: \"N\", valueFrom: {configMapKeyRef: {name: settings, key: none, optional: true}}}]\n"),
		want: []string{"alpha unset"},
	},
	{
		name: "env-secret", fields: fieldsBelow("containers.env.valueFrom.secretKeyRef", "name key optional"),
		spec: prints("echo $A ${U-unset}", "env: [{name: A, valueFrom: {secretKeyRef: {name: keys, key: password}}}, {name: U, valueFrom: {secretKeyRef: {name: nowhere, key: none, optional: true}}}]\n"),
		want: []string{"opensesame unset"},
	},
	{
		name: "env-missing", fields: "containers.env.valueFrom.secretKeyRef.optional",
		spec: runs("env: [{name: A, valueFrom: {secretKeyRef: {name: nowhere, key: none}}}]\n"), waits: "CreateContainerConfigError",
	},
	{
		name: "env-from", fields: fieldsBelow("containers.envFrom", "prefix configMapRef.name secretRef.name"),
		spec: prints("echo $a $b $S_password", "envFrom: [{configMapRef: {name: settings}}, {prefix: S_, secretRef: {name: keys}}]\n"), want: []string{"alpha beta opensesame"},
	},
	{
		name: "env-from-optional", fields: fieldsBelow("containers.envFrom", "configMapRef.optional secretRef.optional"),
		spec: prints("echo runs", "envFrom: [{configMapRef: {name: nowhere, optional: true}}, {secretRef: {name: nowhere, optional: true}}]\n"), want: []string{"runs"},
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
		spec: volume("hostPath: {path: /dev/null, type: CharDevice}") + prints("test -c /v && echo device", mountVol), want: []string{"device"},
	},
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
