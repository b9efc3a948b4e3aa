package system

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
)

// door is a registry that lets one user in, and that can be shut, or made to hold back what layers consist of.
type door struct {
	addr   string
	behind string
	shut   atomic.Bool
	held   atomic.Int32 // requests that are held back
	hold   atomic.Pointer[chan struct{}]
	pulls  atomic.Int32
}

func newDoor(t *testing.T, addr, user, password string) *door {
	t.Helper()
	d := &door{behind: addr}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: addr})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.pulls.Add(1)
		if d.shut.Load() {
			http.Error(w, "shut", http.StatusServiceUnavailable)
			return
		}
		if u, p, _ := r.BasicAuth(); u != user || p != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, "unauthorized", http.StatusUnauthorized)
			return
		}
		if c := d.hold.Load(); c != nil && strings.Contains(r.URL.Path, "/blobs/") {
			d.held.Add(1)
			select {
			case <-*c:
			case <-r.Context().Done():
			}
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	d.addr = strings.TrimPrefix(s.URL, "http://")
	return d
}

// digest is that of an image behind the door.
func (d *door) digest(t *testing.T, ref string) string {
	t.Helper()
	r, err := name.ParseReference(d.behind+"/"+ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	desc, err := remote.Get(r)
	if err != nil {
		t.Fatal(err)
	}
	return desc.Digest.String()
}

func pullSecret(name, addr, user, password string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: %s}
type: kubernetes.io/dockerconfigjson
stringData: {.dockerconfigjson: '{"auths": {"%s": {"username": "%s", "password": "%s"}}}'}
`, name, addr, user, password)
}

// private is a pod of an image; secrets are those that it names.
func private(name, image, policy string, secrets ...string) string {
	spec := "\n  containers: [{name: main, image: '" + image + "', imagePullPolicy: " + policy +
		", command: [sleep, '1000000']}]"
	for _, s := range secrets {
		spec = "\n  imagePullSecrets: [{name: " + s + "}]" + spec
	}
	return pod(name, spec)
}

// refused waits until a pod may not have its image, which shows in its containers as it does with a kubelet.
func (n *Node) refused(name string) {
	n.t.Helper()
	n.wait(name, "refused", func(p *corev1.Pod) bool {
		if p == nil {
			return false
		}
		return waiting("main", "ErrImagePull")(p) || waiting("main", "ImagePullBackOff")(p) ||
			waiting("main", "ErrImageNeverPull")(p)
	})
}

// TestPulledImages has pods ask for an image that another pod has pulled with credentials.
func TestPulledImages(t *testing.T) {
	t.Parallel()
	const password = "pass-7c21b0e4"
	d := newDoor(t, registry(t), "me", password)
	img, large := d.addr+"/busybox:1", d.addr+"/large:1"
	n := newNode(t)
	file, port := filepath.Join(n.Dir, "config.yaml"), freePort(t)
	policy := func(rest string) {
		write(t, file, fmt.Sprintf("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+
			"address: 127.0.0.1\nport: %d\nhealthzPort: 0\n%s", port, rest))
	}
	policy("failSwapOn: false\n")
	n.args = append(n.args, "--config="+file)
	n.start()
	n.applySecret("good.yaml", pullSecret("good", d.addr, "me", password))
	n.applySecret("same.yaml", pullSecret("same", d.addr, "me", password))
	n.applySecret("wrong.yaml", pullSecret("wrong", d.addr, "me", "guess"))
	n.apply("owner.yaml", private("owner", img, "IfNotPresent", "good"))
	owner := n.waitReady("owner")

	n.apply("id.yaml", private("id", containerState(owner, "main").ImageID, "Never"))
	n.apply("without.yaml", private("without", img, "IfNotPresent"))
	n.apply("guess.yaml", private("guess", img, "IfNotPresent", "wrong"))
	n.apply("never.yaml", private("never", img, "Never"))
	n.apply("digest.yaml", private("digest", d.addr+"/busybox@"+d.digest(t, "busybox:1"), "IfNotPresent"))
	n.apply("elsewhere.yaml", private("elsewhere", d.addr+"/other@"+d.digest(t, "busybox:1"), "IfNotPresent", "wrong"))
	refused := []string{"id", "without", "guess", "never", "digest", "elsewhere"}
	requireRefused := func() {
		t.Helper()
		for _, name := range refused {
			n.refused(name)
		}
	}
	requireRefused()
	n.wait("never", "told so", waiting("main", "ErrImageNeverPull"))
	if out := n.must("events", "--types", "Warning"); !strings.Contains(out, "is not present with pull policy of Never") ||
		!strings.Contains(out, "Failed to pull image") {
		t.Errorf("events: %s", out)
	}
	n.apply("preloaded.yaml", private("preloaded", image, "IfNotPresent"))
	n.waitReady("preloaded")

	// Who shows the same credentials needs no registry, whichever agent runs.
	d.shut.Store(true)
	asked := d.pulls.Load()
	n.kill()
	n.start()
	n.apply("mine.yaml", private("mine", img, "Never", "same"))
	n.waitReady("mine")
	if out := n.must("events"); !strings.Contains(out, "already present on machine and can be accessed by the pod") {
		t.Errorf("events: %s", out)
	}
	requireRefused()
	n.eventually("pulls that failed to leave nothing", func() error { // some are being tried again
		if d.pulls.Load() == asked {
			return errors.New("nobody has asked the registry about the others")
		}
		if left := intents(t, n); len(left) > 0 {
			return fmt.Errorf("intents %v", left)
		}
		return nil
	})
	d.shut.Store(false)

	// The image goes and comes again.
	for _, name := range append([]string{"owner", "mine"}, refused...) {
		n.remove(name + ".yaml")
		n.waitGone(name)
	}
	n.must("images", "rm", "--force", img) // by all of its names, and though containers that have ended still have it
	n.must("images", "import", testImages(t)[0])
	n.apply("owner.yaml", private("owner", img, "Always", "good"))
	n.waitReady("owner")
	n.apply("without.yaml", private("without", img, "IfNotPresent"))
	n.refused("without")
	refused = []string{"without"}

	// An agent that is killed in the middle of a pull is followed by one that knows of it.
	// Pulls of pods that were removed in the midst of them stay known for a while.
	known := func() bool { return slices.Contains(intents(t, n), large) }
	gate := make(chan struct{})
	d.hold.Store(&gate)
	n.apply("large.yaml", private("large", large, "IfNotPresent", "good"))
	n.eventually("layers to be asked for", func() error {
		if d.held.Load() == 0 || !known() {
			return fmt.Errorf("%d requests, intents %v", d.held.Load(), intents(t, n))
		}
		return nil
	})
	n.kill()
	if !known() {
		t.Errorf("known of pulls: %v", intents(t, n))
	}
	close(gate)
	n.start()
	n.waitReady("large")
	n.eventually("the pull to be known to have ended", func() error {
		if known() {
			return errors.New("it is not")
		}
		return nil
	})
	n.apply("thief.yaml", private("thief", large, "Never"))
	n.refused("thief")
	refused = append(refused, "thief")
	requireRefused()
	n.requireNotOnDisk(password)

	// The other policies.
	restart := func(rest string) {
		t.Helper()
		n.stop()
		policy(rest)
		n.start()
	}
	restart("imagePullCredentialsVerificationPolicy: AlwaysVerify\n")
	n.apply("any.yaml", private("any", image, "Never"))
	n.refused("any")
	restart("imagePullCredentialsVerificationPolicy: " +
		"NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [berth.test/*]\n")
	n.waitReady("any")
	requireRefused()
	restart("imagePullCredentialsVerificationPolicy: NeverVerify\n")
	for _, name := range refused {
		n.waitReady(name)
	}
	n.stop()
	policy("preloadedImagesVerificationAllowlist: [berth.test/*]\n")
	n.launch()
	<-n.exited
	if log := n.logTail(); n.cmd.ProcessState.Success() || !strings.Contains(log, "NeverVerifyAllowlistedImages") {
		t.Errorf("a list without its policy was taken: %s", log)
	}
}

// intents are the images that are being pulled, as the node's files have them.
func intents(t *testing.T, n *Node) (out []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.Dir, "root/image_manager/pulling/sha256-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if filepath.Ext(f) != "" {
			continue // is being written
		}
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		var i struct{ Image string }
		if err := json.Unmarshal(b, &i); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		out = append(out, i.Image)
	}
	return out
}
