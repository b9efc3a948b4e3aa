package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/berth-node/berth/agent/config/file"
)

func loadFile(t *testing.T, content string, args ...string) (*Loaded, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	c := Default()
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	s := &Sources{Given: fs, RunDir: "/run/x", File: path}
	c.AddFlags(fs)
	if err := fs.Parse(append([]string{"--node-name=node"}, args...)); err != nil {
		t.Fatal(err)
	}
	return s.Load()
}

const (
	kubeletDoc = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	berthDoc   = "---\napiVersion: config.berth.node/v1alpha1\nkind: BerthConfiguration\n"
)

func TestLoad(t *testing.T) {
	l, err := loadFile(t, kubeletDoc+`
staticPodPath: /etc/kubernetes/manifests
containerLogMaxSize: 5Mi
clusterDNS: [10.96.0.10]
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true"}
crashLoopBackOff: {maxContainerRestartPeriod: 60s}
reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]
`+berthDoc+"bridgeName: br7\ncniBinDir: [/a]\napiAllow: ['user:ann=*']\n", "--cni-bin-dir=/b,/c", "--cluster-dns=10.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	if l.ManifestDir != "/etc/kubernetes/manifests" || l.LogMaxSize.Value() != 5<<20 || l.BridgeName != "br7" ||
		l.BackoffMax.Seconds() != 60 ||
		l.Port != DefaultPort || l.HealthzPort != 10248 || l.RunDir != "/run/x" ||
		l.CPUManagerPolicyOptions["full-pcpus-only"] != "true" {
		t.Errorf("%+v", l.Config)
	}
	if !slices.Equal(l.CNIBinDirs, []string{"/b", "/c"}) || !slices.Equal(l.ClusterDNS, []string{"10.0.0.1"}) ||
		!slices.Equal(l.Allow, []string{"user:ann=*"}) {
		t.Errorf("a file is stronger than a flag: %v %v %v", l.CNIBinDirs, l.ClusterDNS, l.Allow)
	}
	kubelet, berth := l.Documents(true)
	if fmt.Sprint(kubelet["clusterDNS"]) != "[10.0.0.1]" || fmt.Sprint(kubelet["port"]) != "10250" ||
		berth["bridgeName"] != "br7" || fmt.Sprint(berth["reservedMemory"]) != "[0:memory=1Gi]" {
		t.Errorf("%v\n%v", kubelet, berth)
	}
	if l, err = loadFile(t, "# nothing\n"); err != nil || l.Port != 0 || l.Warning() != "" {
		t.Errorf("an empty file: %v", err)
	}
	if _, err := loadFile(t, kubeletDoc+"clusterDNS: [somewhere]\n"); err == nil ||
		!strings.Contains(err.Error(), "somewhere") {
		t.Errorf("bad value: %v", err)
	}
	if l, err = loadFile(t, kubeletDoc+"registryPullQPS: 5\nregistryBurst: 4\npodsPerCore: 4\n"); err != nil ||
		!strings.Contains(l.Warning(), "registryPullQPS: ") || !strings.Contains(l.Warning(), "registryBurst: ") ||
		l.PodsPerCore != 4 {
		t.Errorf("%q, %v", l.Warning(), err)
	}
}

// What is sent to the source of manifests may be a password, and is shown to nobody.
func TestHeadersAreHidden(t *testing.T) {
	l, err := loadFile(t, kubeletDoc+"staticPodURL: https://a.example/pods\nstaticPodURLHeader: {Authorization: [Bearer "+
		"t0ken]}\n", "--manifest-url-header=X-Key:t0ken")
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(l.Configz())
	if !strings.Contains(text, "podNetwork") || !strings.Contains(text, "on its own") {
		t.Errorf("which network pods get, and why, is not in %s", text)
	}
	if strings.Contains(text, "t0ken") || !strings.Contains(text, "Authorization") || !strings.Contains(text, "X-Key") {
		t.Error(text)
	}
}

func TestReload(t *testing.T) {
	first, err := loadFile(t, kubeletDoc)
	if err != nil {
		t.Fatal(err)
	}
	second, err := loadFile(t, kubeletDoc+"maxOpenFiles: 5\nport: 10251\nlogging: {verbosity: 4}\n"+berthDoc+"apiAllow: "+
		"['user:ann=*']\n")
	if err != nil {
		t.Fatal(err)
	}
	now, later := first.Changes(second)
	if !slices.Equal(now, []string{"--api-allow", "--log-level"}) || !slices.Equal(later, []string{"--port"}) {
		t.Errorf("now %v, later %v", now, later)
	}
	after := first.With(second)
	if after.Port != DefaultPort || after.Level.String() != "DEBUG" ||
		!slices.Equal(after.Allow, []string{"user:ann=*"}) || first.Level.String() != "INFO" {
		t.Errorf("%+v", after.Config)
	}
	if now, later := after.Changes(second); len(now) != 0 || len(later) != 1 {
		t.Errorf("after: now %v, later %v", now, later)
	}
}

// TestDocs holds the tables of docs/config.md to what there is. With BERTH_UPDATE_DOCS=1 it writes them.
func TestDocs(t *testing.T) {
	const path = "../../docs/config.md"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	doc := string(data)
	for name, table := range map[string]string{"kubelet": kubeletTable(), "berth": berthTable()} {
		begin, end := "<!-- "+name+" -->\n", "<!-- end -->\n"
		before, rest, ok := strings.Cut(doc, begin)
		old, after, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("%s: no place for the table of %s", path, name)
		}
		if old != table && os.Getenv("BERTH_UPDATE_DOCS") == "" {
			t.Errorf("%s: the table of %s is not what there is; run the test with BERTH_UPDATE_DOCS=1", path, name)
		}
		doc = before + begin + table + end + after
	}
	if os.Getenv("BERTH_UPDATE_DOCS") != "" {
		if err := os.WriteFile(path, []byte(doc), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func agentFlags() *pflag.FlagSet {
	c := Default()
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	c.AddFlags(fs)
	return fs
}

func kubeletTable() string {
	flags := agentFlags()
	var b strings.Builder
	b.WriteString("| field | here |\n|---|---|\n")
	for _, f := range file.Fields() {
		says := "ignored: " + f.Says
		switch {
		case f.Flag != "" && flags.Lookup(f.Flag) != nil:
			says = "`--" + f.Flag + "`"
		case f.Flag != "":
			says = "ignored: is not done yet"
		case len(f.Same) > 0:
			says += " (no warning for `" + strings.Join(f.Same, "`, `") + "`)"
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", f.Path, says)
	}
	return b.String()
}

func berthTable() string {
	kubelet := map[string]bool{}
	for _, f := range file.Fields() {
		kubelet[f.Flag] = f.Values == nil
	}
	var b strings.Builder
	b.WriteString("| field | flag | what |\n|---|---|---|\n")
	agentFlags().VisitAll(func(f *pflag.Flag) {
		if !kubelet[f.Name] {
			fmt.Fprintf(&b, "| `%s` | `--%s` | %s |\n", file.FieldName(f.Name), f.Name, strings.ReplaceAll(f.Usage, "|", "\\|"))
		}
	})
	return b.String()
}

// TestMachineShutdown: pods of the machine's own agent have time to end, unless somebody has said otherwise.
func TestMachineShutdown(t *testing.T) {
	for name, tt := range map[string]struct {
		runDir, file string
		args         []string
		want         Shutdown
	}{
		"nothing":        {DefaultRunDir, "", nil, Shutdown{30 * time.Second, 10 * time.Second, nil}},
		"berth's file":   {DefaultRunDir, strings.TrimPrefix(berthDoc, "---\n"), nil, Shutdown{30 * time.Second, 10 * time.Second, nil}},
		"another agent":  {"/run/x", "", nil, Shutdown{}},
		"kubelet's file": {DefaultRunDir, kubeletDoc + "shutdownGracePeriod: 0s\n", nil, Shutdown{}},
		"none":           {DefaultRunDir, "", []string{"--shutdown-grace-period=0"}, Shutdown{}},
		"a time":         {DefaultRunDir, "", []string{"--shutdown-grace-period=5s"}, Shutdown{GracePeriod: 5 * time.Second}},
		"by priority": {DefaultRunDir, "", []string{"--shutdown-grace-period-by-pod-priority=0=5s"}, Shutdown{
			GraceByPriority: []string{"0=5s"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := Default()
			fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
			s := &Sources{Given: fs, RunDir: tt.runDir}
			if tt.file != "" {
				s.File = filepath.Join(t.TempDir(), "config.yaml")
				if err := os.WriteFile(s.File, []byte(tt.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			c.AddFlags(fs)
			if err := fs.Parse(append([]string{"--node-name=node"}, tt.args...)); err != nil {
				t.Fatal(err)
			}
			l, err := s.Load()
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(l.Shutdown, tt.want) {
				t.Errorf("%+v, want %+v", l.Shutdown, tt.want)
			}
		})
	}
}
