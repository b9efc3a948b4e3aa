package image

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/berth-node/berth/cri/image/imagetest"
)

// dockerRegistry starts Debian's registry, if it is installed.
func dockerRegistry(t testing.TB) (host string, ok bool) {
	t.Helper()
	bin, err := exec.LookPath("docker-registry")
	if err != nil {
		return "", false
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host = l.Addr().String()
	l.Close()
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yml")
	content := fmt.Sprintf("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: "+
		"{rootdirectory: %s}}\nhttp: {addr: %s}\n", dir, host)
	if err := os.WriteFile(config, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "serve", config)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	waitFor(t, func() bool {
		resp, err := client.Get("http://" + host + "/v2/")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return true
	})
	return host, true
}

func TestDockerRegistry(t *testing.T) {
	w := newWorld(t)
	host, ok := dockerRegistry(t)
	if !ok {
		t.Skip("needs the package docker-registry")
	}
	for _, docker := range []bool{false, true} {
		spec := twoLayers
		spec.Docker = docker
		name, err := imagetest.Push(host, imagetest.Build(spec))
		if err != nil {
			t.Fatal(err)
		}
		if got := w.show(t, mustPull(t, w, name), "etc/a"); got != "two" {
			t.Errorf("etc/a is %q", got)
		}
		mustPull(t, w, name)
	}
}
