package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func parse(t *testing.T, args ...string) (Config, error) {
	t.Helper()
	c := Default()
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	c.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	return c, c.Complete()
}

func TestDefaultsHold(t *testing.T) {
	c, err := parse(t, "--node-name=node")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(c.Helper, "/berth-helper") || c.LogMaxSize.Value() != 10<<20 {
		t.Errorf("helper %s, log size %s", c.Helper, c.LogMaxSize.String())
	}
}

func TestFlags(t *testing.T) {
	c, err := parse(t, "--node-name=n", "--root-dir=here", "--pod-cidr=10.9.8.7/24", "--log-max-size=5Mi",
		"--log-level=debug", "--cni-bin-dir=/a,/b")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(c.RootDir, "/") || c.PodCIDR.String() != "10.9.8.0/24" || c.LogMaxSize.Value() != 5<<20 ||
		c.Level.String() != "DEBUG" || len(c.CNIBinDirs) != 2 {
		t.Errorf("%+v", c)
	}
}

func TestRefused(t *testing.T) {
	for arg, want := range map[string]string{
		"--cgroup-root=a":                          "--cgroup-root",
		"--cgroup-root=/a/../b":                    "--cgroup-root",
		"--bridge-name=0123456789abcdef":           "--bridge-name",
		"--pod-cidr=10.0.0.0/31":                   "--pod-cidr",
		"--node-name=Not_A_Name":                   "--node-name",
		"--root-dir=" + DefaultRunDir:              "must differ",
		"--backoff-max=1s":                         "--backoff-max",
		"--backoff-initial=-1s":                    "negative",
		"--log-format=xml":                         "--log-format",
		"--log-max-files=0":                        "--log-max-files",
		"--manifest-dir=":                          "--manifest-dir",
		"--manifest-dir=/var/lib/berth/manifests/": "where the agent keeps copies",
		"--manifest-dir=/var/lib/berth":            "--root-dir must differ",
		"--manifest-url=ftp://x/y":                 "--manifest-url",
		"--max-parallel-pulls=0":                   "--max-parallel-pulls",
		"--log-max-size=1e-999999999":              "exponent from -99 to 99",
		"--log-max-size=1e999999999":               "exponent from -99 to 99",
		"--log-max-size=-1":                        "--log-max-size",
		"--port=70000":                             "--port",
		"--pull-stall-timeout=-2s":                 "--pull-stall-timeout",
		"--bridge-name=a/b":                        "--bridge-name",
		"--log-dir=/var/lib/berth":                 "must differ",
		"--max-parallel-pulls=-1":                  "--max-parallel-pulls",

		"--image-credential-provider-config=/x":  "need each other",
		"--image-credential-provider-bin-dir=/x": "need each other",
		"--max-parallel-pulls-per-registry=-1":   "--max-parallel-pulls-per-registry",
		"--max-parallel-pulls-per-registry=7":    "--max-parallel-pulls-per-registry",
	} {
		if _, err := parse(t, "--node-name=n", arg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", arg, err, want)
		}
	}
}

func TestSocketOfTheCRI(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string // "" = off, "!" = refused
	}{
		{nil, DefaultRunDir + "/cri.sock"},
		{[]string{"--cri-socket=x/y"}, DefaultRunDir + "/x/y"},
		{[]string{"--cri-socket=/a/b"}, "/a/b"},
		{[]string{"--cri-socket=unix:///a/b"}, "unix:///a/b"},
		{[]string{"--cri-socket="}, ""},
		{[]string{"--runtime=unix:///r"}, ""},
		{[]string{"--runtime=unix:///r", "--cri-socket=/a"}, "!"},
		{[]string{"--runtime=unix:///r", "--image-dir=/a"}, "!"},
	} {
		got, err := parse(t, append(c.args, "--node-name=n")...)
		if c.want == "!" && err == nil || c.want != "!" && (err != nil || got.CRISocket != c.want) {
			t.Errorf("%q: got %q, %v, want %q", c.args, got.CRISocket, err, c.want)
		}
	}
}

func TestLabels(t *testing.T) {
	c, err := parse(t, "--node-name=n", "--node-labels=disk=ssd,example.com/rack=7,kubernetes.io/hostname=n")
	if err != nil {
		t.Fatal(err)
	}
	labels, err := c.Labels()
	if err != nil || labels["disk"] != "ssd" || labels["example.com/rack"] != "7" ||
		labels["kubernetes.io/hostname"] != "n" || labels["kubernetes.io/os"] != "linux" {
		t.Errorf("labels %v, %v", labels, err)
	}
	for arg, want := range map[string]string{
		"--node-labels=a b=c":                     "--node-labels a b=c: name part must",
		"--node-labels=a=b/c":                     "--node-labels a=b/c: a valid label must",
		"--node-labels=kubernetes.io/hostname=no": "it is n by itself",
	} {
		if _, err := parse(t, "--node-name=n", arg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", arg, err, want)
		}
	}
}

// TestManifestsOfOneDirectory: a link makes no other directory of it.
func TestManifestsOfOneDirectory(t *testing.T) {
	root := t.TempDir()
	kept := KeptManifests(root)
	if err := os.Mkdir(kept, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "manifests")
	if err := os.Symlink(kept, link); err != nil {
		t.Fatal(err)
	}
	if _, err := parse(t, "--root-dir="+root, "--manifest-dir="+link); err == nil ||
		!strings.Contains(err.Error(), "where the agent keeps copies") {
		t.Errorf("the agent's own directory by another name: %v", err)
	}
	if _, err := parse(t, "--root-dir="+root, "--manifest-dir="+root+"/mine"); err != nil {
		t.Error(err)
	}
}
