package credential

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

const header = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n"

func provider1(name, match, more string) string {
	return fmt.Sprintf("- name: %s\n  matchImages: [%q]\n  defaultCacheDuration: 1h\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n%s", name, match, more)
}

// plugin writes a program that counts its runs, and keeps what it was asked.
func plugin(t *testing.T, dir, name, body string) (runs func() int) {
	t.Helper()
	p := filepath.Join(dir, name)
	script := "#!/bin/sh\necho >>" + p + ".runs\ncat >" + p + ".in\n" + body
	if err := os.WriteFile(p, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return func() int {
		b, _ := os.ReadFile(p + ".runs")
		return len(b)
	}
}

func answerOf(cache, auth string) string {
	return `printf '%s' '{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse",` + cache + `,"auth":{` + auth + "}}'\n"
}

func open(t *testing.T, dir, config string) *Providers {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := New(Config{Path: path, BinDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// users asks for an image and returns the names that came, in their order.
func users(t *testing.T, p *Providers, image string) string {
	t.Helper()
	auths, err := p.For(t.Context(), image)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, a := range auths {
		names = append(names, a.Username+":"+a.Password)
	}
	return strings.Join(names, " ")
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, image string
		want           bool
	}{
		{"registry.io", "registry.io/a", true},
		{"registry.io", "registry.io:5000/a", true},
		{"registry.io:5000", "registry.io:5000/a", true},
		{"registry.io:5000", "registry.io/a", false},
		{"registry.io:8080/path", "registry.io:8080/path/a:1", true},
		{"registry.io/path", "registry.io/other", false},
		{"*.registry.io", "a.registry.io/x", true},
		{"*.registry.io", "registry.io/x", false},
		{"*.io", "a.registry.io/x", false},
		{"*.*.registry.io", "a.b.registry.io/x", true},
		{"app*.k8s.io", "app1.k8s.io/x", true},
		{"k8s.*", "k8s.io/x", true},
		{"docker.io", "busybox", true},
		{"https://registry.io/v1", "registry.io/v1/x", true},
	} {
		p, err := parsePattern(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		i, err := parseImage(c.image)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.match(i); got != c.want {
			t.Errorf("%s for %s: got %v", c.pattern, c.image, got)
		}
	}
}

func FuzzPattern(f *testing.F) {
	for _, s := range []string{"a.b", "*.b:1/c", "[", "https://x/y", ":", "\\"} {
		f.Add(s, s)
	}
	f.Fuzz(func(_ *testing.T, s, ref string) {
		p, err := parsePattern(s)
		i, err2 := parseImage(ref)
		if err == nil && err2 == nil {
			p.match(i)
		}
	})
}

func TestConfigurationIsStrict(t *testing.T) {
	good := provider1("a", "r.io", "")
	for config, want := range map[string]string{
		"":                             "want CredentialProviderConfig",
		header:                         "providers: none",
		header + "providers: []\nx: 1": "unknown field",
		header + "providers:\n" + good + "  matchImage: [x]\n":                                   "unknown field",
		strings.Replace(header, "/v1", "/v9", 1) + "providers:\n" + good:                         "want CredentialProviderConfig",
		header + "providers:\n" + good + good:                                                    "another provider",
		header + "providers:\n" + strings.Replace(good, "k8s.io/v1", "k8s.io/v1alpha1", 1):       "apiVersion",
		header + "providers:\n" + strings.Replace(good, "1h", "-1h", 1):                          "defaultCacheDuration",
		header + "providers:\n" + strings.Replace(good, "name: a", "name: ../a", 1):              "name of a file",
		header + "providers:\n" + provider1("a", "r.io:*", ""):                                   "globs are for the domain",
		header + "providers:\n" + provider1("a", "", ""):                                         "no domain",
		header + "providers:\n" + provider1("a", "r.io", "  env: [{name: \"a=b\", value: c}]\n"): "no name of a variable",
		header + "providers:\n" + provider1("a", "r.io", "  tokenAttributes: {serviceAccountTokenAudience: x, cacheType: Token, requireServiceAccount: true}\n"): "no service account",
	} {
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := load(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

func TestProgramsMustBeThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(header+"providers:\n"+provider1("gone", "r.io", "")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Path: path, BinDir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("got %v", err)
	}
}

func TestAsksThePluginThatMatches(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := t.TempDir()
	runs := plugin(t, dir, "a", `[ "$1$K" = argvalue ] || exit 9`+"\n"+
		answerOf(`"cacheKeyType":"Image"`, `"*.r.io":{"username":"glob","password":"1"},"a.r.io/x":{"username":"path","password":"2"},"a.r.io":{"username":"host","password":"3"},"other.io":{"username":"no","password":"4"}`))
	p := open(t, dir, header+"providers:\n"+provider1("a", "*.r.io", "  args: [arg]\n  env: [{name: K, value: value}]\n"))
	if got, want := users(t, p, "a.r.io/x/y:tag"), "path:2 host:3 glob:1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	in, err := os.ReadFile(dir + "/a.in")
	if want := `{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"a.r.io/x/y"}`; err != nil || string(in) != want {
		t.Errorf("it was asked %s (%v), want %s", in, err, want)
	}
	if got := users(t, p, "r.io/x"); got != "" || runs() != 1 {
		t.Errorf("an image that does not match: got %s after %d runs", got, runs())
	}
}

func TestCache(t *testing.T) {
	for _, c := range []struct {
		cache string
		want  int // runs for a/1:x, a/1:y, a/2 and b/1
	}{
		{`"cacheKeyType":"Image"`, 3},
		{`"cacheKeyType":"Registry"`, 2},
		{`"cacheKeyType":"Global"`, 1},
		{`"cacheKeyType":"Global","cacheDuration":"0s"`, 4},
		{`"cacheKeyType":"Bogus"`, 4},
	} {
		dir := t.TempDir()
		runs := plugin(t, dir, "p", answerOf(c.cache, `"*.io":{"username":"u","password":"p"}`))
		p := open(t, dir, header+"providers:\n"+provider1("p", "*.io", ""))
		for _, image := range []string{"a.io/1:x", "a.io/1:y", "a.io/2", "b.io/1"} {
			want := "u:p"
			if strings.Contains(c.cache, "Bogus") {
				want = ""
			}
			if got := users(t, p, image); got != want {
				t.Errorf("%s: %s: got %q", c.cache, image, got)
			}
		}
		if runs() != c.want {
			t.Errorf("%s: the plugin ran %d times, want %d", c.cache, runs(), c.want)
		}
	}
}

func TestPullsAtOnceAskOnce(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := t.TempDir()
	runs := plugin(t, dir, "p", answerOf(`"cacheKeyType":"Image"`, `"r.io":{"username":"u","password":"p"}`))
	p := open(t, dir, header+"providers:\n"+provider1("p", "r.io", ""))
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			if auths, err := p.For(t.Context(), "r.io/x"); err != nil || len(auths) != 1 {
				t.Errorf("got %v, %v", auths, err)
			}
		})
	}
	wait.Wait()
	if runs() != 1 {
		t.Errorf("the plugin ran %d times", runs())
	}
}

func TestPluginsThatFailAreLeftOut(t *testing.T) {
	dir := t.TempDir()
	plugin(t, dir, "fails", "echo why >&2; exit 3\n")
	plugin(t, dir, "old", `echo '{"apiVersion":"credentialprovider.kubelet.k8s.io/v1beta1","kind":"CredentialProviderResponse"}'`)
	plugin(t, dir, "talks", "echo hello\n")
	plugin(t, dir, "long", "head -c 3000000 /dev/zero\n")
	plugin(t, dir, "none", answerOf(`"cacheKeyType":"Image"`, ""))
	plugin(t, dir, "good", answerOf(`"cacheKeyType":"Image"`, `"r.io":{"username":"u","password":"p"}`))
	config := header + "providers:\n"
	for _, name := range []string{"fails", "old", "talks", "long", "none", "good"} {
		config += provider1(name, "r.io", "")
	}
	p := open(t, dir, config)
	if got := users(t, p, "r.io/x"); got != "u:p" {
		t.Errorf("got %s", got)
	}
	img, err := parseImage("r.io/x")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"why", "want CredentialProviderResponse of credentialprovider.kubelet.k8s.io/v1", "not JSON", "more than"} {
		if _, err := p.all[i].get(t.Context(), img); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", p.all[i].name, err, want)
		}
	}
}
