// Package sanity runs the sanity suite of Kubernetes' CSI project against the socket of a driver, each kind of volume
// as a run of its own. It is a module of its own, so that the suite and what that imports are no part of the product.
package sanity

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	"google.golang.org/grpc"
)

// The run is chosen by $SANITY_RUN, since the suite can be run once in a process.
const runEnv = "SANITY_RUN"

// run is what the suite is to do with the driver.
type run struct {
	access     string
	parameters map[string]string
	flags      []string
	needs      []string // programs
	secrets    bool
}

func runs() map[string]run {
	out := map[string]run{
		"directory":  {access: "mount", parameters: map[string]string{"type": "directory"}},
		"default":    {access: "mount"},
		"loop":       {access: "mount", parameters: map[string]string{"type": "loop"}},
		"block":      {access: "block", parameters: map[string]string{"type": "loop"}},
		"luks":       {access: "mount", parameters: luks("loop"), needs: []string{"cryptsetup"}, secrets: true},
		"luks-block": {access: "block", parameters: luks("loop"), needs: []string{"cryptsetup"}, secrets: true},
	}
	if group := os.Getenv("SANITY_VOLUME_GROUP"); group != "" {
		flags := []string{"--volume-group", group}
		out["lvm"] = run{access: "mount", parameters: map[string]string{"type": "lvm"}, flags: flags, needs: []string{"lvcreate"}}
		out["luks-lvm"] = run{access: "mount", parameters: luks("lvm"), flags: flags, needs: []string{"lvcreate", "cryptsetup"}, secrets: true}
		out["lvm-block"] = run{access: "block", parameters: map[string]string{"type": "lvm"}, flags: flags, needs: []string{"lvcreate"}}
	}
	return out
}

func luks(kind string) map[string]string {
	return map[string]string{"type": kind, "encryption": "luks"}
}

// TestSanity runs the suite once for each kind of volume, in a process each.
func TestSanity(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: the driver mounts")
	}
	if os.Getenv(runEnv) != "" {
		t.Skip("this is one run")
	}
	for name, r := range runs() {
		t.Run(name, func(t *testing.T) {
			for _, tool := range r.needs {
				if _, err := exec.LookPath(tool); err != nil {
					t.Skipf("needs %s", tool)
				}
			}
			if r.secrets {
				if misc, err := os.ReadFile("/proc/misc"); err != nil || !strings.Contains(string(misc), "device-mapper") {
					t.Skip("this kernel has no device mapper: run it in a virtual machine")
				}
			}
			cmd := exec.Command(os.Args[0], "-test.run=^TestOne$", "-test.v")
			cmd.Env = append(os.Environ(), runEnv+"="+name)
			out, err := cmd.CombinedOutput()
			text := string(out)
			for _, line := range strings.Split(text, "\n") {
				if strings.Contains(line, "SKIPPED") || strings.Contains(line, "Ran ") || strings.HasPrefix(line, "NOTED") {
					t.Log(line)
				}
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
		})
	}
}

// mayBeSkipped are the specs of what has no meaning for storage that no controller attaches to nodes, by the reasons
// that the suite has.
var mayBeSkipped = []string{
	"ControllerPublishVolume not supported", "Controller Publish, UnpublishVolume not supported", "ControllerUnpublishVolume not supported",
	"ControllerPublishVolume.readonly field not supported", "testnodevolumeattachlimit not enabled",
}

// TestOne is one run of the suite.
func TestOne(t *testing.T) {
	r, ok := runs()[os.Getenv(runEnv)]
	if !ok {
		t.Skip("TestSanity runs it")
	}
	dir := t.TempDir()
	before := openDevices(t)
	endpoint := start(t, dir, r.flags)
	config := sanity.NewTestConfig()
	config.Address = endpoint
	config.TargetPath, config.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
	config.TestVolumeSize, config.TestVolumeExpandSize = 1<<30, 2<<30
	config.TestVolumeAccessType, config.TestVolumeParameters = r.access, r.parameters
	config.TestVolumeMutableParameters = map[string]string{"trim": "never"}
	config.TestNodeVolumeAttachLimit = false
	if r.secrets {
		config.SecretsFile = filepath.Join(dir, "secrets.yaml")
		text := ""
		for _, call := range []string{"NodeStageVolumeSecret", "NodePublishVolumeSecret"} {
			text += call + ":\n  passphrase: " + passphrase + "\n"
		}
		config.DialOptions = append(config.DialOptions, grpc.WithUnaryInterceptor(withSecrets))
		if err := os.WriteFile(config.SecretsFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	gomega.RegisterFailHandler(ginkgo.Fail)
	sc := sanity.GinkgoTest(&config)
	defer sc.Finalize()
	ginkgo.ReportAfterSuite("skipped", func(report types.Report) {
		for _, s := range report.SpecReports {
			if s.State != types.SpecStateSkipped {
				continue
			}
			may := false
			for _, reason := range mayBeSkipped {
				may = may || strings.Contains(s.Failure.Message, reason)
			}
			if !may {
				t.Errorf("SKIPPED: %s: %s", s.FullText(), s.Failure.Message)
			}
		}
	})
	ginkgo.RunSpecs(t, "csi sanity")
	requireNothing(t, dir, before)
}

const passphrase = "correct horse"

// withSecrets has the one call have secrets that the suite has none for: who expands an encrypted volume has to have
// its passphrase.
func withSecrets(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if r, ok := req.(*csi.NodeExpandVolumeRequest); ok {
		r.Secrets = map[string]string{"passphrase": passphrase}
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// openDevices are the encrypted devices of drivers.
func openDevices(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("/dev/mapper/berth-*")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// requireNothing says what is left of volumes, by the devices that there were before.
func requireNothing(t *testing.T, dir string, before []string) {
	t.Helper()
	left, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(left), dir) {
		t.Errorf("something is mounted in %s in the end: %v", dir, err)
	}
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range loops {
		if text, err := os.ReadFile(l); err == nil && strings.Contains(string(text), dir) {
			t.Errorf("a loop device is left: %s is %s", l, text)
		}
	}
	if open := openDevices(t); !slices.Equal(open, before) {
		t.Errorf("encrypted devices: %v, before: %v", open, before)
	}
	if group := os.Getenv("SANITY_VOLUME_GROUP"); group != "" {
		out, err := exec.Command("lvs", "--noheadings", "-o", "lv_name", group).Output()
		if name := strings.TrimSpace(string(out)); err != nil || name != "berth" {
			t.Errorf("logical volumes are left: %q %v", out, err)
		}
	}
}

// start starts the driver, and waits until it answers.
func start(t *testing.T, dir string, flags []string) string {
	t.Helper()
	binary, err := filepath.Abs("../../bin/berth")
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, "csi.sock")
	args := append([]string{"csi-local", "--endpoint", "unix://" + at, "--data-dir", filepath.Join(dir, "data"), "--node-id", "sanity"}, flags...)
	cmd := exec.Command(binary, args...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		if _, err := os.Stat(at); err == nil {
			return "unix://" + at
		}
		select {
		case <-ctx.Done():
			t.Fatal("the driver does not come up")
		case <-time.After(10 * time.Millisecond):
		}
	}
}
