package system

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-node/berth/agent/desired"
)

var update = flag.Bool("update", false, "write docs/pod-fields.md anew")

const fieldsDoc = "../../docs/pod-fields.md"

// provedElsewhere are fields that a test of their own is about.
var provedElsewhere = map[string]string{
	"containers.resizePolicy.resourceName":  "TestResize",
	"containers.resizePolicy.restartPolicy": "TestResize",
	"imagePullSecrets.name":                 "TestPullSecrets",
	"preemptionPolicy":                      "TestPreemption",
	"readinessGates.conditionType":          "TestReadinessGates",
	"volumes.iscsi.chapAuthDiscovery":       "TestISCSI of agent/volume/iscsi",
	"volumes.iscsi.chapAuthSession":         "TestISCSI of agent/volume/iscsi",
	"volumes.iscsi.secretRef.name":          "TestISCSI of agent/volume/iscsi",

	"volumes.csi.driver":                    "TestCSI",
	"volumes.csi.readOnly":                  "TestCSI",
	"volumes.csi.fsType":                    "TestCSI",
	"volumes.csi.volumeAttributes":          "TestCSI",
	"volumes.csi.nodePublishSecretRef.name": "TestCSI",

	"containers.resources.claims.name":         "TestResourceClaims",
	"containers.resources.claims.request":      "TestResourceClaims",
	"resourceClaims.name":                      "TestResourceClaims",
	"resourceClaims.resourceClaimName":         "TestResourceClaims",
	"resourceClaims.resourceClaimTemplateName": "TestResourceClaimTemplates",
}

// forbidden are fields that the API itself lets nobody set, or has under another name.
var forbidden = map[string]string{
	"serviceAccount": "the old name of serviceAccountName",
	"containers.readinessProbe.terminationGracePeriodSeconds": "the API has it for liveness and startup probes only",
}

// podFields are the fields of a pod's spec that have no fields below them. Init containers have those of containers,
// and are one.
func podFields() []string {
	var out []string
	var walk func(t reflect.Type, path string)
	walk = func(t reflect.Type, path string) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		switch t {
		case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.LabelSelector](), reflect.TypeFor[resource.Quantity](),
			reflect.TypeFor[intstr.IntOrString]():
			out = append(out, path)
			return
		case reflect.TypeFor[corev1.PersistentVolumeClaimTemplate](): // its metadata are embedded
			out = append(out, path+".metadata")
			walk(reflect.TypeFor[corev1.PersistentVolumeClaimSpec](), path+".spec")
			return
		}
		if t.Kind() != reflect.Struct || path == "initContainers" || path == "ephemeralContainers" ||
			path == "affinity.nodeAffinity" {
			out = append(out, path)
			return
		}
		for _, f := range reflect.VisibleFields(t) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); !f.Anonymous {
				walk(f.Type, strings.TrimPrefix(path+"."+name, "."))
			}
		}
	}
	walk(reflect.TypeFor[corev1.PodSpec](), "")
	return out
}

// row is a line of the document.
type row struct{ field, what, by string }

// describe says of each field what becomes of it. Fields below one that is refused or ignored as a whole are one row.
func describe(t *testing.T) []row {
	t.Helper()
	proved := map[string][]string{}
	for _, c := range allFieldCases() {
		for f := range strings.FieldsSeq(c.fields) {
			if !slices.Contains(proved[f], c.name) {
				proved[f] = append(proved[f], c.name)
			}
		}
	}
	for f, test := range provedElsewhere {
		proved[f] = append(proved[f], test)
	}
	var out []row
	all := podFields()
	for _, f := range all {
		switch r, ok := ruleOf(f); {
		case ok && r.Value == "":
			what := "ignored, with a warning"
			if r.Refused {
				what = "refused"
			}
			at := plain(r.Path)
			if len(out) == 0 || out[len(out)-1].field != at {
				out = append(out, row{at, what, r.Reason})
			}
		case len(proved[f]) > 0:
			what := "supported"
			if ok {
				what += ", but `" + r.Value + "` refused: " + r.Reason
			}
			out = append(out, row{f, what, cases(proved[f])})
		case forbidden[f] != "":
			out = append(out, row{f, "refused", forbidden[f]})
		case ok:
			out = append(out, row{f, "`" + r.Value + "` refused", r.Reason})
		default:
			t.Errorf("%s: no case of TestFields uses it, and no rule refuses or ignores it", f)
		}
	}
	for f := range proved {
		if !slices.Contains(all, f) {
			t.Errorf("cases %v: the Pod API has no field %s without fields below it", proved[f], f)
		}
	}
	return out
}

// cases names a few of the cases.
func cases(names []string) string {
	const few = 4
	if len(names) > few {
		return strings.Join(names[:few], ", ") + fmt.Sprintf(" and %d more", len(names)-few)
	}
	return strings.Join(names, ", ")
}

func plain(path string) string {
	return strings.TrimPrefix(strings.ReplaceAll(path, "[*]", ""), "spec.")
}

func ruleOf(f string) (desired.Field, bool) {
	for _, r := range desired.Fields() {
		if p := plain(r.Path); f == p || strings.HasPrefix(f, p+".") {
			return r, true
		}
	}
	return desired.Field{}, false
}

// TestFieldsDoc wants every field of the Pod API to be used by a case, refused or ignored, and the document to say
// which. It is written anew by `go test ./test/system -run TestFieldsDoc -update`.
func TestFieldsDoc(t *testing.T) {
	rows := describe(t)
	counts := map[string]int{}
	var table strings.Builder
	for _, r := range rows {
		kind, _, _ := strings.Cut(r.what, ",")
		counts[cmp.Or(map[string]string{"supported": kind, "refused": kind, "ignored": kind}[kind], "refused")]++
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", r.field, r.what, r.by)
	}
	text := fmt.Sprintf(`# Fields of a pod

What becomes of each field of a pod's spec (v1 of the Kubernetes API, by the version of `+"`k8s.io/api`"+` in go.mod) when a manifest sets it:
%d are supported, %d are refused with an error that names them, %d are ignored with a warning. A field with fields below it that all
fare alike is one line. Init containers have the fields of containers.

This table is made from the tests: behind a field that is supported stand the pods of `+"`TestFields`"+` in [test/system](../test/system), %d in all,
that prove it on a real kernel.

| field below spec | what becomes of it | proved by, or why not |
|---|---|---|
%s`, counts["supported"], counts["refused"], counts["ignored"], len(allFieldCases()), table.String())
	if *update {
		if err := os.WriteFile(fieldsDoc, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if b, err := os.ReadFile(fieldsDoc); err != nil || string(b) != text {
		t.Errorf("docs/pod-fields.md is not what the tests say (%v); write it with: go test ./test/system -run "+
			"TestFieldsDoc -update", err)
	}
}
