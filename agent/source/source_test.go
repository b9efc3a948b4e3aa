package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds waits that must come to an end; nothing asserts on time.
const patience = time.Minute

// goneLimit is how long a directory waits at most for a file to come back.
const goneLimit = 200 * time.Millisecond

// harness runs a Source and keeps what a consumer would know.
type harness struct {
	t    testing.TB
	dir  string
	src  *Source
	stop func()

	mu      sync.Mutex
	cond    *sync.Cond
	pods    map[string]*corev1.Pod
	objects map[object.Ref]object.Object
	history []string // "+name uid" and "-name"
	synced  bool
}

func podYAML(name, image string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata:\n  name: %s\nspec:\n  containers:\n  - name: main\n    "+
		"image: %s\n", name, image)
}

// start runs a source on dir until the test ends, or until stop is called.
func start(t testing.TB, dir string, change func(*Config)) *harness {
	t.Helper()
	cfg := Config{Dir: dir, NodeName: "Node1", Rescan: time.Hour}
	if change != nil {
		change(&cfg)
	}
	h := &harness{t: t, dir: dir, src: New(cfg), pods: map[string]*corev1.Pod{}, objects: map[object.Ref]object.Object{}}
	h.cond = sync.NewCond(&h.mu)
	ctx, cancel := context.WithCancel(context.Background())
	out := make(chan desired.Update)
	var wait sync.WaitGroup
	wait.Go(func() {
		if err := h.src.Run(ctx, out); err != nil {
			t.Errorf("Run: %v", err)
		}
		close(out)
	})
	wait.Go(func() {
		for u := range out {
			h.take(u)
		}
	})
	h.stop = sync.OnceFunc(func() { cancel(); wait.Wait() })
	t.Cleanup(h.stop)
	h.wait("synced", func() bool { return h.synced })
	return h
}

func (h *harness) take(u desired.Update) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case u.Synced:
		h.synced = true
	case u.Kind != object.Pod && u.Object == nil:
		delete(h.objects, u.Ref())
		h.history = append(h.history, "-"+u.Ref().String())
	case u.Kind != object.Pod:
		h.objects[u.Ref()] = u.Object
		h.history = append(h.history, "+"+u.Ref().String())
	case u.Pod == nil:
		delete(h.pods, u.Key.String())
		h.history = append(h.history, "-"+u.Key.Name)
	default:
		if u.Origin != desired.OriginOf(u.Pod) {
			h.t.Errorf("%s comes from %q, and says %q", u.Key, u.Origin, desired.OriginOf(u.Pod))
		}
		h.pods[u.Key.String()] = u.Pod
		h.history = append(h.history, "+"+u.Key.Name+" "+string(u.Pod.UID))
	}
	h.cond.Broadcast()
}

func (h *harness) wait(what string, ok func() bool) {
	h.t.Helper()
	timer := time.AfterFunc(patience, func() { h.cond.Broadcast() })
	defer timer.Stop()
	end := time.Now().Add(patience)
	h.mu.Lock()
	defer h.mu.Unlock()
	for !ok() {
		if time.Now().After(end) {
			h.t.Fatalf("never %s; pods %v, history %v, problems %+v", what, h.images(), h.history, h.src.Problems())
		}
		h.cond.Wait()
	}
}

func (h *harness) images() map[string]string {
	out := map[string]string{}
	for k, p := range h.pods {
		out[k] = p.Spec.Containers[0].Image
	}
	return out
}

func (h *harness) image(pod string) string {
	if p := h.pods["default/"+pod+"-node1"]; p != nil {
		return p.Spec.Containers[0].Image
	}
	return ""
}

func (h *harness) waitImage(pod, image string) {
	h.t.Helper()
	h.wait(fmt.Sprintf("pod %s with image %q", pod, image), func() bool { return h.image(pod) == image })
}

// flush waits until everything that happened before was acted upon: a pod written afterwards has come out, and one
// removed afterwards has gone, which it does with all files that went before it.
func (h *harness) flush() {
	h.t.Helper()
	h.write("zz-flush.yaml", podYAML("flush", "flush:"+fmt.Sprint(time.Now().UnixNano())))
	h.wait("flushed", func() bool { return h.image("flush") != "" })
	h.remove("zz-flush.yaml")
	h.wait("flushed", func() bool { return h.image("flush") == "" })
}

func (h *harness) uid(pod string) types.UID {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.pods["default/"+pod+"-node1"]; p != nil {
		return p.UID
	}
	return ""
}

func (h *harness) write(name, text string) {
	h.t.Helper()
	must(h.t, os.WriteFile(filepath.Join(h.dir, name), []byte(text), 0o600))
}

func (h *harness) remove(name string) {
	h.t.Helper()
	must(h.t, os.Remove(filepath.Join(h.dir, name)))
}

func (h *harness) rename(from, to string) {
	h.t.Helper()
	must(h.t, os.Rename(filepath.Join(h.dir, from), filepath.Join(h.dir, to)))
}

// waitProblem waits until something wrong with a file is said that contains all of text.
func (h *harness) waitProblem(file string, text ...string) Problem {
	h.t.Helper()
	end := time.Now().Add(patience)
	for time.Now().Before(end) {
		for _, p := range h.src.Problems() {
			all := filepath.Base(p.File) == file
			for _, t := range text {
				all = all && strings.Contains(strings.Join(append(p.Errors, p.Warnings...), "\n"), t)
			}
			if all {
				return p
			}
		}
		time.Sleep(time.Millisecond)
	}
	h.t.Fatalf("no problem of %s with %q in %+v", file, text, h.src.Problems())
	return Problem{}
}

// changes counts what the consumer was told of a pod.
func (h *harness) changes(pod string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.history {
		if strings.HasPrefix(e[1:]+" ", pod+"-node1 ") {
			n++
		}
	}
	return n
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFileLife(t *testing.T) {
	h := start(t, t.TempDir(), nil)
	h.write("a.yaml", podYAML("web", "nginx:1"))
	h.waitImage("web", "nginx:1")
	first := h.uid("web")

	h.write("a.yaml", "# a comment\n"+podYAML("web", "'nginx:1'   # quoted"))
	h.flush()
	if h.uid("web") != first || h.changes("web") != 1 {
		t.Errorf("a rewritten manifest that says the same changed the pod: %v", h.history)
	}
	h.write("a.yaml", podYAML("web", "nginx:2"))
	h.waitImage("web", "nginx:2")
	if h.uid("web") == first {
		t.Error("a changed spec kept its UID")
	}
	h.write("a.yaml", podYAML("web", "nginx:1"))
	h.waitImage("web", "nginx:1")
	if h.uid("web") != first {
		t.Error("the same spec got another UID")
	}
	h.remove("a.yaml")
	h.waitImage("web", "")
}

func TestIdentity(t *testing.T) {
	h := start(t, t.TempDir(), nil)
	h.write("a.yaml", podYAML("web", "nginx:1"))
	h.waitImage("web", "nginx:1")
	p := h.pods["default/web-node1"]
	if p.Name != "web-node1" || p.Namespace != "default" || p.Spec.NodeName != "node1" || len(p.UID) != 32 {
		t.Errorf("identity: %s/%s on %s, uid %s", p.Namespace, p.Name, p.Spec.NodeName, p.UID)
	}
	if p.Annotations[desired.AnnotationSource] != "file" || p.Annotations[desired.AnnotationHash] != string(p.UID) ||
		p.Annotations[desired.AnnotationSeen] == "" {
		t.Errorf("annotations: %v", p.Annotations)
	}
	if n := len(p.Spec.Tolerations); n != 1 || p.Spec.Tolerations[0].Effect != corev1.TaintEffectNoExecute {
		t.Errorf("tolerations: %v", p.Spec.Tolerations)
	}
}
