package api

import (
	"encoding/json"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"
)

// pod decodes a manifest, strictly.
func podOf(t testing.TB, text string) *corev1.Pod {
	t.Helper()
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(text), &pod); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return &pod
}

func asYAML(t testing.TB, v any) string {
	t.Helper()
	data, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestSetDefaults(t *testing.T) {
	got := podOf(t, `
metadata: {name: a}
spec:
  serviceAccount: sa
  hostNetwork: true
  containers:
  - name: a
    image: nginx
    ports: [{containerPort: 80}, {containerPort: 81, hostPort: 8081, protocol: UDP}]
    env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    resources: {limits: {cpu: 1, memory: 1.5}, requests: {cpu: 100u}}
    livenessProbe: {httpGet: {port: 80}}
    readinessProbe: {grpc: {port: 1}, periodSeconds: 3, timeoutSeconds: 2, successThreshold: 4, failureThreshold: 5}
    lifecycle: {preStop: {httpGet: {port: 80, scheme: HTTPS, path: /x}}, postStart: {httpGet: {port: 80}}}
  initContainers:
  - {name: i, image: "nginx:1", ports: [{containerPort: 1}], resources: {limits: {cpu: 1}}}
  ephemeralContainers:
  - {name: e, image: "nginx@sha256:0000000000000000000000000000000000000000000000000000000000000000", resources: {limits: {cpu: 1}}}
  volumes:
  - {name: none}
  - {name: host, hostPath: {path: /x}}
  - {name: secret, secret: {secretName: x}}
  - {name: config, configMap: {name: x, defaultMode: 0400}}
  - {name: down, downwardAPI: {items: [{path: x, fieldRef: {fieldPath: metadata.labels}}]}}
  - {name: proj, projected: {sources: [{serviceAccountToken: {path: x}}, {downwardAPI: {items: [{path: w, fieldRef: {fieldPath: metadata.name}}]}}]}}
  - {name: iscsi, iscsi: {targetPortal: x, iqn: iqn.x, lun: 0}}
  - {name: rbd, rbd: {monitors: [x], image: w}}
  - {name: disk, azureDisk: {diskName: x, diskURI: w}}
  - {name: image, image: {reference: "x:latest"}}
  - {name: eph, ephemeral: {volumeClaimTemplate: {spec: {}}}}
`)
	SetDefaults(got)
	want := podOf(t, `
metadata: {name: a}
spec:
  serviceAccount: sa
  serviceAccountName: sa
  hostNetwork: true
  dnsPolicy: ClusterFirst
  restartPolicy: Always
  schedulerName: default-scheduler
  securityContext: {}
  terminationGracePeriodSeconds: 30
  enableServiceLinks: true
  containers:
  - name: a
    image: nginx
    imagePullPolicy: Always
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
    ports: [{containerPort: 80, hostPort: 80, protocol: TCP}, {containerPort: 81, hostPort: 8081, protocol: UDP}]
    env: [{name: A, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.name}}}]
    resources: {limits: {cpu: 1, memory: 1.5}, requests: {cpu: 1m, memory: 1.5}}
    livenessProbe: {httpGet: {port: 80, path: /, scheme: HTTP}, timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3}
    readinessProbe: {grpc: {port: 1, service: ""}, periodSeconds: 3, timeoutSeconds: 2, successThreshold: 4, failureThreshold: 5}
    lifecycle: {preStop: {httpGet: {port: 80, scheme: HTTPS, path: /x}}, postStart: {httpGet: {port: 80, scheme: HTTP, path: /}}}
  initContainers:
  - name: i
    image: "nginx:1"
    imagePullPolicy: IfNotPresent
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
    ports: [{containerPort: 1, hostPort: 1, protocol: TCP}]
    resources: {limits: {cpu: 1}, requests: {cpu: 1}}
  ephemeralContainers:
  - name: e
    image: "nginx@sha256:0000000000000000000000000000000000000000000000000000000000000000"
    imagePullPolicy: IfNotPresent
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
    resources: {limits: {cpu: 1}}
  volumes:
  - {name: none, emptyDir: {}}
  - {name: host, hostPath: {path: /x, type: ""}}
  - {name: secret, secret: {secretName: x, defaultMode: 0644}}
  - {name: config, configMap: {name: x, defaultMode: 0400}}
  - {name: down, downwardAPI: {defaultMode: 0644, items: [{path: x, fieldRef: {apiVersion: v1, fieldPath: metadata.labels}}]}}
  - {name: proj, projected: {defaultMode: 0644, sources: [{serviceAccountToken: {path: x, expirationSeconds: 3600}}, {downwardAPI: {items: [{path: w, fieldRef: {apiVersion: v1, fieldPath: metadata.name}}]}}]}}
  - {name: iscsi, iscsi: {targetPortal: x, iqn: iqn.x, lun: 0, iscsiInterface: default}}
  - {name: rbd, rbd: {monitors: [x], image: w, pool: rbd, user: admin, keyring: /etc/ceph/keyring}}
  - {name: disk, azureDisk: {diskName: x, diskURI: w, cachingMode: ReadWrite, fsType: ext4, readOnly: false, kind: Shared}}
  - {name: image, image: {reference: "x:latest", pullPolicy: Always}}
  - {name: eph, ephemeral: {volumeClaimTemplate: {spec: {volumeMode: Filesystem}}}}
`)
	if g, w := asYAML(t, got), asYAML(t, want); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
	again := got.DeepCopy()
	SetDefaults(again)
	if !reflect.DeepEqual(again, got) {
		t.Error("defaulting twice changes something")
	}
}

func TestPullPolicy(t *testing.T) {
	for image, want := range map[string]corev1.PullPolicy{
		"nginx": "Always", "nginx:latest": "Always", "localhost:5000/a/b": "Always", "localhost:5000/a/b:latest": "Always",
		"nginx:1": "IfNotPresent", "localhost:5000/a/b:v1": "IfNotPresent", "": "IfNotPresent", "a/NOT/valid": "IfNotPresent", "x:latest:y": "IfNotPresent",
		"nginx:latest@sha256:0000000000000000000000000000000000000000000000000000000000000000": "Always",
		"nginx@sha256:0000000000000000000000000000000000000000000000000000000000000000":        "IfNotPresent",
	} {
		if got := pullPolicy(image); got != want {
			t.Errorf("%s: %s, want %s", image, got, want)
		}
	}
}

func TestPodResourcesDefaults(t *testing.T) {
	for name, c := range map[string]struct{ resources, container, want string }{
		"limits, no requests":      {`{limits: {cpu: 2}}`, `{}`, `{limits: {cpu: 2}, requests: {cpu: 2}}`},
		"limits, container's":      {`{limits: {cpu: 2, memory: 1Gi}}`, `{requests: {cpu: 1}}`, `{limits: {cpu: 2, memory: 1Gi}, requests: {cpu: 1, memory: 1Gi}}`},
		"requests only":            {`{requests: {cpu: 2}}`, `{requests: {cpu: 1}}`, `{requests: {cpu: 2}}`},
		"huge pages of containers": {`{limits: {cpu: 2}}`, `{limits: {hugepages-2Mi: 4Mi}, requests: {cpu: 1}}`, `{limits: {cpu: 2, hugepages-2Mi: 4Mi}, requests: {cpu: 1, hugepages-2Mi: 4Mi}}`},
	} {
		pod := podOf(t, "spec: {resources: "+c.resources+", containers: [{name: a, image: b, resources: "+c.container+"}]}")
		SetDefaults(pod)
		var want corev1.ResourceRequirements
		if err := yaml.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		if g, w := asYAML(t, pod.Spec.Resources), asYAML(t, want); g != w {
			t.Errorf("%s: got\n%s\nwant\n%s", name, g, w)
		}
	}
}

// What random JSON makes of a pod may be nonsense, but is never a panic.
func FuzzValidate(f *testing.F) {
	for _, c := range invalidPods {
		pod := podOf(f, manifest(c.change))
		data, err := json.Marshal(pod)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var pod corev1.Pod
		if json.Unmarshal(data, &pod) != nil {
			return
		}
		SetDefaults(&pod)
		once, _ := json.Marshal(&pod)
		SetDefaults(&pod)
		if twice, _ := json.Marshal(&pod); string(once) != string(twice) {
			t.Fatalf("defaulting twice changes\n%s\ninto\n%s", once, twice)
		}
		for _, e := range Validate(&pod) {
			_ = e.Error()
		}
	})
}

// Pods of random content in every field reach rules that random text does not.
func TestRandomPods(t *testing.T) {
	n := 300
	if testing.Short() {
		n = 30
	}
	for seed := range n {
		fill := randfill.NewWithSeed(int64(seed)).NilChance(0.5).NumElements(1, 2).MaxDepth(12).Funcs(
			func(q *resource.Quantity, c randfill.Continue) {
				*q = *resource.NewMilliQuantity(c.Int63n(5000)-1000, resource.DecimalSI)
			},
			func(s *string, c randfill.Continue) {
				words := []string{"", "a", "b", "a/b", "..", "../x", "/", "A_b", "10.0.0.1", "hugepages-2Mi", "metadata.labels['a']", "metadata.name", "Always", "x['"}
				*s = words[c.Intn(len(words))]
			},
			func(t *metav1.Time, _ randfill.Continue) { *t = metav1.Time{} },
			func(f *metav1.FieldsV1, _ randfill.Continue) {},
		)
		var pod corev1.Pod
		fill.Fill(&pod.Spec)
		SetDefaults(&pod)
		again := pod.DeepCopy()
		SetDefaults(again)
		if a, b := asYAML(t, &pod), asYAML(t, again); a != b {
			t.Fatalf("seed %d: defaulting twice changes\n%s\ninto\n%s", seed, a, b)
		}
		for _, e := range Validate(&pod) {
			_ = e.Error()
		}
	}
}
