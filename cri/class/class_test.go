package class

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "blockio.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestBlockIO(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes device nodes")
	}
	dir := t.TempDir()
	for i, name := range []string{"disk0", "disk1"} {
		if err := unix.Mknod(filepath.Join(dir, name), unix.S_IFBLK|0o600, int(unix.Mkdev(240, uint32(i)))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("disk1", filepath.Join(dir, "ssd")); err != nil {
		t.Fatal(err)
	}
	c, err := Open(write(t, `
Classes:
  slow:
  - Weight: 80
  - Devices: [`+dir+`/disk*]
    ThrottleReadBps: 50M
    ThrottleWriteIOPS: 5k
    Weight: 20
  - Devices: [`+dir+`/ssd, `+dir+`/absent]
    ThrottleReadBps: 100M
  plain: []
`))
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.BlockIO("slow")
	if err != nil {
		t.Fatal(err)
	}
	if *b.Weight != 80 || len(b.WeightDevice) != 2 || *b.WeightDevice[0].Weight != 20 || len(b.ThrottleReadBpsDevice) != 2 ||
		b.ThrottleReadBpsDevice[0].Rate != 50e6 || b.ThrottleReadBpsDevice[1].Rate != 100e6 || b.ThrottleReadBpsDevice[1].Minor != 1 ||
		len(b.ThrottleWriteIOPSDevice) != 2 || b.ThrottleWriteIOPSDevice[0].Rate != 5000 || b.ThrottleWriteBpsDevice != nil {
		t.Errorf("got %+v", b)
	}
	if _, err := c.BlockIO("fast"); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "has plain, slow") {
		t.Errorf("got %v", err)
	}
	none, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := none.BlockIO("slow"); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "--blockio-config") {
		t.Errorf("got %v", err)
	}
	c, err = Open(write(t, "Classes: {odd: [{Devices: [/dev/null], ThrottleReadBps: 1}]}"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.BlockIO("odd"); err == nil || !strings.Contains(err.Error(), "Classes.odd[0]: /dev/null is no block device") {
		t.Errorf("got %v", err)
	}
}

func TestErrorsNameTheField(t *testing.T) {
	for text, want := range map[string]string{
		"Classes: {a: [{Weight: 5}]}":                                             "Classes.a[0].Weight: 5: must be a number from 10 to 1000",
		"Classes: {a: [{ThrottleReadBps: 5M}]}":                                   "Classes.a[0].ThrottleReadBps: needs Devices",
		"Classes: {a: [{Devices: [sda], ThrottleReadBps: 1}]}":                    `Classes.a[0].Devices[0]: "sda"`,
		"Classes: {a: [{Devices: ['/dev/[']}]}":                                   `Classes.a[0].Devices[0]`,
		"Classes: {a: [{Weight: 50}, {Devices: [/dev/x], ThrottleWriteBps: -1}]}": "Classes.a[1].ThrottleWriteBps: -1",
		"Classes: {a: [{Speed: 5}]}":                                              "Speed",
		"classes: {}":                                                             "classes",
		"Classes: {a: [{Weight: '1e-999999999'}]}":                                "Classes[a][0].Weight: Invalid value",
		"Classes: {a: [{Weight: heavy}]}":                                         "quantities",
		"{{":                                                                      "yaml",
	} {
		if _, err := Open(write(t, text)); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "blockio.yaml") {
			t.Errorf("%s: got %v", text, err)
		}
	}
	if _, err := Open("/no/such/file"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestRDT(t *testing.T) {
	c := &Classes{resctrl: filepath.Join(t.TempDir(), "resctrl")}
	if _, err := c.RDT("gold"); err == nil || !strings.Contains(err.Error(), "resctrl") {
		t.Errorf("got %v", err)
	}
	for _, dir := range []string{"", "gold", "info"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(c.resctrl, dir), 0o755), os.WriteFile(filepath.Join(c.resctrl, dir, "schemata"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := c.RDT("gold"); err != nil || r.ClosID != "gold" {
		t.Errorf("got %+v, %v", r, err)
	}
	for _, name := range []string{"silver", "info", "..", "gold/..", ""} {
		if _, err := c.RDT(name); err == nil {
			t.Errorf("%q is a class", name)
		}
	}
}

func TestNames(t *testing.T) {
	own := map[string]string{"io.kubernetes.cri.rdt-class": "own"}
	pod := map[string]string{"rdt.resources.beta.kubernetes.io/container.c": "mine", "rdt.resources.beta.kubernetes.io/pod": "all"}
	for _, tt := range []struct {
		container string
		own, pod  map[string]string
		want      string
	}{{"c", own, pod, "own"}, {"c", nil, pod, "mine"}, {"d", nil, pod, "all"}, {"c", nil, nil, ""}} {
		if got := named("rdt", tt.container, tt.own, tt.pod); got != tt.want {
			t.Errorf("%+v: got %q", tt, got)
		}
	}
	s := &specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{}}}
	if err := (&Classes{}).Apply(s, "c", nil, map[string]string{"blockio.resources.beta.kubernetes.io/pod": "x"}); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v", err)
	}
}
