package vm

import (
	"cmp"
	"os"
	"strings"
	"testing"
)

// mapped is a line for each thing that volumes of the device mapper are made of.
const mapped = `dmsetup ls | grep -v '^No devices' | sort
losetup -a
lvs --noheadings -o vg_name,lv_name
grep /dev/mapper /proc/self/mountinfo || true`

// TestStorage runs what needs the kernel's device mapper on a machine whose kernel has one: the driver's own tests of
// encrypted and logical volumes, and claims and pods of an agent. VM_STORAGE are some of its steps, by spaces.
func TestStorage(t *testing.T) {
	dir := systemFiles(t)
	m := newMachine(t, dir)
	m.boot()
	driver := cmp.Or(os.Getenv("VM_DRIVER"), "cgroupfs")
	steps := []step{
		{"driver", func(*testing.T) { m.program("csi/local", "local.test", "^Test(LUKS|LVM)", "TestLUKS", "") }},
		{"agent", func(*testing.T) { m.system(driver, "^TestMapped$", "TestMapped") }},
		{"purge", func(*testing.T) { m.system(driver, "^TestMappedPurged$", "TestMappedPurged") }},
		{"nothing left", func(t *testing.T) {
			if left := m.run(mapped); left != "" {
				t.Errorf("in the end there are\n%s", left)
			}
		}},
	}
	some := strings.Fields(os.Getenv("VM_STORAGE"))
	for _, s := range steps {
		if len(some) > 0 && !strings.Contains(" "+strings.Join(some, " ")+" ", " "+strings.Fields(s.name)[0]+" ") {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			m.t = t
			s.do(t)
		})
		m.t = t
	}
}
