// Package iscsitest makes an iSCSI target for tests, of the kernel of this machine.
package iscsitest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// IQN is the target's name.
const IQN = "iqn.2001-04.com.example:berth-test"

// Start makes the target, with the LUNs 0 and 1 of 64 MiB each and the portals 127.0.0.1:3260 and :3261, and takes it
// away at the end of the test. It returns the target's portal group in the kernel's configuration. Where there are no
// such modules or programs the test is skipped.
func Start(t *testing.T) (group string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a target")
	}
	for _, tool := range []string{"iscsiadm", "iscsid", "mkfs.ext4", "blkid"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs the program %s", tool)
		}
	}
	for _, module := range []string{"configfs", "target_core_mod", "target_core_file", "iscsi_target_mod", "iscsi_tcp"} {
		if out, err := exec.CommandContext(t.Context(), "modprobe", module).CombinedOutput(); err != nil {
			t.Skipf("needs the module %s: %s", module, out)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const root = "/sys/kernel/config/target"
	if _, err := os.Stat(root); err != nil {
		must(unix.Mount("configfs", "/sys/kernel/config", "configfs", 0, ""))
	}
	set := func(path, value string) { t.Helper(); must(os.WriteFile(path, []byte(value), 0)) }
	undo := func(path string) { t.Cleanup(func() { must(os.Remove(path)) }) }
	mkdir := func(path string) string {
		t.Helper()
		must(os.Mkdir(path, 0o755))
		undo(path)
		return path
	}
	must(os.MkdirAll(root+"/core", 0o755))
	must(os.MkdirAll(root+"/iscsi", 0o755))
	hba := mkdir(root + "/core/fileio_77")
	name := mkdir(root + "/iscsi/" + IQN)
	tpg := mkdir(name + "/tpgt_1")
	for _, lun := range []string{"0", "1"} {
		image := filepath.Join(t.TempDir(), "disk")
		must(os.WriteFile(image, nil, 0o600))
		must(os.Truncate(image, 64<<20))
		store := mkdir(hba + "/berth" + lun)
		set(store+"/control", "fd_dev_name="+image+",fd_dev_size=67108864")
		set(store+"/enable", "1")
		at := mkdir(tpg + "/lun/lun_" + lun)
		must(os.Symlink(store, at+"/store"))
		undo(at + "/store")
	}
	for _, portal := range []string{"127.0.0.1:3260", "127.0.0.1:3261"} {
		mkdir(tpg + "/np/" + portal)
	}
	for attribute, value := range map[string]string{"generate_node_acls": "1", "demo_mode_write_protect": "0", "authentication": "0"} {
		set(tpg+"/attrib/"+attribute, value)
	}
	set(tpg+"/enable", "1")
	t.Cleanup(func() { set(tpg+"/enable", "0") })
	return tpg
}
