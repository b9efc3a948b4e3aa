package manifest

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-node/berth/agent/desired"
)

func podYAML(name, image string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata:\n  name: %s\nspec:\n  containers:\n  - name: main\n    "+
		"image: %s\n", name, image)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestDecode(t *testing.T) {
	pod := func(name string) string { return podYAML(name, "nginx:1") }
	asJSON := func(text string) string {
		data, err := yaml.YAMLToJSON([]byte(text))
		must(t, err)
		return string(data)
	}
	indent := func(text, by string) string { return by + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+by) }
	item := func(text string) string { return "-" + indent(text, "  ")[1:] + "\n" }
	list := "apiVersion: v1\nkind: List\nitems:\n" + item(pod("a")) + item(pod("b"))
	for _, c := range []struct {
		name, text string
		want       string // names
		errors     string
		warnings   string
	}{
		{name: "one", text: pod("a"), want: "a"},
		{name: "several", text: "# first\n---\n" + pod("a") + "--- # second\n" + pod("b") + "...\n---\n\n---\n", want: "a b"},
		{
			name: "windows", text: "\xef\xbb\xbf" + strings.ReplaceAll("---\n"+pod("a")+"---\n"+pod("b"), "\n", "\r\n"),
			want: "a b",
		},
		{name: "on the marker's line", text: "--- " + asJSON(pod("a")), want: "a"},
		{name: "marker in a text", text: strings.Replace(pod("a"), "image: nginx:1",
			"image: nginx:1\n    command:\n    - |\n      ---\n      x", 1), want: "a"},
		{name: "json", text: asJSON(pod("a")), want: "a"},
		{name: "json stream", text: asJSON(pod("a")) + "\n" + asJSON(pod("b")), want: "a b"},
		{name: "flow that is no json", text: "{apiVersion: v1, kind: Pod, metadata: {name: a}} # x", want: "a"},
		{name: "list", text: list, want: "a b"},
		{name: "json list", text: asJSON(list), want: "a b"},
		{
			name: "pod list", text: strings.ReplaceAll(strings.Replace(list, "kind: List", "kind: PodList", 1), "kind: Pod\n",
				"labels: {}\n"), want: "a b",
			warnings: `unknown field "labels"`,
		},
		{
			name: "list in a list", text: "apiVersion: v1\nkind: List\nitems:\n" + item(list),
			errors: `line 5: kind: Invalid value: "v1 List"`,
		},
		{name: "empty list", text: "apiVersion: v1\nkind: List\nitems: []\n"},
		{name: "nothing", text: "\n# x\n---\n"},
		{name: "anchors", text: "apiVersion: v1\nkind: List\nitems:\n- &a " + asJSON(pod("a")) +
			"\n- <<: *a\n  metadata: {name: b}\n", want: "a b"},
		{
			name: "kind", text: "apiVersion: apps/v1\nkind: Deployment\n",
			errors: `line 2: kind: Invalid value: "apps/v1 Deployment": not supported: must be Pod, ConfigMap`,
		},
		{name: "version", text: "apiVersion: v2\nkind: Pod\n", errors: `line 1: apiVersion: Unsupported value: "v2"`},
		{
			name: "no kind", text: "metadata: {name: x}\n",
			errors: "line 1: apiVersion: Required value|line 1: kind: Required value",
		},
		{
			name: "kind of a wrong type", text: "apiVersion: v1\nkind: 5\n",
			errors: `line 2: kind: Invalid value: 5: must be a string`,
		},
		{name: "scalar", text: "hello", errors: "a manifest must be a map"},
		{name: "array", text: "- a\n- b\n", errors: "a manifest must be a map"},
		{
			name: "unknown", text: pod("a") + "    imagee: x\n  nodename: y\nSpec: {}\n", want: "a",
			warnings: `line 9: unknown field "spec.containers[0].imagee" (ignored)|line 10: unknown field "spec.nodename"|line 11: unknown field "Spec"`,
		},
		{
			name: "duplicate", text: "\n" + pod("a") + "    image: nginx:2\n", want: "a",
			warnings: `line 10: duplicate field "image" (the last one counts)`,
		},
		{
			name: "duplicate in json", text: `{"apiVersion":"v1","kind":"Pod","kind":"Pod","metadata":{"name":"a"}}`, want: "a",
			warnings: `duplicate field "kind"`,
		},
		{
			name: "types", text: "# c\n---\n" + pod("a") +
				"    ports: {}\n    stdin: 'yes'\n    env:\n    - name: X\n      value: 80\n    - name: Y\n      value: true\n   " +
				" resources:\n      limits:\n        cpu: lots\n        example.com/x: [1]\n" +
				"    livenessProbe:\n      periodSeconds: 99999999999\n      httpGet: {port: [1]}\n  volumes: x\n  hostPID: 1\n",
			errors: `line 11: spec.containers[0].ports: Invalid value: {}: must be a list|line 12: spec.containers[0].stdin: Invalid value: "yes": must be true or false|` +
				`line 15: spec.containers[0].env[0].value: Invalid value: 80: must be a string: put quotes around it, as in "80"|` +
				`line 17: spec.containers[0].env[1].value: Invalid value: true: must be a string|` +
				`line 20: spec.containers[0].resources.limits[cpu]: Invalid value: "lots": must be a quantity|line 21: spec.containers[0].resources.limits[example.com/x]|` +
				`line 23: spec.containers[0].livenessProbe.periodSeconds: Invalid value: 99999999999: must be a whole number from|` +
				`line 24: spec.containers[0].livenessProbe.httpGet.port: Invalid value: [1]: must be a number or a name|` +
				`line 25: spec.volumes: Invalid value: "x": must be a list|line 26: spec.hostPID: Invalid value: 1: must be true or false`,
		},
		{
			name: "time", text: "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  creationTimestamp: yesterday\n",
			errors: "line 5: metadata.creationTimestamp: Invalid value: \"yesterday\": must be a time",
		},
		{
			name: "syntax", text: pod("a") + "---\n" + pod("b") + "   bad: [\n", want: "a",
			errors: "line 17: invalid YAML|did not find expected",
		},
		{name: "syntax of json", text: asJSON(pod("a"))[:40], errors: "invalid YAML"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var names, errors, warnings []string
			for _, d := range decode([]byte(c.text)) {
				if d.pod != nil && len(d.errors) == 0 {
					names = append(names, d.name)
				}
				errors, warnings = append(errors, d.errors...), append(warnings, d.warnings...)
			}
			if got := strings.Join(names, " "); got != c.want {
				t.Errorf("pods %q, want %q (%q)", got, c.want, errors)
			}
			for what, x := range map[string]struct {
				got  []string
				want string
			}{"errors": {errors, c.errors}, "warnings": {warnings, c.warnings}} {
				all := strings.Join(x.got, "\n")
				if x.want == "" && all != "" {
					t.Errorf("%s: %s", what, all)
				}
				for w := range strings.SplitSeq(x.want, "|") {
					if !strings.Contains(all, w) {
						t.Errorf("no %q in %s:\n%s", w, what, all)
					}
				}
			}
		})
	}
}

// Hostile manifests are refused with a message, in little memory.
func TestDecodeHostile(t *testing.T) {
	bomb := "apiVersion: v1\nkind: Pod\na: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		p := string(c - 1)
		bomb += fmt.Sprintf("%c: &%c [*%s,*%s,*%s,*%s,*%s,*%s,*%s,*%s,*%s,*%s]\n", c, c, p, p, p, p, p, p, p, p, p, p)
	}
	big := strings.Repeat("x", 100_000)
	env := strings.Repeat("    - {name: A, value: b}\n", 1_000_000)
	for name, text := range map[string]string{
		"alias bomb":             bomb,
		"deep flow":              strings.Repeat("[", 1_000_000),
		"deep json":              strings.Repeat(`{"a":`, 1_000_000),
		"deep block":             strings.Repeat("- ", 1_000_000),
		"many values":            "a: [" + strings.Repeat("1,", 1_000_000) + "1]",
		"many env":               podYAML("a", "x") + "    env:\n" + env,
		"many json values":       `{"a":[` + strings.Repeat("1,", 1_400_000) + "1]}",
		"self alias":             "a: &a [*a]",
		"long key":               "? " + big + "\n: 1",
		"long name":              podYAML(big, "x"),
		"ten megabytes":          podYAML("a", strings.Repeat("y", 10<<20)),
		"unknown fields":         podYAML("a", "x") + strings.Repeat("    f: 1\n", 200_000),
		"many documents":         strings.Repeat("---\na\n", 300_000),
		"many small errors":      podYAML("a", "x") + "    command: [" + strings.Repeat("1,", 100_000) + "1]",
		"many unknown in a list": podYAML("a", "x") + "    ports: [" + strings.Repeat("{a: 1},", 20_000) + "{a: 1}]",
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			at := time.Now()
			docs := decode([]byte(text))
			runtime.ReadMemStats(&after)
			t.Logf("%d MB allocated for %d bytes in %v", (after.TotalAlloc-before.TotalAlloc)>>20, len(text), time.Since(at))
			said := 0
			for i := range docs {
				d := &docs[i]
				if d.pod != nil && len(d.errors) == 0 {
					static(d, "node", desired.File, time.Now())
				}
				for _, m := range append(d.errors, d.warnings...) {
					said += len(m)
					if len(m) > maxMessage+100 {
						t.Errorf("a message of %d bytes", len(m))
					}
				}
			}
			if len(docs) == 0 || said == 0 {
				t.Error("nothing was said about it")
			}
			if mb := (after.TotalAlloc - before.TotalAlloc) >> 20; mb > 600 {
				t.Errorf("allocated %d MB", mb)
			}
		})
	}
}

func TestHostileValues(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	for text, want := range map[string]string{
		podYAML("a/b", "x"):                     "metadata.name: Invalid value",
		podYAML("../../etc", "x"):               "metadata.name: Invalid value",
		podYAML(long, "x"):                      "metadata.name: Invalid value",
		podYAML("a", "x") + "  hostname: a/b\n": "spec.hostname: Invalid value",
		strings.Replace(podYAML("a", "x"), "name: a", "name: a\n  uid: ../../x",
			1): "metadata.uid: Invalid value",
		strings.Replace(podYAML("a", "x"), "name: a", "name: a\n  namespace: ../x",
			1): "metadata.namespace: Invalid value",
		podYAML("a", "x") + "    volumeMounts:\n    - {name: v, mountPath: /x, subPath: ../../etc}\n  volumes: [{name: " +
			"v}]\n": "spec.containers[0].volumeMounts[0].subPath: Invalid value: \"../../etc\": must not contain '..'",
		podYAML("a", "x") + "  volumes: [{name: " +
			"../v}]\n": "spec.volumes[0].name: Invalid " +
			"value",
		podYAML("a", "x") + "  containers2: 1\n  hostAliases: [{ip: 1.2.3.4, hostnames: ['" + long +
			"']}]\n": "spec.hostAliases[0].hostnames[0]: Invalid value",
		strings.Replace(podYAML("a", "x"), "name: main", "name: ../../main",
			1): "spec.containers[0].name: Invalid value",
		strings.Replace(podYAML("a", "x"), "  name: a\n", "",
			1): "metadata.name: Required value",
	} {
		docs := decode([]byte(text))
		if len(docs) != 1 || docs[0].pod == nil {
			t.Fatalf("%.80s: %+v", text, docs)
		}
		_, ok := static(&docs[0], "node", desired.File, time.Now())
		if all := strings.Join(docs[0].errors, "\n"); ok || !strings.Contains(all, want) {
			t.Errorf("no %q in %q", want, all)
		}
	}
}

func itemOf(t *testing.T, text, node string) Item {
	t.Helper()
	docs := decode([]byte(text))
	if len(docs) != 1 || docs[0].pod == nil {
		t.Fatalf("%s: %+v", text, docs)
	}
	c, ok := static(&docs[0], node, desired.File, time.Now())
	if !ok {
		t.Fatalf("%q", docs[0].errors)
	}
	return c
}

func TestContentHash(t *testing.T) {
	base := podYAML("a", "nginx:1") + "    resources: {limits: {cpu: 500m, memory: 1Gi}}\n"
	hash := itemOf(t, base, "node").Hash
	for name, text := range map[string]string{
		"comments":     "# x\n" + base,
		"quantities":   strings.NewReplacer("500m", "'0.5'", "1Gi", "1024Mi").Replace(base),
		"nulls":        base + "    command: null\n  volumes:\n",
		"defaulted ns": strings.Replace(base, "name: a\n", "name: a\n  namespace: default\n", 1),
		"status":       base + "status: {phase: Running}\n",
		"unknown":      base + "  unknown: 1\n",
		"order": "kind: Pod\nspec:\n  containers:\n  - image: nginx:1\n    resources: {limits: {memory: 1Gi, cpu: " +
			"500m}}\n    name: main\nmetadata: {name: a}\napiVersion: v1\n",
	} {
		if itemOf(t, text, "node").Hash != hash {
			t.Errorf("%s make another pod of it", name)
		}
	}
	for name, text := range map[string]string{
		"image": strings.Replace(base, "nginx:1", "nginx:2", 1),
		"label": strings.Replace(base, "name: a\n", "name: a\n  labels: {x: z}\n", 1),
		"ns":    strings.Replace(base, "name: a\n", "name: a\n  namespace: other\n", 1),
	} {
		if itemOf(t, text, "node").Hash == hash {
			t.Errorf("%s does not make another pod of it", name)
		}
	}
	if itemOf(t, base, "other").Hash == hash {
		t.Error("on another node it is the same pod")
	}
	if uid := itemOf(t, strings.Replace(base, "name: a\n", "name: a\n  uid: abc\n", 1), "node").Pod.UID; uid != "abc" {
		t.Errorf("uid %q", uid)
	}
	// An agent of another version must come to the same result, or an upgrade restarts every pod.
	if got, want := itemOf(t, podYAML("golden", "nginx:1"), "node").Hash, goldenHash; got != want {
		t.Errorf("hash %s, want %s", got, want)
	}
}

const goldenHash = "a1f95acd386dad4cd152c3cf37971f3c"

func TestUnsupported(t *testing.T) {
	text := strings.Replace(podYAML("a", "x"), "name: a\n", "name: a\n  annotations: {berth.node/probe-period-ms: 1s}\n", 1) + `    envFrom: [{configMapRef: {name: x}}]
    env:
    - {name: A, valueFrom: {secretKeyRef: {name: x, key: k}}}
    - {name: B, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  initContainers:
  - {name: i, image: x, restartPolicy: Always, readinessProbe: {tcpSocket: {port: 1}}}
  volumes: [{name: e, emptyDir: {}}, {name: c, configMap: {name: x}}, {name: s, flocker: {datasetName: x}}, {name: p, projected: {sources: [{serviceAccountToken: {path: t}}]}}]
  automountServiceAccountToken: false
  serviceAccount: sa
  priorityClassName: high
  nodeSelector: {}
  os: {name: linux}
`
	docs := decode([]byte(text))
	_, ok := static(&docs[0], "node", desired.File, time.Now())
	all := strings.Join(docs[0].errors, "\n")
	want := []string{
		"spec.volumes[3].projected.sources[0].serviceAccountToken",
		"metadata.annotations[berth.node/probe-period-ms]", "spec.volumes[2].flocker", "spec.serviceAccountName",
	}
	for _, w := range want {
		if !strings.Contains(all, w+": ") {
			t.Errorf("no %s in\n%s", w, all)
		}
	}
	if n := len(docs[0].errors); ok || n != len(want) {
		t.Errorf("%d errors, want %d:\n%s", n, len(want), all)
	}
}

func TestIgnored(t *testing.T) {
	docs := decode([]byte(strings.Replace(podYAML("a", "x"), "name: a\n", "name: a\n  finalizers: [x/y]\n", 1) +
		"  nodeName: elsewhere\n  schedulerName: mine\n  topologySpreadConstraints: [{maxSkew: 1, topologyKey: x, " +
		"whenUnsatisfiable: DoNotSchedule}]\nstatus: {phase: Failed}\n"))
	c, ok := static(&docs[0], "node", desired.File, time.Now())
	if !ok {
		t.Fatalf("%q", docs[0].errors)
	}
	for _, w := range []string{
		"line 10: spec.nodeName is ignored", "metadata.finalizers is", "spec.schedulerName is",
		"spec.topologySpreadConstraints is", "status is",
	} {
		if !strings.Contains(strings.Join(docs[0].warnings, "\n"), w) {
			t.Errorf("no %q in %q", w, docs[0].warnings)
		}
	}
	if c.Pod.Spec.NodeName != "node" || c.Pod.Status.Phase != corev1.PodPending || len(c.Pod.Finalizers) > 0 {
		t.Errorf("%+v", c.Pod)
	}
}

func TestPriority(t *testing.T) {
	c := itemOf(t, podYAML("a", "x")+"  priorityClassName: system-node-critical\n", "node")
	if p := c.Pod.Spec.Priority; p == nil || *p != 2_000_001_000 {
		t.Errorf("priority %v", p)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(podYAML("a", "nginx:1")))
	f.Add([]byte("apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a}}\n---\n{}"))
	f.Add([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"x","image":"y","resources":{"limits":{"cpu":"1"}}}]}}{}`))
	f.Add([]byte("apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {k: v}\n---\napiVersion: v1\nkind: " +
		"ConfigMapList\nitems: [{metadata: {name: b}, data: {x: y}}]"))
	f.Add([]byte("{apiVersion: v1, kind: PersistentVolume, metadata: {name: p}, spec: {capacity: {storage: 1Gi}, " +
		"accessModes: [ReadWriteOnce], local: {path: /x}}}"))
	f.Add([]byte("{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: p}, value: 7}"))
	f.Add([]byte("{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: p}, handler: crun, overhead: " +
		"{podFixed: {cpu: 1}}}"))
	f.Add([]byte("{apiVersion: resource.k8s.io/v1, kind: ResourceClaimTemplate, metadata: {name: p}, spec: {spec: " +
		"{devices: {requests: [{name: r, firstAvailable: [{name: s, deviceClassName: c}]}]}}}}"))
	f.Add([]byte("{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: p, uid: u}, spec: {devices: " +
		"{requests: [{name: r, exactly: {deviceClassName: c}}]}}, " +
		"status: {allocation: {devices: {results: [{request: r, driver: d, pool: p/q, device: x, shareID: z}], config: " +
		"[{source: FromClass, opaque: {driver: d, parameters: {a: 1}}}]}, nodeSelector: {nodeSelectorTerms: [{}]}}}}"))
	f.Add([]byte("a: &a [*a]\n? {x: 1}\n: y"))
	reader := Reader{Node: "node"}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		for _, d := range decode(data) {
			here := d.pod != nil || d.object != nil
			if !here && len(d.errors) == 0 && len(d.warnings) == 0 {
				t.Fatal("neither a pod nor a reason")
			}
			if !here || len(d.errors) > 0 {
				continue
			}
			c, ok := reader.item(&d, Place{Origin: desired.File}, time.Time{})
			if ok == (len(d.errors) > 0) {
				t.Fatalf("accepted %v with errors %q", ok, d.errors)
			}
			if !ok {
				continue
			}
			// What is kept for a restart must come back as it was.
			if c2, ok := reader.Again(c.Raw, Place{Origin: desired.File}, time.Time{}); !ok || c2.Hash != c.Hash ||
				c2.Ref != c.Ref {
				t.Fatalf("came back as %v %q, was %v %q", c2.Ref, c2.Hash, c.Ref, c.Hash)
			}
		}
	})
}
