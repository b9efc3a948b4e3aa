package source

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/source/url"
)

func TestURL(t *testing.T) {
	var body, status atomic.Value
	body.Store(podYAML("web", "nginx:1"))
	status.Store(http.StatusOK)
	var same atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := body.Load().(string)
		code, _ := status.Load().(int)
		user, password, _ := r.BasicAuth()
		switch tag := `"` + fmt.Sprintf("%x", sha256.Sum256([]byte(text))) + `"`; {
		case r.Header.Get("X-Node") != "one" || user != "me" || password != "hunter2":
			w.WriteHeader(http.StatusForbidden)
		case code != http.StatusOK:
			w.WriteHeader(code)
		case r.Header.Get("If-None-Match") == tag:
			same.Add(1)
			w.WriteHeader(http.StatusNotModified)
		default:
			w.Header().Set("ETag", tag)
			_, _ = w.Write([]byte(text))
		}
	}))
	defer server.Close()
	state := t.TempDir()
	header, err := url.ParseHeaders([]string{"X-Node: one"})
	must(t, err)
	config := func(c *Config) {
		c.URL, c.Header = strings.Replace(server.URL, "://", "://me:hunter2@", 1)+"/pods.yaml", header
		c.URLEvery, c.StateDir = 5*time.Millisecond, state
	}
	dir := t.TempDir()
	h := start(t, dir, config)
	h.waitImage("web", "nginx:1")
	if p := h.pods["default/web-node1"]; p.Annotations[desired.AnnotationSource] != "http" {
		t.Errorf("annotations %v", p.Annotations)
	}
	h.wait("asked again in vain", func() bool { return same.Load() > 2 || h.nudge() })
	// Files and the URL stand beside each other.
	h.write("a.yaml", podYAML("file", "nginx:1"))
	h.waitImage("file", "nginx:1")
	body.Store(podYAML("web", "nginx:2") + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n")
	h.waitImage("web", "nginx:2")
	h.wait("configmap", func() bool { return h.object(object.ConfigMap, "c") != nil })
	body.Store(podYAML("web", "nginx:2") + "---\n" + secretYAML)
	h.waitProblem("pods.yaml", "Secrets are not taken from a URL")
	for _, p := range h.src.Problems() {
		if strings.Contains(p.File, "hunter2") {
			t.Errorf("the password is told: %s", p.File)
		}
	}
	// A server that fails takes nothing away, and neither does it when the agent starts.
	body.Store(podYAML("web", "nginx:2"))
	well := func() bool { return len(h.src.Problems()) == 0 || h.nudge() }
	h.wait("no problem left", well)
	status.Store(http.StatusInternalServerError)
	h.waitProblem("pods.yaml", "500 Internal Server Error")
	// What it says when it is back is what it said before.
	status.Store(http.StatusOK)
	h.wait("the server is back", well)
	status.Store(http.StatusInternalServerError)
	h.waitProblem("pods.yaml", "500 Internal Server Error")
	h.stop()
	h = start(t, dir, config)
	if h.image("web") != "nginx:2" || h.image("file") != "nginx:1" {
		t.Errorf("%v", h.images())
	}
	// An empty answer is a mishap, another pod is not.
	status.Store(http.StatusOK)
	body.Store(" ")
	h.waitProblem("pods.yaml", "answer is empty")
	body.Store(podYAML("other", "nginx:1"))
	h.waitImage("other", "nginx:1")
	h.wait("the first one gone", func() bool { return h.image("web") == "" })
	h.stop()
	// Without the URL its pods are not wanted.
	h = start(t, dir, func(c *Config) { c.StateDir = state })
	if h.image("other") != "" || h.image("file") != "nginx:1" {
		t.Errorf("%v", h.images())
	}
	for _, bad := range []string{"x", ": y", "a\nb: c"} {
		if _, err := url.ParseHeaders([]string{bad}); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
