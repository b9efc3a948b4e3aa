package control

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// webhookConfig is a kubeconfig for a receiver.
func webhookConfig(t *testing.T, receiver *httptest.Server) string {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: receiver.Certificate().Raw})
	return write(t, "webhook.kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: receivers-know-me-by-it}}]
current-context: c
`, receiver.URL, base64.StdEncoding.EncodeToString(ca)))
}

// onlyMaps is a policy of which each write of a ConfigMap makes two events, and nothing else makes any.
const onlyMaps = policyHead + "- level: Metadata\n  resources: [{group: '', resources: [configmaps]}]\n  namespaces: [default]\n  verbs: [create]\n"

// TestAuditWebhook has a receiver get each event once, in batches.
func TestAuditWebhook(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var batches []int
	seen := map[string]int{}
	receiver := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		var list auditv1.EventList
		if err := json.NewDecoder(r.Body).Decode(&list); err != nil || r.Header.Get("Authorization") != "Bearer receivers-know-me-by-it" {
			t.Errorf("%v, %v", r.Header, err)
		}
		batches = append(batches, len(list.Items))
		for _, e := range list.Items {
			seen[fmt.Sprint(e.AuditID, e.Stage)]++
		}
	}))
	defer receiver.Close()
	p := startWith(t, t.TempDir(), nil, "--controllers=", "--audit-policy-file", write(t, "policy.yaml", onlyMaps),
		"--audit-webhook-config-file", webhookConfig(t, receiver))
	began := time.Now()
	p.quick(t, "a receiver", 450)
	until(t, "two batches are sent", func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(seen) < 800 {
			return fmt.Errorf("%v", batches)
		}
		return nil
	})
	p.stop(t)
	mu.Lock()
	defer mu.Unlock()
	for id, times := range seen {
		if times != 1 {
			t.Errorf("%s is sent %d times", id, times)
		}
	}
	// A batch is sent when it is full, each half a minute, and at the end.
	if len(seen) != 900 || len(batches) > 5+int(time.Since(began)/(30*time.Second)) || slices.Max(batches) > 400 {
		t.Errorf("%d events in batches of %v", len(seen), batches)
	}
}

// TestAuditWebhookFails has receivers that are of no use. Requests go on, and the process ends.
func TestAuditWebhookFails(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"hangs": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // only then is a client missed
			<-r.Context().Done()
		},
		"500": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			receiver := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				answer(w, r)
			}))
			defer receiver.Close()
			defer receiver.CloseClientConnections()
			p := startWith(t, t.TempDir(), nil, "--audit-policy-file", write(t, "policy.yaml", onlyMaps), "--audit-webhook-config-file", webhookConfig(t, receiver))
			p.quick(t, "a receiver that "+name, 600)
			until(t, "the receiver is called", func() error {
				if calls.Load() == 0 {
					return errors.New("it was not")
				}
				return nil
			})
			p.stop(t) // which bounds it
			if !strings.Contains(p.output.String(), "audit events are lost") {
				t.Errorf("nobody is told that events are lost:\n%s", p.output)
			}
		})
	}
}

// TestAuditLogFull has the log on a disk that is full, then has room again.
func TestAuditLogFull(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root: it mounts a small disk")
	}
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	policy := write(t, "policy.yaml", policyHead+"- level: Request\n  resources: [{group: '', resources: [configmaps]}]\n")
	path := filepath.Join(dir, "audit.log")
	p := startWith(t, t.TempDir(), nil, "--audit-policy-file", policy, "--audit-log-path", path)
	for i := range 10 {
		if _, err := p.client.CoreV1().ConfigMaps(ns).Create(t.Context(), largeMap(fmt.Sprint("large-", i), 100<<10), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	p.quick(t, "a full disk", 200)
	p.lives(t, "a full disk")
	// Events are written behind the requests where those would have to wait.
	until(t, "events are counted as lost", func() error {
		if n := p.metric(t, `apiserver_audit_error_total{plugin="log"}`); n < 200 {
			return fmt.Errorf("%v are", n)
		}
		return nil
	})
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "size=8m"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.client.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap("roomy"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	torn := 0
	last := func() error {
		torn = 0
		all := auditEvents(t, path, func(string) bool { torn++; return true })
		if !slices.ContainsFunc(all, func(e auditv1.Event) bool {
			return e.ObjectRef.Name == "roomy" && e.Stage == auditv1.StageResponseComplete
		}) {
			return fmt.Errorf("it is none of %d", len(all))
		}
		return nil
	}
	until(t, "an event is written where there is room again", last)
	p.stop(t)
	if err := last(); err != nil || torn > 1 {
		t.Errorf("%d lines are torn: %v", torn, err)
	}
}

// TestBadWatchFlags starts with what cannot be meant. It is refused before anything is made.
func TestBadWatchFlags(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat(binary); err != nil {
		t.Skipf("%s is not built: make control", binary)
	}
	good, nowhere := write(t, "good.yaml", onlyMaps), filepath.Join(t.TempDir(), "nowhere")
	log := []string{"--audit-log-path", filepath.Join(t.TempDir(), "audit.log")}
	policies := map[string][]string{
		"": {"Kind"}, "not: [yaml": {"yaml"}, strings.Replace(onlyMaps, "Policy", "Pod", 1): {"Pod"},
		strings.Replace(onlyMaps, "audit.k8s.io/v1", "audit.k8s.io/v1beta1", 1):                                    {"v1beta1"},
		strings.Replace(onlyMaps, "Metadata", "Everything", 1):                                                     {"rules[0].level", "Everything"},
		strings.Replace(onlyMaps, "namespaces:", "namespace:", 1):                                                  {`"rules[0].namespace"`},
		strings.Replace(onlyMaps, "verbs:", "omitStages:", 1):                                                      {"rules[0].omitStages"},
		strings.Replace(onlyMaps, "verbs: [create]", "nonResourceURLs: [/x]", 1):                                   {"rules[0].nonResourceURLs"},
		strings.Replace(policyHead, "rules:", "rules: []", 1):                                                      {"0 rules"},
		strings.Replace(onlyMaps, "resources: [configmaps]", "resourceNames: [x]", 1):                              {"resourceNames"},
		policyHead + "- level: Metadata\n  nonResourceURLs: [healthz]\n":                                           {"nonResourceURLs", "healthz"},
		policyHead + "- level: Metadata\n  resources: [{group: rbac.authorization.k8s.io/v1, resources: [roles]}]": {"rbac.authorization.k8s.io/v1"},
	}
	for text, want := range policies {
		file := write(t, "policy.yaml", text)
		ends(t, append(log, "--audit-policy-file", file), append(want, file)...)
	}
	ends(t, append(log, "--audit-policy-file", nowhere), nowhere)
	ends(t, log, "--audit-log-path needs --audit-policy-file")
	ends(t, []string{"--audit-policy-file", good}, "--audit-policy-file needs --audit-log-path")
	ends(t, []string{"--audit-webhook-config-file", good}, "--audit-webhook-config-file needs --audit-policy-file")
	ends(t, []string{"--audit-policy-file", good, "--audit-webhook-config-file", nowhere}, nowhere)
	ends(t, []string{"--audit-policy-file", good, "--audit-webhook-config-file", write(t, "empty", "")}, "audit webhook", "empty")
	ends(t, []string{"--audit-policy-file", good, "--audit-log-path", "/dev/null/audit.log"}, "/dev/null/audit.log")
	ends(t, append(log, "--audit-policy-file", good, "--audit-log-format", "xml"), "--audit-log-format", "json")
	ends(t, append(log, "--audit-policy-file", good, "--audit-log-maxage", "-1"), "--audit-log-maxage -1")
	for _, flag := range []string{"--audit-log-maxage", "--audit-log-maxbackup", "--audit-log-maxsize"} {
		ends(t, []string{flag, "1"}, flag+" needs --audit-log-path")
	}
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n"
	for text, want := range map[string]string{
		"": "Kind", "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n": "AuthorizationConfiguration", "endpoint: localhost:4317\n": "Kind", head + "samplingRatePerMillion: -1\n": "samplingRatePerMillion", head + "samplingRatePerMillion: 1000001\n": "samplingRatePerMillion",
		head + "endpoint: ftp://localhost\n": "ftp", head + "endpiont: localhost:4317\n": "endpiont",
	} {
		file := write(t, "tracing.yaml", text)
		ends(t, []string{"--tracing-config-file", file}, want, file)
	}
	ends(t, []string{"--tracing-config-file", nowhere}, nowhere)
}

// ends starts the control plane with flags, which ends by itself, says why, and has made nothing.
func ends(t *testing.T, flags []string, why ...string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	args := append([]string{"serve", "--data-dir", dir, "--bind", "127.0.0.1", "--port", "0"}, flags...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, args...).CombinedOutput()
	if err == nil {
		t.Errorf("%q: it has ended well", flags)
	}
	for _, w := range why {
		if !strings.Contains(string(out), w) {
			t.Errorf("%q: want %q in:\n%s", flags, w, out)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%q: it has made its data directory", flags)
	}
}
