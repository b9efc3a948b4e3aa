package manifest

import (
	"strings"
	"testing"
	"unicode/utf16"
)

// wide is a text in UTF-16.
func wide(text string) string {
	out := []byte("\xff\xfe")
	for _, u := range utf16.Encode([]rune(text)) {
		out = append(out, byte(u), byte(u>>8))
	}
	return string(out)
}

func TestSecondDocument(t *testing.T) {
	a, b := podYAML("a", "nginx:1"), podYAML("b", "nginx:1")
	for text, want := range map[string]int{
		a:                                   1,
		wide(a):                             1,
		strings.ReplaceAll(a, "\n", "\r"):   1,
		strings.ReplaceAll(a, "\n", "\r\n"): 1,
		a + "...\n":                         1,
		a + "...\n---\n" + b:                2,
		strings.ReplaceAll(a+"---\n"+b, "\n", "\r\n"): 2,
		a + "...\n" + b:                             -1,
		wide(a + "---\n" + b):                       -1,
		strings.ReplaceAll(a+"---\n"+b, "\n", "\r"): -1,
		a + "...\n[":                                -1,
	} {
		pods := 0
		for _, d := range decode([]byte(text)) {
			switch {
			case d.pod != nil:
				pods++
			case len(d.errors) > 0 && strings.Contains(d.errors[0], "what follows the first document"):
				pods = -1
			default:
				t.Errorf("%.300q: %+v", text, d.errors)
			}
		}
		if pods != want {
			t.Errorf("%.300q: %d pods, want %d", text, pods, want)
		}
	}
}

func TestQuantities(t *testing.T) {
	for text, want := range map[string]string{
		"resources: {limits: {cpu: " +
			"1e1000}}": "spec.containers[0].resources.limits[cpu]: " +
			"Invalid value",
		"resources: {limits: {memory: '1E1000000000'}, requests: {memory: " +
			"1}}": "spec.containers[0].resources.limits[memory]: Invalid value",
		"resources: {limits: {memory: '1e-999999999'}}": "limits[memory]: Invalid " +
			"value: \"1e-999999999\": must be a quantity",
		"resources: {limits: {memory: '12345678901234567890e999999999'}}":              "limits[memory]",
		"resources: {limits: {memory: 1\\x65-999999999}}":                              "limits[memory]",
		"resources: {limits: {memory: \"1\\x65-999999999\"}}":                          "limits[memory]",
		"resources: {limits: {memory: '-1E1000000000'}}":                               "limits[memory]",
		"resources: {requests: {cpu: '9223372036854775807'}}":                          "requests[cpu]",
		"resources: {requests: {cpu: '9e15'}, limits: {memory: 9300P, cpu: '9e15'}}":   "limits[memory]",
		"resources: {requests: {memory: 7E, cpu: '9e15', ephemeral-storage: 0.0001m}}": "",
		"env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: " +
			"1e99}}}]": "spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor",
	} {
		d := decode([]byte(podYAML("a", "nginx:1") + "    " + text + "\n"))
		got := strings.Join(d[0].errors, "; ")
		if !strings.Contains(got, want) || (want == "") != (got == "") || want != "" && !strings.Contains(got, "line 9: ") {
			t.Errorf("%s: %s", text, got)
		}
	}
	// Of two that are the same in JSON both are decoded.
	twice := decode([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"overhead":{"cpu":"1e-999999999","cpu":"1"}}}`))
	if len(twice[0].errors) != 1 || !strings.Contains(twice[0].errors[0], "spec.overhead[cpu]") || twice[0].name != "a" {
		t.Errorf("%q of %q", twice[0].errors, twice[0].name)
	}
	d := decode([]byte("apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: a}\nspec: {capacity: {storage: " +
		"'1E1000000000'}}\n"))
	if len(d[0].errors) != 1 || !strings.Contains(d[0].errors[0], "line 4: spec.capacity[storage]") {
		t.Errorf("%q", d[0].errors)
	}
}
