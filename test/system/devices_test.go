package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podsv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berth-node/berth/agent/device/devicetest"
)

// runPlugin runs a plugin until the function that it returns is called, or the test ends.
func (n *Node) runPlugin(p *devicetest.Plugin) (stop func()) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	wait.Go(func() {
		if err := p.Run(ctx); err != nil {
			n.t.Errorf("device plugin %s: %v", p.Resource, err)
		}
	})
	stop = func() { cancel(); wait.Wait() }
	n.t.Cleanup(stop)
	return stop
}

func (n *Node) plugin(resource string) *devicetest.Plugin {
	return &devicetest.Plugin{Resource: resource, Dir: filepath.Join(n.Dir, "root/device-plugins")}
}

// fuse has every device be the node's /dev/fuse under a name of its own, to be read only. Containers cannot open it
// otherwise.
func fuse(ids []string) (*pluginapi.ContainerAllocateResponse, error) {
	out := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{
		"FUSES": strings.Join(ids, ","),
		"OWN":   "the plugin's",
	}}
	for _, id := range ids {
		out.Devices = append(out.Devices,
			&pluginapi.DeviceSpec{HostPath: "/dev/fuse", ContainerPath: "/dev/x-" + id, Permissions: "r"})
	}
	return out, nil
}

// wants is a pod whose container c wants n devices.
func wants(name, resource string, n int, more string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: %s
    command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"]
    resources: {limits: {%s: %d}}
%s`, name, image, resource, n, more)
}

// waitWaiting waits until a pod is held back for a reason.
func (n *Node) waitWaiting(name, reason, message string) {
	n.t.Helper()
	n.waitRefused(name, reason, corev1.PodPending, message)
}

// deviceHealth is what the status of the pod's container c says of its devices.
func deviceHealth(p *corev1.Pod) string {
	var out []string
	for _, st := range p.Status.ContainerStatuses {
		for _, r := range st.AllocatedResourcesStatus {
			for _, d := range r.Resources {
				out = append(out, fmt.Sprintf("%s/%s=%s", r.Name, d.ResourceID, d.Health))
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestDevicePlugin follows two devices of a plugin from pod to pod: into the container, through restarts of the
// container, of the plugin and of the agent, through illness and exhaustion.
func TestDevicePlugin(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	const res = "devices.test/fuse"
	dir := t.TempDir()
	write(t, filepath.Join(dir, "lib"), "of the plugin")
	p := n.plugin(res)
	p.Options = &pluginapi.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}
	p.Answer = func(ids []string) (*pluginapi.ContainerAllocateResponse, error) {
		out, err := fuse(ids)
		out.Mounts = []*pluginapi.Mount{{HostPath: filepath.Join(dir, "lib"), ContainerPath: "/opt/lib", ReadOnly: true}}
		return out, err
	}
	p.Prefer = func(available, must []string, size int) []string { // from behind
		slices.Sort(available)
		slices.Reverse(available)
		return available[:size]
	}
	p.Set(devicetest.Healthy("a", "b")...)

	// No plugin has it yet: the pod waits.
	n.apply("one.yaml", wants("one", res, 1, "    env: [{name: OWN, value: the pod's}]\n"))
	n.waitWaiting("one", "OutOf"+res, "requested: 1, used: 0, capacity: 0")
	stop := n.runPlugin(p)
	one := n.waitReady("one")
	if got := n.sh("one", `echo "$FUSES $OWN"; cat /opt/lib; ls /dev | grep x-`); got != "b the pod's\nof the "+
		"pluginx-b\n" {
		t.Errorf("in the container there is %q", got)
	}
	opens := `mknod /tmp/y c 10 229; for f in '</dev/x-b' '>/dev/x-b' '</tmp/y'; do sh -c "exec 3$f" 2>/dev/null && echo "yes $f" || echo "no $f"; done`
	if got := n.sh("one", opens); got != "yes </dev/x-b\nno >/dev/x-b\nyes </tmp/y\n" {
		t.Errorf("the container with the device opens it like this: %q", got)
	}
	if got := deviceHealth(one); got != res+"/b=Healthy" {
		t.Errorf("the status says %q of the devices", got)
	}
	if got := p.Started(); len(got) != 1 || !slices.Equal(got[0], []string{"b"}) {
		t.Errorf("before the start of the container the plugin was asked for %v", got)
	}

	// The other device; then there is none.
	n.apply("two.yaml", wants("two", res, 1, ""))
	n.waitReady("two")
	if got := n.sh("two", "echo $FUSES"); got != "a\n" {
		t.Errorf("the second pod has %q", got)
	}
	n.apply("none.yaml", wants("none", "cpu", 1, ""))
	n.waitReady("none")
	if got := n.sh("none", opens); !strings.Contains(got, "no </tmp/y") {
		t.Errorf("a container without the device opens it all the same: %q", got)
	}
	n.apply("three.yaml", wants("three", res, 1, ""))
	n.waitWaiting("three", "OutOf"+res, "requested: 1, used: 2, capacity: 2")

	// A container that is started again has its device again, and the plugin is asked before.
	n.berth("exec", "one", "--", "kill", "1")
	n.wait("one", "to be restarted", func(p *corev1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount == 1 &&
			p.Status.ContainerStatuses[0].Ready
	})
	if got := n.sh("one", "echo $FUSES"); got != "b\n" || len(p.Started()) != 3 {
		t.Errorf("after its restart the container has %q; the plugin was asked %v", got, p.Started())
	}

	// Illness shows, and touches nobody.
	p.Set(&pluginapi.Device{ID: "a", Health: pluginapi.Healthy}, &pluginapi.Device{ID: "b", Health: pluginapi.Unhealthy})
	n.wait("one", "to say that its device is not well",
		func(p *corev1.Pod) bool { return p != nil && deviceHealth(p) == res+"/b=Unhealthy" })

	// The agent is killed: who has what stays, whether or not the plugin is back.
	before := n.pod("one")
	stop()
	n.wait("one", "to say that nobody knows",
		func(p *corev1.Pod) bool { return p != nil && deviceHealth(p) == res+"/b=Unknown" })
	n.kill()
	n.start()
	n.requireSame(before, n.waitReady("one"))
	n.waitReady("two")
	n.waitWaiting("three", "OutOf"+res, "capacity: 0")
	allocated := len(p.Allocated())
	p.Set(devicetest.Healthy("a", "b")...)
	n.runPlugin(p)
	n.wait("one", "to say that its device is well",
		func(p *corev1.Pod) bool { return p != nil && deviceHealth(p) == res+"/b=Healthy" })

	// What one gives back the next one gets.
	n.remove("one.yaml")
	n.waitReady("three")
	if got := n.sh("three", "echo $FUSES"); got != "b\n" {
		t.Errorf("the third pod has %q", got)
	}
	if got := p.Allocated(); len(got) != allocated+1 {
		t.Errorf("the plugin was asked for %v", got)
	}

	// The agent is killed while the plugin lives: it hears of the new agent by its socket, and registers.
	n.kill()
	n.start()
	n.wait("three", "to say that its device is well",
		func(p *corev1.Pod) bool { return p != nil && deviceHealth(p) == res+"/b=Healthy" })
	if err := p.Refused(); err != nil {
		t.Error(err)
	}
	if got := n.metrics("/metrics").get(t, "kubelet_device_plugin_registration_total",
		map[string]string{"resource_name": res}); got != 1 {
		t.Errorf("the metrics tell of %v registrations", got)
	}
	n.remove("two.yaml")
	n.remove("three.yaml")
	n.waitGone("two")
	n.waitGone("three")
	n.eventually("the file of assignments to be empty", func() error {
		b, err := os.ReadFile(filepath.Join(n.Dir, "root/devices.json"))
		if err == nil && !strings.Contains(string(b), `"pods":[]`) {
			err = fmt.Errorf("it says %s", b)
		}
		return err
	})
}

// podResources asks the pod-resources socket.
func (n *Node) podResources() podsv1.PodResourcesListerClient {
	n.t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(n.Dir, "root/pod-resources/kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { conn.Close() })
	return podsv1.NewPodResourcesListerClient(conn)
}

// TestPluginRegistry has a plugin found by its socket, and asks for whose its devices are.
func TestPluginRegistry(t *testing.T) {
	t.Parallel()
	n := startNode(t, "--cpu-manager-policy=static", "--reserved-cpus=0")
	const res = "devices.test/registry"
	p := n.plugin(res)
	p.Registry = filepath.Join(n.Dir, "root/plugins_registry")
	p.Set(devicetest.On(0, devicetest.Healthy("a")[0]), devicetest.Healthy("b")[0],
		&pluginapi.Device{ID: "c", Health: pluginapi.Unhealthy})
	stop := n.runPlugin(p)
	n.apply("one.yaml", wants("one", res, 2, ""))
	n.waitReady("one")
	if got := n.sh("one", "echo $DEVICES"); got != "[a b]\n" {
		t.Errorf("the container has %q", got)
	}
	n.eventually("the plugin to be told", func() error { // its devices may be given out before it is
		if said := p.Notified(); len(said) != 1 || !said[0].GetPluginRegistered() {
			return fmt.Errorf("it was told %v", said)
		}
		return nil
	})

	ask := n.podResources()
	r, err := ask.Get(t.Context(), &podsv1.GetPodResourcesRequest{PodName: "one-node", PodNamespace: "default"},
		grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range r.GetPodResources().GetContainers() {
		for _, d := range c.GetDevices() {
			got = append(got, fmt.Sprint(c.GetName(), " ", d.GetResourceName(), d.GetDeviceIds(), d.GetTopology().GetNodes()))
		}
	}
	if len(got) != 2 || !strings.Contains(got[0], "[a]") || !strings.Contains(got[1], "[b]") {
		t.Errorf("the socket tells of %q", got)
	}
	if nodes := r.GetPodResources().GetContainers()[0].GetDevices()[0].GetTopology().GetNodes(); len(nodes) != 1 ||
		nodes[0].GetID() != 0 {
		t.Errorf("the device is said to be near to %v", nodes)
	}
	if _, err := ask.Get(t.Context(),
		&podsv1.GetPodResourcesRequest{PodName: "none", PodNamespace: "default"}); status.Code(err) != codes.NotFound {
		t.Errorf("a pod that is not there: %v", err)
	}
	n.apply("cpu.yaml", pinned("cpu", "1"))
	n.waitReady("cpu")
	list, err := ask.List(t.Context(), &podsv1.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.GetPodResources() {
		if cpus := p.GetContainers()[0].GetCpuIds(); p.GetName() == "cpu-node" && (len(cpus) != 1 || cpus[0] == 0) ||
			p.GetName() == "one-node" && len(cpus) > 0 {
			t.Errorf("%s is said to have CPUs %v of its own", p.GetName(), cpus)
		}
	}
	if len(list.GetPodResources()) != 2 {
		t.Errorf("of two pods the list tells of %v", list)
	}
	all, err := ask.GetAllocatableResources(t.Context(), &podsv1.AllocatableResourcesRequest{})
	if err != nil || len(all.GetDevices()) != 2 || len(all.GetCpuIds()) == 0 {
		t.Errorf("what can be given out is %v (%v)", all, err)
	}

	// A plugin that goes and comes, with its socket.
	stop()
	n.wait("one", "to say that nobody knows",
		func(p *corev1.Pod) bool { return p != nil && strings.Contains(deviceHealth(p), "a=Unknown") })
	n.runPlugin(p)
	n.wait("one", "to say that its device is well",
		func(p *corev1.Pod) bool { return p != nil && strings.Contains(deviceHealth(p), "a=Healthy") })
	n.kill()
	n.start()
	n.wait("one", "to say that its device is well",
		func(p *corev1.Pod) bool { return p != nil && strings.Contains(deviceHealth(p), "a=Healthy") })
	if got := p.Allocated(); len(got) != 1 {
		t.Errorf("the plugin was asked for %v", got)
	}

	// A pod may have the sockets, and nothing else of the agent's.
	n.apply("plugin.yaml", pod("plugin", fmt.Sprintf(`
  containers: [{name: c, image: %s, command: [sleep, "1000"], volumeMounts: [{name: s, mountPath: /var/lib/kubelet/device-plugins}]}]
  volumes: [{name: s, hostPath: {path: %s/root/device-plugins}}]`, image, n.Dir)))
	n.waitReady("plugin")
	if got := n.sh("plugin", "ls /var/lib/kubelet/device-plugins"); got != "kubelet.sock\n" {
		t.Errorf("a plugin's pod sees %q", got)
	}
}

// TestDevicePluginFails has a plugin that refuses and one that hangs: their pods wait, no other does, and an agent that
// is killed meanwhile comes back to the same device.
func TestDevicePluginFails(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	const res = "devices.test/slow"
	p := n.plugin(res)
	refuse, well := make(chan error), make(chan struct{})
	p.Answer = func(ids []string) (*pluginapi.ContainerAllocateResponse, error) {
		select {
		case err := <-refuse:
			return nil, err
		case <-well:
			return fuse(ids)
		}
	}
	p.Set(devicetest.Healthy("a", "b")...)
	n.runPlugin(p)
	n.apply("slow.yaml", wants("slow", res, 1, ""))
	refuse <- errors.New("the device is on fire")
	n.eventually("the plugin's error to be told", func() error {
		if out := n.must("events"); !strings.Contains(out, "UnexpectedAdmissionError") ||
			!strings.Contains(out, "the device is on fire") {
			return errors.New(out)
		}
		return nil
	})
	// It is asked again, and does not answer.
	n.eventually("the plugin to be asked again", func() error {
		if got := p.Allocated(); len(got) < 2 {
			return fmt.Errorf("it was asked for %v", got)
		}
		return nil
	})
	n.apply("other.yaml", wants("other", "cpu", 1, ""))
	n.waitReady("other")
	if slow := n.pod("slow"); slow == nil || slow.Status.Phase != corev1.PodPending {
		t.Errorf("a pod without its device is %v", slow)
	}
	n.kill()
	n.start()
	close(well)
	n.waitReady("slow")
	for _, ids := range p.Allocated() {
		if !slices.Equal(ids, []string{"a"}) {
			t.Errorf("the plugin was asked for %v", p.Allocated())
		}
	}
}
