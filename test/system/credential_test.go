package system

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// guarded puts a proxy before a registry that lets only one user in.
func guarded(t *testing.T, addr, user, password string) string {
	t.Helper()
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: addr})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); u != user || p != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, "unauthorized", http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func TestCredentialProvider(t *testing.T) {
	t.Parallel()
	addr := guarded(t, registry(t), "me", "secret")
	dir := t.TempDir()
	plugin := `#!/bin/sh
echo asked >>` + dir + `/runs
read -r request
case $request in
*'"image":"` + addr + `/busybox"'*) ;;
*) echo "asked for something else: $request" >&2; exit 1 ;;
esac
cat <<ANSWER
{"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse", "cacheKeyType": "Registry",
 "auth": {"` + addr + `/busybox": {"username": "old", "password": "x"}, "127.0.0.*": {"username": "me", "password": "$SECRET"}}}
ANSWER
`
	if err := os.WriteFile(dir+"/script", []byte(plugin), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/config.yaml", `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: script
  matchImages: ["127.0.0.*"]
  defaultCacheDuration: 1h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  env: [{name: SECRET, value: secret}]
`)
	n := startNode(t, "--image-credential-provider-config="+dir+"/config.yaml", "--image-credential-provider-bin-dir="+dir)
	if out, _, code := n.berth("images", "pull", addr+"/busybox:1"); code == 0 {
		t.Errorf("the registry let in who has no credentials: %s", out)
	}
	n.apply("private.yaml", pod("private", strings.ReplaceAll(sleeping, image, addr+"/busybox:1")))
	n.waitReady("private")
	n.remove("private.yaml")
	n.waitGone("private")
	n.must("images", "rm", addr+"/busybox:1")
	n.apply("again.yaml", pod("again", strings.ReplaceAll(sleeping, image, addr+"/busybox:1")))
	n.waitReady("again")
	if runs, err := os.ReadFile(dir + "/runs"); err != nil || string(runs) != "asked\n" {
		t.Errorf("the plugin ran %q, want once (%v)", runs, err)
	}
}

// TestPullSecrets gives a pod credentials of its own by a Secret, which may come after the pod.
func TestPullSecrets(t *testing.T) {
	t.Parallel()
	addr := guarded(t, registry(t), "me", "secret")
	n := startNode(t)
	n.apply("private.yaml", pod("private",
		"\n  imagePullSecrets: [{name: pull}]"+strings.ReplaceAll(sleeping, image, addr+"/busybox:1")))
	n.wait("private", "refused by the registry", func(p *corev1.Pod) bool {
		return waiting("main", "ErrImagePull")(p) || waiting("main", "ImagePullBackOff")(p)
	})
	n.applySecret("pull.yaml", `apiVersion: v1
kind: Secret
metadata: {name: pull}
type: kubernetes.io/dockerconfigjson
stringData: {.dockerconfigjson: '{"auths": {"`+addr+`": {"username": "me", "password": "secret"}}}'}
`)
	n.waitReady("private")
}
