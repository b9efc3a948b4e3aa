package draft

import (
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/source/manifest"
)

// drafted is the pod that flags ask for.
func drafted(t testing.TB, args ...string) *Pod {
	t.Helper()
	p := &Pod{Name: "web", Namespace: "default", Image: "docker.io/library/nginx:1.27"}
	fs := pflag.NewFlagSet("init", pflag.ContinueOnError)
	p.AddFlags(fs)
	fs.StringVar(&p.Image, "image", p.Image, "")
	fs.StringVar(&p.Name, "name", p.Name, "")
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	p.Args = fs.Args()
	return p
}

// read is the pod that the agent makes of a manifest, which it has nothing against.
func read(t testing.TB, text []byte) *corev1.Pod {
	t.Helper()
	docs := (&manifest.Reader{Node: "node"}).Read(text, manifest.Place{})
	if len(docs) != 1 || docs[0].Item == nil || docs[0].Item.Pod == nil || len(docs[0].Errors)+len(docs[0].Warnings) > 0 {
		t.Fatalf("%+v\n%s", docs, text)
	}
	return docs[0].Item.Pod
}

// everything are flags of which each sets something.
func everything() []string {
	return []string{
		"--port=8080:80", "--port=127.0.0.1:8443:443/tcp", "--port=[::1]:5353:53/udp", "--port=9000",
		"--volume=data:/data", "--volume=data:/again:ro", "--volume=/srv/www:/srv/www:ro", "--volume=/srv-www:/other", "--volume=/:/node",
		"--volume=host-srv-www:/trap",
		"--env=A=1", "--env=B=yes", "--env=C=a: b # c\n\t\"'$x\u2028", "--env=D=", "--cpu=500m", "--memory=256Mi", "--restart=OnFailure",
		"--command", "--", "sh", "-c", "echo $HOME; exit", "~", "- x", "0x10", "1e3",
	}
}

func TestManifest(t *testing.T) {
	text, err := drafted(t, everything()...).Manifest()
	if err != nil {
		t.Fatal(err)
	}
	p := read(t, text)
	c := p.Spec.Containers[0]
	if p.Name != "web-node" || p.Labels["app"] != "web" || p.Spec.RestartPolicy != corev1.RestartPolicyOnFailure || c.Name != "web" {
		t.Errorf("%+v", p)
	}
	if want := []string{"sh", "-c", "echo $HOME; exit", "~", "- x", "0x10", "1e3"}; !slices.Equal(c.Command, want) || len(c.Args) > 0 {
		t.Errorf("command %q, args %q", c.Command, c.Args)
	}
	if want := []corev1.EnvVar{
		{Name: "A", Value: "1"}, {Name: "B", Value: "yes"}, {Name: "C", Value: "a: b # c\n\t\"'$x\u2028"}, {Name: "D"},
	}; !reflect.DeepEqual(c.Env, want) {
		t.Errorf("env %q", c.Env)
	}
	if want := []corev1.ContainerPort{
		{ContainerPort: 80, HostPort: 8080, Protocol: "TCP"},
		{ContainerPort: 443, HostPort: 8443, HostIP: "127.0.0.1", Protocol: "TCP"},
		{ContainerPort: 53, HostPort: 5353, HostIP: "::1", Protocol: "UDP"},
		{ContainerPort: 9000, Protocol: "TCP"},
	}; !reflect.DeepEqual(c.Ports, want) {
		t.Errorf("ports %+v", c.Ports)
	}
	if cpu, memory := c.Resources.Requests.Cpu(), c.Resources.Limits.Memory(); cpu.String() != "500m" || memory.String() != "256Mi" {
		t.Errorf("resources %+v", c.Resources)
	}
	var mounts []string
	for _, m := range c.VolumeMounts {
		i := slices.IndexFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		from := "own"
		if h := p.Spec.Volumes[i].HostPath; h != nil {
			from = h.Path
		}
		if m.ReadOnly {
			from += " ro"
		}
		mounts = append(mounts, m.MountPath+" "+from)
	}
	want := []string{"/data own", "/again own ro", "/srv/www /srv/www ro", "/other /srv-www", "/node /", "/trap own"}
	if !slices.Equal(mounts, want) || len(p.Spec.Volumes) != 5 {
		t.Errorf("mounts %q of volumes %+v", mounts, p.Spec.Volumes)
	}
}

// settings are the lines of settings that are not taken: # without a space.
var settings = regexp.MustCompile(`(?m)(^ *#([^ \n]| {2,}[^ \n]).*\n)+`)

// TestSettings takes the # away from what can be had so, one after the other: what comes of it is good as it stands,
// and another pod.
func TestSettings(t *testing.T) {
	for _, args := range [][]string{nil, everything()} {
		text, err := drafted(t, args...).Manifest()
		if err != nil {
			t.Fatal(err)
		}
		all := settings.FindAllIndex(text, -1)
		for _, at := range all {
			set := regexp.MustCompile(`(?m)^( *)#`).ReplaceAll(text[at[0]:at[1]], []byte("$1"))
			more := slices.Concat(text[:at[0]], set, text[at[1]:])
			if reflect.DeepEqual(read(t, more).Spec, read(t, text).Spec) && !strings.Contains(string(set), "annotations") {
				t.Errorf("these change nothing:\n%s", set)
			}
		}
		if len(all) < 9 {
			t.Errorf("only %d settings are offered:\n%s", len(all), text)
		}
	}
}

// TestComments has each field of a manifest explained: there is a comment directly above it, or above the list or
// mapping that it begins.
func TestComments(t *testing.T) {
	text, err := drafted(t, everything()...).Manifest()
	if err != nil {
		t.Fatal(err)
	}
	explained := map[string]bool{}
	before := ""
	for line := range strings.Lines(string(text)) {
		trimmed := strings.TrimLeft(line, " -")
		if key, _, ok := strings.Cut(trimmed, ":"); ok && !strings.HasPrefix(trimmed, "#") && strings.Contains(before, "# ") {
			explained[key] = true
		}
		before = line
		if len(strings.TrimRight(line, "\n")) > 140 {
			t.Errorf("a long line: %s", line)
		}
	}
	for _, key := range []string{
		"name", "namespace", "labels", "restartPolicy", "terminationGracePeriodSeconds", "containers", "image", "command", "ports", "hostIP",
		"resources", "volumeMounts", "readOnly", "volumes", "hostPath", "emptyDir", "medium",
	} {
		if !explained[key] {
			t.Errorf("%s has no comment before it:\n%s", key, text)
		}
	}
}

func TestBadFlags(t *testing.T) {
	for want, args := range map[string][]string{
		`name "Web"`:                   {"--name=Web"},
		`--image: `:                    {"--image="},
		`--image "A B"`:                {"--image=A B"},
		`--port "80:"`:                 {"--port=80:"},
		`--port "0"`:                   {"--port=0"},
		`--port "65536:1"`:             {"--port=65536:1"},
		`--port "x:1:2"`:               {"--port=x:1:2"},
		`--port "80/icmp"`:             {"--port=80/icmp"},
		`--port "8080:81"`:             {"--port=8080:80", "--port=8080:81"},
		`--volume "data"`:              {"--volume=data"},
		`--volume "Data:/x"`:           {"--volume=Data:/x"},
		`--volume "a:b"`:               {"--volume=a:b"},
		`--volume "a:/"`:               {"--volume=a:/"},
		`--volume "a:/b:rx"`:           {"--volume=a:/b:rx"},
		`--volume "/a/../b:/b"`:        {"--volume=/a/../b:/b"},
		`--volume "b:/x"`:              {"--volume=a:/x", "--volume=b:/x"},
		`--env "A"`:                    {"--env=A"},
		`--env "1=2"`:                  {"--env=1=2"},
		`--env "A=2"`:                  {"--env=A=1", "--env=A=2"},
		`--env "A=\x00"`:               {"--env=A=\x00"},
		`--cpu "much"`:                 {"--cpu=much"},
		`--cpu "0"`:                    {"--cpu=0"},
		`--memory "128m"`:              {"--memory=128m"},
		`--memory "1e-999999999"`:      {"--memory=1e-999999999"},
		`--restart "always"`:           {"--restart=always"},
		`--command: `:                  {"--command"},
		`argument "\xff" after --: mu`: {"--", "\xff"},
	} {
		text, err := drafted(t, args...).Manifest()
		if err == nil || !strings.Contains(err.Error(), want) || text != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func TestNameOf(t *testing.T) {
	for image, want := range map[string]string{
		"nginx": "nginx", "docker.io/library/nginx:1.27": "nginx", "reg.example:5000/a/My_app": "", "reg.example:5000/a/my_app@sha256:" +
			strings.Repeat("0", 64): "my-app", "quay.io/x/node.js:1": "node-js", "": "", "a b": "",
	} {
		got, err := NameOf(image)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", image, got, err)
		}
	}
}

// TestTexts: whatever a text is, the container has it as it was.
func TestTexts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	texts := strings.Fields("y No ~ null 0x1f 1e3 - ? : 2001-01-01 0o7 .5 +1 << = 1:30 !x 1_000 10m 5Gi 0777 .inf NaN a: #c - @ ` % | > * &a [ {")
	signs := []rune("aZ09 -_:#{}[],&*!|>'\"%@`~?\\/\n\t=<.\u0085\u2028\ufeff\U0001f600\U000e0001é$()yn\x01\x7f\r")
	for range 500 {
		var b strings.Builder
		for range r.IntN(9) {
			b.WriteRune(signs[r.IntN(len(signs))])
		}
		texts = append(texts, b.String())
	}
	for _, s := range texts {
		text, err := drafted(t, "--env=A="+s, "--", s).Manifest()
		if err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		c := read(t, text).Spec.Containers[0]
		if c.Env[0].Value != s || !slices.Equal(c.Args, []string{s}) {
			t.Errorf("%q has become %q and %q", s, c.Env[0].Value, c.Args)
		}
	}
}

// FuzzManifest: whatever flags are taken, the pod has just what they say.
func FuzzManifest(f *testing.F) {
	f.Add("web", "A=1", "data:/data", "80:80", "echo", "1")
	f.Add("a.b", "B=no", "/x y:/y: z", "9/udp", "- a: b", "1Gi")
	f.Add("no", "C=\u0085\u2028\U0001f600\t ", "n:/~", "1:2", "{[", "0.5")
	f.Fuzz(func(t *testing.T, name, env, volume, ports, arg, memory string) {
		p := &Pod{
			Name: name, Namespace: "default", Image: "img", Env: []string{env}, Volumes: []string{volume}, Ports: []string{ports}, Args: []string{arg},
			Memory: memory, Restart: "Never",
		}
		text, err := p.Manifest()
		if err != nil {
			return
		}
		docs := (&manifest.Reader{Node: "node"}).Read(text, manifest.Place{})
		if len(docs) != 1 {
			t.Fatalf("%d documents:\n%s", len(docs), text)
		}
		if docs[0].Item == nil {
			// What only the API's validation knows.
			if len(name) > 200 || len(volume) > 50 || strings.ContainsAny(memory, ".numkKMGTPEe") {
				return
			}
			t.Fatalf("%q\n%s", docs[0].Errors, text)
		}
		got := docs[0].Item.Pod
		c := got.Spec.Containers[0]
		if got.Name != name+"-node" || c.Env[0].Name+"="+c.Env[0].Value != env || c.Args[0] != arg ||
			!strings.HasPrefix(volume+":", got.Spec.Volumes[0].Name+":"+c.VolumeMounts[0].MountPath+":") && got.Spec.Volumes[0].HostPath == nil {
			t.Fatalf("%+v of\n%s", got, text)
		}
	})
}
