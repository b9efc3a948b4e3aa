package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// policyHead begins a policy.
const policyHead = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n"

// write writes a file for a flag.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// auditEvents are the events of a log, each of which is a line. Lines for which torn says so may be broken.
func auditEvents(t *testing.T, path string, torn func(line string) bool) []auditv1.Event {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []auditv1.Event
	scan := bufio.NewScanner(f)
	scan.Buffer(nil, 16<<20)
	for scan.Scan() {
		var e auditv1.Event
		if err := json.Unmarshal(scan.Bytes(), &e); err == nil {
			all = append(all, e)
		} else if torn == nil || !torn(scan.Text()) {
			t.Errorf("%s has a line that is no event: %v: %.200s", path, err, scan.Text())
		}
	}
	if err := scan.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestAuditLog has requests of all levels in a log.
func TestAuditLog(t *testing.T) {
	t.Parallel()
	policy := write(t, "policy.yaml", `apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: None
  users: ["system:apiserver"]
- level: None
  resources: [{group: "", resources: [namespaces]}]
- level: Metadata
  omitStages: [RequestReceived]
  resources: [{group: "", resources: [secrets]}]
- level: Request
  resources: [{group: "", resources: [serviceaccounts]}]
- level: RequestResponse
  resources: [{group: "", resources: [configmaps]}]
- level: Metadata
  nonResourceURLs: ["/version"]
`)
	path := filepath.Join(t.TempDir(), "new", "audit.log")
	p := startWith(t, t.TempDir(), nil, "--audit-policy-file", policy, "--audit-log-path", path)
	makeAudited(t, p)
	p.stop(t)

	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the log: %v, %v", info, err)
	}
	if text, err := os.ReadFile(path); err != nil || strings.Contains(string(text), "canary-of-a-secret") || strings.Contains(string(text), "Y2FuYXJ5LW9mLWEtc2VjcmV0") {
		t.Errorf("the log has what is in a Secret: %v", err)
	}
	seen := map[string]auditv1.Event{}
	for _, e := range auditEvents(t, path, nil) {
		what := "/"
		if e.ObjectRef != nil {
			what = e.ObjectRef.Resource + "/" + e.ObjectRef.Name
		}
		seen[fmt.Sprint(e.Verb, " ", what, " ", e.Stage)] = e
		if e.User.Username == "system:apiserver" || e.ObjectRef != nil && e.ObjectRef.Resource == "namespaces" {
			t.Errorf("the policy is not for this: %+v", e)
		}
	}
	for key, want := range map[string]struct {
		level             auditv1.Level
		request, response bool
		code              int32
		user, as          string
	}{
		"create secrets/s ResponseComplete":         {auditv1.LevelMetadata, false, false, 201, "admin", ""},
		"create serviceaccounts/a ResponseComplete": {auditv1.LevelRequest, true, false, 201, "admin", ""},
		"create configmaps/c ResponseComplete":      {auditv1.LevelRequestResponse, true, true, 201, "admin", ""},
		"create configmaps/ RequestReceived":        {auditv1.LevelRequestResponse, false, false, 0, "admin", ""},
		"get configmaps/c ResponseComplete":         {auditv1.LevelRequestResponse, false, true, 403, "admin", "alice"},
		"delete configmaps/c ResponseStarted":       {auditv1.LevelRequestResponse, false, true, 401, "", ""},
		"update configmaps/c ResponseComplete":      {auditv1.LevelRequestResponse, false, true, 409, "admin", ""},
		"create secrets/ RequestReceived":           {},
		"get / ResponseComplete":                    {auditv1.LevelMetadata, false, false, 200, "admin", ""},
		"list configmaps/ ResponseStarted":          {auditv1.LevelRequestResponse, false, true, 401, "", ""},
	} {
		holdEvent(t, key, seen, func(e auditv1.Event) bool {
			as := ""
			if e.ImpersonatedUser != nil {
				as = e.ImpersonatedUser.Username
			}
			var code int32
			if e.ResponseStatus != nil {
				code = e.ResponseStatus.Code
			}
			return e.Level == want.level && (e.RequestObject != nil || !want.request) && (e.ResponseObject != nil) == want.response &&
				code == want.code && strings.HasSuffix(e.User.Username, want.user) && as == want.as && (e.AuditID != "")
		}, want.level != "")
	}
}

// holdEvent holds an event, or that there is none.
func holdEvent(t *testing.T, key string, seen map[string]auditv1.Event, good func(auditv1.Event) bool, wanted bool) {
	t.Helper()
	e, is := seen[key]
	if is != wanted || is && !good(e) {
		text, _ := json.Marshal(e)
		t.Errorf("%s: %t %s", key, is, text)
	}
}

// makeAudited makes the requests that TestAuditLog looks for.
func makeAudited(t *testing.T, p *plane) {
	t.Helper()
	ctx, core := t.Context(), p.client.CoreV1()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := core.Secrets(ns).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Data: map[string][]byte{"a": []byte("canary-of-a-secret")}}, metav1.CreateOptions{})
	must(err)
	_, err = core.ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	must(err)
	made, err := core.ConfigMaps(ns).Create(ctx, configMap("c"), metav1.CreateOptions{})
	must(err)
	made.ResourceVersion = "1"
	if _, err := core.ConfigMaps(ns).Update(ctx, made, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an old version: %v", err)
	}
	_, err = core.Namespaces().Get(ctx, ns, metav1.GetOptions{})
	must(err)
	_, err = p.client.Discovery().ServerVersion()
	must(err)
	alice := rest.CopyConfig(p.config)
	alice.Impersonate.UserName = "alice"
	if _, err := kubernetes.NewForConfigOrDie(alice).CoreV1().ConfigMaps(ns).Get(ctx, "c", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("alice: %v", err)
	}
	nobody := rest.AnonymousClientConfig(p.config)
	if err := kubernetes.NewForConfigOrDie(nobody).CoreV1().ConfigMaps(ns).Delete(ctx, "c", metav1.DeleteOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("nobody: %v", err)
	}
	nobody.BearerToken = "not.a.token"
	if _, err := kubernetes.NewForConfigOrDie(nobody).CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("a bad token: %v", err)
	}
}

// largeMap is a ConfigMap with so many bytes.
func largeMap(name string, size int) *corev1.ConfigMap {
	m := configMap(name)
	m.Data = map[string]string{"a": strings.Repeat("x", size)}
	return m
}

// TestAuditLogRotates fills logs of 1 MiB, of which two old ones are kept.
func TestAuditLogRotates(t *testing.T) {
	t.Parallel()
	policy := write(t, "policy.yaml", "omitStages: [RequestReceived]\n"+policyHead+"- level: Request\n  resources: [{group: '', resources: [configmaps]}]\n")
	dir := t.TempDir()
	p := startWith(t, t.TempDir(), nil, "--audit-policy-file", policy, "--audit-log-path", filepath.Join(dir, "audit.log"),
		"--audit-log-maxsize", "1", "--audit-log-maxbackup", "2")
	for i := range 40 {
		if _, err := p.client.CoreV1().ConfigMaps(ns).Create(t.Context(), largeMap(fmt.Sprint("large-", i), 200<<10), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// Events are written behind the requests where those would have to wait.
	until(t, "the last one is written, and old logs are removed", func() error {
		all, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(all) != 3 {
			return errors.Join(fmt.Errorf("there are %q", all), err)
		}
		for _, path := range all {
			if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte("large-39")) {
				return nil
			}
		}
		return errors.New("it is not")
	})
	p.stop(t)
	all, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(all) != 3 {
		t.Fatalf("%q, %v", all, err)
	}
	for _, path := range all {
		info, err := os.Stat(path)
		if err != nil || info.Size() > 1<<20 || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info, err)
		}
		got := auditEvents(t, path, nil)
		if len(got) == 0 {
			t.Errorf("%s has no events", path)
		}
		for _, e := range got {
			if e.Stage == auditv1.StageRequestReceived {
				t.Errorf("a stage is there that is to be left out: %+v", e.AuditID)
			}
		}
	}
}

// TestAuditToNobody has a pipe for the log that is read for a while, then not, then closed.
func TestAuditToNobody(t *testing.T) {
	t.Parallel()
	policy := write(t, "policy.yaml", policyHead+"- level: Metadata\n")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := startWithReader(t, r, w, "--audit-policy-file", policy, "--audit-log-path", "-", "--audit-log-format", "legacy")
	p.quick(t, "a pipe that nobody reads", 400)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	p.quick(t, "a pipe that is closed", 100)
	p.stop(t)
	if !strings.Contains(p.output.String(), "the audit log does not keep up") {
		t.Errorf("nobody is told:\n%s", p.output)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("it has ended with %d", code)
	}
}

// startWithReader is startWith whose standard output is read until it serves.
func startWithReader(t *testing.T, r, w *os.File, flags ...string) *plane {
	t.Helper()
	line := make(chan string, 1)
	read := make(chan struct{})
	go func() {
		defer close(read)
		buffer := make([]byte, 64<<10)
		for first := true; ; first = false {
			n, err := r.Read(buffer)
			if first {
				line <- string(buffer[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	p := startWith(t, t.TempDir(), w, flags...)
	w.Close()
	if got := <-line; !strings.Contains(got, "AUDIT: ") {
		t.Errorf("standard output begins with %.300q", got)
	}
	if err := r.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	<-read
	return p
}

// quickLimit bounds one request. Who is not there or hangs would have it wait for longer, or for ever.
const quickLimit = 20 * time.Second

// quick has requests answered as soon as if nobody were told of them.
func (p *plane) quick(t *testing.T, with string, requests int) {
	t.Helper()
	var all errgroup.Group
	all.SetLimit(8)
	begin := time.Now()
	for i := range requests {
		all.Go(func() error {
			ctx, cancel := context.WithTimeout(t.Context(), quickLimit)
			defer cancel()
			_, err := p.client.CoreV1().ConfigMaps(ns).Create(ctx, configMap(fmt.Sprintf("quick-%d-%d", begin.UnixNano(), i)), metav1.CreateOptions{})
			return err
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatalf("with %s: %v", with, err)
	}
	t.Logf("with %s: %d requests in %s", with, requests, time.Since(begin))
}

// metric is the sum of a metric of the process.
func (p *plane) metric(t *testing.T, name string) float64 {
	t.Helper()
	text, err := p.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for line := range strings.Lines(string(text)) {
		var value float64
		at := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		if strings.HasPrefix(line, name) && at > 0 {
			if _, err := fmt.Sscan(line[at:], &value); err != nil {
				t.Fatal(errors.Join(err, errors.New(line)))
			}
			sum += value
		}
	}
	return sum
}
