package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

func execute(args ...string) (string, error) {
	var out bytes.Buffer
	c := newCommand()
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.Execute()
	return out.String(), err
}

// TestUnitAndManifestRefuse: flags that serve does not take are not written into files that only fail at their start.
func TestUnitAndManifestRefuse(t *testing.T) {
	for what, args := range map[string][]string{
		"an unknown flag":        {"unit", "--", "--nonsense"},
		"an argument":            {"unit", "--", "more"},
		"a flag without a dash":  {"unit", "more"},
		"no image":               {"manifest"},
		"any port":               {"manifest", "--image", "x", "--", "--port", "0"},
		"a port that is none":    {"manifest", "--image", "x", "--", "--port", "x"},
		"a flag of the manifest": {"unit", "--", "--image", "x"},
	} {
		if out, err := execute(args...); err == nil {
			t.Errorf("%s is taken:\n%s", what, out)
		}
	}
}

// TestManifest: the probes ask where the server listens, the directory is the machine's, and the user is its owner.
func TestManifest(t *testing.T) {
	dir := t.TempDir()
	if os.Getuid() == 0 {
		if err := os.Chown(dir, 1234, 1235); err != nil {
			t.Fatal(err)
		}
	}
	out, err := execute("manifest", "--image", "x/y:1", "--data-dir", dir, "--", "--bind", "192.0.2.7", "--port", "7443")
	if err != nil {
		t.Fatal(err)
	}
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(out), &pod); err != nil {
		t.Fatal(err)
	}
	c := pod.Spec.Containers[0]
	for _, p := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		if p.HTTPGet.Host != "192.0.2.7" || p.HTTPGet.Port.IntValue() != 7443 || p.HTTPGet.Scheme != corev1.URISchemeHTTPS {
			t.Errorf("a probe asks %+v", p.HTTPGet)
		}
	}
	if strings.Join(c.Args, " ") != "serve --data-dir "+dir+" --bind 192.0.2.7 --port 7443" || pod.Spec.Volumes[0].HostPath.Path != dir || !pod.Spec.HostNetwork {
		t.Errorf("it is %s", out)
	}
	if uid := c.SecurityContext.RunAsUser; os.Getuid() == 0 && (uid == nil || *uid != 1234 || *c.SecurityContext.RunAsGroup != 1235) {
		t.Errorf("it runs as %v", uid)
	}
	if strings.Contains(out, "status:") {
		t.Errorf("it has a status:\n%s", out)
	}
	unit, err := execute("unit", "--data-dir", dir)
	if err != nil || !strings.Contains(unit, "ReadWritePaths="+filepath.Clean(dir)+"\n") {
		t.Errorf("%v: %s", err, unit)
	}
}
