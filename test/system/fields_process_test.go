package system

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// processCases are about what a container's process is started as: its words, its environment, its streams and where it
// is.
var processCases = []fieldCase{
	{
		name: "args-alone", fields: "containers.args",
		spec: "\n  restartPolicy: Never\n  containers: [{name: main, image: " + image + ", args: [echo, from, args]}]",
		want: []string{"from args"},
	},
	{
		name: "image-alone", fields: "containers.image",
		// The image's command is a shell, whose standard input is at its end at once.
		spec: "\n  restartPolicy: Never\n  containers: [{name: main, image: " + image + "}]",
	},
	{
		name: "env-order", fields: "containers.env.name containers.env.value",
		spec: prints("echo $A$B$C; echo $D",
			"env: [{name: A, value: '1'}, {name: B, value: '$(A)$(C)'}, {name: C, value: '3'}, {name: A, value: '4'}, {name: "+
				"D, value: '$(A)'}]\n"),
		want: []string{"41$(C)3", "4"},
	},
	{
		name: "env-literal", fields: "containers.env.value",
		spec: prints(`echo "$A"; echo "$B"; test -z "$E" && test -n "${E+x}" && echo empty`,
			"env: [{name: A, value: '$$(HOME) $('}, {name: B, value: \"two\\nlines\"}, {name: E, value: ''}]\n"),
		want: []string{"$(HOME) $(", "two", "lines", "empty"},
	},
	{
		name: "env-metadata", fields: "containers.env.valueFrom.fieldRef.fieldPath " +
			"containers.env.valueFrom.fieldRef.apiVersion",
		meta: ", labels: {app: web, tier: front}, annotations: {note: 'a \"quoted\" one'}",
		spec: prints(`echo $L; echo "$NOTE"; test -z "$NONE" && echo none`, `env:
- {name: L, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: "metadata.labels['tier']"}}}
- {name: NOTE, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['note']"}}}
- {name: NONE, valueFrom: {fieldRef: {fieldPath: "metadata.labels['none']"}}}
`),
		want: []string{"front", `a "quoted" one`, "none"},
	},
	{
		name: "env-addresses", fields: "containers.env.valueFrom.fieldRef.fieldPath",
		spec: prints(`ip -4 -o addr show eth0 | grep -c " $IP/"; test "${IPS%%,*}" = "$IP" && echo first; test "${NODES%%,*}" = "$NODE" && echo host`, `env:
- {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: IPS, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}
- {name: NODE, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
- {name: NODES, valueFrom: {fieldRef: {fieldPath: status.hostIPs}}}
`),
		want: []string{"1", "first", "host"},
	},
	{
		name: "env-other-container", fields: "containers.env.valueFrom.resourceFieldRef.containerName",
		spec: "\n  initContainers: [{name: i, image: " + image +
			", command: ['true'], resources: {limits: {cpu: 1500m, memory: 48Mi}}}]" +
			prints("echo $CPU $MEM $MEMMI", `env:
- {name: CPU, valueFrom: {resourceFieldRef: {containerName: i, resource: limits.cpu}}}
- {name: MEM, valueFrom: {resourceFieldRef: {containerName: i, resource: limits.memory}}}
- {name: MEMMI, valueFrom: {resourceFieldRef: {containerName: i, resource: requests.memory, divisor: 1Mi}}}
`),
		want: []string{"2 50331648 48"},
	},
	{
		name: "env-without-limit", fields: "containers.env.valueFrom.resourceFieldRef.resource",
		// Without a limit there is as much as the node has.
		spec: prints("test $CPU = $(grep -c ^processor /proc/cpuinfo) && echo cpu; test $MEM -gt 100000000 && echo memory", `env:
- {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
- {name: MEM, valueFrom: {resourceFieldRef: {resource: limits.memory}}}
`),
		want: []string{"cpu", "memory"},
	},
	{
		name: "env-file", fields: fieldsBelow("containers.env.valueFrom.fileKeyRef", "volumeName path key optional"),
		// The container itself does not have the volume.
		spec: emptyVol + writesEnv(`printf "# made\nA='one  two' # x\nB='1\n 2'\n" > /v/app.env; ln -s app.env /v/link`) +
			prints(`echo "$A"; echo "$B"; echo "$D"; env | grep -c '^NO'; test ! -e /v && echo none`, `env:
- {name: A, valueFrom: {fileKeyRef: {volumeName: v, path: app.env, key: A}}}
- {name: B, valueFrom: {fileKeyRef: {volumeName: v, path: link, key: B}}}
- {name: D, value: "<$(A)>"}
- {name: NOKEY, valueFrom: {fileKeyRef: {volumeName: v, path: app.env, key: NONE, optional: true}}}
- {name: NOFILE, valueFrom: {fileKeyRef: {volumeName: v, path: none.env, key: A, optional: true}}}
`),
		want: []string{"one  two", "1", "2", "<one  two>", "0", "none"},
	},
	{
		name: "env-file-again", fields: fieldsBelow("containers.env.valueFrom.fileKeyRef", "volumeName path key"),
		// It is read at each start.
		spec: "\n  restartPolicy: OnFailure" + emptyVol + writesEnv(`echo "RUN='1'" > /v/env`) + `
  containers:
  - name: main
    image: ` + image + `
    command: [sh, -c, 'echo run $RUN; test $RUN = 2 && exit; echo "RUN=''2''" > /v/env; exit 1']
    volumeMounts: [{name: v, mountPath: /v}]
    env: [{name: RUN, valueFrom: {fileKeyRef: {volumeName: v, path: env, key: RUN}}}]`,
		want: []string{"run 2"},
	},
	{
		name: "env-file-key-missing", fields: "containers.env.valueFrom.fileKeyRef.key",
		spec: emptyVol + writesEnv(`echo "A='1'" > /v/env`) +
			runs("env: [{name: B, valueFrom: {fileKeyRef: {volumeName: v, path: env, key: B}}}]\n"),
		until: waitingWith("main", "CreateContainerConfigError", "couldn't find key B in file env of volume v"),
	},
	{
		name: "env-file-invalid", fields: "containers.env.valueFrom.fileKeyRef.path",
		spec: emptyVol + writesEnv("echo A=1 > /v/env") +
			runs("env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: env, key: A, optional: true}}}]\n"),
		until: waitingWith("main", "CreateContainerConfigError", "line 1: the value must be enclosed in single quotes"),
	},
	{
		name: "env-file-outside", fields: "containers.env.valueFrom.fileKeyRef.path",
		host: func(t *testing.T, dir string) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(dir, "env"), []byte("A='1'\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		spec: emptyVol + writesEnv("ln -s $HOST/env /v/env") +
			runs("env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: env, key: A}}}]\n"),
		until: waitingWith("main", "CreateContainerConfigError", "leads out of the volume"),
	},
	{
		name: "env-many", fields: "containers.env.name",
		spec: prints("env | grep -c ^MANY_", "env: ["+manyEnv(2000)+"]\n"),
		want: []string{"2000"},
	},
	{
		name: "service-links", fields: "enableServiceLinks",
		spec: "\n  enableServiceLinks: true" + prints("env | grep -c _SERVICE_HOST; echo done", ""),
		want: []string{"0", "done"}, // there are no services yet
	},
	{
		name: "working-dir-command", fields: "containers.workingDir containers.command",
		spec: "\n  restartPolicy: Never\n  containers: [{name: main, image: " + image +
			", workingDir: /bin, command: [./busybox, pwd]}]",
		want: []string{"/bin"},
	},
	{
		name: "no-stdin", fields: "containers.stdin",
		spec: prints("readlink /proc/self/fd/0; cat; echo at its end", ""),
		want: []string{"/dev/null", "at its end"},
	},
	{
		name: "stdin-once", fields: "containers.stdin containers.stdinOnce",
		spec: "\n  restartPolicy: Never\n  containers: [{name: main, image: " + image +
			", stdin: true, stdinOnce: true, command: [sh, -c, 'cat; echo end']}]",
		ready: func(t *testing.T, n *Node, p *corev1.Pod) {
			if _, stderr, code := n.berthIn(strings.NewReader("typed\n"), "attach", "-i", "stdin-once"); code != 0 {
				t.Errorf("attach: exit code %d: %s", code, stderr)
			}
		},
		want: []string{"typed", "end"},
	},
	{
		name: "tty-size", fields: "containers.tty",
		spec: prints("test -t 1 && echo terminal; tty | cut -c1-8", "tty: true\n"),
		want: []string{"terminal"},
	},
	{
		name: "message-path", fields: "containers.terminationMessagePath",
		spec: prints("echo -n my last words > /tmp/why", "terminationMessagePath: /tmp/why\n"),
		ends: message("my last words"),
	},
	{
		name: "message-default", fields: "containers.terminationMessagePath containers.terminationMessagePolicy",
		spec: prints("echo -n file > /dev/termination-log; echo log; exit 1", "terminationMessagePolicy: File\n"),
		ends: message("file"),
	},
	{
		name: "message-from-log", fields: "containers.terminationMessagePolicy",
		spec: prints("echo from the log; exit 1", "terminationMessagePolicy: FallbackToLogsOnError\n"),
		ends: message("from the log\n"),
	},
	{
		name: "message-no-error", fields: "containers.terminationMessagePolicy",
		spec: prints("echo from the log", "terminationMessagePolicy: FallbackToLogsOnError\n"),
		ends: message(""),
	},
	{
		name: "message-too-long", fields: "containers.terminationMessagePath",
		spec: prints("head -c 9000 /dev/zero | tr '\\0' x > /dev/termination-log; echo -n end >> /dev/termination-log", ""),
		ends: message(strings.Repeat("x", 4093) + "end"),
	},
	{
		name: "pull-never", fields: "containers.imagePullPolicy",
		spec: prints("echo had it", "imagePullPolicy: Never\n"), want: []string{"had it"},
	},
	{
		name: "pull-never-missing", fields: "containers.imagePullPolicy",
		spec:  "\n  containers: [{name: main, image: 'berth.test/none:1', imagePullPolicy: Never}]",
		waits: "ErrImageNeverPull",
	},
	{
		name: "pull-missing", fields: "containers.imagePullPolicy containers.image",
		spec:  "\n  containers: [{name: main, image: '127.0.0.1:1/none:1', imagePullPolicy: IfNotPresent}]",
		waits: "ErrImagePull",
	},
	{
		name: "pull-always", fields: "containers.imagePullPolicy",
		// It is there, but its registry is not.
		spec:  "\n  containers: [{name: main, image: " + image + ", imagePullPolicy: Always}]",
		waits: "ErrImagePull",
	},
	{
		name: "no-such-program", fields: "containers.command",
		spec: "\n  restartPolicy: Never\n  containers: [{name: main, image: " + image + ", command: [/no/such/program]}]",
		ends: func(t *testing.T, _ *Node, p *corev1.Pod) {
			s := terminated(p, "main")
			if s == nil || s.Reason != "StartError" && s.Reason != "ContainerCannotRun" ||
				!strings.Contains(s.Message, "/no/such/program") {
				t.Errorf("terminated: %+v", s)
			}
		},
	},
	{
		name: "exit-code", fields: "restartPolicy",
		spec: prints("exit 42", ""),
		ends: func(t *testing.T, _ *Node, p *corev1.Pod) {
			if s := terminated(p, "main"); p.Status.Phase != corev1.PodFailed || s == nil || s.ExitCode != 42 ||
				s.Reason != "Error" {
				t.Errorf("phase %s, %+v", p.Status.Phase, s)
			}
		},
	},
}

// message wants the container's termination message.
func message(want string) func(*testing.T, *Node, *corev1.Pod) {
	return func(t *testing.T, _ *Node, p *corev1.Pod) {
		if s := terminated(p, "main"); s == nil || s.Message != want {
			t.Errorf("message: %+v, want %q", s, want)
		}
	}
}

// manyEnv is that many variables of an environment.
// writesEnv is an init container that runs the shell script with the volume v.
func writesEnv(script string) string {
	return "\n  initContainers: [{name: init, image: " + image + ", command: [sh, -c, '" +
		strings.ReplaceAll(script, "'", "''") + "'], volumeMounts: [{name: v, mountPath: /v}]}]"
}

// waitingWith is a container that waits for the reason, with the text in the message.
func waitingWith(name, reason, text string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		return waiting(name, reason)(p) && strings.Contains(containerState(p, name).State.Waiting.Message, text)
	}
}

func manyEnv(count int) string {
	var b strings.Builder
	for i := range count {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString("{name: MANY_")
		b.WriteString(strings.Repeat("I", i/26+1))
		b.WriteByte('A' + byte(i%26))
		b.WriteString(", value: x}")
	}
	return b.String()
}
