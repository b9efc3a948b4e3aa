package pod

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/admission"
	"github.com/berth-node/berth/agent/pod/podtest"
	"github.com/berth-node/berth/agent/record"
)

func ephemeral(name, target string) corev1.EphemeralContainer {
	return corev1.EphemeralContainer{
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name, Image: "app:1", ImagePullPolicy: corev1.PullIfNotPresent},
		TargetContainerName:      target,
	}
}

func (n *testNode) debug(name string, list ...corev1.EphemeralContainer) error {
	_, err := n.m.AddEphemeral(n.pod(name).UID, list)
	synctest.Wait()
	return err
}

func TestEphemeralContainer(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web", podtest.Inits("i"), podtest.Containers("main", "other"))
		n.apply(p)
		n.is("web", "Pending i:0:running main:0:PodInitializing other:0:PodInitializing")
		// It does not wait for the pod, but for its target.
		if err := n.debug("web", ephemeral("now", ""), ephemeral("later", "main")); err != nil {
			t.Fatal(err)
		}
		n.is("web", "Pending i:0:running main:0:PodInitializing other:0:PodInitializing now:0:running later:0:CreateContainerConfigError")
		n.rt.exit("i-0", 0)
		n.pass(0)
		n.is("web", "Running i:0:Completed(0) main:0:running other:0:running now:0:running later:0:running")
		ns := n.rt.containers["later-0"].config.GetLinux().GetSecurityContext().GetNamespaceOptions()
		if ns.GetPid() != runtimeapi.NamespaceMode_TARGET || ns.GetTargetId() != "main-0" {
			t.Errorf("namespaces: %v", ns)
		}
		if ns := n.rt.containers["now-0"].config.GetLinux().GetSecurityContext().GetNamespaceOptions(); ns.GetPid() != runtimeapi.NamespaceMode_CONTAINER {
			t.Errorf("namespaces without a target: %v", ns)
		}
		// It is never started again, by the next agent neither, and the pod is as ready as without it.
		n.rt.exit("now-0", 3)
		n.pass(time.Hour)
		n.restart()
		n.pass(time.Hour)
		n.is("web", "Running i:0:Completed(0) main:0:running other:0:running now:0:Error(3) later:0:running")
		if s := n.pod("web").Status.EphemeralContainerStatuses[1]; s.Ready || s.Started != nil {
			t.Errorf("status: %+v", s)
		}
		if !admission.StateOf(n.pod("web")).Ready {
			t.Errorf("not ready: %+v", n.pod("web").Status.Conditions)
		}
		// It goes with its sandbox.
		n.rt.loseAll(true)
		n.pass(time.Minute)
		n.rt.exit("i-1", 0)
		n.pass(time.Minute)
		n.is("web", "Running i:1:Completed(0)<Completed(0) main:1:running<Error(255) other:1:running<Error(255) now:0:Error(3) later:0:Error(255)")
		// Another pod of the name has none.
		q := podtest.New("web", podtest.WithUID("another"))
		n.apply(q)
		n.pass(time.Minute)
		n.is("web", "Running main:0:running")
		n.gone(p)
		n.remove(q)
		n.pass(time.Minute)
		n.gone(q)
	})
}

// An agent that was killed between the record and the act finishes it.
func TestEphemeralAfterCrash(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.apply(podtest.New("web"))
		n.rt.refuse = func(call string) error {
			if strings.HasPrefix(call, "CreateContainer dbg") {
				n.rt.refuse = nil
				return errors.New("cut off")
			}
			return nil
		}
		if err := n.debug("web", ephemeral("dbg", "main")); err != nil {
			t.Fatal(err)
		}
		n.restart()
		n.pass(time.Minute)
		n.is("web", "Running main:0:running dbg:0:running")
		if got := n.pod("web").Spec.EphemeralContainers; len(got) != 1 || got[0].Name != "dbg" {
			t.Errorf("spec: %+v", got)
		}
	})
}

// A pod that ends takes them along, and what they were stays to be told.
func TestEphemeralEndsWithPod(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web", podtest.Policy(corev1.RestartPolicyNever))
		n.apply(p)
		if err := n.debug("web", ephemeral("dbg", "")); err != nil {
			t.Fatal(err)
		}
		n.rt.exit("main-0", 0)
		n.pass(time.Minute)
		n.is("web", "Succeeded main:0:Completed(0) dbg:0:Error(143)")
		n.restart()
		n.is("web", "Succeeded main:0:Completed(0) dbg:0:Error(143)")
		if err := n.debug("web", ephemeral("late", "")); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "it is Succeeded") {
			t.Errorf("added to a pod that has ended: %v", err)
		}
		n.remove(p)
		n.pass(time.Minute)
		n.gone(p)
	})
}

func TestEphemeralRefused(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.apply(podtest.New("web"))
		if err := n.debug("web", ephemeral("dbg", "")); err != nil {
			t.Fatal(err)
		}
		bad := func(change func(*corev1.EphemeralContainer)) corev1.EphemeralContainer {
			e := ephemeral("new", "")
			change(&e)
			return e
		}
		for want, e := range map[string]corev1.EphemeralContainer{
			`spec.ephemeralContainers[1].name: Duplicate value: "main"`:          bad(func(e *corev1.EphemeralContainer) { e.Name = "main" }),
			`spec.ephemeralContainers[0]: Forbidden: "dbg" is there already`:     bad(func(e *corev1.EphemeralContainer) { e.Name = "dbg"; e.Command = []string{"x"} }),
			`spec.ephemeralContainers[1].targetContainerName: Not found: "none"`: bad(func(e *corev1.EphemeralContainer) { e.TargetContainerName = "none" }),
			`spec.ephemeralContainers[1].ports: Forbidden`:                       bad(func(e *corev1.EphemeralContainer) { e.Ports = []corev1.ContainerPort{{ContainerPort: 80}} }),
			`spec.ephemeralContainers[1].readinessProbe: Forbidden`:              bad(func(e *corev1.EphemeralContainer) { e.ReadinessProbe = &corev1.Probe{} }),
			`spec.ephemeralContainers[1].resources: Forbidden`:                   bad(func(e *corev1.EphemeralContainer) { e.Resources.Limits = corev1.ResourceList{"cpu": {}} }),
			`spec.ephemeralContainers[1].volumeMounts[0].name: Not found: "v"`: bad(func(e *corev1.EphemeralContainer) {
				e.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
			}),
			`spec.ephemeralContainers[1].image: Required value`: bad(func(e *corev1.EphemeralContainer) { e.Image = "" }),
			`spec.ephemeralContainers[1].securityContext.windowsOptions: `: bad(func(e *corev1.EphemeralContainer) {
				e.SecurityContext = &corev1.SecurityContext{WindowsOptions: &corev1.WindowsSecurityContextOptions{RunAsUserName: new("x")}}
			}),
			`spec.ephemeralContainers[1].lifecycle: Forbidden`: bad(func(e *corev1.EphemeralContainer) { e.Lifecycle = &corev1.Lifecycle{} }),
		} {
			if err := n.debug("web", e); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v\nwant %s", err, want)
			}
		}
		n.is("web", "Running main:0:running dbg:0:running")
		// The same again is nothing new.
		if err := n.debug("web", ephemeral("dbg", "")); err != nil {
			t.Error(err)
		}
		if got := n.rt.called("CreateContainer dbg"); len(got) != 1 {
			t.Errorf("%v", got)
		}
		if _, err := n.m.AddEphemeral("nobody", nil); !apierrors.IsConflict(err) {
			t.Errorf("to a pod that is not there: %v", err)
		}
	})
}

func TestReadinessGates(t *testing.T) {
	const gate = "example.com/in"
	onNode(t, func(n *testNode) {
		p := podtest.New("web", func(p *corev1.Pod) {
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}, {ConditionType: "second"}}
		})
		n.apply(p)
		condition := func(c corev1.PodConditionType) corev1.PodCondition {
			list := n.pod("web").Status.Conditions
			if i := slices.IndexFunc(list, func(o corev1.PodCondition) bool { return o.Type == c }); i >= 0 {
				return list[i]
			}
			return corev1.PodCondition{}
		}
		is := func(status corev1.ConditionStatus, message string) {
			t.Helper()
			if c := condition(corev1.PodReady); c.Status != status || !strings.Contains(c.Message, message) {
				t.Errorf("%s %s: %s", c.Status, c.Reason, c.Message)
			}
		}
		set := func(c corev1.PodConditionType, status corev1.ConditionStatus, remove ...corev1.PodConditionType) {
			t.Helper()
			var list []corev1.PodCondition
			if c != "" {
				list = append(list, corev1.PodCondition{Type: c, Status: status, Reason: "Because"})
			}
			if _, err := n.m.SetConditions(p.UID, list, remove); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
		is(corev1.ConditionFalse, `pod readiness gate "example.com/in" does not exist`)
		if c := condition(corev1.ContainersReady); c.Status != corev1.ConditionTrue {
			t.Errorf("containers are not ready: %+v", c)
		}
		set(gate, corev1.ConditionTrue)
		is(corev1.ConditionFalse, `pod readiness gate "second" does not exist`)
		set("second", corev1.ConditionUnknown)
		is(corev1.ConditionFalse, `"second" is not "True", but Unknown`)
		set("second", corev1.ConditionTrue)
		is(corev1.ConditionTrue, "")
		before := condition(gate)
		n.pass(time.Hour)
		set(gate, corev1.ConditionTrue)
		if c := condition(gate); c != before || c.Reason != "Because" || c.LastTransitionTime.IsZero() {
			t.Errorf("set to what it was it is %+v, not %+v", c, before)
		}
		n.restart()
		is(corev1.ConditionTrue, "")
		if c := condition(gate); !c.LastTransitionTime.Equal(&before.LastTransitionTime) || c.Status != before.Status {
			t.Errorf("after a restart it is %+v, not %+v", c, before)
		}
		set("", "", "second")
		is(corev1.ConditionFalse, `pod readiness gate "second" does not exist`)
		n.rt.exit("main-0", 1)
		n.pass(0)
		n.rt.exit("main-1", 1)
		n.pass(0)
		is(corev1.ConditionFalse, "containers with unready status")

		for _, c := range []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: "a b", Status: corev1.ConditionTrue}, {Type: "x", Status: "yes"}, {Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue},
		} {
			if _, err := n.m.SetConditions(p.UID, []corev1.PodCondition{c}, nil); !apierrors.IsInvalid(err) {
				t.Errorf("%+v: %v", c, err)
			}
		}
		n.remove(p)
		n.pass(time.Minute)
		n.gone(p)
	})
}

// What cannot be read was never promised.
func TestAddedOfNobody(t *testing.T) {
	dir := t.TempDir()
	if a := readAdded(dir, "x"); !a.empty() {
		t.Errorf("%+v", a)
	}
	path := addedFile(dir, "x")
	write(t, path, `{"ephemeralContainers": [`)
	if a := readAdded(dir, "x"); !a.empty() {
		t.Errorf("%+v", a)
	}
	if err := record.Write(filepath.Join(dir, "pods", string(types.UID("none")), "added.json"), &added{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a record of a pod without a directory: %v", err)
	}
}
