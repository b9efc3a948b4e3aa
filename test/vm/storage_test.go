package vm

import "testing"

// mapped is a line for each thing that volumes of the device mapper are made of.
const mapped = `dmsetup ls | grep -v '^No devices' | sort
losetup -a
lvs --noheadings -o vg_name,lv_name
grep /dev/mapper /proc/self/mountinfo || true`

// TestStorage runs what needs the kernel's device mapper on a machine whose kernel has one: the driver's own tests of
// encrypted and logical volumes.
func TestStorage(t *testing.T) {
	dir := systemFiles(t)
	m := newMachine(t, dir)
	m.boot()
	m.program("csi/local", "local.test", "^Test(LUKS|LVM)$", "TestLUKS", "")
	if left := m.run(mapped); left != "" {
		t.Errorf("in the end there are\n%s", left)
	}
}
