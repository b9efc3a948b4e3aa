package control

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// deviceDriver is who has the devices of tests.
const deviceDriver = "devices.example.com"

// offers has a node offer devices, as a driver on it does.
func (p *plane) offers(t *testing.T, node string, count int) {
	t.Helper()
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-devices"}, Spec: resourcev1.ResourceSliceSpec{
		Driver: deviceDriver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
	for i := range count {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{Name: fmt.Sprintf("device-%d", i)})
	}
	if _, err := p.client.ResourceV1().ResourceSlices().Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// classed makes a class of all devices of the driver, which stands for a resource if one is named, and a template of
// claims of one of them.
func (p *plane) classed(t *testing.T, of string) {
	t.Helper()
	c := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "thing"}, Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{
		{CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", deviceDriver)}},
	}}}
	if of != "" {
		c.Spec.ExtendedResourceName = &of
	}
	if _, err := p.client.ResourceV1().DeviceClasses().Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	o := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: resourcev1.ResourceClaimTemplateSpec{
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
			{Name: "it", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "thing"}},
		}}},
	}}
	if _, err := p.client.ResourceV1().ResourceClaimTemplates("default").Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// withDevice is a pod with a claim of the template.
func withDevice(name string) *corev1.Pod {
	template := "one"
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		ResourceClaims: []corev1.PodResourceClaim{{Name: "dev", ResourceClaimTemplateName: &template}},
		Containers: []corev1.Container{{
			Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "dev"}}},
		}},
	}}
}

// deviceOf waits until a pod has a node, and is the device of its only claim, which is on that node.
func (p *plane) deviceOf(t *testing.T, pod string) string {
	t.Helper()
	device := ""
	until(t, "pod "+pod+" has a node and a device", func() error {
		o, err := p.client.CoreV1().Pods("default").Get(t.Context(), pod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if o.Spec.NodeName == "" {
			return fmt.Errorf("its conditions are %v", o.Status.Conditions)
		}
		name := ""
		for _, s := range o.Status.ResourceClaimStatuses {
			name = *s.ResourceClaimName
		}
		if e := o.Status.ExtendedResourceClaimStatus; e != nil {
			name = e.ResourceClaimName
		}
		c, err := p.client.ResourceV1().ResourceClaims("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		a := c.Status.Allocation
		if a == nil || len(a.Devices.Results) != 1 || len(c.Status.ReservedFor) != 1 || c.Status.ReservedFor[0].UID != o.UID {
			t.Fatalf("pod %s is bound, and its claim is %+v", pod, c.Status)
		}
		if !slices.Contains(c.Finalizers, resourcev1.Finalizer) {
			t.Fatalf("claim %s has devices and may be deleted", c.Name)
		}
		r := a.Devices.Results[0]
		if r.Pool != o.Spec.NodeName {
			t.Fatalf("pod %s is on node %s, and its device in pool %s", pod, o.Spec.NodeName, r.Pool)
		}
		device = r.Pool + "/" + r.Device
		return nil
	})
	return device
}

// TestDevices has pods get devices by a template: no two the same, the one too many when another has ended, and none
// that is tainted; and one that asks for them as a resource.
func TestDevices(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	h := p.hollowWith(t, false, "a", "b")
	p.equipped(t, "default")
	pods := p.client.CoreV1().Pods("default")
	make := func(o *corev1.Pod) {
		t.Helper()
		if _, err := pods.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// The template may come later than the pod.
	make(withDevice("first"))
	p.classed(t, "example.com/thing")
	saysWhy(t, p, "first", "cannot allocate all claims")
	p.offers(t, "a", 1)
	p.offers(t, "b", 1)
	make(withDevice("second"))
	if one, two := p.deviceOf(t, "first"), p.deviceOf(t, "second"); one == two {
		t.Fatalf("both have %s", one)
	}
	make(withDevice("third"))
	saysWhy(t, p, "third", "cannot allocate all claims")
	if why := p.run(t, "why", "third"); !strings.Contains(why, "cannot allocate all claims") {
		t.Errorf("why says %s", why)
	}
	// A pod that has ended needs its devices no more, deleted or not.
	h.say(func(o *corev1.Pod) corev1.PodStatus {
		if o.Name == "first" {
			return exited(0)(o)
		}
		return running(o)
	})
	p.deviceOf(t, "third")

	make(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "fourth"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Image: "i", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"example.com/thing": resource.MustParse("1")},
			Limits:   corev1.ResourceList{"example.com/thing": resource.MustParse("1")},
		},
	}}}})
	saysWhy(t, p, "fourth", "cannot allocate all claims")
	if err := pods.Delete(t.Context(), "second", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.deviceOf(t, "fourth")
	o, err := pods.Get(t.Context(), "fourth", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if m := o.Status.ExtendedResourceClaimStatus.RequestMappings; len(m) != 1 || m[0].ContainerName != "c" || m[0].ResourceName != "example.com/thing" {
		t.Errorf("its status is %+v", o.Status.ExtendedResourceClaimStatus)
	}
	// Who has a device that is tainted ends, and it is nobody's until the taint is gone.
	node := "a"
	rule := &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "broken"}, Spec: resourcev1.DeviceTaintRuleSpec{
		DeviceSelector: &resourcev1.DeviceTaintSelector{Pool: &node},
		Taint:          resourcev1.DeviceTaint{Key: "example.com/broken", Effect: resourcev1.DeviceTaintEffectNoExecute},
	}}
	third, fourth := p.deviceOf(t, "third"), p.deviceOf(t, "fourth")
	if third == fourth {
		t.Fatalf("both have %s", third)
	}
	if _, err := p.client.ResourceV1().DeviceTaintRules().Create(t.Context(), rule, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ends, stays := "third", "fourth"
	if strings.HasPrefix(fourth, "a/") {
		ends, stays = stays, ends
	}
	until(t, "the pod with the tainted device is gone", func() error {
		_, err := pods.Get(t.Context(), ends, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is not: %w", err)
	})
	make(withDevice("fifth"))
	saysWhy(t, p, "fifth", "cannot allocate all claims")
	until(t, "the rule says that it is done", func() error {
		r, err := p.client.ResourceV1().DeviceTaintRules().Get(t.Context(), "broken", metav1.GetOptions{})
		if err == nil && !slices.ContainsFunc(r.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == resourcev1.DeviceTaintConditionEvictionInProgress && c.Status == metav1.ConditionFalse
		}) {
			err = fmt.Errorf("it says %v", r.Status)
		}
		return err
	})
	if err := p.client.ResourceV1().DeviceTaintRules().Delete(t.Context(), "broken", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if d := p.deviceOf(t, "fifth"); !strings.HasPrefix(d, "a/") {
		t.Errorf("pod fifth has %s, and that is pod %s's", d, stays)
	}
	for _, name := range []string{"first", stays, "fifth"} {
		if err := pods.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "no claim is left", func() error {
		all, err := p.client.ResourceV1().ResourceClaims("default").List(t.Context(), metav1.ListOptions{})
		if err == nil && len(all.Items) > 0 {
			err = fmt.Errorf("there are %d: %+v", len(all.Items), all.Items)
		}
		return err
	})
}

// TestDevicesKilled kills the control plane again and again while pods are bound to devices: in the end each has one of
// its own, and one claim only.
func TestDevicesKilled(t *testing.T) {
	t.Parallel()
	const nodes, each = 4, 6
	dir := t.TempDir()
	p := start(t, dir)
	port := p.port(t)
	var names []string
	for i := range nodes {
		names = append(names, fmt.Sprintf("n%d", i))
	}
	p.hollowWith(t, false, names...)
	p.equipped(t, "default")
	p.classed(t, "")
	for _, n := range names {
		p.offers(t, n, each)
	}
	const count = nodes * each
	for i := range count {
		if _, err := p.client.CoreV1().Pods("default").Create(t.Context(), withDevice(fmt.Sprintf("p%d", i)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if i%8 == 7 {
			// Where in the writes it dies is left to chance.
			w := p.written(t, rand.IntN(6)) // a test's chances
			t.Logf("killed when %d claims had devices", w)
			p.kill()
			p = startAt(t, dir, port)
		}
	}
	seen := map[string]string{}
	for i := range count {
		name := fmt.Sprintf("p%d", i)
		device := p.deviceOf(t, name)
		if other := seen[device]; other != "" {
			t.Errorf("pods %s and %s have %s", other, name, device)
		}
		seen[device] = name
	}
	all, err := p.client.ResourceV1().ResourceClaims("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(all.Items) != count {
		t.Errorf("%d pods have %d claims", count, len(all.Items))
	}
}

// written waits until so many claims more have devices than at first, or for a while: they may all have them.
func (p *plane) written(t *testing.T, more int) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	count := func() int {
		all, err := p.client.ResourceV1().ResourceClaims("default").List(ctx, metav1.ListOptions{})
		if err != nil && ctx.Err() == nil && !apierrors.IsTooManyRequests(err) {
			t.Fatal(err)
		}
		n := 0
		if all != nil {
			for i := range all.Items {
				if all.Items[i].Status.Allocation != nil {
					n++
				}
			}
		}
		return n
	}
	w, err := p.client.ResourceV1().ResourceClaims("default").Watch(ctx, metav1.ListOptions{})
	if ctx.Err() != nil {
		return 0 // nobody has answered for a while
	}
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	first := count()
	for now := first; ; now = count() {
		if now >= first+more || ctx.Err() != nil {
			return now
		}
		select {
		case <-ctx.Done():
		case <-w.ResultChan():
		}
	}
}
