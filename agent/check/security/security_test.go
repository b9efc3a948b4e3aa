package security

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/berth-node/berth/internal/commandline"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// node is a node's directories, and what its agent says of its settings.
type node struct {
	dir      string
	settings map[string]any
	Config
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{dir: t.TempDir()}
	n.RunDir, n.Proc, n.UID = n.at("run"), n.at("proc"), uint32(os.Getuid())
	for name, mode := range map[string]os.FileMode{
		"root/runtime.db": 0o600, "root/devices.json": 0o600, "root/manifests/a.json": 0o600, "root/pki/server.pem": 0o600,
		"root/pki/ca.crt": 0o644, "run/records": 0o600, "manifests/a.yaml": 0o600,
		"proc/vm/overcommit_memory": 0o644, "tokens": 0o600,
	} {
		must(t, os.MkdirAll(filepath.Dir(n.at(name)), 0o755))
		must(t, os.WriteFile(n.at(name), []byte("text"), mode))
		must(t, os.Chmod(n.at(name), mode))
	}
	for name, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		must(t, os.MkdirAll(filepath.Dir(n.at("proc/"+name)), 0o755))
		must(t, os.WriteFile(n.at("proc/"+name), []byte(value+"\n"), 0o644))
	}
	n.settings = map[string]any{
		"enableServer": true, "port": 0, "authorization": map[string]any{"mode": "Webhook"}, "healthzBindAddress": "127.0.0.1",
		"staticPodPath": n.at("manifests"), "seccompDefault": true, "podPidsLimit": 1000,
		"berth": map[string]any{"rootDir": n.at("root"), "certDir": n.at("root/pki"), "kubeletDir": n.at("root"), "tokenAuthFile": n.at("tokens")},
	}
	n.HTTP = &http.Client{Transport: answers(func() (int, any) { return 200, map[string]any{"kubeletconfig": n.settings} })}
	return n
}

func (n *node) at(name string) string { return filepath.Join(n.dir, name) }

// answers is an agent that answers one thing.
type answers func() (int, any)

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	code, body := a()
	if body == nil {
		return nil, errors.New("no agent answers")
	}
	w := httptest.NewRecorder()
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
	resp := w.Result()
	resp.Request = r
	return resp, nil
}

// amiss are the items that are not ok, and their states.
func (n *node) amiss(t *testing.T) map[string]Status {
	t.Helper()
	r, err := Run(t.Context(), n.Config)
	must(t, err)
	out := map[string]Status{}
	for _, i := range r.Items {
		if i.Status != OK {
			out[i.Name] = i.Status
			if i.Do == "" || i.Found == "" {
				t.Errorf("%+v does not say what to do", i)
			}
		} else if i.Do != "" {
			t.Errorf("%+v is ok, and says what to do", i)
		}
	}
	bad := slices.Contains(slices.Collect(maps.Values(out)), Deviation) || slices.Contains(slices.Collect(maps.Values(out)), Unknown)
	if r.Secure == bad {
		t.Errorf("secure is %t with %v", r.Secure, out)
	}
	return out
}

func TestGood(t *testing.T) {
	if amiss := newNode(t).amiss(t); len(amiss) > 0 {
		t.Errorf("amiss is %v", amiss)
	}
}

// TestSettings: each setting that deviates is named, and nothing else.
func TestSettings(t *testing.T) {
	berth := func(key string, value any) func(*node) {
		return func(n *node) { n.settings["berth"].(map[string]any)[key] = value }
	}
	set := func(key string, value any) func(*node) { return func(n *node) { n.settings[key] = value } }
	for item, c := range map[string]struct {
		change func(*node)
		status Status
	}{
		"anonymous-auth":       {set("authentication", map[string]any{"anonymous": map[string]any{"enabled": true}}), Deviation},
		"authorization-mode":   {set("authorization", map[string]any{"mode": "AlwaysAllow"}), Deviation},
		"api-allow":            {berth("apiAllow", []any{"group:a=*", "group:system:unauthenticated=*"}), Deviation},
		"read-only-port":       {set("readOnlyPort", 10255), Deviation},
		"healthz-bind-address": {func(n *node) { n.settings["healthzBindAddress"], n.settings["healthzPort"] = "0.0.0.0", 10248 }, Deviation},
		"tls-min-version":      {set("tlsMinVersion", "VersionTLS11"), Deviation},
		"tls-cipher-suites": {set("tlsCipherSuites", []any{
			"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
		}), Deviation},
		"profiling":               {set("enableProfilingHandler", true), Deviation},
		"seccomp-default":         {set("seccompDefault", false), Advice},
		"pod-max-pids":            {set("podPidsLimit", -1), Advice},
		"image-pull-credentials":  {set("imagePullCredentialsVerificationPolicy", "NeverVerify"), Deviation},
		"protect-kernel-defaults": {func(n *node) { must(t, os.WriteFile(n.at("proc/kernel/panic"), []byte("0\n"), 0o644)) }, Advice},
	} {
		t.Run(item, func(t *testing.T) {
			n := newNode(t)
			c.change(n)
			if amiss := n.amiss(t); len(amiss) != 1 || amiss[item] != c.status {
				t.Errorf("amiss is %v, should be %s alone", amiss, item)
			}
		})
	}
}

// TestPorts asks a port that tells strangers, one that refuses them, and one that speaks an old TLS.
func TestPorts(t *testing.T) {
	for want, c := range map[string]struct {
		code   int
		old    bool
		closed bool
	}{"": {401, false, false}, "https-port": {200, false, false}, "https-port-tls": {401, true, false}, "https-port ": {0, false, true}} {
		n := newNode(t)
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(c.code) }))
		s.Config.ErrorLog = nil
		s.StartTLS()
		if c.old {
			s.TLS.MinVersion = 0x0301
		}
		addr, _ := s.Listener.Addr().(*net.TCPAddr)
		if c.closed {
			s.Close()
		}
		n.settings["address"], n.settings["port"] = "127.0.0.1", addr.Port
		amiss := n.amiss(t)
		delete(amiss, "debugging-handlers")
		if name := strings.TrimSpace(want); len(amiss) != min(len(name), 1) || name != "" && amiss[name] == "" {
			t.Errorf("%q: amiss is %v", want, amiss)
		}
		if !c.closed {
			s.Close()
		}
	}
}

// TestFiles: what others may read or write is found, each where it is.
func TestFiles(t *testing.T) {
	socket := func(t *testing.T, path string, mode os.FileMode) {
		t.Helper()
		l, err := net.Listen("unix", path)
		must(t, err)
		t.Cleanup(func() { l.Close() })
		must(t, os.Chmod(path, mode))
	}
	for item, change := range map[string]func(t *testing.T, n *node){
		"agent socket":       func(t *testing.T, n *node) { socket(t, n.at("run/berth.sock"), 0o666) },
		"runtime socket":     func(t *testing.T, n *node) { socket(t, n.at("run/cri.sock"), 0o666) },
		"other sockets":      func(t *testing.T, n *node) { socket(t, n.at("run/nri.sock"), 0o777) },
		"directories":        func(t *testing.T, n *node) { must(t, os.Chmod(n.at("root"), 0o777)) },
		"records":            func(t *testing.T, n *node) { must(t, os.Chmod(n.at("root/runtime.db"), 0o644)) },
		"private keys":       func(t *testing.T, n *node) { must(t, os.Chmod(n.at("root/pki/server.pem"), 0o640)) },
		"tokens":             func(t *testing.T, n *node) { must(t, os.Chmod(n.at("tokens"), 0o604)) },
		"manifest directory": func(t *testing.T, n *node) { must(t, os.Chmod(n.at("manifests"), 0o777)) },
		"secret volumes": func(t *testing.T, n *node) {
			must(t, os.MkdirAll(n.at("root/pods/u/volumes/kubernetes.io~secret/s"), 0o700))
		},
		"secrets on disk": func(t *testing.T, n *node) {
			must(t, os.WriteFile(n.at("manifests/s.yaml"), []byte("kind: Pod\n---\nkind: Secret\nstringData: {a: correct horse}\n"), 0o600))
			must(t, os.WriteFile(n.at("root/devices.json"), []byte(`{"x":"Y29ycmVjdCBob3JzZQ=="}`), 0o600))
		},
	} {
		t.Run(item, func(t *testing.T) {
			n := newNode(t)
			change(t, n)
			amiss := n.amiss(t)
			if item == "secret volumes" && len(amiss) == 0 {
				t.Skip("the temporary directory is in memory")
			}
			if len(amiss) != 1 || amiss[item] != Deviation {
				t.Errorf("amiss is %v, should be %s alone", amiss, item)
			}
		})
	}
}

// TestLinks: a key that is kept elsewhere, with a link to it, is looked at there.
func TestLinks(t *testing.T) {
	n := newNode(t)
	key := n.at("root/pki/server.pem")
	elsewhere := filepath.Join(t.TempDir(), "key.pem")
	must(t, os.Rename(key, elsewhere))
	must(t, os.Symlink(elsewhere, key))
	must(t, os.Symlink("/dev/null", n.at("root/pki/none.pem")))
	must(t, os.Symlink(n.at("nothing"), n.at("root/pki/gone.pem")))
	if amiss := n.amiss(t); len(amiss) > 0 {
		t.Errorf("amiss is %v, should be nothing", amiss)
	}
	must(t, os.Chmod(elsewhere, 0o644))
	if amiss := n.amiss(t); len(amiss) != 1 || amiss["private keys"] != Deviation {
		t.Errorf("amiss is %v, should be the private keys alone", amiss)
	}
}

// TestOwner: files of somebody else are found.
func TestOwner(t *testing.T) {
	n := newNode(t)
	n.UID++
	if amiss := n.amiss(t); amiss["records"] != Deviation || amiss["private keys"] != Deviation {
		t.Errorf("amiss is %v", amiss)
	}
}

// TestCommand prints both forms, and fails for a node that deviates.
func TestCommand(t *testing.T) {
	for _, deviates := range []bool{false, true} {
		for _, output := range []string{"table", "json", "yaml"} {
			n := newNode(t)
			n.settings["readOnlyPort"] = map[bool]int{true: 1}[deviates]
			var out bytes.Buffer
			cmd := &cobra.Command{Use: "check", SilenceUsage: true, RunE: func(*cobra.Command, []string) error { return errors.New("machine") }}
			var as commandline.Output
			as.AddFlag(cmd, "table")
			AddTo(cmd, func() string { return n.RunDir }, func() *http.Client { return n.HTTP })
			cmd.SetOut(&out)
			cmd.SetErr(&out)
			cmd.SetArgs([]string{"--security", "-o", output})
			err := cmd.Execute()
			if os.Getuid() == 0 && errors.Is(err, ErrDeviates) != deviates {
				t.Errorf("%s, deviates %t: %v\n%s", output, deviates, err, out.String())
			}
			if output != "table" {
				var r Report
				if err := yaml.Unmarshal(out.Bytes(), &r); err != nil || len(r.Items) < len(rules) {
					t.Errorf("it prints %s: %v", out.String(), err)
				}
			} else if !strings.Contains(out.String(), "read-only-port") {
				t.Errorf("it prints %s", out.String())
			}
		}
	}
	cmd := &cobra.Command{Use: "check", SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error { return errors.New("machine") }}
	AddTo(cmd, func() string { return "" }, nil)
	cmd.SetArgs(nil)
	if err := cmd.Execute(); err == nil || err.Error() != "machine" {
		t.Errorf("without the flag: %v", err)
	}
}

// TestNoAgent: an audit of nothing is no good news.
func TestNoAgent(t *testing.T) {
	for _, a := range []answers{func() (int, any) { return 0, nil }, func() (int, any) { return 403, "no" }, func() (int, any) { return 200, "text" }} {
		n := newNode(t)
		n.HTTP = &http.Client{Transport: a}
		if _, err := Run(t.Context(), n.Config); err == nil {
			t.Error("it succeeds")
		}
	}
}
