package system

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// queues have room for one job at a time.
const queues = `apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: any}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: all}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu]
    flavors:
    - {name: any, resources: [{name: cpu, nominalQuota: 100m}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: ours}
spec: {clusterQueue: all}
`

// queued is a job of the queue that ends when somebody says so.
func (m *member) queued(name string) *batchv1.Job {
	m.t.Helper()
	j, err := m.plane.Client.BatchV1().Jobs("default").Create(m.t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kueue.x-k8s.io/queue-name": "ours"}},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{
				Name: "main", Image: image, ImagePullPolicy: corev1.PullNever,
				Command:   []string{"sh", "-c", "until test -e /end; do sleep 0.1; done"},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}},
			}},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	return j
}

// operated starts a cluster whose Services lead somewhere, with the operator as its project publishes it: the image is
// made of its program, and what else it is made of is what its chart says.
func operated(t *testing.T) *member {
	t.Helper()
	dir, images := peerPrograms(t, "test-ecosystem"), t.TempDir()
	for _, archive := range append(testImages(t), filepath.Join(dir, "images/kueue.tar")) {
		content, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(images, filepath.Base(archive)), string(content))
	}
	// The range has to be nobody else's on the machine, which has the rules for all.
	m := joinedTo(t, []string{"--bind=0.0.0.0", fmt.Sprintf("--service-cidr=10.%d.255.0/24", 100+os.Getpid()%96)}, "--image-dir="+images)
	m.lead()
	m.helm("install", "kueue", filepath.Join(dir, "charts/kueue"), "--namespace=kueue-system", "--create-namespace", "--wait", "--timeout="+limit.String(),
		"--set=controllerManager.manager.image.repository=berth.test/kueue,controllerManager.manager.image.tag=published",
		"--set=controllerManager.manager.image.pullPolicy=Never")
	return m
}

// TestOperator has an operator with all that operators have: definitions of resources with validation and conversion,
// webhooks for its own kinds and for those of others, an API server of its own behind ours, certificates that it makes
// itself, and leases. It does what it is for: jobs wait for each other.
func TestOperator(t *testing.T) {
	m := operated(t)
	m.eventually("the operator to take queues", func() error {
		out, err := m.command(queues, filepath.Join(peerPrograms(t, "test-ecosystem"), "kubectl"), "apply", "-f", "-")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	m.awaits("clusterqueue/all", "condition=Active")
	wrong := strings.Replace(queues, "nominalQuota: 100m", `nominalQuota: "-1"`, 1)
	if out, err := m.command(wrong, filepath.Join(peerPrograms(t, "test-ecosystem"), "kubectl"), "apply", "-f", "-"); err == nil || !strings.Contains(out, "denied the request") {
		t.Errorf("a queue of less than nothing: %v\n%s", err, out)
	}

	if j := m.queued("first"); j.Spec.Suspend == nil || !*j.Spec.Suspend {
		t.Error("a job of the queue is not suspended by the webhook")
	}
	m.awaits("job/first", "jsonpath={.status.ready}=1")
	m.queued("second")
	m.awaits("workloads.kueue.x-k8s.io", "jsonpath={.status.conditions[?(@.type==\"QuotaReserved\")].status}=False",
		"-l", "kueue.x-k8s.io/job-uid="+m.uid("second"))
	// Who waits, the operator's own API server says.
	m.eventually("the second job to be said to wait", func() error {
		out := m.kubectl("get", "--raw", "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/all/pendingworkloads")
		if strings.Count(out, `"localQueueName":"ours"`) != 1 || !strings.Contains(out, "job-second-") {
			return fmt.Errorf("it says %s", out)
		}
		return nil
	})
	if out := m.kubectl("get", "pods", "-l", "job-name=second", "-o", "name"); out != "" {
		t.Errorf("the second job has %s", out)
	}
	m.end("first")
	m.awaits("job/second", "jsonpath={.status.ready}=1")
	m.end("second")
	if out := m.kubectl("get", "jobs", "-o", "jsonpath={.items[*].status.succeeded}"); out != "1 1" {
		t.Errorf("of the jobs succeeded %s", out)
	}

	m.kubectl("delete", "jobs", "--all")
	m.kubectl("delete", "localqueue,clusterqueue,resourceflavor", "--all")
	m.helm("uninstall", "kueue", "--namespace=kueue-system", "--cascade=foreground", "--wait=legacy", "--timeout="+limit.String())
	m.kubectl("delete", "namespace", "kueue-system")
	if out := m.kubectl("get", "customresourcedefinitions,apiservices", "-o", "name"); strings.Contains(out, "kueue") {
		t.Errorf("there is %s", out)
	}
	m.requireNoPods()
}

// uid is that of a job.
func (m *member) uid(job string) string {
	m.t.Helper()
	return m.kubectl("get", "job", job, "-o", "jsonpath={.metadata.uid}")
}

// end has the pod of a job end.
func (m *member) end(job string) {
	m.t.Helper()
	m.kubectl("exec", "job/"+job, "--", "touch", "/end")
	m.awaits("job/"+job, "condition=Complete")
}
