package system

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-node/berth/test/plane"
)

// peerPrograms is the directory of programs that others have written (test/cluster/build), without which a test is not
// run.
func peerPrograms(t *testing.T, target string) string {
	t.Helper()
	dir := os.Getenv("BERTH_PEERS")
	if dir == "" {
		t.Skip("needs programs of others: make " + target)
	}
	return dir
}

// command runs a program of others with the administrator's kubeconfig, and returns what it writes and whether it went
// well.
func (m *member) command(input, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "HOME="+m.Dir, "KUBECONFIG="+filepath.Join(m.plane.Dir, "admin.kubeconfig"))
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// kubectl requires that a command of kubectl goes well.
func (m *member) kubectl(args ...string) string {
	m.t.Helper()
	return m.kubectlWith("", args...)
}

func (m *member) kubectlWith(input string, args ...string) string {
	m.t.Helper()
	out, err := m.command(input, filepath.Join(peerPrograms(m.t, "test-ecosystem"), "kubectl"), args...)
	if err != nil {
		m.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// manifests applies the files of others as they are.
func (m *member) manifests(of string) {
	m.t.Helper()
	// On the server's side: the definitions of some resources are longer than an annotation may be.
	m.kubectl("apply", "--server-side", "-f", filepath.Join(peerPrograms(m.t, "test-ecosystem"), "manifests", of))
	m.kubectl("wait", "--for=condition=Established", "customresourcedefinitions", "--all", "--timeout="+limit.String())
}

// awaits waits until something of an object is so, as kubectl wait says it.
func (m *member) awaits(what, condition string, more ...string) {
	m.t.Helper()
	args := append([]string{"wait", what, "--for=" + condition, "--timeout=" + limit.String()}, more...)
	out, err := m.command("", filepath.Join(peerPrograms(m.t, "test-ecosystem"), "kubectl"), args...)
	if err != nil {
		now, _ := m.command("", filepath.Join(peerPrograms(m.t, "test-ecosystem"), "kubectl"), "describe", what)
		m.t.Fatalf("kubectl %s: %v\n%s\n%s", strings.Join(args, " "), err, out, now)
	}
}

// account writes a kubeconfig by which a program is a service account of the cluster, with its rights and no more.
func (m *member) account(namespace, name string) string {
	m.t.Helper()
	seconds := int64(3600)
	token, err := m.plane.Client.CoreV1().ServiceAccounts(namespace).CreateToken(m.t.Context(), name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	c := rest.AnonymousClientConfig(m.plane.Config)
	c.CAData, c.BearerToken = m.plane.Config.CAData, token.Status.Token
	path := filepath.Join(m.Dir, name+".kubeconfig")
	plane.WriteKubeconfig(m.t, c, path)
	return path
}

// beside starts a program of others that runs until the test ends, or is killed.
func (m *member) beside(env []string, program string, args ...string) (kill func()) {
	m.t.Helper()
	path := filepath.Join(m.Dir, filepath.Base(program)+".log")
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		m.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.others = append(m.others, cmd.Process.Pid)
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	kill = func() {
		_ = cmd.Process.Kill()
		<-ended
	}
	m.t.Cleanup(func() {
		select {
		case <-ended:
			m.t.Logf("%s has ended: %s", filepath.Base(program), cmd.ProcessState)
		default:
		}
		kill()
		if text, err := os.ReadFile(path); m.t.Failed() && err == nil {
			m.t.Logf("%s has written:\n%s", filepath.Base(program), text[max(0, len(text)-8000):])
		}
	})
	return kill
}
