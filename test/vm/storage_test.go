package vm

import (
	"cmp"
	"os"
	"strings"
	"testing"
)

// group makes a volume group with a thin pool that is larger than the disk which it is on.
const group = `truncate -s 24G /root/group
vgcreate --yes sanity "$(losetup --find --show /root/group)"
lvcreate --yes --type=thin-pool --size=20g --name=berth sanity`

// mapped is a line for each thing that volumes of the device mapper are made of.
const mapped = `dmsetup ls | sed '/^No devices/d' | sort
losetup -a
lvs --noheadings -o vg_name,lv_name
grep /dev/mapper /proc/self/mountinfo || true`

// TestStorage runs what needs the kernel's device mapper on a machine whose kernel has one: the driver's own tests of
// encrypted and logical volumes, claims and pods of an agent, and the sanity suite. VM_STORAGE are some of its steps,
// and VM_SANITY some of the suite's kinds of volume, by spaces.
func TestStorage(t *testing.T) {
	dir := systemFiles(t)
	m := newMachine(t, dir)
	m.boot()
	driver := cmp.Or(os.Getenv("VM_DRIVER"), "cgroupfs")
	steps := []step{
		{"driver", func(*testing.T) { m.program("csi/local", "local.test", "^Test(LUKS|LVM)", "TestLUKS", "") }},
		{"agent", func(*testing.T) { m.system(driver, "^TestMapped$", "TestMapped") }},
		{"purge", func(*testing.T) { m.system(driver, "^TestMappedPurged$", "TestMappedPurged") }},
		{"sanity", func(*testing.T) {
			m.run(group)
			for kind := range strings.FieldsSeq(cmp.Or(os.Getenv("VM_SANITY"), "luks luks-block lvm lvm-block luks-lvm")) {
				m.program("test/sanity", "sanity.test", "^TestSanity$/^"+kind+"$", "TestSanity/"+kind, "SANITY_VOLUME_GROUP=sanity")
			}
			m.run(`device=$(losetup --noheadings --output=NAME --associated /root/group)
vgremove --yes --force sanity
losetup --detach $device`)
		}},
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
