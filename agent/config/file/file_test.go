package file

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestEveryFieldIsKnown walks over the structure of the library: a version of it with more fields must not have silent
// ones.
func TestEveryFieldIsKnown(t *testing.T) {
	known := map[string]bool{}
	for _, f := range Fields() {
		if known[f.Path] {
			t.Errorf("%s is there twice", f.Path)
		}
		known[f.Path] = true
		if (f.Flag == "") == (f.Says == "") {
			t.Errorf("%s: must be a setting, or say what it does instead", f.Path)
		}
	}
	for _, p := range paths() {
		if !known[p] {
			t.Errorf("%s is a field that nothing is said about", p)
		}
		delete(known, p)
	}
	for p := range known {
		t.Errorf("%s is no field", p)
	}
}

func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const (
	kubeletDoc = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	berthDoc   = "apiVersion: config.berth.node/v1alpha1\nkind: BerthConfiguration\n"
)

// flags are a few of each type.
type flags struct {
	*pflag.FlagSet
	port, health, maxPods int
	dns, sysctls          []string
	options               map[string]string
	reserved              []string
	eviction, level       string
	curves                []int32
}

func newFlags() *flags {
	f := &flags{FlagSet: pflag.NewFlagSet("", pflag.ContinueOnError)}
	f.IntVar(&f.port, "port", 0, "")
	f.IntVar(&f.health, "healthz-port", 0, "")
	f.IntVar(&f.maxPods, "max-pods", 110, "")
	f.StringSliceVar(&f.dns, "cluster-dns", []string{"1.1.1.1"}, "")
	f.StringSliceVar(&f.sysctls, "allowed-unsafe-sysctls", nil, "")
	f.StringToStringVar(&f.options, "cpu-manager-policy-options", nil, "")
	f.StringArrayVar(&f.reserved, "reserved-memory", nil, "")
	f.StringVar(&f.eviction, "eviction-hard", "", "")
	f.StringVar(&f.level, "log-level", "info", "")
	f.Int32SliceVar(&f.curves, "tls-curve-preferences", nil, "")
	return f
}

func TestApply(t *testing.T) {
	dir := write(t, map[string]string{"config.yaml": kubeletDoc + `
maxPods: 50
clusterDNS: [10.96.0.10, 10.96.0.11]
cpuManagerPolicyOptions: {full-pcpus-only: "true", align-by-socket: "true"}
reservedMemory: [{numaNode: 0, limits: {memory: 1Gi, hugepages-2Mi: 64Mi}}, {numaNode: 1, limits: {memory: 2Gi}}]
evictionHard: {memory.available: 100Mi, nodefs.available: "10%"}
logging: {verbosity: 5}
tlsCurvePreferences: [29]
serializeImagePulls: false
oomScoreAdj: -999
failSwapOn: true
podsPerCore: 5
---
` + berthDoc + "allowedUnsafeSysctls: [kernel.msg*]\n"})
	files, err := Read(filepath.Join(dir, "config.yaml"), "")
	if err != nil {
		t.Fatal(err)
	}
	f := newFlags()
	if err := f.Parse([]string{"--max-pods=7"}); err != nil {
		t.Fatal(err)
	}
	ignored, err := files.Apply(f.FlagSet)
	if err != nil {
		t.Fatal(err)
	}
	if f.maxPods != 7 || f.port != 10250 || f.health != 10248 || f.level != "debug" ||
		f.eviction != "memory.available<100Mi,nodefs.available<10%" {
		t.Errorf("%+v", f)
	}
	if !slices.Equal(f.dns, []string{"10.96.0.10", "10.96.0.11"}) || !slices.Equal(f.sysctls, []string{"kernel.msg*"}) ||
		!slices.Equal(f.curves, []int32{29}) ||
		len(f.options) != 2 || !slices.Equal(f.reserved, []string{"0:hugepages-2Mi=64Mi,memory=1Gi", "1:memory=2Gi"}) {
		t.Errorf("%+v", f)
	}
	if len(ignored) != 2 || !strings.HasPrefix(ignored[0], "podsPerCore: ") &&
		!strings.HasPrefix(ignored[1], "podsPerCore: ") {
		t.Errorf("ignored: %q", ignored)
	}
	kubelet, berth := files.Effective(f.FlagSet, false)
	if kubelet["maxPods"] == nil || kubelet["clusterDNS"] == nil || kubelet["podsPerCore"] == nil ||
		berth["evictionHard"] != f.eviction || berth["logLevel"] != "debug" {
		t.Errorf("%v\n%v", kubelet, berth)
	}
}

// TestKubeadm takes the file that kubeadm writes, in which most fields have their zero values.
func TestKubeadm(t *testing.T) {
	dir := write(t, map[string]string{"config.yaml": kubeletDoc + `
authentication: {anonymous: {enabled: false}, webhook: {cacheTTL: 0s, enabled: true}, x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}
authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: ""
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
`})
	files, err := Read(filepath.Join(dir, "config.yaml"), "")
	if err != nil {
		t.Fatal(err)
	}
	f := &flags{FlagSet: pflag.NewFlagSet("", pflag.ContinueOnError)}
	for _, field := range Fields() {
		if field.Flag != "" && f.Lookup(field.Flag) == nil {
			f.String(field.Flag, "", "")
		}
	}
	f.Lookup("cluster-dns").Value = newFlags().Lookup("cluster-dns").Value
	ignored, err := files.Apply(f.FlagSet)
	if err != nil || len(ignored) != 0 {
		t.Errorf("%q, %v", ignored, err)
	}
	if v := f.Lookup("manifest-dir").Value.String(); v != "/etc/kubernetes/manifests" {
		t.Errorf("static pods in %q", v)
	}
}

func TestDropIns(t *testing.T) {
	dir := write(t, map[string]string{
		"base.yaml": kubeletDoc +
			"maxPods: 1\nclusterDNS: [1.2.3.4, 1.2.3.5]\ncpuManagerPolicyOptions: {a: 'true', b: 'true'}\n",
		"d/20-last.conf":  kubeletDoc + "maxPods: 3\ncpuManagerPolicyOptions: {b: null, c: 'true'}\n",
		"d/10-first.conf": kubeletDoc + "maxPods: 2\nclusterDNS: [9.9.9.9]\n---\n" + berthDoc + "logLevel: debug\n",
		"d/99-not.yaml":   "what is this",
	})
	files, err := Read(filepath.Join(dir, "base.yaml"), filepath.Join(dir, "d"))
	if err != nil {
		t.Fatal(err)
	}
	f := newFlags()
	if _, err := files.Apply(f.FlagSet); err != nil {
		t.Fatal(err)
	}
	if f.maxPods != 3 || !slices.Equal(f.dns, []string{"9.9.9.9"}) || len(f.options) != 2 || f.options["c"] != "true" ||
		f.level != "debug" {
		t.Errorf("%+v", f)
	}
}

func TestBadFiles(t *testing.T) {
	for content, want := range map[string][]string{
		kubeletDoc + "maxPod: 1\n":                                 {`unknown field "maxPod"`, `did you mean "maxPods"?`},
		kubeletDoc + "authentication: {webhook: {enable: true}}\n": {`unknown field "authentication.webhook.enable"`},
		kubeletDoc + "maxpods: 1\n":                                {`unknown field "maxpods"`, `did you mean "maxPods"?`},
		kubeletDoc + "maxPods: 1\nmaxPods: 2\n":                    {"maxPods", "already"},
		kubeletDoc + "maxPods: many\n":                             {"maxPods", "int32"},
		kubeletDoc + "---\n[1]\n":                                  {"document 2", "no YAML mapping"},
		"apiVersion: v1\nkind: Pod\n":                              {`kind "Pod"`, BerthKind},
		"a: [":                                                     {"document 1"},
		kubeletDoc + "reservedMemory: [{numaNode: 0, limits: {memory: " +
			"'1e-999999999'}}]\n": {"reservedMemory[0].limits[memory]", "exponent from -99 to 99"},
		berthDoc + "logLevl: debug\n":  {`unknown field "logLevl"`, `did you mean "logLevel"?`},
		berthDoc + "maxPods: [1, 2]\n": {"maxPods", "must be one value"},
		berthDoc + "maxPods: lots\n":   {"maxPods", "lots"},
	} {
		dir := write(t, map[string]string{"c.yaml": content})
		files, err := Read(filepath.Join(dir, "c.yaml"), "")
		if err == nil {
			_, err = files.Apply(newFlags().FlagSet)
		}
		if err == nil {
			t.Errorf("taken: %s", content)
			continue
		}
		for _, w := range append(want, "c.yaml") {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("no %q in %v", w, err)
			}
		}
	}
	if _, err := Read(filepath.Join(t.TempDir(), "none"), ""); err == nil {
		t.Error("a file that is not there")
	}
	if _, err := Read("", filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a directory that is not there")
	}
}

func FuzzRead(f *testing.F) {
	f.Add(kubeletDoc + "maxPods: 1\n")
	f.Add(berthDoc + "---\n" + kubeletDoc)
	f.Fuzz(func(t *testing.T, content string) {
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		files, err := Read(path, "")
		if err != nil {
			return
		}
		if _, err := files.Apply(newFlags().FlagSet); err == nil {
			files.Effective(newFlags().FlagSet, true)
		}
	})
}
