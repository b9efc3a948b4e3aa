package system

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mappedKinds are the kinds of volumes that the kernel's device mapper is needed for, by parameters of their classes.
var mappedKinds = map[string]string{
	"luks": "type: loop, encryption: luks", "lvm": "type: lvm", "luks on lvm": "type: lvm, encryption: luks",
}

const mappedGroup = "berthsys"

// readable is what nobody is to read who has not the passphrase.
const readable = "what is written in clear is found again by who reads the disk"

// needMapper skips a test where there is no device mapper, or no program for it.
func needMapper(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: opens encrypted devices")
	}
	for _, name := range []string{"cryptsetup", "lvcreate", "thin_check", "dmsetup", "losetup"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs %s", name)
		}
	}
	_ = exec.Command("modprobe", "dm-mod").Run() // where it is built in there is no module
	if misc := readAll(t, "/proc/misc"); !strings.Contains(misc, "device-mapper") {
		t.Skip("this kernel has no device mapper: make csi-vm")
	}
}

// says runs a program of the machine.
func says(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// volumeGroup is a group of LVM with a thin pool on an image, until the test has ended.
func volumeGroup(t *testing.T, image string) {
	t.Helper()
	write(t, image, "")
	if err := os.Truncate(image, 4<<30); err != nil {
		t.Fatal(err)
	}
	device := says(t, "losetup", "--find", "--show", image)
	t.Cleanup(func() { says(t, "losetup", "--detach", device) })
	says(t, "vgcreate", "--yes", mappedGroup, device)
	t.Cleanup(func() { says(t, "vgremove", "--yes", "--force", mappedGroup) })
	says(t, "lvcreate", "--yes", "--type=thin-pool", "--size=3g", "--name=berth", mappedGroup)
}

// mapperArgs are of a node that uses the group.
var mapperArgs = []string{"--volume-delete-grace=0s", "--csi-local-volume-group=" + mappedGroup}

func mappedClass(kind string) string {
	secret := func(call string) string {
		return fmt.Sprintf(", csi.storage.k8s.io/node-%[1]s-secret-name: key, csi.storage.k8s.io/node-%[1]s-secret-namespace: default", call)
	}
	parameters := mappedKinds[kind]
	if strings.Contains(parameters, "luks") {
		parameters += secret("stage") + secret("expand")
	}
	return `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: mapped, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: local.csi.berth.node
allowVolumeExpansion: true
volumeBindingMode: WaitForFirstConsumer
parameters: {` + parameters + `}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: snap, annotations: {snapshot.storage.kubernetes.io/is-default-class: "true"}}
driver: local.csi.berth.node
deletionPolicy: Delete
`
}

// passphrase has the Secret of the class have a passphrase. It is in a file that others cannot read.
func (n *Node) passphrase(is string) {
	n.t.Helper()
	path := filepath.Join(n.Dir, "key.yaml")
	write(n.t, path, "apiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {passphrase: "+is+"}\n")
	err := os.Chmod(path, 0o600)
	if err = errors.Join(err, os.Rename(path, filepath.Join(n.Dir, "manifests/key.yaml"))); err != nil {
		n.t.Fatal(err)
	}
}

// TestMapped has claims get volumes that are encrypted, logical, or both, with nothing beside the manifests.
func TestMapped(t *testing.T) {
	needMapper(t)
	for kind, parameters := range mappedKinds {
		t.Run(kind, func(t *testing.T) {
			n := newNode(t, mapperArgs...)
			volumeGroup(t, filepath.Join(t.TempDir(), "disk"))
			m := newMapped(n, strings.Contains(parameters, "luks"))
			n.start()
			n.apply("class.yaml", mappedClass(kind))
			n.passphrase("correct-horse")
			m.outlivesAgent()
			m.wrongKey()
			m.expands()
			m.snapshots()
			m.removed()
		})
	}
}

// mappedTest is a node with one volume, which a pod has.
type mappedTest struct {
	*Node
	encrypted bool
	before    []string // devices that the machine had
}

func newMapped(n *Node, encrypted bool) *mappedTest {
	n.t.Helper()
	before, err := filepath.Glob("/dev/mapper/*")
	if err != nil {
		n.t.Fatal(err)
	}
	return &mappedTest{Node: n, encrypted: encrypted, before: before}
}

// outlivesAgent has the agent be killed while a pod has the volume, and the pod be made anew.
func (m *mappedTest) outlivesAgent() {
	m.t.Helper()
	m.apply("claim.yaml", madeClaim("data", "48Mi", ""))
	m.apply("one.yaml", mounting("one", "data"))
	m.waitReady("one")
	m.sh("one", "for i in $(seq 100); do echo "+readable+"; done > /v/file; sync")
	m.kill()
	m.start()
	m.has("one", readable)
	m.sh("one", "echo also after that > /v/more; sync")
	m.remove("one.yaml")
	m.waitGone("one")
	m.eventually("the devices of the volume to go", func() error { return m.devices() })
	if found := m.inClear(); found == m.encrypted {
		m.t.Errorf("what was written is on the disk in clear: %v", found)
	}
	m.apply("one.yaml", mounting("one", "data"))
	m.waitReady("one")
	m.has("one", readable)
}

func (m *mappedTest) has(pod, text string) {
	m.t.Helper()
	if got := m.sh(pod, "head -n 1 /v/file"); got != text+"\n" {
		m.t.Errorf("in pod %s the volume has %q, want %q", pod, got, text)
	}
}

// devices says which devices there are that the machine had not before. The pool has one more once it has volumes.
func (m *mappedTest) devices() error {
	names, err := filepath.Glob("/dev/mapper/*")
	for _, name := range names {
		if !slices.Contains(m.before, name) && name != "/dev/mapper/"+mappedGroup+"-berth-tpool" {
			err = errors.Join(err, fmt.Errorf("%s is there", name))
		}
	}
	return err
}

// stored are what the volumes of the node are stored in, and what makes them be read and no longer.
func (m *mappedTest) stored() (paths []string, done func()) {
	m.t.Helper()
	images, err := filepath.Glob(filepath.Join(m.Dir, "root/csi-local/images/*"))
	if err != nil {
		m.t.Fatal(err)
	}
	var volumes []string
	for _, name := range logicalVolumes(m.t) {
		if name != "berth" {
			volumes = append(volumes, mappedGroup+"/"+name)
			images = append(images, "/dev/"+mappedGroup+"/"+name)
		}
	}
	if len(volumes) == 0 {
		return images, func() {}
	}
	says(m.t, "lvchange", append([]string{"--activate=y"}, volumes...)...)
	return images, func() { says(m.t, "lvchange", append([]string{"--activate=n"}, volumes...)...) }
}

func logicalVolumes(t *testing.T) []string {
	t.Helper()
	return strings.Fields(says(t, "lvs", "--noheadings", "-o", "lv_name", mappedGroup))
}

// inClear says whether what a pod has written is found on the disk.
func (m *mappedTest) inClear() bool {
	m.t.Helper()
	paths, done := m.stored()
	defer done()
	if len(paths) != 1 {
		m.t.Fatalf("the volume is in %v", paths)
	}
	f, err := os.Open(paths[0])
	if err != nil {
		m.t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	for kept := 0; ; {
		n, err := f.Read(buf[kept:])
		if bytes.Contains(buf[:kept+n], []byte(readable)) {
			return true
		}
		if errors.Is(err, io.EOF) {
			return false
		}
		if err != nil {
			m.t.Fatal(err)
		}
		all := buf[:kept+n]
		kept = copy(buf, all[max(0, len(all)-len(readable)):])
	}
}

// wrongKey has the Secret have another passphrase: the pod is told why it does not start, nobody is told a passphrase,
// and with the right one it starts.
func (m *mappedTest) wrongKey() {
	m.t.Helper()
	if !m.encrypted {
		return
	}
	m.remove("one.yaml")
	m.waitGone("one")
	m.passphrase("battery-staple")
	m.apply("one.yaml", mounting("one", "data"))
	m.eventually("the pod to be told why it does not start", func() error {
		if out := m.must("events", "one"); !strings.Contains(out, "passphrase: it is not that of the volume") {
			return errors.New(out)
		}
		return nil
	})
	log := readAll(m.t, m.Log) + m.must("events", "-A")
	for _, secret := range []string{"battery-staple", "correct-horse"} {
		if strings.Contains(log, secret) {
			m.t.Errorf("a passphrase is told: %s", secret)
		}
	}
	m.passphrase("correct-horse")
	m.waitReady("one")
	m.has("one", readable)
}

// expands has the volume be larger while a pod has it.
func (m *mappedTest) expands() {
	m.t.Helper()
	m.apply("claim.yaml", madeClaim("data", "160Mi", ""))
	m.eventually("the file system to be larger", func() error {
		var blocks, size int
		out := m.sh("one", "stat -f -c '%b %S' /v")
		if _, err := fmt.Sscan(out, &blocks, &size); err != nil || blocks*size < 120<<20 {
			return fmt.Errorf("it has %q, %w", out, err)
		}
		return nil
	})
	m.has("one", readable)
	m.sh("one", "dd if=/dev/zero of=/v/zeros bs=1M count=100 && sync && rm /v/zeros") // more than fitted before
}

// snapshots has a snapshot be made of the volume while a pod has it, with what nobody has synced, and a volume be made
// of that.
func (m *mappedTest) snapshots() {
	m.t.Helper()
	m.sh("one", "echo first > /v/file") // and nobody has it be on the disk
	m.apply("snapshot.yaml", "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: {name: s}\n"+
		"spec: {source: {persistentVolumeClaimName: data}}\n")
	m.requireEvents("VolumeSnapshot/s", "SnapshotCreated", "SnapshotReady")
	m.sh("one", "echo second > /v/file; sync")
	m.apply("restored.yaml", madeClaim("restored", "160Mi", "  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: s}\n"))
	m.apply("two.yaml", mounting("two", "restored"))
	m.waitReady("two")
	m.has("two", "first")
	m.has("one", "second")
}

// removed takes everything away while the agent is killed in the middle of it, after which nothing is left.
func (m *mappedTest) removed() {
	m.t.Helper()
	for _, pod := range []string{"one", "two"} {
		m.remove(pod + ".yaml")
	}
	m.kill()
	m.start()
	m.waitGone("one")
	m.waitGone("two")
	for _, f := range []string{"restored.yaml", "snapshot.yaml", "claim.yaml"} {
		m.remove(f)
	}
	m.nothingLeft()
}

// nothingLeft waits until there is no volume, no snapshot and no device of one.
func (m *mappedTest) nothingLeft() {
	m.t.Helper()
	m.eventually("nothing to be left", func() error {
		err := m.devices()
		for _, dir := range []string{"images", "records/volumes", "records/snapshots"} {
			left, readErr := os.ReadDir(filepath.Join(m.Dir, "root/csi-local", dir))
			if err = errors.Join(err, readErr); len(left) > 0 {
				err = errors.Join(err, fmt.Errorf("%s has %v", dir, left))
			}
		}
		if left := logicalVolumes(m.t); !slices.Equal(left, []string{"berth"}) {
			err = errors.Join(err, fmt.Errorf("there are the logical volumes %v", left))
		}
		return err
	})
	requireNoLoops(m.t, m.Node)
}

// TestMappedPurged has a node be purged while a pod has an encrypted volume: nothing of it is open any more, and what
// was written is found again.
func TestMappedPurged(t *testing.T) {
	needMapper(t)
	n := newNode(t, mapperArgs...)
	volumeGroup(t, filepath.Join(t.TempDir(), "disk"))
	m := newMapped(n, true)
	n.start()
	n.apply("class.yaml", mappedClass("luks"))
	n.passphrase("correct-horse")
	n.apply("claim.yaml", madeClaim("data", "48Mi", ""))
	n.apply("one.yaml", mounting("one", "data"))
	n.waitReady("one")
	n.sh("one", "echo "+readable+" > /v/file && sync")
	n.kill()
	says(t, bin("berth"), append([]string{"purge", "--yes"}, n.dirArgs()...)...)
	if err := m.devices(); err != nil {
		t.Errorf("after the purge %v", err)
	}
	requireNoLoops(t, n)
	n.start()
	n.waitReady("one")
	m.has("one", readable)
	n.remove("one.yaml")
	n.waitGone("one")
	n.remove("claim.yaml")
	m.nothingLeft()
}
