// Package conformance holds every runtime to what the agent relies on: the methods of the CRI behind agent/pod.Runtime,
// on the real kernel. A runtime passes when it does what the cases ask for, whoever made it and wherever it runs.
package conformance

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod"
)

// Target is a runtime that runs, with the test image in it.
type Target struct {
	pod.Runtime
	CgroupRoot string // the pods' cgroups are made below it
	LogDir     string
	Image      string // the test image: busybox, the user app (1000) and the group extra (2000) that app is in
	Handler    string // the runtime handler of all pods, "" being the runtime's own choice
	// host:port of a registry without TLS that has the test image as busybox:1, and as user:1 with the user app
	Registry string
	// Lacks says of the cases that the runtime cannot pass why not.
	Lacks map[string]string
}

// Run runs every case on the runtime that the factory makes, which is made once.
func Run(t *testing.T, factory func(*testing.T) *Target) {
	s := &suite{Target: factory(t)}
	all := slices.Concat(lifeCases, listCases, processCases, streamCases, imageCases, securityCases, networkCases,
		resourceCases)
	names := map[string]bool{}
	t.Run("case", func(t *testing.T) {
		for _, c := range all {
			if names[c.name] {
				t.Errorf("two cases are called %s", c.name)
			}
			names[c.name] = true
			t.Run(c.name, func(t *testing.T) {
				if why := s.Lacks[c.name]; why != "" {
					t.Skip(why)
				}
				t.Parallel()
				c.run(t, s)
			})
		}
	})
	for _, n := range slices.Sorted(maps.Keys(s.Lacks)) {
		if name, _, _ := strings.Cut(n, "/"); !names[name] {
			t.Errorf("there is no case %s to lack", n)
		}
	}
	l, err := s.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(l.GetItems()) > 0 {
		t.Errorf("sandboxes are left: %v, %v", l.GetItems(), err)
	}
	c, err := s.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil || len(c.GetContainers()) > 0 {
		t.Errorf("containers are left: %v, %v", c.GetContainers(), err)
	}
}

type testCase struct {
	name string
	run  func(*testing.T, *suite)
}

type suite struct {
	*Target
	pods atomic.Int32
}

// lacks says whether the runtime lacks a part of a case, which is logged.
func (s *suite) lacks(t *testing.T, part string) bool {
	why, ok := s.Lacks[t.Name()[strings.LastIndex(t.Name(), "/")+1:]+"/"+part]
	if ok {
		t.Logf("%s is not asked for: %s", part, why)
	}
	return ok
}

// sandbox is a pod of a case.
type sandbox struct {
	*suite
	t   *testing.T
	id  string
	cfg *runtimeapi.PodSandboxConfig
}

// config is the configuration of a sandbox that no other has.
func (s *suite) config(t *testing.T) *runtimeapi.PodSandboxConfig {
	name := fmt.Sprintf("%s-%d", strings.ToLower(filepath.Base(t.Name())), s.pods.Add(1))
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "conformance", Uid: "uid-" + name},
		Hostname:     name,
		LogDirectory: filepath.Join(s.LogDir, name),
		Labels:       map[string]string{"case": name, "io.kubernetes.pod.uid": "uid-" + name},
		Annotations:  map[string]string{"note": "about " + name},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: s.CgroupRoot + "/pod-" + name,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
			},
		},
	}
}

// pod runs a sandbox that ends with the test; change may be nil.
func (s *suite) pod(t *testing.T, change func(*runtimeapi.PodSandboxConfig)) *sandbox {
	t.Helper()
	cfg := s.config(t)
	if change != nil {
		change(cfg)
	}
	must(t)(os.MkdirAll(cfg.LogDirectory, 0o755))
	r, err := s.RunPodSandbox(t.Context(), s.request(cfg))
	if err != nil {
		t.Fatalf("run sandbox: %v", err)
	}
	t.Cleanup(func() { s.end(t, r.PodSandboxId) })
	return &sandbox{suite: s, t: t, id: r.PodSandboxId, cfg: cfg}
}

func (s *suite) request(cfg *runtimeapi.PodSandboxConfig) *runtimeapi.RunPodSandboxRequest {
	return &runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: s.Handler}
}

func (s *suite) end(t *testing.T, id string) {
	ctx := context.Background() // the test's has ended
	_, err := s.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	if status.Code(err) == codes.NotFound {
		return // the case has removed it
	}
	if _, err := s.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		t.Errorf("stop sandbox: %v", err)
	}
	if _, err := s.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		t.Errorf("remove sandbox: %v", err)
	}
}

func must(t *testing.T) func(error) {
	return func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
}

type change func(*runtimeapi.ContainerConfig)

// container is the configuration of a container with this command.
func (p *sandbox) container(name string, cmd ...string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{
			Image:              p.Image,
			UserSpecifiedImage: p.Image,
		}, Command: cmd,
		LogPath: name + ".log",
		Labels:  map[string]string{"case": p.cfg.Labels["case"], "name": name},
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: &runtimeapi.LinuxContainerResources{OomScoreAdj: 1000},
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: p.cfg.Linux.SecurityContext.NamespaceOptions,
			},
		},
	}
}

func (p *sandbox) create(cfg *runtimeapi.ContainerConfig) (string, error) {
	r, err := p.CreateContainer(p.t.Context(),
		&runtimeapi.CreateContainerRequest{PodSandboxId: p.id, Config: cfg, SandboxConfig: p.cfg})
	return r.GetContainerId(), err
}

func (p *sandbox) start(id string) error {
	_, err := p.StartContainer(p.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
	return err
}

// run creates and starts a container; change may be nil.
func (p *sandbox) run(name string, change change, cmd ...string) string {
	p.t.Helper()
	cfg := p.container(name, cmd...)
	if change != nil {
		change(cfg)
	}
	id, err := p.create(cfg)
	if err != nil {
		p.t.Fatalf("create container %s: %v", name, err)
	}
	if err := p.start(id); err != nil {
		p.t.Fatalf("start container %s: %v", name, err)
	}
	return id
}

// sleeper runs a container that does nothing.
func (p *sandbox) sleeper(name string, change change) string {
	p.t.Helper()
	return p.run(name, change, "sleep", "100000")
}

// executes waits until a sleeper of its own PID namespace is one: a start may be over when its program is about to be
// executed, and who asks the kernel then is told of what starts it.
func (p *sandbox) executes(id string) {
	p.t.Helper()
	p.eventually("the program to be executed", func() bool { return p.sh(id, "cat /proc/1/comm") == "sleep" })
}

func (p *sandbox) status(id string) *runtimeapi.ContainerStatus {
	p.t.Helper()
	r, err := p.ContainerStatus(p.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	must(p.t)(err)
	return r.GetStatus()
}

// exited waits for the end of a container.
func (p *sandbox) exited(id string) *runtimeapi.ContainerStatus {
	p.t.Helper()
	var st *runtimeapi.ContainerStatus
	p.eventually("container to exit", func() bool {
		st = p.status(id)
		return st.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
	})
	return st
}

// output runs a container to its end and returns what it wrote.
func (p *sandbox) output(name string, change change, cmd ...string) string {
	p.t.Helper()
	id := p.run(name, change, cmd...)
	p.exited(id)
	return strings.TrimSpace(text(p.log(id)))
}

func (p *sandbox) exec(id string, timeout int64, cmd ...string) (*runtimeapi.ExecSyncResponse, error) {
	ctx, cancel := contextOf(p.t)
	defer cancel()
	return p.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: timeout})
}

// sh runs a shell command in a container and returns what it printed.
func (p *sandbox) sh(id, script string) string {
	p.t.Helper()
	r, err := p.exec(id, 60, "sh", "-c", script)
	if err != nil {
		p.t.Fatalf("%s: %v", script, err)
	}
	if r.ExitCode != 0 {
		p.t.Errorf("%s: exit code %d, %s%s", script, r.ExitCode, r.Stdout, r.Stderr)
	}
	return strings.TrimSpace(string(r.Stdout))
}

// expect runs shell commands in a container and compares what they print.
func (p *sandbox) expect(id string, want map[string]string) {
	p.t.Helper()
	for _, script := range slices.Sorted(maps.Keys(want)) {
		if got := p.sh(id, script); got != want[script] {
			p.t.Errorf("%s: got %q, want %q", script, got, want[script])
		}
	}
}

// line is one of a log in the CRI's format.
type line struct {
	stream string
	full   bool
	text   string
}

// log reads the log of a container, all of it.
func (p *sandbox) log(id string) []line {
	p.t.Helper()
	path := p.status(id).GetLogPath()
	b, err := os.ReadFile(path)
	must(p.t)(err)
	var out []line
	for l := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSuffix(l, "\n"), " ", 4)
		if len(f) != 4 || f[2] != "P" && f[2] != "F" {
			p.t.Fatalf("log line %q", l)
		}
		if _, err := time.Parse(time.RFC3339Nano, f[0]); err != nil {
			p.t.Errorf("log line %q: %v", l, err)
		}
		out = append(out, line{f[1], f[2] == "F", f[3]})
	}
	return out
}

func text(lines []line) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(l.text)
		if l.full {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// patience is how long something may take that takes a moment on an idle machine.
const patience = 2 * time.Minute

// eventually waits for what nothing announces. The limit is only for a test that has failed.
func (p *sandbox) eventually(what string, ok func() bool) {
	p.t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			p.t.Fatalf("waited for %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func security(c *runtimeapi.ContainerConfig) *runtimeapi.LinuxContainerSecurityContext {
	return c.Linux.SecurityContext
}

func number(n int64) *runtimeapi.Int64Value { return &runtimeapi.Int64Value{Value: n} }

func itoa(n int) string { return strconv.Itoa(n) }
