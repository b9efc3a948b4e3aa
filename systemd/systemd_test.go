package systemd

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listen stands in for the service manager.
func listen(t *testing.T) <-chan string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", path)
	out := make(chan string, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			out <- string(buf[:n])
		}
	}()
	t.Cleanup(func() { conn.Close(); <-done })
	return out
}

func TestMessages(t *testing.T) {
	got := listen(t)
	n := NewNotifier(nil)
	n.Ready("3 pods")
	n.Reloading()
	n.Stopping()
	for _, want := range []string{"READY=1\nSTATUS=3 pods", "RELOADING=1\nMONOTONIC_USEC=", "STOPPING=1\nSTATUS="} {
		if s := <-got; !strings.HasPrefix(s, want) {
			t.Errorf("got %q, want %q", s, want)
		}
	}
}

func TestNotifierAt(t *testing.T) {
	got := listen(t)
	socket := os.Getenv("NOTIFY_SOCKET")
	t.Setenv("NOTIFY_SOCKET", "")
	NewNotifierAt(socket, slog.New(slog.DiscardHandler)).Ready("here")
	if s := <-got; s != "READY=1\nSTATUS=here" {
		t.Errorf("got %q", s)
	}
	var log strings.Builder
	l := slog.New(slog.NewTextHandler(&log, nil))
	NewNotifierAt("", l).Ready("")
	if log.Len() != 0 {
		t.Errorf("without a socket it says %s", log.String())
	}
	NewNotifierAt(socket+"x", l).Ready("")
	if log.Len() == 0 {
		t.Error("nobody hears that it is not heard")
	}
}

func TestSilentWithoutServiceManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "")
	var log strings.Builder
	n := NewNotifier(slog.New(slog.NewTextHandler(&log, nil)))
	n.Ready("")
	if err := n.Watchdog(t.Context(), func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
	if log.Len() != 0 {
		t.Errorf("it spoke: %s", log.String())
	}
}

func TestWatchdogSkipsBeatsWhileUnhealthy(t *testing.T) {
	got := listen(t)
	n := NewNotifier(nil)
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	err := n.beat(ctx, time.Millisecond, func(context.Context) error {
		calls++
		switch calls {
		case 2, 3:
			return errors.New("stuck")
		case 5:
			cancel()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // calls 1 and 4
		if s := <-got; s != "WATCHDOG=1" {
			t.Errorf("got %q", s)
		}
	}
	select {
	case s := <-got:
		t.Errorf("one beat too many: %q", s)
	default:
	}
}

func TestUnit(t *testing.T) {
	u := AgentService("/usr/local/bin/berth", "--root-dir", "/var/lib/my berth", "--label", `a="$HOME%n"`)
	u.Environment = []string{"GOGC=50", "A=b c"}
	got := u.Unit()
	for _, want := range []string{
		"Type=notify\n", "KillMode=process\n", "Delegate=yes\n", "ExecReload=/bin/kill -HUP $MAINPID\n", "Restart=always\n",
		"OOMScoreAdjust=-999\n", "WatchdogSec=60s\n", "Slice=berth.slice\n", "Conflicts=berth-runtime.service\n",
		`ExecStart=/usr/local/bin/berth agent --root-dir "/var/lib/my berth" --label "a=\"$$HOME%%n\""` + "\n",
		"Environment=GOGC=50\n", `Environment="A=b c"` + "\n", "WantedBy=multi-user.target\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

// kubeletUnits are kubelet's unit and the drop-in of kubeadm's package, without what is only said to people.
var kubeletUnits = map[string]string{
	"kubelet.service": `[Unit]
Description=kubelet: The Kubernetes Node Agent
Documentation=https://kubernetes.io/docs/
Wants=network-online.target
After=network-online.target

[Service]
ExecStart=/usr/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=10

[Install]
WantedBy=multi-user.target
`,
	"kubelet.service.d/10-kubeadm.conf": `[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`,
}

// TestDropIn: one command is left, and neither berth's own unit nor the runtime alone runs beside it.
func TestDropIn(t *testing.T) {
	agent := AgentService("/usr/bin/berth", "--config", "/var/lib/kubelet/config.yaml")
	got := agent.DropIn()
	for _, want := range []string{
		"ExecStart=\n", "ExecStart=/usr/bin/berth agent --config /var/lib/kubelet/config.yaml\n", "Conflicts=berth-runtime.service berth.service\n",
		"RestartSec=1s\n", "KillMode=process\n",
	} {
		if strings.Count(got, want) != 1 {
			t.Errorf("not once %q in\n%s", want, got)
		}
	}
	if strings.Contains(agent.Unit(), "berth.service") {
		t.Error("the unit speaks of itself")
	}
}

// TestKubelet: the files of kubeadm say what the agent is started with.
func TestKubelet(t *testing.T) {
	s := KubeletService("/usr/bin/berth", "--max-pods=5")
	got := s.Standing()
	for _, want := range []string{
		"ExecStart=\n", "ExecStart=/usr/bin/berth agent --await-config --kubelet-dir=/var/lib/kubelet --max-pods=5 " +
			"$KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS\n",
		"EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env\n", "EnvironmentFile=-/etc/default/kubelet\n",
		"Environment=KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml\n", "WantedBy=multi-user.target\n",
	} {
		if strings.Count(got, want) != 1 {
			t.Errorf("not once %q in\n%s", want, got)
		}
	}
}

// TestVerify has systemd itself read the units.
func TestVerify(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not here: units are not verified")
	}
	dir := t.TempDir()
	binary := filepath.Join(dir, "berth") // it must be there for a unit to be right
	if err := os.WriteFile(binary, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	agent, runtime := AgentService(binary), RuntimeService(binary)
	files := map[string]string{
		AgentName: agent.Unit(), RuntimeName: runtime.Unit(), SliceName: Slice(), KubeletDropIn: agent.DropIn(),
		ControlName:               ControlService{Binary: binary, Data: ControlData}.Unit(),
		"berth-control-x.service": ControlService{binary, "/srv/a b%n", []string{"--tls-san", "a,b"}}.Unit(),
	}
	maps.Copy(files, kubeletUnits)
	standing := KubeletService(binary)
	files["stands-for-kubelet.service"] = standing.Standing()
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name := range files {
		if strings.HasSuffix(name, ".conf") {
			continue // it is read with its unit
		}
		cmd := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", "--recursive-errors=no", filepath.Join(dir, name))
		cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":")
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
	exposed(t, analyze, filepath.Join(dir, ControlName))
	// What is not set is what the units say that it cannot be; the rest is.
	for _, name := range []string{AgentName, RuntimeName} {
		cmd := exec.CommandContext(t.Context(), analyze, "security", "--offline=yes", "--json=short", "--no-pager", filepath.Join(dir, name))
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
		var rows []struct {
			Set  *bool `json:"set"`
			Name string
			Desc string `json:"description"`
		}
		if err := json.Unmarshal(out, &rows); err != nil || len(rows) < 50 {
			t.Fatalf("%s: %v, %d rows of %s", name, err, len(rows), out)
		}
		for _, r := range rows {
			if slices.Contains([]string{"NotifyAccess=", "KeyringMode="}, r.Name) && (r.Set == nil || !*r.Set) {
				t.Errorf("%s: %s: %s", name, r.Name, r.Desc)
			}
		}
	}
}

// exposed holds the control plane's unit to what systemd says of a service that may little.
func exposed(t *testing.T, analyze, unit string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=yes", "--threshold=20", "--no-pager", unit).CombinedOutput()
	if err != nil {
		t.Errorf("it is exposed: %v: %s", err, out)
	}
}

// TestControlUnit: flags are in the unit, or in a file of their own; another data directory is to be there.
func TestControlUnit(t *testing.T) {
	for _, c := range []struct {
		service   ControlService
		want, not []string
	}{
		{
			ControlService{"/usr/bin/berth-control", ControlData, nil},
			[]string{
				"ExecStart=/usr/bin/berth-control serve $BERTH_CONTROL_FLAGS\n", "EnvironmentFile=-/etc/berth-control/environment\n",
				"StateDirectory=berth-control\n", "User=berth-control\n", "Type=notify\n", "WatchdogSec=60s\n",
			},
			[]string{"ReadWritePaths", "--data-dir"},
		},
		{
			ControlService{"/usr/bin/berth-control", "/srv/a b", []string{"--bind", "$x"}},
			[]string{`ExecStart=/usr/bin/berth-control serve --data-dir "/srv/a b" --bind $$x` + "\n", `ReadWritePaths="/srv/a b"` + "\n"},
			[]string{"StateDirectory", "EnvironmentFile"},
		},
	} {
		text := c.service.Unit()
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
		for _, not := range c.not {
			if strings.Contains(text, not) {
				t.Errorf("%q is in\n%s", not, text)
			}
		}
	}
}

// TestControlDirectories has systemd make the user and the directories of the control plane, below another root.
func TestControlDirectories(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root gives directories to others")
	}
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"sysusers": ControlUsers(), "tmpfiles": ControlDirectories()} {
		if _, err := exec.LookPath("systemd-" + name); err != nil {
			t.Skip("systemd is not here")
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"systemd-sysusers", "--root=" + root, filepath.Join(root, "sysusers")},
		{"systemd-tmpfiles", "--root=" + root, "--create", filepath.Join(root, "tmpfiles")},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	users, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if err != nil || !strings.Contains(string(users), ControlUser+":x:") {
		t.Errorf("the users are %s, %v", users, err)
	}
	for dir, want := range map[string]string{ControlData: "drwx------", filepath.Dir(ControlEnvironment): "drwxr-x---"} {
		if st, err := os.Stat(filepath.Join(root, dir)); err != nil || st.Mode().String() != want {
			t.Errorf("%s is %v, %v", dir, st, err)
		}
	}
}
