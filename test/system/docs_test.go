package system

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// blocks are the commands of a page: those in ```sh, which want a node, and those in ```sh machine, which are about the
// machine.
func blocks(t *testing.T, page string) (node, machine string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range regexp.MustCompile("(?ms)^```(.*?)\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		switch b[1] {
		case "sh":
			node += b[2]
		case "sh machine":
			machine += b[2]
		default:
			t.Errorf("%s: a block of %q, which nothing runs", page, b[1])
		}
	}
	return node, machine
}

// place is a mount namespace in which /etc, /usr/local and /var/lib can be written to and nobody else sees it, as
// layers on top of the machine's own; /run is empty, and has the run directory of a node, if there is one. Programs
// that would be told something about the machine's own services say only what they are told.
const place = `
set -eu
layer() { mkdir -p "$T/$2/up" "$T/$2/work"; mount -t overlay overlay -o "lowerdir=$1,upperdir=$T/$2/up,workdir=$T/$2/work" "$1"; }
layer /etc etc; layer /usr/local local; layer /var/lib lib
mount -t tmpfs tmpfs /run
mkdir -p /etc/berth/manifests /etc/kubernetes/manifests /var/lib/kubelet "$T/home" "$T/bin"
if [ -n "$NODE" ]; then
	mkdir /run/berth
	mount --bind "$NODE/run" /run/berth
	mount --bind "$NODE/manifests" /etc/berth/manifests
fi
cat > /var/lib/kubelet/config.yaml <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
port: 0
staticPodPath: /etc/kubernetes/manifests
END
for name in systemctl journalctl; do
	printf '#!/bin/sh\ncase "$*" in *kubelet*|*berth*|daemon-reload) echo "%s $*" ;; *) exit 1 ;; esac\n' "$name" > "$T/bin/$name"
	chmod +x "$T/bin/$name"
done
cp "$BIN"/berth "$BIN"/berth-helper "$BIN"/berth-wasm "$T/bin/"
cp "$ARCHIVE" "$T/home/web.tar"
PATH=$T/bin:$PATH
unset BERTH_RUN_DIR BERTH_BIN
cd "$T/home"
set -x
`

// follow runs commands as a reader would, one after the other, until one fails.
func follow(t *testing.T, node, archive, commands string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "berth-docs-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--propagation", "private", "bash", "-c", place+commands)
	cmd.Env = append(os.Environ(), "T="+dir, "NODE="+node, "BIN="+filepath.Dir(bin("berth")), "ARCHIVE="+archive)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, time.Second
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		t.Fatalf("%v\n%s", err, out.String())
	}
	return out.String()
}

// renamed is the archive of the test image with the name that the pages have.
func renamed(t *testing.T) string {
	t.Helper()
	from, err := os.Open("../../bin/test/busybox.tar")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	path := filepath.Join(t.TempDir(), "web.tar")
	to, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	w := tar.NewWriter(to)
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == "index.json" {
			data = bytes.ReplaceAll(data, []byte(image), []byte("docker.io/library/busybox:1.37"))
			h.Size = int64(len(data))
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestPages follows the pages for newcomers: every command in them does what it is there for. Of a command that says
// something the page has told of, the words are looked for.
func TestPages(t *testing.T) {
	t.Parallel()
	for page, says := range map[string]struct{ node, machine []string }{
		"quickstart.md": {
			node: []string{"default/web-node is ready", "\nhello\n", "\nagain\n", "clock-node"},
			machine: []string{
				"This machine can run pods", "/etc/systemd/system/berth.service", "systemd does not run here", "remove    /usr/local/bin/berth\n",
			},
		},
		"troubleshooting.md": {node: []string{
			"bad.yaml", "Refused", "exit code 3, says the log", "CrashLoopBackOff", "nosuch", "manifests/web.yaml", "systemctl status berth",
		}},
		"migrate-from-kubelet.md": {
			node:    []string{"No pods.", "kind: KubeletConfiguration"},
			machine: []string{"staticPodPath: /etc/kubernetes/manifests", "systemctl disable --now kubelet", "--manifest-dir"},
		},
		"migrate-from-podman.md": {node: []string{"default/web-node is ready", "hostPath:", "GREETING"}},
	} {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			node, machine := blocks(t, page)
			archive := renamed(t)
			if machine != "" {
				requireWords(t, follow(t, "", archive, machine), says.machine)
			}
			n := newNode(t)
			if page == "troubleshooting.md" { // what crashes is to wait while the page is followed
				n.args = append(n.args, "--backoff-initial=20s", "--backoff-max=5m")
			}
			text, err := os.ReadFile(archive)
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(n.Dir, "images", "docs.tar"), string(text))
			n.start()
			n.eventually("the image of the pages", func() error {
				if out := n.must("images"); !strings.Contains(out, "library/busybox") {
					return fmt.Errorf("there are %s", out)
				}
				return nil
			})
			if page == "troubleshooting.md" {
				n.trouble()
			}
			requireWords(t, follow(t, n.Dir, archive, node), says.node)
			for _, file := range []string{"web", "crash", "pull", "bad"} {
				_ = os.Remove(n.Dir + "/manifests/" + file + ".yaml") // what the page leaves
			}
			n.eventually("the pods to end", func() error {
				if pods := n.pods(); len(pods) > 0 {
					return fmt.Errorf("%d are there", len(pods))
				}
				return nil
			})
		})
	}
}

func requireWords(t *testing.T, out string, words []string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(out, w) {
			t.Errorf("nothing says %q, only\n%s", w, out)
		}
	}
}

// trouble has the node in the states that the page tells of.
func (n *Node) trouble() {
	n.t.Helper()
	const end = `trap "exit 0" TERM; sleep 100000 & wait`
	write(n.t, n.Dir+"/manifests/bad.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec: {containers: []}\n")
	n.apply("web.yaml", n.must("init", "web", "--image", image, "--command", "--", "sh", "-c", end))
	n.apply("crash.yaml", n.must("init", "crash", "--image", image, "--command", "--", "sh", "-c", "echo exit code 3, says the log; exit 3"))
	n.apply("pull.yaml", n.must("init", "pull", "--image", "127.0.0.1:1/nosuch:1"))
	n.waitReady("web")
	n.wait("crash", "started twice", func(p *corev1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount > 0
	})
	n.wait("pull", "without its image", func(p *corev1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			strings.Contains(p.Status.ContainerStatuses[0].State.Waiting.Reason, "ImagePull")
	})
}

// TestInstallInTheWay: what would keep the agent from starting is found before anything is installed, with who it is
// and what to do.
func TestInstallInTheWay(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	out := follow(t, n.Dir, renamed(t), fmt.Sprintf(`
if berth install -- --healthz-port %d; then exit 1; fi
if [ -e /usr/local/bin/berth ] || [ -e /etc/systemd/system/berth.service ]; then exit 1; fi
berth install --dry-run -- --healthz-port %d > /dev/null
berth check -o json
`, port, port))
	requireWords(t, out, []string{
		fmt.Sprintf("--healthz-port %d is taken by process %d (", port, os.Getpid()), "to do: stop who has the port",
		fmt.Sprintf("process %d (", n.cmd.Process.Pid), "and is not the service berth", "it lacks: berth, ports.",
		"nothing was installed", fmt.Sprintf("the agent of /run/berth is process %d", n.cmd.Process.Pid),
	})
}
