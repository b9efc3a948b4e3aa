package iscsi

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/volume/iscsi/iscsitest"
	"github.com/berth-node/berth/agent/volume/kind"
	"github.com/berth-node/berth/internal/mount"
	"github.com/berth-node/berth/internal/mount/mounttest"
)

func iscsiPV(lun int32, change ...func(*corev1.ISCSIPersistentVolumeSource)) *corev1.PersistentVolume {
	s := &corev1.ISCSIPersistentVolumeSource{TargetPortal: "127.0.0.1", IQN: iscsitest.IQN, Lun: lun, ISCSIInterface: "default"}
	for _, f := range change {
		f(s)
	}
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{ISCSI: s}, VolumeMode: new(corev1.PersistentVolumeFilesystem),
	}}
}

const testUID = "0123456789abcdef"

// node is a node that has volumes of this kind alone.
type node struct{ *Kind }

func manager(t *testing.T) *node {
	t.Helper()
	root := mounttest.Root(t)
	return (&node{&Kind{records: kind.Records[diskRecord]{Root: kind.Root(root)}}}).next()
}

// next is the node after its agent was restarted.
func (n *node) next() *node {
	return &node{New(n.records.Root, new(mount.Devices), slog.New(slog.DiscardHandler))}
}

// content is what the volume v of a pod is to be.
type content struct {
	Persistent map[string]*corev1.PersistentVolume
	CHAP       map[string]map[string][]byte
}

func claimed(pv *corev1.PersistentVolume) (*corev1.Pod, content) {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: testUID}}, content{Persistent: map[string]*corev1.PersistentVolume{"v": pv}}
}

// setUp makes the volume v of a pod.
func (n *node) setUp(ctx context.Context, pod *corev1.Pod, c content) (map[string]string, error) {
	dir, err := n.records.Root.Dir(pod.UID)
	if err == nil {
		err = os.MkdirAll(dir, 0o750)
	}
	if err != nil {
		return nil, err
	}
	made, err := n.Setup(ctx, &kind.Volume{
		Source: kind.Source{Pod: &corev1.VolumeSource{}, Bound: c.Persistent["v"]}, Pod: pod, Dir: dir, Name: "v", Secrets: kind.Secrets{chap: c.CHAP["v"]},
	})
	return map[string]string{"v": made.Path}, err
}

// tearDown takes a pod away.
func (n *node) tearDown(ctx context.Context, uid types.UID) error {
	dir, err := n.records.Root.Dir(uid)
	if err == nil {
		err = mount.UnmountUnder(dir)
	}
	if err == nil {
		err = n.Release(ctx, dir)
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func teardown(t *testing.T, n *node) {
	t.Helper()
	must(t, n.tearDown(t.Context(), testUID))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// nothingLeft is what the initiator has of the target, and of ours.
func nothingLeft(t *testing.T, m *node) {
	t.Helper()
	if sessions, err := m.kernel.sessions(iscsitest.IQN); err != nil || len(sessions) > 0 {
		t.Errorf("sessions are left: %+v, %v", sessions, err)
	}
	for _, args := range [][]string{{"-m", "node"}, {"-m", "iface"}, {"-m", "discoverydb"}} {
		out, err := exec.CommandContext(t.Context(), "iscsiadm", args...).CombinedOutput()
		if strings.Contains(string(out), iscsitest.IQN) || strings.Contains(string(out), "berth-") || args[1] == "discoverydb" && err == nil && len(out) > 0 {
			t.Errorf("%v: left: %s", args, out)
		}
	}
}

func sessionIDs(t *testing.T, m *node) (ids []int) {
	t.Helper()
	sessions, err := m.kernel.sessions(iscsitest.IQN)
	must(t, err)
	for _, s := range sessions {
		ids = append(ids, s.id)
	}
	return ids
}

func TestISCSI(t *testing.T) {
	group := iscsitest.Start(t)
	t.Run("shared", iscsiShared)
	t.Run("portals", defaultPortals)
	t.Run("cut off", iscsiCutOff)
	t.Run("chap", func(t *testing.T) { iscsiCHAP(t, group) })
	t.Run("not ours", iscsiForeign)
}

// iscsiShared: two pods with a disk each, and a third one with one of theirs.
func iscsiShared(t *testing.T) {
	m := manager(t)
	first, content := claimed(iscsiPV(0))
	second, other := claimed(iscsiPV(1, func(s *corev1.ISCSIPersistentVolumeSource) { s.FSType = "ext3" }))
	second.UID = "second"
	paths, err := m.setUp(t.Context(), first, content)
	must(t, err)
	mounttest.Write(t, paths["v"]+"/file", "kept")
	_, err = m.setUp(t.Context(), first, content)
	must(t, err)
	more, err := m.setUp(t.Context(), second, other)
	must(t, err)
	if data, err := os.ReadFile("/proc/mounts"); err != nil || !strings.Contains(string(data), more["v"]+" ext3 ") {
		t.Errorf("%s is no ext3: %v\n%s", more["v"], err, data)
	}
	third, _ := claimed(nil)
	third.UID = "third"
	same, err := m.setUp(t.Context(), third, content)
	must(t, err)
	if mounttest.Read(t, same["v"]+"/file") != "kept" {
		t.Error("the third pod has another disk")
	}
	ids := sessionIDs(t, m)
	if len(ids) != 1 {
		t.Fatalf("sessions %v", ids)
	}
	for _, uid := range []types.UID{"second", "third"} {
		must(t, m.tearDown(t.Context(), uid))
	}
	if got := sessionIDs(t, m); !slices.Equal(got, ids) {
		t.Errorf("sessions %v, had %v", got, ids)
	}
	if device, err := m.kernel.deviceOf(ids[0], 1); err != nil || device != "" {
		t.Errorf("the device of nobody's disk is left: %s, %v", device, err)
	}
	if mounttest.Read(t, paths["v"]+"/file") != "kept" {
		t.Error("the first pod has lost its file")
	}
	// Somebody else on the machine has the disk mounted too.
	device, err := m.kernel.deviceOf(ids[0], 0)
	must(t, err)
	elsewhere := t.TempDir()
	must(t, unix.Mount(device, elsewhere, "ext4", 0, ""))
	if err := m.tearDown(t.Context(), testUID); err == nil || !strings.Contains(err.Error(), device+" is still in use") {
		t.Errorf("logged out below a file system: %v", err)
	}
	if mounttest.Read(t, elsewhere+"/file") != "kept" {
		t.Error("the file is gone")
	}
	must(t, unix.Unmount(elsewhere, 0))
	teardown(t, m)
	nothingLeft(t, m)
	// What is on the disk is on it at the next time.
	content.Persistent["v"].Spec.ISCSI.ReadOnly = true
	paths, err = m.setUp(t.Context(), first, content)
	must(t, err)
	if mounttest.Read(t, paths["v"]+"/file") != "kept" {
		t.Error("the file is gone")
	}
	if err := os.WriteFile(paths["v"]+"/file", nil, 0o600); err == nil {
		t.Error("the file system is not read-only")
	}
	teardown(t, m)
	nothingLeft(t, m)
}

// defaultPortals: the first of them is dead, and the disk is used as it is.
func defaultPortals(t *testing.T) {
	m := manager(t)
	pv := iscsiPV(0, func(s *corev1.ISCSIPersistentVolumeSource) {
		s.TargetPortal, s.Portals = "127.0.0.1:3999", []string{"127.0.0.1:3261"}
		s.InitiatorName = new("iqn.2001-04.com.example:initiator")
	})
	pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	pod, content := claimed(pv)
	paths, err := m.setUp(t.Context(), pod, content)
	must(t, err)
	if info, err := os.Stat(paths["v"]); err != nil || !mount.IsBlock(info.Mode()) {
		t.Errorf("%s is no device: %v", paths["v"], err)
	}
	again, err := m.setUp(t.Context(), pod, content)
	if err != nil || again["v"] != paths["v"] {
		t.Errorf("%v, %v; had %v", again, err, paths)
	}
	// The volume is another one now, and a container may have the device open.
	content.Persistent["v"].Spec.ISCSI.Lun = 1
	again, err = m.setUp(t.Context(), pod, content)
	if err != nil || again["v"] != paths["v"] {
		t.Errorf("%v, %v; had %v", again, err, paths)
	}
	out, err := exec.CommandContext(t.Context(), "iscsiadm", "-m", "session", "-P", "1").CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("127.0.0.1:3261")) || !bytes.Contains(out, []byte("iqn.2001-04.com.example:initiator")) {
		t.Errorf("%v: %s", err, out)
	}
	teardown(t, m)
	nothingLeft(t, m)
	pod, content = claimed(iscsiPV(7))
	if _, err := m.setUp(t.Context(), pod, content); err == nil || !strings.Contains(err.Error(), "the target has no LUN 7") {
		t.Errorf("LUN 7: %v", err)
	}
	// The volume says something else now.
	content.Persistent["v"].Spec.ISCSI.Lun = 1
	_, err = m.setUp(t.Context(), pod, content)
	must(t, err)
	teardown(t, m)
	nothingLeft(t, m)
}

// iscsiCutOff: the agent ends in the middle, and the next one goes on or takes it away.
func iscsiCutOff(t *testing.T) {
	m := manager(t)
	pod, content := claimed(iscsiPV(0))
	s := content.Persistent["v"].Spec.ISCSI
	portals := []string{"127.0.0.1:3260"}
	disk := diskRecord{IQN: s.IQN, LUN: s.Lun, Iface: m.ifaceName(s), Portals: portals, Discovered: portals}
	adm, err := findAdm()
	must(t, err)
	dir, err := m.records.Root.Dir(testUID)
	must(t, err)
	steps := []func(){
		func() { must(t, os.MkdirAll(dir, 0o750)); must(t, m.records.Keep(dir, "v", disk)) },
		func() { must(t, m.makeIface(t.Context(), adm, disk.Iface, s)) },
		func() {
			_, err := adm.run(t.Context(), append(discoveryRecord(portals[0]), "-o", "new"))
			must(t, err)
		},
		func() {
			_, err := adm.run(t.Context(), append(nodeRecord(disk, portals[0]), "-o", "new"))
			must(t, err)
		},
		func() {
			_, err := m.login(t.Context(), adm, disk, portals[0], diskVolume{source: s})
			must(t, err)
		},
	}
	for n := range steps {
		for _, step := range steps[:n+1] {
			step()
		}
		next := m.next()
		teardown(t, next)
		nothingLeft(t, next)
		for _, step := range steps[:n+1] {
			step()
		}
		_, err := next.setUp(t.Context(), pod, content)
		must(t, err)
		if ids := sessionIDs(t, m); len(ids) != 1 {
			t.Errorf("sessions %v", ids)
		}
		teardown(t, next)
		nothingLeft(t, next)
	}
}

func iscsiCHAP(t *testing.T, group string) {
	set := func(path, value string) { t.Helper(); must(t, os.WriteFile(path, []byte(value), 0)) }
	set(group+"/attrib/authentication", "1")
	set(group+"/auth/userid", "user")
	set(group+"/auth/password", "session-secret")
	discovery := filepath.Join(filepath.Dir(filepath.Dir(group)), "discovery_auth")
	set(discovery+"/userid", "finder")
	set(discovery+"/password", "discovery-secret")
	set(discovery+"/enforce_discovery_auth", "1")
	t.Cleanup(func() { set(group+"/attrib/authentication", "0"); set(discovery+"/enforce_discovery_auth", "0") })
	secret := map[string][]byte{
		"node.session.auth.username": []byte("user"), "node.session.auth.password": []byte("session-secret"),
		"discovery.sendtargets.auth.username": []byte("finder"), "discovery.sendtargets.auth.password": []byte("discovery-secret"),
	}
	m := manager(t)
	pod, content := claimed(iscsiPV(0, func(s *corev1.ISCSIPersistentVolumeSource) { s.SessionCHAPAuth, s.DiscoveryCHAPAuth = true, true }))
	for key, value := range map[string]string{
		"node.session.auth.password": "wrong-secret-1", "discovery.sendtargets.auth.password": "wrong-secret-2", "node.session.auth.username": "",
	} {
		content.CHAP = map[string]map[string][]byte{"v": maps.Clone(secret)}
		content.CHAP["v"][key] = []byte(value)
		_, err := m.setUp(t.Context(), pod, content)
		if err == nil || strings.Contains(err.Error(), "secret-") {
			t.Errorf("with a wrong %s: %v", key, err)
		}
		t.Logf("with a wrong %s: %v", key, err)
	}
	content.CHAP["v"] = secret
	_, err := m.setUp(t.Context(), pod, content)
	must(t, err)
	// One that shares the session, but needs no discovery, has no use for the record with its password.
	second, other := claimed(iscsiPV(1, func(s *corev1.ISCSIPersistentVolumeSource) { s.SessionCHAPAuth = true }))
	second.UID, other.CHAP = "second", content.CHAP
	_, err = m.setUp(t.Context(), second, other)
	must(t, err)
	teardown(t, m)
	adm, err := findAdm()
	must(t, err)
	if has, err := adm.hasDiscovery(t.Context(), "127.0.0.1:3260"); has || err != nil {
		t.Errorf("the discovery record is left: %v", err)
	}
	if ids := sessionIDs(t, m); len(ids) != 1 {
		t.Errorf("sessions %v", ids)
	}
	must(t, m.tearDown(t.Context(), second.UID))
	nothingLeft(t, m)
}

// iscsiForeign: a session that an administrator has made, and a record of his, are used and stay.
func iscsiForeign(t *testing.T) {
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "iscsiadm", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("iscsiadm %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	m := manager(t)
	run("-m", "discovery", "-t", "sendtargets", "-p", "127.0.0.1:3260")
	run("-m", "node", "-T", iscsitest.IQN, "-p", "127.0.0.1:3260", "--login")
	before := run("-m", "node") + run("-m", "session")
	pod, content := claimed(iscsiPV(0, func(s *corev1.ISCSIPersistentVolumeSource) { s.DiscoveryCHAPAuth = true }))
	_, err := m.setUp(t.Context(), pod, content)
	must(t, err)
	if ids := sessionIDs(t, m); len(ids) != 1 {
		t.Errorf("sessions %v", ids)
	}
	teardown(t, m)
	if after := run("-m", "node") + run("-m", "session"); after != before {
		t.Errorf("%s\nwas\n%s", after, before)
	}
	if out := run("-m", "discoverydb"); !strings.Contains(out, "127.0.0.1:3260") {
		t.Errorf("the administrator's discovery record is gone: %s", out)
	}
	run("-m", "node", "-T", iscsitest.IQN, "-p", "127.0.0.1:3260", "-u")
	run("-m", "discoverydb", "-t", "sendtargets", "-p", "127.0.0.1:3260", "-o", "delete")
	_, _ = exec.CommandContext(t.Context(), "iscsiadm", "-m", "node", "-T", iscsitest.IQN, "-o", "delete").CombinedOutput()
	nothingLeft(t, m)
}

func TestParsePortal(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1": "192.0.2.1:3260", "192.0.2.1:860": "192.0.2.1:860", "2001:db8::1": "[2001:db8::1]:3260", "[2001:db8::1]:860": "[2001:db8::1]:860",
	} {
		if got, err := parsePortal(text); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", "host", "host:3260", "192.0.2.1:0", "192.0.2.1:70000", "192.0.2.1:x", "[2001:db8::1]", "192.0.2.1,1"} {
		if got, err := parsePortal(text); err == nil {
			t.Errorf("%q: %q", text, got)
		}
	}
}

func FuzzParsePortal(f *testing.F) {
	f.Add("192.0.2.1:3260")
	f.Add("fe80::1%eth0")
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := parsePortal(text); err == nil {
			if again, err := parsePortal(got); err != nil || again != got {
				t.Errorf("%q becomes %q, and that %q, %v", text, got, again, err)
			}
		}
	})
}

func TestISCSINames(t *testing.T) {
	good := corev1.ISCSIPersistentVolumeSource{IQN: iscsitest.IQN, ISCSIInterface: "default"}
	must(t, checkNames(&good))
	for _, bad := range []string{"", "..", "iqn.x/../../passwd", "a b", "a\nb", strings.Repeat("x", 224)} {
		for _, s := range []*corev1.ISCSIPersistentVolumeSource{
			{IQN: bad, ISCSIInterface: "default"}, {IQN: iscsitest.IQN, ISCSIInterface: bad}, {IQN: iscsitest.IQN, ISCSIInterface: "default", InitiatorName: &bad},
		} {
			if err := checkNames(s); err == nil {
				t.Errorf("%q passes in %+v", bad, s)
			}
		}
	}
}

func TestISCSIMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	m := manager(t)
	pod, content := claimed(iscsiPV(0))
	if _, err := m.setUp(t.Context(), pod, content); err == nil || !strings.Contains(err.Error(), "install open-iscsi") {
		t.Errorf("%v", err)
	}
	teardown(t, m)
}

func TestParseIface(t *testing.T) {
	got := parseIface("# BEGIN RECORD 2.1.8\niface.iscsi_ifacename = default\niface.transport_name = tcp\niface.initiatorname = <empty>\niface.mtu = 0\nother = x\n# END RECORD\n")
	if want := map[string]string{"iface.transport_name": "tcp", "iface.mtu": "0"}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestListsDiscovery(t *testing.T) {
	const text = "2001:db8::1:3260 via sendtargets\n127.0.0.1:32601 via sendtargets\n127.0.0.1:860 via sendtargets\n192.0.2.1:3260 via isns\n"
	for portal, want := range map[string]bool{
		"[2001:db8::1]:3260": true, "127.0.0.1:860": true, "127.0.0.1:3260": false, "127.0.0.1:86": false, "192.0.2.1:3260": false,
	} {
		if got := listsDiscovery(text, portal); got != want {
			t.Errorf("%s: %v", portal, got)
		}
	}
}

func FuzzParseIface(f *testing.F) {
	f.Add("iface.transport_name = tcp\niface.hwaddress = <empty>\n")
	f.Fuzz(func(t *testing.T, text string) {
		for name, value := range parseIface(text) {
			if !strings.HasPrefix(name, "iface.") || value == "" || strings.ContainsAny(name+value, "\n") {
				t.Errorf("%q: %q = %q", text, name, value)
			}
		}
	})
}

// TestSessions looks at sessions as sysfs shows them.
func TestSessions(t *testing.T) {
	m := kernel{t.TempDir(), "/dev"}
	for id, iqn := range map[string]string{"session3": "iqn.a", "session10": "iqn.a", "session4": "iqn.b"} {
		dir := filepath.Join(m.sys, "class/iscsi_session", id)
		mounttest.Write(t, filepath.Join(dir, "targetname"), iqn+"\n")
		mounttest.Write(t, filepath.Join(dir, "ifacename"), "default\n")
		mounttest.Write(t, filepath.Join(dir, "state"), "LOGGED_IN\n")
		must(t, os.MkdirAll(filepath.Join(dir, "device/target2:0:0/2:0:0:1/block/sdb"), 0o755))
		must(t, os.MkdirAll(filepath.Join(dir, "device/target2:0:0/2:0:0:11"), 0o755))
	}
	must(t, os.MkdirAll(filepath.Join(m.sys, "class/iscsi_session/session5"), 0o755)) // it is just going
	got, err := m.sessions("iqn.a")
	if want := []session{{3, "default", loggedIn}, {10, "default", loggedIn}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for lun, want := range map[int32]string{1: "/dev/sdb", 11: "", 2: ""} {
		if device, err := m.deviceOf(3, lun); err != nil || device != want {
			t.Errorf("LUN %d: %q, %v; want %q", lun, device, err, want)
		}
	}
}
