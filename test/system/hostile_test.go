package system

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHostileManifests asks for what would harm the node or other pods. Each is refused with a message or does no harm,
// and the pod beside it does not notice.
func TestHostileManifests(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("good.yaml", pod("good", sleeping))
	before := n.waitReady("good")
	precious := filepath.Join(n.Dir, "precious")
	write(t, precious, "data")

	container := func(extra string) string {
		return "\n  containers:\n  - name: main\n    image: " + image + "\n    command: [sleep, '1000000']\n" + indent(extra)
	}
	long := strings.Repeat("x", 10_000)
	var million strings.Builder
	for i := range 1_000_000 {
		fmt.Fprintf(&million, "{name: A%d, value: b},", i)
	}
	// To read it is to wait for the kernel, and nothing after it would be read.
	if err := os.Symlink("/proc/kmsg", filepath.Join(n.Dir, "manifests/kmsg.yaml")); err != nil {
		t.Fatal(err)
	}
	n.logHas("kmsg.yaml", "a file of the kernel's own")

	// Refused when they are read.
	for name, c := range map[string]struct{ spec, says string }{
		"back": {"\n  volumes: [{name: v, emptyDir: {}}]" +
			container("volumeMounts: [{name: v, mountPath: /v, subPath: ../../x}]"), "subPath"},
		"backitem": {
			"\n  volumes: [{name: v, configMap: {name: c, items: [{key: a, path: ../../x}]}}]" + container(""),
			"items[0].path",
		},
		"backhost":  {"\n  volumes: [{name: v, hostPath: {path: /var/../etc}}]" + container(""), "hostPath.path"},
		"slash":     {"\n  volumes: [{name: ../../x, emptyDir: {}}]" + container(""), "volumes[0].name"},
		"longvol":   {"\n  volumes: [{name: " + long + ", emptyDir: {}}]" + container(""), "volumes[0].name"},
		"longname":  {strings.Replace(container(""), "name: main", "name: "+long, 1), "containers[0].name"},
		"slashname": {strings.Replace(container(""), "name: main", "name: ../main", 1), "containers[0].name"},
		"million":   {container("env: [" + million.String() + "]"), "at most"},
		"many":      {container("env: [" + million.String()[:2_500_000] + "}]"), "too many values"},
		"uid":       {strings.Replace(container(""), "\n  containers", "\n  hostname: ../../x\n  containers", 1), "hostname"},
		"huge": {
			container("resources: {limits: {memory: '1E1000000000'}, requests: {memory: 1}}"),
			"resources.limits[memory]: Invalid value",
		},
		"second": {
			container("") + "\n...\napiVersion: v1\nkind: Pod\n",
			"what follows the first document in it is not read",
		},
		"token": {
			"\n  volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}]" + container(""),
			"only an API server makes tokens",
		},
	} {
		n.apply(name+".yaml", pod(name, c.spec))
		n.logHas(name+".yaml", c.says)
		if n.pod(name) != nil {
			t.Errorf("%s was accepted", name)
		}
		n.remove(name + ".yaml")
	}

	// Refused when they are to start.
	link := filepath.Join(n.Dir, "link")
	if err := os.Symlink(filepath.Join(n.Dir, "root", "pods"), link); err != nil {
		t.Fatal(err)
	}
	// Each variable has the one before ten times.
	var bomb strings.Builder
	bomb.WriteString("{name: V0, value: ten-bytes.}")
	for i := range 12 {
		fmt.Fprintf(&bomb, ", {name: V%d, value: '%s'}", i+1, strings.Repeat(fmt.Sprintf("$(V%d)", i), 10))
	}
	for name, c := range map[string]struct{ spec, says string }{
		"expr": {
			"\n  volumes: [{name: v, emptyDir: {}}]" +
				container("env: [{name: E, value: ../../../../etc}]\nvolumeMounts: [{name: v, mountPath: /v, subPathExpr: $(E)}]"),
			"must not contain '..'",
		},
		"own": {"\n  volumes: [{name: v, hostPath: {path: " + n.Dir + "/root}}]" +
			container("volumeMounts: [{name: v, mountPath: /v}]"), "the agent's own"},
		"ownrun": {"\n  volumes: [{name: v, hostPath: {path: " + n.Dir + "/run/netns, type: DirectoryOrCreate}}]" +
			container("volumeMounts: [{name: v, mountPath: /v}]"), "the agent's own"},
		"ownlink": {"\n  volumes: [{name: v, hostPath: {path: " + link + "}}]" +
			container("volumeMounts: [{name: v, mountPath: /v}]"), "the agent's own"},
		"escape": {"\n  volumes: [{name: v, emptyDir: {}}]\n  initContainers: [{name: i, image: " + image +
			", command: [ln, -s, " + n.Dir + ", /v/evil], volumeMounts: [{name: v, mountPath: /v}]}]" +
			container("volumeMounts: [{name: v, mountPath: /v, subPath: evil/root}]"), "leads out of the volume"},
		"bomb": {container("env: [" + bomb.String() + "]"), "environment variable V5: with its references it has more than"},
		"proc": {
			"\n  volumes: [{name: v, emptyDir: {}}]" + container("volumeMounts: [{name: v, mountPath: /proc/self}]"),
			"proc",
		},
	} {
		n.apply(name+".yaml", pod(name, c.spec))
		n.eventually(name+" to be refused with "+c.says, func() error {
			said, errs, _ := n.berth("describe", name) // the manifest need not have been read
			if out := n.must("events") + said; !strings.Contains(out, c.says) {
				return fmt.Errorf("%s%s", out, errs)
			}
			return nil
		})
		if p := n.pod(name); p != nil && isReady(p) {
			t.Errorf("%s runs", name)
		}
		n.remove(name + ".yaml")
		n.waitGone(name)
	}

	// Harmless: a long value is a value.
	n.apply("longvalue.yaml", pod("longvalue", container("env: [{name: E, value: "+long+"}]")))
	n.waitReady("longvalue")
	if got := strings.TrimSpace(n.sh("longvalue", "echo ${#E}")); got != "10000" {
		t.Errorf("the long value has %s characters", got)
	}
	n.remove("longvalue.yaml")
	n.waitGone("longvalue")

	// A container swaps what a subPath leads to for a link out of its volume, as fast as it can, while another restarts
	// on it.
	n.apply("race.yaml", pod("race", `
  volumes: [{name: v, emptyDir: {}}]
  terminationGracePeriodSeconds: 0
  containers:
  - name: attacker
    image: `+image+`
    command: [sh, -c, 'cd /v; mkdir -p sub; ln -s `+n.Dir+` evil; while :; do mv sub real; mv evil sub; mv sub evil; mv real sub; done']
    volumeMounts: [{name: v, mountPath: /v}]
  - name: victim
    image: `+image+`
    command: [sh, -c, 'test ! -e /in/precious && test ! -e /in/root']
    volumeMounts: [{name: v, mountPath: /in, subPath: sub}]`))
	n.eventually("the victim to have started several times", func() error {
		p := n.pod("race")
		if p == nil {
			return os.ErrNotExist
		}
		s := containerState(p, "victim")
		if term := s.LastTerminationState.Terminated; term != nil && term.ExitCode == 1 {
			t.Fatal("the container saw what is outside of its volume")
		}
		if s.RestartCount < 3 {
			return fmt.Errorf("%d restarts, %+v", s.RestartCount, s.State)
		}
		return nil
	})
	n.remove("race.yaml")
	n.waitGone("race")
	if b, err := os.ReadFile(precious); err != nil || string(b) != "data" {
		t.Errorf("%q, %v", b, err)
	}
	n.requireSame(before, n.waitReady("good"))
	n.remove("good.yaml")
	n.waitGone("good")
	n.requireNoPods()
}

func indent(s string) string {
	if s == "" {
		return ""
	}
	return "    " + strings.ReplaceAll(s, "\n", "\n    ") + "\n"
}
