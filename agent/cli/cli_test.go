package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilexec "k8s.io/client-go/util/exec"

	"github.com/berth-node/berth/agent/api"
	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/internal/commandline"
)

// agent is an agent that has what it is given.
type agent struct {
	dir  string
	pods []corev1.Pod
	mux  *http.ServeMux

	problems []api.Problem
	words    string // in events and spans
}

func newAgent(t *testing.T, pods ...corev1.Pod) *agent {
	t.Helper()
	a := &agent{dir: t.TempDir(), pods: pods, mux: http.NewServeMux()}
	a.problems = []api.Problem{
		{File: "/m/web.yaml", Warnings: []string{"unknown field spec.foo"}}, {
			File:   "/m/bad.yaml",
			Errors: []string{"spec.containers: Required value"},
		},
	}
	a.mux.HandleFunc("GET /pods", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("watch") == "" {
			json.NewEncoder(w).Encode(corev1.PodList{Items: a.pods})
			return
		}
		for i := range a.pods {
			json.NewEncoder(w).Encode(map[string]any{"type": "ADDED", "object": &a.pods[i]})
		}
		later := a.pods[0].DeepCopy()
		later.Status.Phase = corev1.PodFailed
		later.Status.ContainerStatuses = nil
		json.NewEncoder(w).Encode(map[string]any{"type": "MODIFIED", "object": later})
		json.NewEncoder(w).Encode(map[string]any{"type": "DELETED", "object": later})
	})
	a.mux.HandleFunc("GET /pods/{ns}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.ManifestHeader, "/m/web.yaml")
		json.NewEncoder(w).Encode(a.pods[0])
	})
	a.mux.HandleFunc("DELETE /pods/{ns}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusConflict)
		json.NewEncoder(w).Encode(metav1.Status{Message: "remove /m/web.yaml"})
	})
	a.mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(corev1.EventList{Items: []corev1.Event{{
			Type: "Normal", Reason: "Started" + a.words, Message: "started container main" + a.words, Count: 3,
			// Half a minute from the next value that would be shown.
			FirstTimestamp: metav1.NewTime(time.Now().Add(-60*time.Minute - 30*time.Second)),
			LastTimestamp:  metav1.NewTime(time.Now().Add(-20*time.Minute - 30*time.Second)),
			InvolvedObject: corev1.ObjectReference{
				Kind: "Pod",
				Name: "web-node",
			}, Source: corev1.EventSource{Component: "berth"},
		}}})
	})
	a.mux.HandleFunc("GET /problems", func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(a.problems)
	})
	a.mux.HandleFunc("GET /timing/{ns}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		t0 := time.Unix(0, 0)
		json.NewEncoder(w).Encode(&pod.Span{
			Name: "start pod", Start: t0, Duration: 20 * time.Millisecond,
			Children: []*pod.Span{
				{
					Name: "container", Start: t0.Add(12 * time.Millisecond), Duration: 8 * time.Millisecond, Error: a.words,
					Attrs: map[string]string{"container": "main" + a.words},
				},
				{Name: "sandbox", Start: t0.Add(2 * time.Millisecond), Duration: 10 * time.Millisecond},
			},
		})
	})
	a.mux.HandleFunc("GET /containerLogs/{ns}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s/%s?%s\n", r.PathValue("pod"), r.PathValue("container"), r.URL.RawQuery)
	})
	l, err := net.Listen("unix", filepath.Join(a.dir, "berth.sock"))
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(a.mux)
	srv.Listener = l
	srv.Start()
	t.Cleanup(srv.Close)
	return a
}

func (a *agent) run(t *testing.T, args ...string) (string, string, error) {
	t.Helper()
	root := &cobra.Command{Use: "berth", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Commands(func() string { return a.dir })...)
	commandline.MarkUsage(root)
	var o, e bytes.Buffer
	root.SetOut(&o)
	root.SetErr(&e)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return o.String(), e.String(), err
}

func web() corev1.Pod {
	started := true
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-node", Namespace: "default", UID: "u"},
		Spec: corev1.PodSpec{
			NodeName: "node",
			Containers: []corev1.Container{{
				Name: "main", Image: "img",
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
			}, {Name: "side"}},
		},
	}
	start := metav1.NewTime(time.Now().Add(-30*time.Minute - 30*time.Second))
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "10.0.0.2", HostIP: "192.0.2.1", StartTime: &start,
		QOSClass: corev1.PodQOSBurstable,
	}
	for _, c := range p.Spec.Containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Ready: true, Started: &started, ContainerID: "berth://1", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		})
	}
	return p
}

func TestPods(t *testing.T) {
	other := web()
	other.Namespace, other.Name = "kube-system", "dns-node"
	a := newAgent(t, web(), other)
	for _, c := range []struct {
		args string
		want []string
		not  string
	}{
		{"pods", []string{"NAME       READY   STATUS    RESTARTS   AGE\nweb-node   2/2     Running   0          30m"}, "dns"},
		{"pods -A -o wide", []string{"NAMESPACE", "kube-system", "10.0.0.2", "Burstable"}, ""},
		{"get pods --no-headers", []string{"web-node"}, "NAME"},
		{"pods -o name", []string{"pod/web-node\n"}, ""},
		{"pods -o yaml", []string{"kind: PodList", "name: web-node"}, "dns"},
		{"pods web -o json", []string{`"kind": "Pod"`, `"podIP": "10.0.0.2"`}, "List"},
		{"pods kube-system/dns", []string{"dns-node"}, "web"},
		{"events", []string{"20m (x3 over 60m)", "pod/web-node"}, ""},
		{"events --types normal --reason Started,Failed", []string{"pod/web-node"}, ""},
		{"events --types Warning", []string{}, "pod/web-node"},
		{"events --reason BackOff", []string{}, "pod/web-node"},
		{"describe web", []string{
			"Manifest:          /m/web.yaml", "Burstable", "Started", "unknown field spec.foo",
			"8080/TCP (http)",
		}, "bad.yaml"},
		{"describe --timing web", []string{"start pod        0.00 ms   20.00 ms", "  container main 12.00 ms  8.00 ms"}, ""},
		{"describe pod web", []string{"Manifest:          /m/web.yaml"}, ""},
		{"logs web -c side --tail 5 --timestamps", []string{"web-node/side?tailLines=5&timestamps=true"}, ""},
		{"logs web", []string{"web-node/main?\n"}, ""},
		{"logs default/web-node side --prefix", []string{"[pod/web-node/side] web-node/side?\n"}, ""},
		{"logs --all-containers web", []string{"web-node/main?\nweb-node/side?\n"}, ""},
	} {
		out, errs, err := a.run(t, strings.Fields(c.args)...)
		if err != nil {
			t.Errorf("%s: %v %s", c.args, err, errs)
		}
		for _, w := range c.want {
			if !strings.Contains(squeeze(out), squeeze(w)) {
				t.Errorf("%s: no %q in\n%s", c.args, w, out)
			}
		}
		if c.not != "" && strings.Contains(out, c.not) {
			t.Errorf("%s: %q in\n%s", c.args, c.not, out)
		}
	}
}

// squeeze makes every run of spaces one.
func squeeze(s string) string { return regexp.MustCompile(` +`).ReplaceAllString(s, " ") }

// TestHostileWords has names, reasons and messages that are commands to a terminal, or lines and columns of their own.
func TestHostileWords(t *testing.T) {
	const evil = "x\x1b[2J\u009b2J\u202e\x9b\nStatus:  fine\tfine"
	p := web()
	p.Status.Reason, p.Status.Message = evil, evil
	p.Annotations = map[string]string{"a": evil}
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
		Reason:  evil,
		Message: evil,
	}}
	p.Status.ContainerStatuses[1].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
		Reason:  evil,
		Message: evil,
	}
	a := newAgent(t, p)
	a.words = evil
	for _, args := range []string{
		"pods", "pods -A -o wide", "pods -o json", "pods -o yaml", "pods -w", "describe web",
		"describe --timing web", "events", "events -A",
	} {
		out, errs, _ := a.run(t, strings.Fields(args)...) // of a watch the end is an error
		bad := "\x1b\u009b\u202e"
		if strings.HasSuffix(args, "yaml") {
			bad = "\x1b\u009b" // the rest would be another value
		}
		if strings.ContainsAny(out+errs, bad) || !utf8.ValidString(out) {
			t.Errorf("%s: %q", args, out)
		}
		if strings.Contains(out, "\nStatus:  fine") {
			t.Errorf("%s: a line of its own in\n%s", args, out)
		}
	}
}

// TestColumnsOfHostileWords wants columns to be where they are whatever is in them.
func TestColumnsOfHostileWords(t *testing.T) {
	p := web()
	p.Name = "x\x1b[2J\u202e\x9b"
	a := newAgent(t, web(), p)
	out, _, err := a.run(t, "pods")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	column := func(line, word string) int { return utf8.RuneCountInString(line[:max(strings.Index(line, word), 0)]) }
	if err != nil || len(lines) < 3 || column(lines[0], "READY") != column(lines[2], "2/2") {
		t.Errorf("%v:\n%s", err, out)
	}
}

// TestFullOutput wants an error of each command whose output has no room.
func TestFullOutput(t *testing.T) {
	a := newAgent(t, web())
	for _, args := range []string{"pods", "pods -o name", "pods -o json", "events", "describe web", "logs web"} {
		root := &cobra.Command{Use: "berth", SilenceErrors: true, SilenceUsage: true}
		root.AddCommand(Commands(func() string { return a.dir })...)
		root.SetOut(&full{})
		root.SetErr(io.Discard)
		root.SetArgs(strings.Fields(args))
		if err := root.ExecuteContext(t.Context()); ExitCode(err) != ExitFailure {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestWatchPrintsChanges(t *testing.T) {
	a := newAgent(t, web())
	out, _, err := a.run(t, "pods", "-w")
	if err == nil || !strings.Contains(err.Error(), "ended the connection") {
		t.Errorf("an agent that goes away: %v", err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 5 || !strings.Contains(lines[1], "Running") || !strings.Contains(lines[2], "Refused") ||
		!strings.Contains(lines[3], "Failed") || !strings.Contains(lines[4], "Deleted") {
		t.Errorf("got\n%s", out)
	}
	if out, _, _ := a.run(t, "pods", "-w", "other", "web"); out != "" {
		t.Errorf("a pod that there is not: %s", out)
	}
}

func TestExitCodes(t *testing.T) {
	a := newAgent(t, web())
	none := &agent{dir: t.TempDir()}
	for _, c := range []struct {
		a    *agent
		args string
		code int
		msg  string
	}{
		{a, "pods", 0, ""},
		{a, "pods --nope", ExitUsage, "--nope"},
		{a, "pods -o xml", ExitUsage, "xml"},
		{a, "logs", ExitUsage, "POD is missing"},
		{a, "logs a/b/c", ExitUsage, "a/b/c"},
		{a, "logs web --tail -2", ExitUsage, "--tail -2"},
		{a, "logs web --tail -1", 0, ""},
		{a, "logs web --limit-bytes -1", ExitUsage, "--limit-bytes -1"},
		{a, "logs web --since -5m", ExitUsage, "--since -5m0s"},
		{a, "exec web", ExitUsage, "COMMAND"},
		{a, "nonsense", ExitUsage, "nonsense"},
		{
			a, "pods --namspace x", ExitUsage,
			"did you mean --namespace?\nUsage: berth pods [POD...] [flags]\nSee 'berth pods --help'",
		},
		{a, "logs --folow web", ExitUsage, "did you mean --follow?"},
		{a, "pods -Z", ExitUsage, "unknown shorthand flag: 'Z' in -Z\nUsage: berth pods"},
		{a, "podz", ExitUsage, "unknown command \"podz\" for \"berth\", did you mean pods?\nUsage: berth COMMAND, one of " +
			"attach,"},
		{a, "descibe web", ExitUsage, "did you mean describe?"},
		{a, "describe pod", ExitUsage, "Usage: berth describe"},
		{a, "port-forward web 80:nope", ExitUsage, "nope"},
		{a, "logs gone", ExitNotFound, "gone"},
		{a, "logs web -c nope", ExitNotFound, "main, side"},
		{a, "-n kube-system logs web", ExitNotFound, "kube-system"},
		{a, "logs web -n kube-system", ExitNotFound, "there is default/web-node"},
		{a, "rm web", ExitFailure, "/m/web.yaml"},
		{none, "pods", ExitNoAgent, none.dir},
		{none, "exec web -- ls", ExitNoAgent, none.dir},
	} {
		_, _, err := c.a.run(t, strings.Fields(c.args)...)
		if got := ExitCode(err); got != c.code || err != nil && !strings.Contains(err.Error(), c.msg) {
			t.Errorf("%s: exit code %d (%v), want %d and %q", c.args, got, err, c.code, c.msg)
		}
	}
	if got := ExitCode(fmt.Errorf("x: %w", utilexec.CodeExitError{Err: errors.New("x"), Code: 7})); got != 7 {
		t.Errorf("exit code of a command: %d", got)
	}
}

func TestPick(t *testing.T) {
	named := func(ns, name string) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: corev1.PodSpec{NodeName: "node"}}
	}
	pods := []corev1.Pod{named("default", "a-node"), named("default", "a-node-node"), named("other", "b-node")}
	for _, c := range []struct{ name, want string }{
		{"a-node", "a-node"},
		{"a", "a-node"},
		{"a-node-node", "a-node-node"},
		{"b", ""},
	} {
		p, err := pick(pods, types.NamespacedName{Namespace: "default", Name: c.name})
		if (err == nil) != (c.want != "") || err == nil && p.Name != c.want {
			t.Errorf("%s: %v, %v", c.name, p, err)
		}
	}
}

func TestCompletion(t *testing.T) {
	a := newAgent(t, web())
	out, _, err := a.run(t, "__complete", "logs", "")
	if err != nil || !strings.HasPrefix(out, "web-node\tRunning\n") {
		t.Errorf("%q, %v", out, err)
	}
	out, _, err = a.run(t, "__complete", "logs", "web", "-c", "")
	if err != nil || !strings.HasPrefix(out, "main\nside\n") {
		t.Errorf("%q, %v", out, err)
	}
}

func TestDisplay(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	yes := true
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waiting := func(r string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: r}}
	}
	ended := func(code int32, reason string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason}}
	}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"running": {func(*corev1.Pod) {}, "2/2 Running 0"},
		"back-off": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0] = corev1.ContainerStatus{State: waiting("CrashLoopBackOff"), RestartCount: 4}
		}, "1/2 CrashLoopBackOff 4"},
		"no reason": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses[1].State = ended(3, "")
			p.Status.ContainerStatuses[1].Ready = false
		}, "1/2 ExitCode:3 0"},
		"one ended": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State = ended(0, "Completed")
			p.Status.ContainerStatuses[0].Ready = false
		}, "1/2 NotReady 0"},
		"deleting": {func(p *corev1.Pod) { now := metav1.Now(); p.DeletionTimestamp = &now }, "2/2 Terminating 0"},
		"refused": {func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason = corev1.PodFailed, "OutOfmemory"
			for i := range p.Status.ContainerStatuses {
				p.Status.ContainerStatuses[i] = corev1.ContainerStatus{State: waiting("ContainerCreating")}
			}
		}, "0/2 OutOfmemory 0"},
		"held": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i"}}
			p.Status.Phase, p.Status.Reason = corev1.PodPending, "NotItsTurn"
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "i", State: waiting("PodInitializing")}}
			for i := range p.Status.ContainerStatuses {
				p.Status.ContainerStatuses[i] = corev1.ContainerStatus{State: waiting("PodInitializing")}
			}
		}, "0/2 NotItsTurn 0"},
		"evicted": {
			func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"} },
			"0/2 Evicted 0",
		},
		"new": {func(p *corev1.Pod) { p.Status = corev1.PodStatus{} }, "0/2 Pending 0"},
		"first init": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i"}, {Name: "j"}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{
				{Name: "i", State: running},
				{Name: "j", State: waiting("PodInitializing")},
			}
			p.Status.ContainerStatuses = nil
		}, "0/2 Init:0/2 0"},
		"init fails": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i"}, {Name: "j"}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{
				{Name: "i", State: ended(0, "Completed")},
				{Name: "j", State: waiting("CrashLoopBackOff"), RestartCount: 2},
			}
			p.Status.ContainerStatuses = nil
		}, "0/2 Init:CrashLoopBackOff 2"},
		"sidecar": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "s", RestartPolicy: &always}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{
				Name: "s", State: running, Started: &yes, Ready: true,
				RestartCount: 1,
			}}
		}, "3/3 Running 1"},
	} {
		p := web()
		c.change(&p)
		r := display(&p)
		if got := fmt.Sprintf("%d/%d %s %d", r.ready, r.total, r.status, r.restarts); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestPrefixer(t *testing.T) {
	var b bytes.Buffer
	p := &prefixer{w: &b, prefix: "> "}
	for _, s := range []string{"a\nb", "c\n", "", "\r\n"} {
		if n, err := io.WriteString(p, s); n != len(s) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	if b.String() != "> a\n> bc\n> \r\n" {
		t.Errorf("%q", b.String())
	}
}
