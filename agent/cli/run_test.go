package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/agent/api"
	"github.com/berth-node/berth/agent/api/client"
	"github.com/berth-node/berth/agent/source/manifest"
	"github.com/berth-node/berth/internal/commandline"
)

// node is a stand-in for an agent with a directory of manifests: what becomes of the pod web there is told by a test.
type node struct {
	dir, manifests string

	before  *corev1.Pod        // is there from the beginning, by the file byFile
	byFile  string             //
	becomes []corev1.PodStatus // of the pod of the manifest, one after the other
	refuses string             // what the agent has against it
	told    chan struct{}      // events were
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{dir: t.TempDir(), manifests: t.TempDir(), told: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /configz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"kubeletconfig": {"staticPodPath": %q, "berth": {"nodeName": "node"}}}`, n.manifests)
	})
	mux.HandleFunc("GET /pods/default/web-node", func(w http.ResponseWriter, _ *http.Request) {
		if n.before == nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set(api.ManifestHeader, n.byFile)
		json.NewEncoder(w).Encode(n.before)
	})
	send := func(w http.ResponseWriter, object any) {
		json.NewEncoder(w).Encode(map[string]any{"type": "MODIFIED", "object": object})
		w.(http.Flusher).Flush()
	}
	mux.HandleFunc("GET /pods", func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		if n.before != nil {
			send(w, n.before)
		}
		if p := n.written(r); p != nil && n.refuses == "" {
			<-n.told // so that both are heard, whichever watch is the faster
			for _, p.Status = range n.becomes {
				send(w, p)
			}
		}
		<-r.Context().Done()
	})
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		p := n.written(r)
		if p == nil {
			return
		}
		if n.refuses != "" {
			send(w, corev1.Event{Reason: "ManifestRefused", LastTimestamp: metav1.Now()})
		}
		later, of := metav1.NewTime(time.Now().Add(time.Second)), corev1.ObjectReference{Namespace: "default", Name: "web-node"}
		send(w, corev1.Event{Reason: "OldPod", InvolvedObject: of, LastTimestamp: later})
		of.UID = p.UID
		send(w, corev1.Event{Reason: "OldEvent", InvolvedObject: of})
		send(w, corev1.Event{Reason: "NewEvent", Message: "what happens", InvolvedObject: of, LastTimestamp: later})
		close(n.told)
		<-r.Context().Done()
	})
	mux.HandleFunc("GET /problems", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode([]api.Problem{{File: filepath.Join(n.manifests, "web.yaml"), Errors: []string{n.refuses}}})
	})
	l, err := net.Listen("unix", filepath.Join(n.dir, "berth.sock"))
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(mux)
	srv.Listener = l
	srv.Start()
	t.Cleanup(srv.Close)
	return n
}

// written waits for the manifest and is the pod that an agent makes of it; nil when nobody waits any more.
func (n *node) written(r *http.Request) *corev1.Pod {
	for r.Context().Err() == nil {
		text, err := os.ReadFile(filepath.Join(n.manifests, "web.yaml"))
		docs := (&manifest.Reader{Node: "node"}).Read(text, manifest.Place{Origin: "file"})
		if err == nil && len(docs) == 1 && docs[0].Item != nil && bytes.Contains(text, []byte("image: img")) {
			return docs[0].Item.Pod
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

func (n *node) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root := &cobra.Command{Use: "berth", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Commands(func() string { return n.dir })...)
	commandline.MarkUsage(root)
	var o bytes.Buffer
	root.SetOut(&o)
	root.SetErr(&o)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return o.String(), err
}

var isReady = corev1.PodStatus{
	Phase: corev1.PodRunning, PodIP: "10.0.0.9", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
}

func waitingFor(reason, message string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "web", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 7}},
	}}}
}

func TestRun(t *testing.T) {
	for name, c := range map[string]struct {
		becomes []corev1.PodStatus
		refuses string
		args    []string
		says    []string // on the way
		fails   string
	}{
		"ready": {
			becomes: []corev1.PodStatus{waitingFor("ContainerCreating", ""), isReady}, args: []string{"--port", "8080:80"},
			says: []string{"is ContainerCreating", "web.yaml is written", "is ready at 10.0.0.9, port 8080 of the node leads to its port 80", "rm /"},
		},
		"ended":   {becomes: []corev1.PodStatus{{Phase: corev1.PodSucceeded}}, says: []string{"has ended well"}},
		"failed":  {becomes: []corev1.PodStatus{{Phase: corev1.PodFailed, Reason: "Evicted", Message: "no room"}}, fails: "Evicted: no room\nIt stays"},
		"no pull": {becomes: []corev1.PodStatus{waitingFor("ErrImagePull", "x"), waitingFor("ImagePullBackOff", "no such image")}, fails: "ImagePullBackOff: no such image"},
		"crash":   {becomes: []corev1.PodStatus{waitingFor("CrashLoopBackOff", "")}, fails: "CrashLoopBackOff; container web ended with exit code 7"},
		"late":    {becomes: []corev1.PodStatus{waitingFor("ContainerCreating", "")}, args: []string{"--timeout", "1s"}, fails: "not ready after 1s"},
		"refused": {refuses: "line 3: no good", fails: "web.yaml is refused: line 3: no good"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.becomes, n.refuses = c.becomes, c.refuses
			out, err := n.run(t, append([]string{"run", "img", "--name", "web"}, c.args...)...)
			if c.fails == "" && err != nil || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
				t.Errorf("%v\n%s", err, out)
			}
			for _, want := range c.says {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			if strings.Contains(out, "Old") {
				t.Errorf("what has been long ago is told:\n%s", out)
			}
			st, err := os.Stat(filepath.Join(n.manifests, "web.yaml"))
			if err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("manifest: %v, %v", st, err)
			}
			if left, _ := os.ReadDir(n.manifests); len(left) != 1 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestRunTaken: what is there already is not written over, unless it is the same pod's and somebody says so.
func TestRunTaken(t *testing.T) {
	const (
		same  = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: old}]}\n"
		other = "apiVersion: v1\nkind: Pod\nmetadata: {name: db}\nspec: {containers: [{name: a, image: old}]}\n"
	)
	old := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-node", UID: "old"}, Status: isReady}
	for name, c := range map[string]struct {
		file    string
		pod     *corev1.Pod
		byFile  string
		replace bool
		fails   string
	}{
		"file":                  {file: same, fails: "web.yaml is there already: --replace"},
		"pod":                   {pod: old, fails: "pod default/web-node is there already: --replace"},
		"pod of another file":   {pod: old, byFile: "/other.yaml", replace: true, fails: "by /other.yaml"},
		"two documents":         {file: same + "---\n" + other, replace: true, fails: "has more in it"},
		"another pod":           {file: other, replace: true, fails: "or something else"},
		"no manifest":           {file: "{{{", replace: true, fails: "or something else"},
		"replaced":              {file: same, pod: old, replace: true},
		"replaced, with no pod": {file: same, replace: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			path := filepath.Join(n.manifests, "web.yaml")
			n.before, n.byFile, n.becomes = c.pod, c.byFile, []corev1.PodStatus{isReady}
			if n.byFile == "" {
				n.byFile = path
			}
			if c.file != "" {
				if err := os.WriteFile(path, []byte(c.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			args := []string{"run", "img", "--name=web"}
			if c.replace {
				args = append(args, "--replace")
			}
			out, err := n.run(t, args...)
			now, _ := os.ReadFile(path)
			switch {
			case c.fails == "":
				if err != nil || !strings.Contains(out, "is ready") || !bytes.Contains(now, []byte("image: img")) {
					t.Errorf("%v\n%s", err, out)
				}
			case err == nil || !strings.Contains(err.Error(), c.fails) || string(now) != c.file:
				t.Errorf("%v, and the file has %s", err, now)
			}
		})
	}
}

func TestRunUsage(t *testing.T) {
	n := newNode(t)
	for want, args := range map[string][]string{
		"IMAGE is missing":      {"run"},
		`"sh" after IMAGE`:      {"run", "img", "sh"},
		"--port \"x\"":          {"run", "img", "--port=x"},
		"--timeout":             {"run", "img", "--timeout=0s"},
		"--name NAME says it":   {"run", "a/" + strings.Repeat("x", 80)},
		"NAME is missing":       {"init", "--image=x"},
		"--image: a container":  {"init", "web"},
		"--volume \"a\": must ": {"init", "web", "--image=x", "--volume=a"},
	} {
		if _, err := n.run(t, args...); err == nil || !strings.Contains(err.Error(), want) || ExitCode(err) != ExitUsage {
			t.Errorf("%q: %v (%d)", args, err, ExitCode(err))
		}
	}
	if left, _ := os.ReadDir(n.manifests); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	n.dir = t.TempDir()
	if _, err := n.run(t, "run", "img"); !errors.Is(err, client.ErrNoAgent) {
		t.Errorf("without an agent: %v", err)
	}
}

func TestInit(t *testing.T) {
	n := newNode(t)
	out, err := n.run(t, "init", "web", "--image", "img", "--", "a", "b")
	if err != nil || !strings.Contains(out, "\n    args:\n    - a\n    - b\n") {
		t.Errorf("%v\n%s", err, out)
	}
	path := filepath.Join(t.TempDir(), "web.yaml")
	if _, err := n.run(t, "init", "web", "--image", "img", "-o", path); err != nil {
		t.Fatal(err)
	}
	if _, err := n.run(t, "init", "web", "--image", "other", "-o", path); err == nil || !strings.Contains(err.Error(), "--replace") {
		t.Errorf("a file that is there: %v", err)
	}
	if _, err := n.run(t, "init", "web", "--image", "other", "-o", path, "--replace"); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), "image: other\n") {
		t.Errorf("%v\n%s", err, text)
	}
}

// TestCreateWhole: of many writers one wins, with all of its file, over what a killed one has left.
func TestCreateWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "web.yaml")
	if err := os.WriteFile(filepath.Join(dir, ".web.yaml.new"), bytes.Repeat([]byte("x"), 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	won := make(chan string, 10)
	for i := range 10 {
		text := strings.Repeat(fmt.Sprint(i), 10_000)
		wg.Go(func() {
			if err := createWhole(path, []byte(text)); err == nil {
				won <- text
			} else if !errors.Is(err, fs.ErrExist) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	close(won)
	text, err := os.ReadFile(path)
	if len(won) != 1 || err != nil || string(text) != <-won {
		t.Errorf("%d have won, %v", len(won), err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}
