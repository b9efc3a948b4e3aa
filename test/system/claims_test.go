package system

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	podsv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berth-node/berth/agent/dra/dratest"
)

const draDriver = "fuse.dra.test"

// claimNode is a node with a directory of CDI files of its own, and a driver for it. Each claim has two devices, of the
// requests left and right: the node's /dev/fuse at /dev/<claim>-<request>, and a variable of the same name.
func claimNode(t *testing.T) (*Node, *dratest.Driver) {
	t.Helper()
	n := newNode(t)
	if n.peer != nil {
		t.Skip("other runtimes look for CDI files in places of the machine's own")
	}
	n.args = append(n.args, "--cdi-spec-dirs="+filepath.Join(n.Dir, "cdi"))
	n.start()
	return n, &dratest.Driver{
		Name: draDriver, Registry: filepath.Join(n.Dir, "root/plugins_registry"), CDI: filepath.Join(n.Dir, "cdi"),
		Devices: func(c *drav1.Claim) []dratest.Device {
			var out []dratest.Device
			for _, request := range []string{"left", "right"} {
				out = append(out, dratest.Device{
					Request: request, Pool: "node", Name: c.GetName() + "-" + request,
					Env: []string{strings.ToUpper(request) + "=" + c.GetName()}, Node: "/dev/" + c.GetName() + "-" + request,
				})
			}
			return out
		},
	}
}

// drive runs a driver until the function that it returns is called, or the test ends.
func (n *Node) drive(d *dratest.Driver) (stop func()) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	wait.Go(func() {
		if err := d.Run(ctx); err != nil {
			n.t.Errorf("driver %s: %v", d.Name, err)
		}
	})
	stop = func() { cancel(); wait.Wait() }
	n.t.Cleanup(stop)
	return stop
}

const claimDevices = `{devices: {requests: [{name: left, exactly: {deviceClassName: fuse}}, {name: right, exactly: {deviceClassName: fuse}}]}}`

// resourceClaim is a manifest of a claim; a driver makes it an allocated one.
func resourceClaim(name, driver string) string {
	out := "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: " + name + "}\nspec: " + claimDevices +
		"\n"
	if driver == "" {
		return out
	}
	return out + fmt.Sprintf("status: {allocation: {devices: {results: [{request: left, driver: %[1]s, pool: node, "+
		"device: %[2]s-left}, {request: right, driver: %[1]s, pool: node, device: %[2]s-right}]}, nodeSelector: "+
		"{nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [node]}]}]}}}\n", driver, name)
}

// claims is a pod with an entry gpu of its spec.resourceClaims, which container c names like that; container bare has
// nothing of it.
func claims(name, entry, names string) string {
	return pod(name, fmt.Sprintf(`
  resourceClaims: [{name: gpu, %s}]
  containers:
  - {name: c, image: %[2]s, command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"], resources: {claims: [%[3]s]}}
  - {name: bare, image: %[2]s, command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"]}`, entry, image, names))
}

// waitClaims waits until a pod's container says why it waits for its claims.
func (n *Node) waitClaims(name, message string) {
	n.t.Helper()
	n.wait(name, "to wait because of "+message, func(p *corev1.Pod) bool {
		return p != nil && slices.ContainsFunc(slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses),
			func(s corev1.ContainerStatus) bool {
				w := s.State.Waiting
				return w != nil && w.Reason == "FailedPrepareDynamicResources" && strings.Contains(w.Message, message)
			})
	})
}

// asked requires that a driver was asked for that and nothing else, in this order.
func (n *Node) asked(d *dratest.Driver, want ...string) {
	n.t.Helper()
	if got := d.Calls(); !slices.Equal(got, want) {
		n.t.Errorf("the driver was asked to %q, want %q", got, want)
	}
}

// noClaims requires that drivers have taken everything back and that nothing is known of it any more.
func (n *Node) noClaims() {
	n.t.Helper()
	n.eventually("claims to be gone", func() error {
		b, err := os.ReadFile(filepath.Join(n.Dir, "root/resourceclaims.json"))
		if err == nil && !strings.Contains(string(b), `"claims":[]`) {
			err = fmt.Errorf("it says %s", b)
		}
		return err
	})
	if left, _ := os.ReadDir(filepath.Join(n.Dir, "cdi")); len(left) > 0 {
		n.t.Errorf("there are CDI files %v", left)
	}
}

// claimOpens says which devices a process in the container can open, one of them made by its number.
const claimOpens = `mknod /tmp/y c 10 229 2>/dev/null; for f in /dev/gpu-* /tmp/y; do test -e $f && (exec 3<>$f) 2>/dev/null && echo $f; done; true`

// TestResourceClaims follows a claim of two pods: what it lacks, into a container and no further, through kills of the
// agent and of the driver, and back.
func TestResourceClaims(t *testing.T) {
	t.Parallel()
	n, d := claimNode(t)
	d.SetHealth(&healthv1.DeviceHealth{
		Device: &healthv1.DeviceIdentifier{PoolName: "node", DeviceName: "gpu-left"},
		Health: healthv1.HealthStatus_UNHEALTHY, Message: "hot", HealthCheckTimeoutSeconds: 3600,
	})

	// One after the other it is said what is missing.
	n.apply("one.yaml", claims("one", "resourceClaimName: gpu", "{name: gpu}"))
	n.waitClaims("one", `resourceclaim "gpu" not found`)
	n.apply("claim.yaml", resourceClaim("gpu", ""))
	n.waitClaims("one", `resourceclaim "gpu" is not allocated: nothing on this node chooses devices, so its manifest has to name them in status.allocation.devices.results (request, driver, pool and device), for requests "left", "right"`)
	n.apply("claim.yaml", resourceClaim("gpu", "typo.dra.test"))
	n.waitClaims("one", "DRA driver typo.dra.test is not registered: no plugin of that name is in the plugin "+
		"registration directory")
	n.apply("claim.yaml", resourceClaim("gpu", draDriver))
	n.waitClaims("one", "DRA driver "+draDriver+" is not registered")
	stop := n.drive(d)
	n.waitReady("one")
	if out := n.must("events"); !strings.Contains(out, "FailedPrepareDynamicResources") ||
		!strings.Contains(out, "Failed to prepare dynamic resources: ") {
		t.Errorf("the events are\n%s", out)
	}

	// The kernel lets the container that has the claim open the devices, and no other.
	if got := n.sh("one", "echo $LEFT $RIGHT; "+claimOpens); got != "gpu gpu\n/dev/gpu-left\n/dev/gpu-right\n/tmp/y\n" {
		t.Errorf("the container with the claim has %q", got)
	}
	if got := n.must("exec", "one", "-c", "bare", "--", "sh", "-c", "echo $LEFT $RIGHT; "+claimOpens); got != "\n" {
		t.Errorf("the container without the claim has %q", got)
	}
	// Another pod has the claim too, and of it one request.
	n.apply("two.yaml", claims("two", "resourceClaimName: gpu", "{name: gpu, request: left}"))
	n.waitReady("two")
	if got := n.sh("two", "echo $LEFT $RIGHT; "+claimOpens); got != "gpu\n/dev/gpu-left\n/tmp/y\n" {
		t.Errorf("the container with one request has %q", got)
	}
	n.asked(d, "prepare default/gpu")
	two := n.wait("two", "to say how its device is", func(p *corev1.Pod) bool {
		return p != nil && deviceHealth(p) == "claim:gpu/left/"+draDriver+"/node/gpu-left=Unhealthy"
	})
	n.dynamicIs("one", draDriver+"/node/gpu-left", draDriver+"/node/gpu-right")
	n.dynamicIs("two", draDriver+"/node/gpu-left")
	if got := n.metrics("/metrics").get(t, "dra_resource_claims_in_use",
		map[string]string{"driver_name": draDriver}); got != 1 {
		t.Errorf("the metrics tell of %v claims", got)
	}

	// The agent is killed, and one of the manifests goes meanwhile. Containers start again without the driver.
	n.kill()
	n.remove("one.yaml")
	stop()
	n.start()
	n.waitGone("one")
	n.requireSame(two, n.waitReady("two"))
	n.wait("two", "to say that nobody knows",
		func(p *corev1.Pod) bool { return p != nil && strings.HasSuffix(deviceHealth(p), "=Unknown") })
	n.berth("exec", "two", "--", "kill", "1")
	n.wait("two", "to be restarted",
		func(p *corev1.Pod) bool { return isReady(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
	if got := n.sh("two", "echo $LEFT; "+claimOpens); got != "gpu\n/dev/gpu-left\n/tmp/y\n" {
		t.Errorf("after its restart the container has %q", got)
	}
	n.asked(d, "prepare default/gpu")

	// The end waits for the driver, also that of the next agent.
	n.remove("two.yaml")
	n.eventually("the end to want the driver", func() error {
		if out := n.must("events"); !strings.Contains(out,
			"error killing pod: claims: unprepare resourceclaim \"default/gpu\": DRA driver "+draDriver+" is not registered") {
			return errors.New(out)
		}
		return nil
	})
	n.kill()
	n.remove("claim.yaml")
	n.start()
	if _, err := os.Stat(d.File(n.claimUID(d))); err != nil {
		t.Errorf("the claim is not prepared any more, and nobody has asked: %v", err)
	}
	n.drive(d)
	n.noClaims()
	n.asked(d, "prepare default/gpu", "unprepare default/gpu")
	n.requireNoPods()
	n.eventually("the driver to be told", func() error { // it may be called before it is
		if said := d.Told(); len(said) != 2 || !said[1].GetPluginRegistered() {
			return fmt.Errorf("it was told %v", said)
		}
		return nil
	})
}

// claimUID is that of the only claim that is prepared, by its CDI file.
func (n *Node) claimUID(d *dratest.Driver) string {
	n.t.Helper()
	files, err := filepath.Glob(d.File("*"))
	if err != nil || len(files) != 1 {
		n.t.Fatalf("CDI files are %v (%v)", files, err)
	}
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(files[0]), d.Name+"-"), ".json")
}

// dynamicIs requires that the pod-resources API tells of these devices of the pod's container c.
func (n *Node) dynamicIs(name string, want ...string) {
	n.t.Helper()
	r, err := n.podResources().Get(n.t.Context(),
		&podsv1.GetPodResourcesRequest{PodName: name + "-node", PodNamespace: "default"}, grpc.WaitForReady(true))
	if err != nil {
		n.t.Fatal(err)
	}
	var got []string
	for _, c := range r.GetPodResources().GetContainers() {
		for _, dyn := range c.GetDynamicResources() {
			for _, x := range dyn.GetClaimResources() {
				if got = append(got, x.GetDriverName()+"/"+x.GetPoolName()+"/"+x.GetDeviceName()); c.GetName() != "c" ||
					len(x.GetCdiDevices()) != 1 {
					n.t.Errorf("the pod-resources API says %v of container %s", x, c.GetName())
				}
			}
		}
	}
	if !slices.Equal(got, want) {
		n.t.Errorf("the pod-resources API tells of %q, want %q", got, want)
	}
}

// TestResourceClaimTemplates has a claim made for a pod that ends by itself, by a driver of the older API that is slow,
// and an agent that is killed while it waits for it.
func TestResourceClaimTemplates(t *testing.T) {
	t.Parallel()
	n, d := claimNode(t)
	d.Services = []string{drav1beta1.DRAPluginService}
	began, goOn := make(chan struct{}, 10), make(chan struct{})
	d.Answer = func(ctx context.Context, call string, _ *drav1.Claim) error {
		if call == "prepare" {
			began <- struct{}{}
			select {
			case <-goOn:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	n.drive(d)
	n.apply("template.yaml", "apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {name: "+
		"fuses}\nspec: {spec: "+claimDevices+"}\n")
	n.apply("job.yaml", pod("job", `
  restartPolicy: Never
  resourceClaims: [{name: gpu, resourceClaimTemplateName: fuses}]
  initContainers:
  - {name: init, image: `+image+`, command: [sh, -c, "test $RIGHT = job-node-gpu && exec 3<>/dev/job-node-gpu-right"], resources: {claims: [{name: gpu, request: right}]}}
  containers:
  - {name: c, image: `+image+`, command: [sh, -c, "test $LEFT$RIGHT = job-node-gpujob-node-gpu"], resources: {claims: [{name: gpu}]}}`))
	n.waitClaims("job", `resourceclaim "job-node-gpu", which template "fuses" makes for the pod, is not allocated: nothing on this node chooses devices, so a manifest has to have a ResourceClaim of that name in namespace default`)
	n.apply("claim.yaml", resourceClaim("job-node-gpu", draDriver))
	<-began
	n.kill()
	n.start()
	<-began // by the next agent
	close(goOn)
	p := n.waitPhase("job", corev1.PodSucceeded)
	if st := p.Status.ResourceClaimStatuses; len(st) != 1 || st[0].Name != "gpu" || st[0].ResourceClaimName == nil ||
		*st[0].ResourceClaimName != "job-node-gpu" {
		t.Errorf("the status says of claims %v", st)
	}
	// What ends gives back, though its manifest is there.
	n.noClaims()
	n.asked(d, "prepare default/job-node-gpu", "prepare default/job-node-gpu", "unprepare default/job-node-gpu")

	// A device that somebody has nobody else gets; a claim for another node nobody.
	n.apply("first.yaml", claims("first", "resourceClaimName: gpu", "{name: gpu}")+"---\n"+resourceClaim("gpu", draDriver))
	n.waitReady("first")
	n.apply("second.yaml", claims("second", "resourceClaimName: again",
		"{name: gpu}")+"---\n"+strings.Replace(resourceClaim("gpu", draDriver), "{name: gpu}", "{name: again}", 1))
	n.waitClaims("second", `device `+draDriver+`/node/gpu-left is allocated to resourceclaim "default/gpu" too, which is in use by pods default/first-node`)
	n.apply("third.yaml", claims("third", "resourceClaimName: far",
		"{name: gpu}")+"---\n"+strings.Replace(resourceClaim("far", draDriver), "values: [node]", "values: [other]", 1))
	n.waitClaims("third", "does not match node node or its labels")
	n.remove("third.yaml")
	n.waitGone("third")
	n.remove("first.yaml")
	n.waitReady("second")
	n.remove("second.yaml")
	n.waitGone("second")
	n.remove("job.yaml")
	n.waitGone("job")
	n.noClaims()
}

// TestClaimsPurged has the claims of pods that are purged unprepared, without an agent.
func TestClaimsPurged(t *testing.T) {
	t.Parallel()
	n, d := claimNode(t)
	n.drive(d)
	n.apply("one.yaml", claims("one", "resourceClaimName: gpu", "{name: gpu}")+"---\n"+resourceClaim("gpu", draDriver))
	n.waitReady("one")
	// A driver may be in a pod.
	n.apply("driver.yaml", pod("driver", fmt.Sprintf(`
  containers: [{name: c, image: %s, command: [sleep, "1000"], volumeMounts: [{name: a, mountPath: %[2]s/plugins_registry}, {name: b, mountPath: %[2]s/plugins/%[3]s}]}]
  volumes: [{name: a, hostPath: {path: %[2]s/plugins_registry}}, {name: b, hostPath: {path: %[2]s/plugins/%[3]s, type: DirectoryOrCreate}}]`, image, filepath.Join(n.Dir, "root"), draDriver)))
	n.waitReady("driver")
	if got := n.sh("driver", "cd "+n.Dir+"/root; ls plugins_registry; touch plugins/"+draDriver+"/x && rm "+
		"plugins/"+draDriver+"/x"); got != draDriver+"-reg.sock\n" {
		t.Errorf("a driver's pod sees %q", got)
	}
	n.kill()
	if out, err := exec.Command(bin("berth"),
		append([]string{"purge", "--yes"}, n.dirArgs()...)...).CombinedOutput(); err != nil {
		t.Fatalf("purge: %v\n%s", err, out)
	}
	n.asked(d, "prepare default/gpu", "unprepare default/gpu")
	if left, _ := os.ReadDir(filepath.Join(n.Dir, "cdi")); len(left) > 0 {
		t.Errorf("there are CDI files %v", left)
	}
}

// TestClaimsHang has a driver that does not answer: other pods start nevertheless, and those that wait for it can end.
func TestClaimsHang(t *testing.T) {
	t.Parallel()
	n, d := claimNode(t)
	d.Answer = func(ctx context.Context, call string, _ *drav1.Claim) error {
		if call == "prepare" {
			<-ctx.Done()
		}
		return ctx.Err()
	}
	n.drive(d)
	hang := func(i int) string { return fmt.Sprintf("hang-%d", i) }
	many := 2*runtime.NumCPU() + 1 // more than are started at a time
	for i := range many {
		n.apply(hang(i)+".yaml", claims(hang(i), "resourceClaimName: "+hang(i), "{name: gpu}")+"---\n"+resourceClaim(hang(i),
			draDriver))
	}
	// A call that is over its time is tried again.
	asked := func(what string) error {
		got := d.Calls()
		for i := range many {
			if !slices.Contains(got, what+" default/"+hang(i)) {
				return fmt.Errorf("it was asked to %q", got)
			}
		}
		return nil
	}
	n.eventually("all of them to wait for the driver", func() error { return asked("prepare") })
	n.apply("other.yaml", wants("other", "cpu", 1, ""))
	n.waitReady("other")
	for i := range many {
		n.remove(hang(i) + ".yaml")
	}
	for i := range many {
		n.waitGone(hang(i))
	}
	n.noClaims()
	if err := asked("unprepare"); err != nil {
		t.Error(err)
	}
	n.remove("other.yaml")
	n.waitGone("other")
}

// TestKillAgentWithClaims kills the agent at random moments while pods that share claims come and go. No claim is
// unprepared while a process has it, whatever is wanted has its devices in the end, and nothing stays prepared.
func TestKillAgentWithClaims(t *testing.T) {
	t.Parallel()
	n, d := claimNode(t)
	d.Answer = func(_ context.Context, call string, c *drav1.Claim) error {
		if call == "unprepare" {
			if pids := withVariable("RIGHT=" + c.GetName()); len(pids) > 0 {
				t.Errorf("claim %s is unprepared while processes %v have it", c.GetName(), pids)
			}
		}
		return nil
	}
	n.drive(d)
	claim := func(i int) string { return fmt.Sprintf("killed-%d", i%3) }
	for i := range 3 {
		n.apply(claim(i)+"-claim.yaml", resourceClaim(claim(i), draDriver))
	}
	rnd := chances(t)
	wanted := map[int]bool{}
	name := func(i int) string { return fmt.Sprintf("p%d", i) }
	for range n.kills() / 5 {
		for range 1 + rnd.IntN(3) {
			i := rnd.IntN(7)
			if wanted[i] {
				n.remove(name(i) + ".yaml")
			} else {
				n.apply(name(i)+".yaml", claims(name(i), "resourceClaimName: "+claim(i), "{name: gpu}"))
			}
			wanted[i] = !wanted[i]
		}
		time.Sleep(time.Duration(rnd.IntN(250)) * time.Millisecond)
		n.kill()
		n.launch()
		time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
	}
	n.kill()
	n.start()
	maps.DeleteFunc(wanted, func(_ int, want bool) bool { return !want })
	prepared := map[string]bool{}
	for i := range wanted {
		n.waitReady(name(i))
		if got := n.sh(name(i), "echo $RIGHT; exec 3<>/dev/"+claim(i)+"-right && echo open"); got != claim(i)+"\nopen\n" {
			t.Errorf("pod %s has %q", name(i), got)
		}
		prepared[claim(i)] = true
	}
	n.eventually("exactly the claims of these pods to be prepared", func() error {
		files, err := filepath.Glob(d.File("*"))
		if err == nil && len(files) != len(prepared) {
			err = fmt.Errorf("there are %v for %v", files, prepared)
		}
		return err
	})
	for i := range wanted {
		n.remove(name(i) + ".yaml")
	}
	n.requireNoPods()
	n.noClaims()
}

// withVariable are the processes of the machine that were started with a variable.
func withVariable(text string) []string {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	var out []string
	for _, f := range all {
		b, _ := os.ReadFile(f) // those that have gone have none
		if slices.Contains(strings.Split(string(b), "\x00"), text) {
			out = append(out, filepath.Base(filepath.Dir(f)))
		}
	}
	return out
}
