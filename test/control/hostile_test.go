package control

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// memoryLimit is the most resident memory, in MB, that any of the requests may bring the process to.
const memoryLimit = 700

// TestHostileRequests asks for what is meant to hurt. Each is refused with the status that fits, others are served
// meanwhile, and the process's memory stays within bounds.
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	client, err := rest.HTTPClientFor(p.config)
	if err != nil {
		t.Fatal(err)
	}
	deep := func(open, shut string, n int) string { return strings.Repeat(open, n) + strings.Repeat(shut, n) }
	const maps = "/api/v1/namespaces/default/configmaps"
	head := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}`
	send := func(method, path, kind, body string) (int, string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, method, p.config.Host+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", kind)
		answer, err := client.Do(r)
		if err != nil {
			return 0, err.Error() // cut off: that is an answer to a body without end
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
		if err != nil {
			return 0, err.Error()
		}
		return answer.StatusCode, string(text)
	}
	if code, text := send("POST", maps, "application/json", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"victim"},"data":{"a":"b"}}`); code != http.StatusCreated {
		t.Fatalf("%d %s", code, text)
	}
	const yaml, json, patch = "application/yaml", "application/json", "application/json-patch+json"
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'j'; c++ {
		bomb += fmt.Sprintf("%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", c, c, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1)
	}
	copies := `[{"op":"add","path":"/data/b","value":"` + strings.Repeat("x", 100_000) + `"}`
	for i := range 9_000 {
		copies += fmt.Sprintf(`,{"op":"copy","from":"/data/b","path":"/data/c%d"}`, i)
	}
	owners := `"managedFields":[` + strings.Repeat(`{"manager":"m","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{}}},`, 10_000)
	for _, c := range []struct {
		name, method, path, kind, body string
		codes                          []int
	}{
		{"a body of 100 MB", "POST", maps, json, head + `,"data":{"a":"` + strings.Repeat("x", 100<<20) + `"}}`, []int{0, 413}},
		{"an object larger than etcd takes", "POST", maps, json, head + `,"data":{"a":"` + strings.Repeat("x", 2<<20) + `"}}`, []int{413, 422, 500}},
		{"deep lists", "POST", maps, json, head + `,"data":` + deep("[", "]", 1_000_000) + `}`, []int{400, 413}},
		{"deep maps", "POST", maps, json, head + `,"data":` + strings.Repeat(`{"a":`, 500_000) + `1` + strings.Repeat("}", 500_000) + `}`, []int{400, 413}},
		{"deep YAML", "POST", maps, yaml, "a: " + deep("[", "]", 200_000), []int{400, 413}},
		{"a YAML bomb", "POST", maps, yaml, bomb, []int{400}},
		{"a bomb of copies", "PATCH", maps + "/victim", patch, copies + "]", []int{400, 413, 422}},
		{"more operations than a patch may have", "PATCH", maps + "/victim", patch, "[" + strings.Repeat(`{"op":"test","path":"/data/a","value":"b"},`, 20_000) + `{"op":"test","path":"/data/a","value":"b"}]`, []int{400, 413, 422}},
		{"protobuf that is none", "POST", maps, "application/vnd.kubernetes.protobuf", "k8s\x00" + strings.Repeat("\xff", 1<<20), []int{400}},
		{"protobuf with a length beyond its end", "POST", maps, "application/vnd.kubernetes.protobuf", "k8s\x00\x0a\xff\xff\xff\xff\x7f", []int{400}},
		{"CBOR that is none", "POST", maps, "application/cbor", "\xd9\xd9\xf7" + strings.Repeat("\x9f", 100_000), []int{400, 415}},
		{"a kind of content that nobody knows", "POST", maps, "application/x-nothing", "x", []int{415}},
		{"ten thousand owners of fields", "POST", maps, json, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"y",` + strings.TrimSuffix(owners, ",") + `]}}`, []int{201, 400, 413, 422}},
		{"a selector without end", "GET", maps + "?labelSelector=a+in+(" + strings.Repeat("x,", 100_000) + "x)", json, "", []int{0, 200, 400, 414, 431}},
		{"a name without end", "GET", maps + "/" + strings.Repeat("x", 500_000), json, "", []int{0, 400, 404, 414, 431}},
		{"a header without end", "GET", maps, strings.Repeat("x", 2<<20), "", []int{0, 400, 431}},
	} {
		code, text := send(c.method, c.path, c.kind, c.body)
		found := false
		for _, want := range c.codes {
			found = found || code == want
		}
		if !found {
			t.Errorf("%s: %d %.300s", c.name, code, text)
		}
		p.lives(t, c.name)
	}
	t.Logf("at most %d MB of memory", p.memory(t))
}

// TestCostlyQuantities sends numbers that take hours to calculate, in every way in which an object comes to the server:
// each is refused before it is. The same text as what is no quantity is taken.
func TestCostlyQuantities(t *testing.T) {
	t.Parallel()
	p := share(t)
	client, err := rest.HTTPClientFor(p.config)
	if err != nil {
		t.Fatal(err)
	}
	send := func(method, path, kind, body string) (int, string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, method, p.config.Host+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", kind)
		answer, err := client.Do(r)
		if err != nil {
			t.Fatalf("%s %s %s: %v", method, path, kind, err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(text)
	}
	const json, yaml, costly = "application/json", "application/yaml", "1e-99999999"
	core := "/api/v1/namespaces/" + p.ns
	quota := func(number, more string) string {
		return `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"q"` + more + `},"spec":{"hard":{"cpu":` + number + `}}}`
	}
	if code, text := send("POST", core+"/resourcequotas", json, quota(`"100"`, `,"annotations":{"a":"`+costly+`"}`)); code != http.StatusCreated {
		t.Fatalf("%d %s", code, text)
	}
	message, err := (&corev1.ResourceQuota{Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"cpu": resource.MustParse("77777777777")}}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	message = bytes.ReplaceAll(message, []byte("77777777777"), []byte(costly))
	envelope, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "ResourceQuota"}, Raw: message}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	const one = "/resourcequotas/q"
	for name, c := range map[string]struct{ method, path, kind, body string }{
		"JSON":                 {"POST", "/resourcequotas", json, quota(`"`+costly+`"`, "")},
		"a number":             {"POST", "/resourcequotas", json, quota(costly, "")},
		"escaped":              {"POST", "/resourcequotas", json, quota(`"1\u0065-99999999"`, "")},
		"without a kind":       {"POST", "/resourcequotas", json, `{"metadata":{"name":"r"},"spec":{"hard":{"cpu":"` + costly + `"}}}`},
		"at another's":         {"POST", "/configmaps", json, quota(`"`+costly+`"`, "")},
		"YAML":                 {"POST", "/resourcequotas", yaml, "{apiVersion: v1, kind: ResourceQuota, metadata: {name: r}, spec: {hard: {cpu: \"1\\x65-99999999\"}}}"},
		"Protobuf":             {"POST", "/resourcequotas", "application/vnd.kubernetes.protobuf", "k8s\x00" + string(envelope)},
		"an update":            {"PUT", one, json, quota(`"`+costly+`"`, "")},
		"of a status":          {"PUT", one + "/status", json, quota(`"`+costly+`"`, "")},
		"a merge patch":        {"PATCH", one, "application/merge-patch+json", `{"spec":{"hard":{"cpu":"` + costly + `"}}}`},
		"a strategic patch":    {"PATCH", one, "application/strategic-merge-patch+json", `{"spec":{"hard":{"cpu":"` + costly + `"}}}`},
		"of a status, patched": {"PATCH", one + "/status", "application/strategic-merge-patch+json", `{"status":{"used":{"cpu":"` + costly + `"}}}`},
		"applied":              {"PATCH", one + "?fieldManager=m&force=true", "application/apply-patch+yaml", "{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {cpu: '" + costly + "'}}}"},
		"operations":           {"PATCH", one, "application/json-patch+json", `[{"op":"replace","path":"/spec/hard/cpu","value":"` + costly + `"}]`},
		"a copy":               {"PATCH", one, "application/json-patch+json", `[{"op":"copy","from":"/metadata/annotations/a","path":"/spec/hard/cpu"}]`},
	} {
		if code, text := send(c.method, core+c.path, c.kind, c.body); code != http.StatusBadRequest && code != http.StatusUnprocessableEntity || !strings.Contains(text, "exponent") {
			t.Errorf("%s: %d %.300s", name, code, text)
		}
	}
	object := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"a":"` + costly + `"}}`
	if code, text := send("POST", core+"/configmaps", json, object); code != http.StatusCreated {
		t.Errorf("what is no quantity: %d %s", code, text)
	}
}

// lives holds that the process serves, and what memory it has.
func (p *plane) lives(t *testing.T, after string) {
	t.Helper()
	if _, err := p.client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Fatalf("after %s: %v", after, err)
	}
	if mb := p.memory(t); mb > memoryLimit {
		t.Errorf("after %s it has %d MB", after, mb)
	}
}

// memory is the most resident memory that the process has had, in MB.
func (p *plane) memory(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(data, []byte("VmHWM:"))
	kb, err := strconv.Atoi(string(bytes.Fields(rest)[0]))
	if err != nil {
		t.Fatal(err)
	}
	return kb / 1000
}

// TestSlowClients has clients hold connections that send by drops, or read nothing of what they have asked for.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	address := strings.TrimPrefix(p.config.Host, "https://")
	config, err := rest.TLSConfigFor(p.config)
	if err != nil {
		t.Fatal(err)
	}
	var open []net.Conn
	t.Cleanup(func() {
		for _, c := range open {
			_ = c.Close()
		}
	})
	for i := range 300 {
		c, err := (&tls.Dialer{NetDialer: &net.Dialer{Timeout: 30 * time.Second}, Config: config}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
		text := "GET /api/v1/namespaces?watch=true HTTP/1.1\r\nHost: x\r\n"
		switch i % 3 {
		case 0: // its headers never end
		case 1: // its body never comes
			text = "POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
		case 2: // it reads nothing
			text += "\r\n"
		}
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 50 {
		if _, err := p.client.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap(fmt.Sprint("slow-", i)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	p.lives(t, "slow clients")
}
