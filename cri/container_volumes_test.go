package cri

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/image/imagetest"
)

// TestAnonymousVolumes: what an image calls a volume is one of the container's own, with what the image has there,
// writable also where the root is not, counted with the container and gone with it.
func TestAnonymousVolumes(t *testing.T) {
	n := newNode(t)
	const name = "berth.test/volumes:1"
	wants := map[string]struct{}{"/var/lib/db": {}, "fresh": {}, "/link/deep": {}, "/data": {}, "/proc": {}, "/sys/fs": {}, "/dev/mine": {}, "/etc/hosts": {}, "/": {}}
	archive := boxWith(t, name, ocispec.ImageConfig{Volumes: wants},
		imagetest.File{Name: "var/lib/db/", Mode: 0o1770}, imagetest.File{Name: "var/lib/db/file", Body: "of the image", Mode: 0o640},
		imagetest.File{Name: "var/lib/db/link", Type: '2', Link: "/etc/passwd"}, imagetest.File{Name: "real/deep/x", Body: "deep"},
		imagetest.File{Name: "link", Type: '2', Link: "/real"})
	if _, err := n.Local().Images().Import(t.Context(), bytes.NewReader(archive), nil); err != nil {
		t.Fatal(err)
	}
	own := t.TempDir()
	for kind, change := range map[string]func(*runtimeapi.PodSandboxConfig){
		"plain": nil,
		"users": func(cfg *runtimeapi.PodSandboxConfig) {
			ids := []*runtimeapi.IDMapping{{HostId: 1 << 20, Length: 1 << 16}}
			cfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
		},
	} {
		if kind == "users" && n.core.host.UserNamespaces() != nil {
			continue
		}
		pod, podCfg := n.pod(t, kind, change)
		id := n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
			cfg.Image.Image = name
			securityOf(cfg).ReadonlyRootfs = true
			securityOf(cfg).NamespaceOptions = podCfg.Linux.SecurityContext.NamespaceOptions
			cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/data/", HostPath: own}}
		}, "sleep", "1000")
		for script, want := range map[string]string{
			"cat /var/lib/db/file; readlink /var/lib/db/link; cat /link/deep/x":              "of the image/etc/passwd\ndeep",
			"stat -c '%a %u' /var/lib/db /var/lib/db/file /fresh":                            "1770 0\n640 0\n755 0",
			"for d in /var/lib/db /fresh /link/deep; do echo x > $d/new && cat $d/new; done": "x\nx\nx",
			"(echo x > /tmp/x) 2>/dev/null || echo read-only":                                "read-only",
			"ls /data": "",
			"cut -d' ' -f5 /proc/self/mountinfo | grep -c -e '^/proc$' -e '^/etc/hosts$' -e ' /dev/mine$'": "2",
			"dd if=/dev/zero of=/fresh/big bs=1k count=3000 2>/dev/null; echo written":                     "written",
		} {
			if got := n.sh(t, id, script); got != want {
				t.Errorf("%s: %s: got %q, want %q", kind, script, got, want)
			}
		}
		eventually(t, func() bool {
			st, err := n.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: id})
			return err == nil && st.Stats.WritableLayer.GetUsedBytes().GetValue() >= 3000<<10
		})
		other := n.run(t, pod, "other", func(cfg *runtimeapi.ContainerConfig) {
			cfg.Image.Image = name
			securityOf(cfg).NamespaceOptions = podCfg.Linux.SecurityContext.NamespaceOptions
		}, "sleep", "1000")
		if got := n.sh(t, other, "ls /fresh; cat /data/file"); got != "from the image" {
			t.Errorf("%s: another container has %q", kind, got)
		}
		for _, one := range []string{id, other} {
			if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: one}); err != nil {
				t.Fatal(err)
			}
			for _, s := range n.core.host.Snaps.List() {
				if strings.HasPrefix(s.Key, one) {
					t.Errorf("%s: left behind: snapshot %s", kind, s.Key)
				}
			}
		}
	}
	if left, _ := filepath.Glob(filepath.Join(own, "*")); len(left) > 0 {
		t.Errorf("the pod's own volume has %q", left)
	}
	if _, err := os.Stat(own); err != nil {
		t.Error(err)
	}
}

// TestHostileVolumes: what an image calls a volume is in the container's root, wherever links in the image lead, and
// what cannot be is refused in a line, with nothing left behind.
func TestHostileVolumes(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	host := t.TempDir()
	links := []imagetest.File{
		{Name: "absolute", Type: '2', Link: host},
		{Name: "up", Type: '2', Link: strings.Repeat("../", 30) + host},
		{Name: "dangling", Type: '2', Link: "no/where"},
		{Name: "loop", Type: '2', Link: "loop"},
		{Name: "file", Body: "x", Mode: 0o644},
	}
	for i, c := range []struct{ volume, refused string }{
		{"/absolute/sub", ""},
		{"/up/sub", ""},
		{"/up", ""},
		{"/dangling/sub", ""},
		{"/" + strings.Repeat("a/", 1500) + "x", ""},
		{"/loop/sub", "too many levels of symbolic links"},
		{"/file", "not a directory"},
		{"/file/sub", "not a directory"},
		{"/a\x00b", "invalid argument"},
		{"/" + strings.Repeat("n", 300), "file name too long"},
		{"/" + strings.Repeat("a/", 2100) + "x", "file name too long"},
		{"/" + strings.Repeat("a/", 2045) + "x", "file name too long"}, // with the root before it
	} {
		image, name := fmt.Sprintf("berth.test/hostile-%d:1", i), fmt.Sprintf("c%d", i)
		archive := boxWith(t, image, ocispec.ImageConfig{Volumes: map[string]struct{}{c.volume: {}}}, links...)
		if _, err := n.Local().Images().Import(t.Context(), bytes.NewReader(archive), nil); err != nil {
			t.Fatal(err)
		}
		id, err := n.tryCreate(pod, name, func(cfg *runtimeapi.ContainerConfig) { cfg.Image.Image = image }, "sleep", "1000")
		if err == nil {
			_, err = n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
		}
		switch {
		case c.refused == "" && err != nil:
			t.Errorf("%.60q: %v", c.volume, err)
		case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused) || len(err.Error()) > 600):
			t.Errorf("%.60q: refused with %.600v", c.volume, err)
		}
		if id != "" {
			if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
				t.Error(err)
			}
		}
	}
	if left, err := os.ReadDir(host); err != nil || len(left) > 0 {
		t.Errorf("the machine's directory has %v, %v", left, err)
	}
	for _, s := range n.core.host.Snaps.List() {
		if strings.Contains(s.Key, "-volume") {
			t.Errorf("left behind: snapshot %s", s.Key)
		}
	}
}
