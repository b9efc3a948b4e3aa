package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/berth-node/berth/agent/object"
)

const secretYAML = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {password: hunter2}\n"

func (h *harness) object(k object.Kind, name string) object.Object {
	namespace := ""
	if k.Namespaced() {
		namespace = "default"
	}
	return h.objects[object.RefTo(k, namespace, name)]
}

func TestObjects(t *testing.T) {
	h := start(t, t.TempDir(), nil)
	h.write("all.yaml", `apiVersion: v1
kind: ConfigMap
metadata: {name: c, uid: ignored}
data: {a: "1"}
---
{apiVersion: v1, kind: List, items: [
  {apiVersion: v1, kind: PersistentVolume, metadata: {name: p}, spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], local: {path: /data}}},
  {apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: q}, spec: {volumeName: p, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}},
  {apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: r}, handler: crun}]}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClassList, items: [{metadata: {name: high}, value: 7}]}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: disk.example.com}
spec: {attachRequired: false, fsGroupPolicy: File}
`)
	for kind, name := range map[object.Kind]string{
		object.ConfigMap: "c", object.PersistentVolume: "p", object.PersistentVolumeClaim: "q", object.RuntimeClass: "r",
		object.PriorityClass: "high", object.CSIDriver: "disk.example.com",
	} {
		h.wait(string(kind)+" "+name, func() bool { return h.object(kind, name) != nil })
	}
	if p := h.src.Problems(); len(p) > 0 {
		t.Errorf("problems: %+v", p)
	}
	// What becomes wrong stays as it was, and so does what is beside it.
	h.write("all.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: 5}\n")
	h.waitProblem("all.yaml", `line 4: data[a]: Invalid value: 5: must be a string: put quotes around it, as in "5"`)
	if c, ok := h.object(object.ConfigMap, "c").(*corev1.ConfigMap); !ok || c.Data["a"] != "1" ||
		h.object(object.RuntimeClass, "r") == nil {
		t.Errorf("%v", h.objects)
	}
	h.write("all.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: '2'}\n")
	h.wait("the others gone", func() bool { return len(h.objects) == 1 })
	h.remove("all.yaml")
	h.wait("all gone", func() bool { return len(h.objects) == 0 })
	h.write("tokens.yaml", "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {name: t}\nspec: {tokenRequests: [{audience: x}]}\n")
	h.waitProblem("tokens.yaml", "spec.tokenRequests: Forbidden: only an API server makes tokens of service accounts")
}

func TestSecretsAreForRootOnly(t *testing.T) {
	h := start(t, t.TempDir(), nil)
	path := filepath.Join(h.dir, "s.yaml")
	if err := os.WriteFile(path, []byte(secretYAML), 0o644); err != nil {
		t.Fatal(err)
	}
	h.waitProblem("s.yaml", "stringData: Forbidden: the file has mode 0644, so others can read or change it")
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	h.wait("secret", func() bool { return h.object(object.Secret, "s") != nil })
	if s, ok := h.object(object.Secret, "s").(*corev1.Secret); !ok || string(s.Data["password"]) != "hunter2" ||
		s.Type != corev1.SecretTypeOpaque {
		t.Errorf("%v", s)
	}
	// A file that is opened to others makes nobody lose the secret, but what is new in it does not count.
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	h.waitProblem("s.yaml", "the file has mode 0640")
	if h.object(object.Secret, "s") == nil {
		t.Error("the secret went")
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 1, 0); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
		h.waitProblem("s.yaml", "the file belongs to user 1")
	}
}

// TestSecretsAreNotTold looks for a secret's value in whatever is said and kept of it.
func TestSecretsAreNotTold(t *testing.T) {
	state := t.TempDir()
	h := start(t, t.TempDir(), func(c *Config) { c.StateDir = state })
	for _, bad := range []struct{ want, text string }{
		{"data[password]", "data: {password: hunter2!}\n"},
		{"stringData[password]", "stringData: {password: [hunter2]}\n"},
		{".dockerconfigjson", "type: kubernetes.io/dockerconfigjson\nstringData: {.dockerconfigjson: hunter2}\n"},
		{"tls.crt", "type: kubernetes.io/tls\nstringData: {password: hunter2}\n"},
	} {
		h.write("s.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"+bad.text)
		h.waitProblem("s.yaml", bad.want)
		for _, p := range h.src.Problems() {
			if strings.Contains(strings.Join(p.Errors, "\n"), "hunter2") {
				t.Errorf("told: %q", p.Errors)
			}
		}
	}
	h.write("s.yaml", secretYAML+"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: b}\n")
	h.wait("secret", func() bool { return h.object(object.Secret, "s") != nil })
	kept := ""
	// It is kept a moment after it was told, of which nothing tells.
	for end := time.Now().Add(patience); !strings.Contains(kept, "ConfigMap") &&
		time.Now().Before(end); time.Sleep(time.Millisecond) {
		all, err := filepath.Glob(filepath.Join(state, "*"))
		if err != nil {
			t.Fatal(err)
		}
		kept = ""
		for _, path := range all {
			b, _ := os.ReadFile(path) // it may be replaced just now
			kept += string(b)
		}
	}
	h.stop()
	if strings.Contains(kept, "hunter2") || strings.Contains(kept, "aHVudGVyMg") || !strings.Contains(kept, "ConfigMap") {
		t.Errorf("kept: %s", kept)
	}
}

func TestCredentials(t *testing.T) {
	creds := t.TempDir()
	if err := os.WriteFile(filepath.Join(creds, "db"), []byte("hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := start(t, t.TempDir(), func(c *Config) { c.Credentials = creds })
	manifest := func(value string) string {
		return "apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\n  annotations: {berth.node/credentials: '" + value +
			"'}\n"
	}
	for value, want := range map[string]string{
		"password=none":          `read credential "none" of this service: no such file or directory`,
		"password=../etc/shadow": "read credential",
		"password":               "must be KEY=CREDENTIAL",
	} {
		h.write("s.yaml", manifest(value))
		h.waitProblem("s.yaml", want)
	}
	h.write("s.yaml", manifest("password=db, again=db"))
	h.wait("secret", func() bool { return h.object(object.Secret, "s") != nil })
	s, ok := h.object(object.Secret, "s").(*corev1.Secret)
	if !ok || string(s.Data["password"]) != "hunter2" || string(s.Data["again"]) != "hunter2" {
		t.Errorf("%v", s)
	}
}

// TestObjectsComeFirst reads a pod before what it refers to, and removes both at once.
func TestObjectsComeFirst(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.yaml": podYAML("web", "nginx:1") + "    envFrom: [{configMapRef: {name: c}}]\n",
		"b.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: b}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h := start(t, dir, nil)
	if len(h.history) != 2 || h.history[0] != `+configmap "default/c"` {
		t.Errorf("%q", h.history)
	}
	h.write("b.yaml", podYAML("other", "nginx:1")+"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: d}\n")
	h.waitImage("other", "nginx:1")
	h.wait("d", func() bool { return h.object(object.ConfigMap, "d") != nil && h.object(object.ConfigMap, "c") == nil })
	h.remove("b.yaml")
	h.wait("nothing", func() bool { return len(h.objects) == 0 })
	if last := h.history[len(h.history)-1]; last != `-configmap "default/d"` {
		t.Errorf("%q", h.history)
	}
}

// TestResourceClaimUID has drivers know a claim by the same name as long as it is the same.
func TestResourceClaimUID(t *testing.T) {
	h := start(t, t.TempDir(), nil)
	text := func(meta, count, device string) string {
		return "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c" + meta +
			"}\nspec: {devices: {requests: [{name: r, exactly: {deviceClassName: x" + count + "}}]}}\n" +
			"status: {allocation: {devices: {results: [{request: r, driver: d, pool: p, device: " + device +
			"}]}}, reservedFor: [{resource: pods, name: x, uid: u}]}\n"
	}
	uid := func(text, want string) string {
		t.Helper()
		h.write("c.yaml", text)
		var c *resourcev1.ResourceClaim
		h.wait("claim with "+want, func() bool {
			c, _ = h.object(object.ResourceClaim, "c").(*resourcev1.ResourceClaim)
			return c != nil && (c.Status.Allocation.Devices.Results[0].Device+string(c.UID) == want ||
				c.Status.Allocation.Devices.Results[0].Device == want)
		})
		if len(c.Status.ReservedFor) > 0 || c.Namespace != "default" {
			t.Errorf("%+v", c)
		}
		return string(c.UID)
	}
	first := uid(text("", "", "a"), "a")
	if second := uid(text(", labels: {x: z}", "", "b"), "b"); first == "" || second != first {
		t.Errorf("with another allocation the UID is %q, before it was %q", second, first)
	}
	if other := uid(text("", ", allocationMode: All", "c"), "c"); other == first {
		t.Error("a claim with another spec has the same UID")
	}
	uid(text(", uid: 7e4d", "", "d"), "d7e4d")
	h.waitProblem("c.yaml", "status.reservedFor is ignored")
	h.write("c.yaml", text(", uid: ../x", "", "d"))
	h.waitProblem("c.yaml", `metadata.uid: Invalid value: "../x"`)
	h.write("c.yaml", text("", "", "D"))
	h.waitProblem("c.yaml", `line 5: status.allocation.devices.results[0].device: Invalid value: "D"`)
}
