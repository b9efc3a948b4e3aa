// Package vm proves berth on a machine of its own: Debian with systemd and cgroup v2, from the package to its removal.
package vm

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// files is how many an image has besides busybox, and fileSize how large each is, in bytes.
const (
	files    = 40
	fileSize = 64 << 10
)

// images are made for the machine's registry: the first is what the pod has that stays, the others come and go.
var images = []string{"site", "one", "two", "three"}

// manifest is a pod of an image, which answers requests at port 8080 when that is the node's.
func manifest(name, image string, port bool) string {
	text := fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: %s
    image: 127.0.0.1:5000/%s:1
    readinessProbe: {httpGet: {path: /f0, port: 8080}, timeoutSeconds: 60}
`, name, name, image)
	if port {
		text += "    ports: [{containerPort: 8080, hostPort: 8080}]\n"
	}
	return text
}

// provide makes what the machine finds at /run/berth-vm.
func provide(t *testing.T) (dir string, file []byte) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dir = t.TempDir()
	next := os.Getenv("VM_NEW")
	old := cmp.Or(os.Getenv("VM_OLD"), next)
	for to, from := range map[string]string{
		"old.deb": old, "new.deb": next, "guest": os.Getenv("VM_GUEST"),
		"old.tar.gz": strings.TrimSuffix(old, ".deb") + ".tar.gz", "new.tar.gz": strings.TrimSuffix(next, ".deb") + ".tar.gz",
	} {
		copyFile(t, from, filepath.Join(dir, to))
	}
	work := t.TempDir()
	for n, image := range images {
		random := rand.New(rand.NewPCG(uint64(n), 1))
		sums, args := "", []string{
			"-o", filepath.Join(work, "image.tar"), "-name", "site:1", "-entrypoint", "/bin/busybox sh /start", "-arch", arch(),
			"/bin/busybox=" + filepath.Join(os.Getenv("VM_IMAGE"), "busybox"), "/start:echo started\nexec /bin/busybox httpd -f -p 8080 -h /data\n",
		}
		for i := range files {
			data := make([]byte, fileSize)
			for j := range data {
				data[j] = byte(random.Uint32())
			}
			path := filepath.Join(work, fmt.Sprintf("%s-%d", image, i))
			must(os.WriteFile(path, data, 0o644))
			args = append(args, fmt.Sprintf("/data/f%d=%s", i, path))
			sums += fmt.Sprintf("%x  data/f%d\n", sha256.Sum256(data), i)
			if n == 0 && i == 0 {
				file = data
			}
		}
		cmd := exec.Command("go", append([]string{"run", "../mkimage"}, append(args, "/SUMS:"+sums)...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("make image: %v: %s", err, out)
		}
		layout := filepath.Join(dir, "images", image)
		must(os.MkdirAll(layout, 0o755))
		if out, err := exec.Command("tar", "-C", layout, "-xf", filepath.Join(work, "image.tar")).CombinedOutput(); err != nil {
			t.Fatalf("unpack image: %v: %s", err, out)
		}
	}
	return dir, file
}

// arch is the machine's processor, by Go's name.
func arch() string { return cmp.Or(os.Getenv("VM_ARCH"), "amd64") }

// TestMachine is the life of berth on one machine, as its administrator sees it. VM_IMAGE is what test/vm/image prints,
// VM_OLD and VM_NEW two releases as Debian packages with their tarballs beside them, VM_GUEST the program of
// test/vm/guest; VM_CUTS is how often the power is cut.
func TestMachine(t *testing.T) {
	life := born(t)
	life.steps(t, []step{
		{"install", life.install},
		{"pod", life.pod},
		{"volume", life.volume},
		{"reboot", life.rebooted},
		{"upgrade", life.upgraded},
		{"rollback", life.rolledBack},
		{"kubelet", life.kubelet},
		{"pulled again", life.pulledAgain},
		{"cuts", life.cuts},
		{"full disk", life.full},
		{"uninstall", life.uninstall},
	})
}

// TestShort is what every change can be held to: it is installed, runs a pod, and leaves nothing.
func TestShort(t *testing.T) {
	life := born(t)
	life.steps(t, []step{{"install", life.install}, {"pod", life.pod}, {"uninstall", life.uninstall}})
}

// born is a machine that has booted for the first time.
func born(t *testing.T) *life {
	t.Helper()
	if os.Getenv("VM_IMAGE") == "" || os.Getenv("VM_NEW") == "" {
		t.Skip("needs a virtual machine: make test-vm")
	}
	dir, file := provide(t)
	m := newMachine(t, dir)
	m.boot()
	return &life{machine: m, file: file}
}

// A step of a machine's life.
type step struct {
	name string
	do   func(t *testing.T)
}

// steps takes one step after the other, until one fails.
func (l *life) steps(t *testing.T, all []step) {
	m := l.machine
	for _, s := range all {
		ok := t.Run(s.name, func(t *testing.T) {
			m.t = t
			began := time.Now()
			s.do(t)
			t.Logf("took %s", time.Since(began).Round(time.Second))
		})
		m.t = t
		if !ok {
			return
		}
	}
}

// life is what is known of the machine from one step to the next.
type life struct {
	machine *machine
	file    []byte // what the pod serves
	before  string // the machine before the package was installed
	starts  int    // how many the volume has
}

// state is a line for each file that is no log, no package's record and no cache, and for each thing of the kernel's
// that a node makes.
const state = `
find / -xdev \( -path /var/log -o -path /var/lib/dpkg -o -path /var/lib/systemd -o -path /var/cache -o -path /tmp \
	-o -path /var/tmp -o -path /root \) -prune -o -printf '%y %m %U:%G %p %l\n' | sort
find /etc -type f -exec sha256sum {} + | sort -k 2
ip -o link | sed 's/^[0-9]*: //; s/ state .*//' | sort
ip -o addr show scope global
ip route
nft list ruleset
awk '{print $5, $9, $(NF-2)}' /proc/self/mountinfo | grep -v '^/run/user' | sort
find /sys/fs/cgroup -type d \( -name '*berth*' -o -name 'kubepods*' \) ! -name 'berth\x2dvm.service' ! -name berth-vm.service
ls /run/netns 2>/dev/null || true
losetup -a
ls /run | grep -v -e systemd -e berth-vm | sort
`

func (l *life) install(*testing.T) {
	m := l.machine
	l.before = m.run(state)
	m.run("dpkg -i /run/berth-vm/old.deb")
	m.await("the service", "systemctl is-active berth")
	m.run("berth check")
}

// registry is there again after each boot.
func (l *life) registry() {
	l.machine.run("systemd-run --quiet --collect --unit=registry /run/berth-vm/guest registry 127.0.0.1:5000 /run/berth-vm/images")
}

func (l *life) apply(name, image string, port bool) {
	l.machine.run(fmt.Sprintf("cat >/etc/berth/new <<'END'\n%sEND\nmv /etc/berth/new /etc/berth/manifests/%s.yaml",
		manifest(name, image, port), name))
}

// ready waits for pods, whose names end with the node's as every static pod's does.
func (l *life) ready(pods ...string) {
	for _, pod := range pods {
		l.machine.await(pod+" to be ready", fmt.Sprintf(`berth pods --no-headers | grep -E '^%s-berth-vm +1/1 +Running'`, pod))
	}
}

// serves asks the pod from outside of the machine.
func (l *life) serves(t *testing.T) {
	t.Helper()
	client := http.Client{Timeout: 2 * time.Minute}
	resp, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/f0", l.machine.port))
	if err != nil {
		t.Fatalf("ask the pod: %v", err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 2*fileSize))
	if err != nil || !bytes.Equal(data, l.file) {
		t.Fatalf("the pod answers %s with %d bytes (%v), not with its file", resp.Status, len(data), err)
	}
}

func (l *life) pod(t *testing.T) {
	l.registry()
	l.apply("site", "site", true)
	l.ready("site")
	l.serves(t)
}

// addresses are those that are given out, and the pods that run.
func (l *life) addresses(t *testing.T) {
	t.Helper()
	given := l.machine.await("an address for each pod", `
		given=$(find /run/berth -type l -regextype posix-extended -regex '.*/[0-9]+(\.[0-9]+){3}' | wc -l)
		pods=$(berth pods -A --no-headers | wc -l)
		echo "$given addresses, $pods pods"
		[ $given -eq $pods ]`)
	t.Log(given)
}

func (l *life) rebooted(t *testing.T) {
	m := l.machine
	m.reboot()
	l.registry() // the steps after this one pull
	l.ready("site")
	l.serves(t)
	l.keeps(t)
	l.addresses(t)
	if n := m.run("cat /var/log/pods/*/site/*.log | grep -c started"); n != "2" {
		t.Errorf("the logs have %s starts of two", n)
	}
	// The pod's process does not hear SIGTERM: it had the grace period of its pod, not all that systemd waits.
	log := m.run("journalctl -b -1 -u berth --no-pager")
	if !strings.Contains(log, "the machine is shut down, pods are ended") || strings.Contains(log, "pods have not ended in their time") {
		t.Errorf("before the reboot: %s", log[max(0, len(log)-4000):])
	}
}

// churn has pods and images come and go until the power does.
const churn = `
for ((n = 0; ; n++)); do
	for image in one two three; do
		case $((RANDOM % 3)) in
		0) sed "s/NAME/$image/" /root/churn.yaml >/etc/berth/new && mv /etc/berth/new /etc/berth/manifests/$image.yaml ;;
		1) rm -f /etc/berth/manifests/$image.yaml ;;
		2) berth images rm --force 127.0.0.1:5000/$image:1 || berth images pull 127.0.0.1:5000/$image:1 ;;
		esac
	done
	sleep 0.$((RANDOM % 10))
done`

func (l *life) cuts(t *testing.T) {
	m := l.machine
	cuts, err := strconv.Atoi(os.Getenv("VM_CUTS"))
	if err != nil {
		cuts = 10
	}
	m.run("cat >/root/churn.yaml <<'END'\n" + manifest("NAME", "NAME", false) + "END\ncat >/root/churn <<'END'" + churn + "\nEND\nsync")
	for n := range cuts {
		m.run("systemd-run --quiet --collect --unit=churn bash /root/churn")
		wait := time.Duration(1000+rand.IntN(30000)) * time.Millisecond
		time.Sleep(wait) // the moment of the cut
		m.cut()
		m.boot()
		l.registry()
		m.run("rm -f /etc/berth/manifests/{two,three}.yaml")
		l.apply("one", "one", false)
		l.ready("site", "one")
		l.serves(t)
		l.keeps(t)
		m.await("the other pods to be gone", `! berth pods --no-headers | grep -v -E '^(site|one|kept)-berth-vm '`)
		l.true(t)
		l.addresses(t)
		t.Logf("cut %d after %s", n, wait)
	}
	m.run("rm -f /etc/berth/manifests/one.yaml")
	m.await("the pod to be gone", `! berth pods --no-headers | grep '^one-'`)
	l.forgets()
}

// pulledAgain has the power cut when an image has been taken away and pulled again, while its layers were here all the
// time under a container.
func (l *life) pulledAgain(t *testing.T) {
	m := l.machine
	m.run("sync; berth images rm --force 127.0.0.1:5000/site:1; berth images pull 127.0.0.1:5000/site:1")
	time.Sleep(8 * time.Second) // the moment of the cut: records are on the disk after 5 s, and other files after 30 s
	m.cut()
	m.boot()
	l.registry()
	l.ready("site")
	l.serves(t)
	l.keeps(t)
	l.true(t)
}

// true says whether what the node believes to have is on the disk, byte for byte. Content of a pull that was cut off is
// nothing that it believes: it is looked at again when it is read, and fetched again where it is torn.
func (l *life) true(t *testing.T) {
	t.Helper()
	m := l.machine
	m.run("berth check")
	out := m.run(`
cd /var/lib/berth
find content -path '*sha256/*' -type f -regextype posix-extended -regex '.*/[0-9a-f]{64}' | while read -r blob; do
	[ "$(sha256sum <"$blob" | cut -c 1-64)" = "${blob##*/}" ] && continue
	if grep -rqF "${blob##*/}" content/images || berth images -o json | grep -qF "${blob##*/}"; then
		echo "blob $blob of an image is not what its name says"
	fi
done
layers=0
while read -r sums; do
	layers=$((layers + 1))
	(cd "${sums%/SUMS}" && sha256sum --quiet -c SUMS 2>&1) || echo "layer $sums has other files"
done < <(find snapshots -maxdepth 4 -name SUMS)
images=$(berth images -q | sort -u | wc -l)
[ $layers -ge $images ] || echo "$layers layers of $images images"
find . -maxdepth 3 -name '*.damaged*'
journalctl -b -u berth --no-pager | grep -i -e quarantin -e damaged -e corrupt || true`)
	if out != "" {
		t.Errorf("after the cut: %s", out)
	}
}

func (l *life) uninstall(t *testing.T) {
	m := l.machine
	m.run("rm -f /etc/berth/manifests/*.yaml /etc/berth/new")
	m.await("no pod to be left", "[ -z \"$(berth pods -A --no-headers)\" ]")
	m.run("systemctl stop berth; berth purge --yes; dpkg -P berth; systemctl stop registry; systemctl daemon-reload")
	after := m.run(state)
	for _, d := range differences(l.before, after) {
		t.Errorf("after removal: %s", d)
	}
}

// differences are the lines that only one of two texts has.
func differences(before, after string) []string {
	was, is := strings.Split(before, "\n"), strings.Split(after, "\n")
	var out []string
	for _, line := range was {
		if !slices.Contains(is, line) {
			out = append(out, "- "+line)
		}
	}
	for _, line := range is {
		if !slices.Contains(was, line) {
			out = append(out, "+ "+line)
		}
	}
	return out
}
