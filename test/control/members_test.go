package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	planes "github.com/berth-node/berth/test/plane"
)

// ports are three that are free at each of some addresses of the loopback: of the API, of etcd's members and clients.
func ports(t *testing.T, addresses ...string) [3]string {
	t.Helper()
	return [3]string{planes.Port(t, addresses...), planes.Port(t, addresses...), planes.Port(t, addresses...)}
}

// memberFlags are what distinguishes one of several control planes.
type memberFlags struct {
	at, advertise string
	ports         [3]string
}

// peer are the flags by which others reach it.
func (m memberFlags) peer() []string {
	return []string{"--peer-address", m.at, "--peer-port", m.ports[1], "--etcd-port", m.ports[2]}
}

func (m memberFlags) start(t *testing.T, dir string, flags ...string) *plane {
	t.Helper()
	return startOn(t, dir, m.at, m.ports[0], append(flags, "--advertise-address", m.advertise)...)
}

// join makes the data directory of a further member, by the command that a member prints.
func (m memberFlags) join(t *testing.T, of *plane, dir string) string {
	t.Helper()
	command := strings.Fields(of.run(t, "token", "create", "--member"))
	if out, err := control(t, dir, append(command[1:], m.peer()...)...); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
	}
	return dir
}

// control runs a command of the control plane on a data directory.
func control(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, append(args, "--data-dir", dir)...).CombinedOutput()
	return string(out), err
}

// three starts three members, each in a directory, and makes a ConfigMap before there is more than one.
func three(t *testing.T, dirs [3]string) ([]memberFlags, []*plane) {
	t.Helper()
	addresses := []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}
	p := ports(t, addresses...)
	var at []memberFlags
	for i, a := range addresses {
		at = append(at, memberFlags{a, fmt.Sprintf("192.0.2.%d", i+1), p})
	}
	first := at[0].start(t, dirs[0], at[0].peer()...)
	if _, err := first.client.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap("before"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	planes := []*plane{first}
	for i := range 2 {
		planes = append(planes, at[i+1].start(t, at[i+1].join(t, planes[i], dirs[i+1])))
	}
	return at, planes
}

// TestMembers has three members: what one has acknowledged the others have, any one may be killed or hang, those that
// are left are what pods are told of, and one that is gone for good is taken away.
func TestMembers(t *testing.T) {
	t.Parallel()
	at, planes := three(t, [3]string{t.TempDir(), t.TempDir(), t.TempDir()})
	first, p := planes[0], at[0].ports
	for _, m := range planes {
		hasBefore(t, m)
	}
	told(t, planes[2], "192.0.2.1", "192.0.2.2", "192.0.2.3")

	w := &writing{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i, m := range planes[1:] {
		w.wait.Go(func() { w.write(ctx, m.client, strconv.Itoa(i)) })
	}
	w.more(t)
	first.kill()
	told(t, planes[1], "192.0.2.2", "192.0.2.3")
	w.more(t)
	planes[0] = at[0].start(t, first.dir) // its place is kept
	told(t, planes[1], "192.0.2.1", "192.0.2.2", "192.0.2.3")
	w.more(t)
	// One that hangs, by chance the leader, is no different for the others.
	if err := planes[0].cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	w.more(t)
	if err := planes[0].cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	w.more(t)
	cancel()
	w.wait.Wait()
	for _, m := range planes {
		w.check(t, m.client)
	}

	removed(t, planes, p[1])
	planes[1].kill()
	leaderless(t, planes[0], p[1])
}

// leaderless asks a member that two others are gone of who they are. It tells, and refuses what they have to agree on.
func leaderless(t *testing.T, last *plane, peerPort string) {
	t.Helper()
	out, err := control(t, last.dir, "etcd", "members")
	if err != nil || !strings.Contains(out, "most members do not answer") {
		t.Errorf("members: %v\n%s", err, out)
	}
	for _, at := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"} {
		if !strings.Contains(out, "https://"+at+":"+peerPort) {
			t.Errorf("%s is none of the members:\n%s", at, out)
		}
	}
	for _, args := range [][]string{{"etcd", "remove", "1"}, {"token", "create", "--member"}} {
		if out, err := control(t, last.dir, args...); err == nil || !strings.Contains(out, "there is no leader") {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

// removed takes the third member away while it runs. It stops, does not come back by itself, and its machine may join
// again with nothing of before.
func removed(t *testing.T, planes []*plane, peerPort string) {
	t.Helper()
	var id string
	for line := range strings.Lines(planes[0].run(t, "etcd", "members")) {
		if strings.Contains(line, "https://127.0.0.3:"+peerPort) {
			id = strings.Fields(line)[0]
		}
	}
	planes[0].run(t, "etcd", "remove", id)
	last := planes[2]
	select {
	case <-last.ended:
	case <-time.After(patience):
		t.Fatal("a member that was removed does not end")
	}
	if !strings.Contains(last.output.String(), "removed from the cluster") {
		t.Errorf("a member that was removed says\n%s", last.output)
	}
	for range 2 {
		out, err := control(t, last.dir, "serve", "--bind", "127.0.0.3", "--port", "0")
		if err == nil || !strings.Contains(out, "removed") {
			t.Errorf("a member that was removed starts again: %v\n%s", err, out)
		}
	}
	if err := os.RemoveAll(filepath.Join(last.dir, "etcd")); err != nil {
		t.Fatal(err)
	}
	again := startOn(t, last.dir, "127.0.0.3", "0", "--advertise-address", "192.0.2.3")
	hasBefore(t, again)
	again.stop(t)
}

// hasBefore waits until a member tells of what three has made. On a busy machine etcd elects now and then, and answers
// nothing meanwhile.
func hasBefore(t *testing.T, m *plane) {
	t.Helper()
	until(t, "a member has what was there before it", func() error {
		_, err := m.client.CoreV1().ConfigMaps(ns).Get(t.Context(), "before", metav1.GetOptions{})
		return err
	})
}

// told waits until pods are told of some addresses of the API.
func told(t *testing.T, p *plane, want ...string) {
	t.Helper()
	until(t, fmt.Sprintf("the API's endpoints are %v", want), func() error {
		var got []string
		slice, err := p.client.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, e := range slice.Endpoints {
			got = append(got, e.Addresses...)
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("they are %v", got)
		}
		return nil
	})
}

// writing is what was written while members came and went.
type writing struct {
	wait sync.WaitGroup
	mu   sync.Mutex
	done []string // acknowledged
}

func (w *writing) write(ctx context.Context, c kubernetes.Interface, who string) {
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("w-%s-%d", who, i)
		one, end := context.WithTimeout(ctx, answerLimit)
		_, err := c.CoreV1().ConfigMaps(ns).Create(one, configMap(name), metav1.CreateOptions{})
		end()
		if err != nil {
			continue
		}
		w.mu.Lock()
		w.done = append(w.done, name)
		w.mu.Unlock()
	}
}

func (w *writing) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.done)
}

// more waits for twenty more acknowledged writes.
func (w *writing) more(t *testing.T) {
	t.Helper()
	from := w.count()
	until(t, "writes go on", func() error {
		if n := w.count() - from; n < 20 {
			return fmt.Errorf("there were %d", n)
		}
		return nil
	})
}

func (w *writing) check(t *testing.T, c kubernetes.Interface) {
	t.Helper()
	until(t, "what is there is listed", func() error {
		lost, err := w.lost(t.Context(), c)
		if lost != nil {
			t.Error(lost)
		}
		return err
	})
	t.Logf("%d acknowledged writes are there", len(w.done))
}

// missing says what was acknowledged and is lost, or that nobody answers.
func (w *writing) missing(ctx context.Context, c kubernetes.Interface) error {
	return errors.Join(w.lost(ctx, c))
}

// lost is what was acknowledged and is lost.
func (w *writing) lost(ctx context.Context, c kubernetes.Interface) (lost, err error) {
	list, err := c.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	for _, o := range list.Items {
		there[o.Name] = true
	}
	var errs []error
	for _, name := range w.done {
		if !there[name] {
			errs = append(errs, fmt.Errorf("%s was acknowledged, and is lost", name))
		}
	}
	return errors.Join(errs...), nil
}

// TestJoinRefuses tries to join with what is not right.
func TestJoinRefuses(t *testing.T) {
	t.Parallel()
	alone := share(t)
	if out, err := control(t, alone.dir, "token", "create", "--member"); err == nil || !strings.Contains(out, "--peer-address") {
		t.Errorf("a server that takes no members gives a token for one: %v\n%s", err, out)
	}
	at := memberFlags{"127.0.0.1", "192.0.2.1", ports(t, "127.0.0.1")}
	p := at.start(t, t.TempDir(), at.peer()...)
	good := strings.Fields(p.run(t, "token", "create", "--member"))[1:]
	other := strings.Fields(p.run(t, "token", "create", "--member"))[1:]
	node := strings.TrimSpace(p.run(t, "token", "create"))
	with := func(flag, value string) []string {
		out := slices.Clone(good)
		out[slices.Index(out, flag)+1] = value
		return out
	}
	value := func(of []string, flag string) string { return of[slices.Index(of, flag)+1] }
	used := t.TempDir()
	if err := os.MkdirAll(filepath.Join(used, "etcd"), 0o700); err != nil {
		t.Fatal(err)
	}
	elsewhere := slices.Clone(good)
	elsewhere[1] = net.JoinHostPort("127.0.0.1", alone.port(t))
	for name, c := range map[string]struct {
		dir  string
		args []string
		want string
	}{
		"a directory of another": {used, good, "is there already"},
		"its own directory":      {p.dir, good, "another berth-control has it"},
		"another cluster":        {"", elsewhere, "not the cluster whose hash was given"},
		"a hash of nobody":       {"", with("--discovery-token-ca-cert-hash", "sha256:"+strings.Repeat("0", 64)), "not the cluster whose hash was given"},
		"a hash that is none":    {"", with("--discovery-token-ca-cert-hash", "md5:1"), "--discovery-token-ca-cert-hash"},
		"the key of another":     {"", with("--certificate-key", value(other, "--certificate-key")), "is that of another token"},
		"a key that is none":     {"", with("--certificate-key", "x"), "--certificate-key"},
		"the token of a node":    {"", with("--token", node), "forbidden"},
		"a token of nobody":      {"", with("--token", "abcdef.0123456789abcdef"), "Unauthorized"},
	} {
		dir := c.dir
		if dir == "" {
			dir = t.TempDir()
		}
		out, err := control(t, dir, c.args...)
		if err == nil || !strings.Contains(out, c.want) {
			t.Errorf("%s: %v, want %q:\n%s", name, err, c.want, out)
		}
		if _, err := os.Stat(filepath.Join(dir, "pki")); c.dir == "" && err == nil {
			t.Errorf("%s: there are keys", name)
		}
	}
	// Who may read what one token gives may not read what another does.
	id, _, _ := strings.Cut(value(other, "--token"), ".")
	config := *p.config
	config.CertData, config.KeyData, config.BearerToken = nil, nil, value(good, "--token")
	_, err := kubernetes.NewForConfigOrDie(&config).CoreV1().Secrets("kube-system").Get(t.Context(), "berth-control-member-"+id, metav1.GetOptions{})
	if err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("the holder of one token reads what another is for: %v", err)
	}
	// A directory that has not all that members share makes no cluster of its own.
	half := t.TempDir()
	if err := os.WriteFile(filepath.Join(half, "member.json"), []byte(`{"address": "127.0.0.1", "joining": true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := control(t, half, "serve", "--bind", "127.0.0.1", "--port", "0"); err == nil || !strings.Contains(out, "run berth-control join again") {
		t.Errorf("half a member serves: %v\n%s", err, out)
	}
	if out, err := control(t, half, good...); err != nil {
		t.Errorf("join again: %v\n%s", err, out)
	}
}
