package system

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/csi/csitest"
	"github.com/berth-node/berth/csi/local"
)

// fsType is of what may be made larger without CAP_SYS_RESOURCE, which some machines withhold; it takes 300 MiB.
const fsType = "xfs"

// storage is a driver beside a member, that of this machine's storage, and the part that controllers of others have in
// it.
type storage struct {
	*member
	controller spec.ControllerClient
	driver     string
	handle     string
	size       int64
}

// withStorage starts the driver, and makes a volume with a claim that is bound to it.
func (m *member) withStorage(size int64) *storage {
	m.t.Helper()
	yes, no, groups := true, false, storagev1.FileFSGroupPolicy
	_, err := m.plane.Client.StorageV1().StorageClasses().Create(m.t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: local.Name, AllowVolumeExpansion: &yes,
	}, metav1.CreateOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	_, err = m.plane.Client.StorageV1().CSIDrivers().Create(m.t.Context(), &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: local.Name},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: &no, FSGroupPolicy: &groups},
	}, metav1.CreateOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	socket := filepath.Join(m.Dir, "csi.sock")
	m.beside(nil, bin("berth"), "csi-local", "--endpoint=unix://"+socket, "--data-dir="+filepath.Join(m.Dir, "csi"),
		"--node-id="+m.name, "--registration-dir="+filepath.Join(m.Dir, "root/plugins_registry"))
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { conn.Close() })
	s := &storage{member: m, controller: spec.NewControllerClient(conn), driver: local.Name, size: size}
	m.eventually("the driver to make a volume", func() error {
		made, err := s.controller.CreateVolume(m.t.Context(), &spec.CreateVolumeRequest{
			Name: "data", Parameters: map[string]string{"type": "loop"}, CapacityRange: &spec.CapacityRange{RequiredBytes: size},
			VolumeCapabilities: []*spec.VolumeCapability{{
				AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{FsType: fsType}},
				AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
			}},
		})
		s.handle = made.GetVolume().GetVolumeId()
		return err
	})
	s.bind()
	return s
}

func sized(bytes int64) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)}
}

// bind makes the claim and its volume known.
func (s *storage) bind() {
	s.t.Helper()
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	_, err := s.plane.Client.CoreV1().PersistentVolumes().Create(s.t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-data"},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "local", Capacity: sized(s.size), AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: "data"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: s.driver, VolumeHandle: s.handle, FSType: fsType,
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	_, err = s.plane.Client.CoreV1().PersistentVolumeClaims("default").Create(s.t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: "pv-data", StorageClassName: new("local"), AccessModes: modes,
			Resources: corev1.VolumeResourceRequirements{Requests: sized(s.size)},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.has(s.size, "")
}

// mounting is a pod that has the claim.
func (s *storage) mounting(name string) *corev1.Pod {
	s.t.Helper()
	p := s.claiming(name)
	s.apiReady(name)
	return p
}

// claiming makes a pod that is to have the claim.
func (s *storage) claiming(name string) *corev1.Pod {
	s.t.Helper()
	return s.create(s.bound(name, func(p *corev1.Pod) {
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
	}))
}

// resized has the volume be another size as the driver's resizer says it; it is done by the driver before, unless it is
// to fail.
func (s *storage) resized(size int64, done bool) {
	s.t.Helper()
	claims := s.plane.Client.CoreV1().PersistentVolumeClaims("default")
	s.eventually("more to be asked for", func() error {
		c, err := claims.Get(s.t.Context(), "data", metav1.GetOptions{})
		if err == nil {
			c.Spec.Resources.Requests = sized(size)
			_, err = claims.Update(s.t.Context(), c, metav1.UpdateOptions{})
		}
		return err
	})
	if done {
		_, err := s.controller.ControllerExpandVolume(s.t.Context(), &spec.ControllerExpandVolumeRequest{
			VolumeId: s.handle, CapacityRange: &spec.CapacityRange{RequiredBytes: size},
		})
		if err != nil {
			s.t.Fatal(err)
		}
	}
	s.size = size
	s.eventually("the volume to be written", func() error {
		v, err := s.plane.Client.CoreV1().PersistentVolumes().Get(s.t.Context(), "pv-data", metav1.GetOptions{})
		if err != nil {
			return err
		}
		v.Spec.Capacity = sized(size)
		_, err = s.plane.Client.CoreV1().PersistentVolumes().Update(s.t.Context(), v, metav1.UpdateOptions{})
		return err
	})
	s.eventually("the claim to be written", func() error {
		c, err := claims.Get(s.t.Context(), "data", metav1.GetOptions{})
		if err != nil {
			return err
		}
		c.Status.AllocatedResources = sized(size)
		c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
			corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending,
		}
		c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
			{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue},
		}
		_, err = claims.UpdateStatus(s.t.Context(), c, metav1.UpdateOptions{})
		return err
	})
}

// has waits until the claim says that it has so many bytes, and what comes of its expansion.
func (s *storage) has(size int64, status corev1.ClaimResourceStatus) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("the claim to have %d bytes", size), func() error {
		c, err := s.plane.Client.CoreV1().PersistentVolumeClaims("default").Get(s.t.Context(), "data", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if c.Status.Capacity.Storage().Value() != size || c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] != status ||
			status == "" && len(c.Status.Conditions) > 0 {
			return fmt.Errorf("it is %+v", c.Status)
		}
		return nil
	})
}

// seen requires that the file system has about so many bytes in a pod.
func (s *storage) seen(pod string, size int64) {
	s.t.Helper()
	if err := s.spacious(pod, size); err != nil {
		s.t.Error(err)
	}
}

// spacious says whether the file system has about so many bytes in a pod: what it is made of takes some.
func (m *member) spacious(pod string, size int64) error {
	out, err := m.execute(pod, "stat", "-f", "-c", "%b %S", "/v")
	blocks, block, _ := strings.Cut(strings.TrimSpace(out), " ")
	n, nErr := strconv.ParseInt(blocks, 10, 64)
	each, eachErr := strconv.ParseInt(block, 10, 64)
	if err = errors.Join(err, nErr, eachErr); err != nil || n*each < size*2/3 || n*each > size {
		return fmt.Errorf("in pod %s the file system has %q, %w; it is to have some %d bytes", pod, out, err, size)
	}
	return nil
}

// said requires so many events of a kind about the claim.
func (s *storage) said(reason string, count int32) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("%d events %s of the claim", count, reason), func() error {
		list, err := s.plane.Client.CoreV1().Events("default").List(s.t.Context(), metav1.ListOptions{
			FieldSelector: "involvedObject.name=data,reason=" + reason,
		})
		n := int32(0)
		for _, e := range list.Items {
			n += max(e.Count, 1)
		}
		if err != nil || n != count {
			return fmt.Errorf("there are %d, %w", n, err)
		}
		return nil
	})
}

// TestExpansion expands the volume of a claim of the API while pods have it, without the agent, and while no pod has
// it: the node does its part, and says so in the claim. Where the driver cannot, the claim says that.
func TestExpansion(t *testing.T) {
	t.Parallel()
	const mi = 1 << 20
	m := joined(t)
	m.nodeReady()
	s := m.withStorage(32 * mi)
	first := s.mounting("a")
	s.mounting("b")
	s.seen("a", 320*mi)
	if out, err := s.execute("a", "sh", "-c", "echo kept > /v/file && sync"); err != nil {
		t.Fatal(out, err)
	}

	s.resized(400*mi, true)
	s.has(400*mi, "")
	s.seen("a", 400*mi)
	s.seen("b", 400*mi)
	s.said("FileSystemResizeSuccessful", 1)
	s.requireEvents(first, "FileSystemResizeSuccessful")

	m.kill()
	s.resized(480*mi, true)
	m.start()
	s.has(480*mi, "")
	s.seen("b", 480*mi)

	m.kill()
	s.resized(560*mi, false)
	m.start()
	s.has(480*mi, corev1.PersistentVolumeClaimNodeResizeInfeasible)
	s.requireEvents(first, "VolumeResizeFailed")
	m.kill()
	s.resized(560*mi, true)
	m.start()
	s.has(560*mi, "")
	s.seen("a", 560*mi)

	for _, name := range []string{"a", "b"} {
		m.delete(name, nil)
		m.apiGone(name)
	}
	m.requireNoPods()
	s.resized(640*mi, true)
	s.mounting("c")
	s.seen("c", 640*mi) // from the beginning
	s.has(640*mi, "")
	if got, err := s.execute("c", "cat", "/v/file"); got != "kept\n" || err != nil {
		t.Errorf("the file has %q, %v", got, err)
	}
	if out, stderr, code := m.berth("volumes", "check"); code != 0 {
		t.Errorf("berth volumes check: %s%s", out, stderr)
	}
	s.gone("c")
}

// withMischief starts a driver that does what it is told to, with a claim that is bound to a volume of it.
func (m *member) withMischief(size int64, attached bool) (*storage, *csitest.Driver) {
	m.t.Helper()
	_, err := m.plane.Client.StorageV1().CSIDrivers().Create(m.t.Context(), &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: testDriver}, Spec: storagev1.CSIDriverSpec{AttachRequired: &attached},
	}, metav1.CreateOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	yes := true
	_, err = m.plane.Client.StorageV1().StorageClasses().Create(m.t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: testDriver, AllowVolumeExpansion: &yes,
	}, metav1.CreateOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	d := csitest.Start(m.t, csitest.Options{
		Name: testDriver, Registry: filepath.Join(m.Dir, "root/plugins_registry"), NoController: true, AnyVolume: true, NodeID: m.name,
		Roots: []string{filepath.Join(m.Dir, "root")},
	})
	s := &storage{member: m, driver: testDriver, handle: "disk", size: size}
	s.bind()
	return s, d
}

// TestExpansionAwaited has pods wait for a volume that the driver does not expand, over the agent's end, while one that
// has it goes on with it: until the driver does, or the claim says that it never will.
func TestExpansionAwaited(t *testing.T) {
	t.Parallel()
	const mi = 1 << 20
	m := joined(t)
	m.nodeReady()
	s, d := m.withMischief(32*mi, false)
	fails := func(c codes.Code) { d.Faults.Inject(csitest.Fault{RPC: "NodeExpandVolume", Times: -1, Code: c}) }
	s.mounting("a")
	before := s.apiReady("a")

	fails(codes.Internal)
	s.resized(64*mi, false)
	second := s.claiming("b")
	s.requireEvents(second, "FailedMount", "VolumeResizeFailed")
	s.requireEvents(before, "VolumeResizeFailed")
	m.kill()
	m.start()
	s.eventually("another try to expand the volume", func() error {
		if n := len(d.Calls("NodeExpandVolume")); n < 3 {
			return fmt.Errorf("there were %d", n)
		}
		return nil
	})
	s.has(32*mi, corev1.PersistentVolumeClaimNodeResizeInProgress)
	if now, err := s.plane.Client.CoreV1().Pods("default").Get(t.Context(), "b", metav1.GetOptions{}); err != nil ||
		now.Status.Phase != corev1.PodPending {
		t.Errorf("the second pod has not waited: %+v, %v", now.Status, err)
	}
	m.requireSame(before, s.apiReady("a"))
	d.Faults.Instead()
	s.apiReady("b")
	s.has(64*mi, "")

	fails(codes.Internal)
	s.resized(96*mi, false)
	s.requireEvents(s.claiming("c"), "FailedMount")
	d.Faults.Instead(csitest.Fault{RPC: "NodeExpandVolume", Times: -1, Code: codes.OutOfRange})
	s.apiReady("c") // as it is
	s.has(64*mi, corev1.PersistentVolumeClaimNodeResizeInfeasible)
	d.Faults.Instead()

	fails(codes.Internal)
	s.resized(128*mi, false)
	s.requireEvents(s.claiming("d"), "FailedMount")
	for _, name := range []string{"b", "c", "d"} { // one that waits can be deleted
		m.delete(name, nil)
		m.apiGone(name)
	}
	s.vanish("a")
}

// gone deletes the last pod, the claim and the volume, of which nothing is left.
func (s *storage) gone(pod string) {
	s.t.Helper()
	s.vanish(pod)
	if _, err := s.controller.DeleteVolume(s.t.Context(), &spec.DeleteVolumeRequest{VolumeId: s.handle}); err != nil {
		s.t.Error(err)
	}
	if left := filesIn(s.t, filepath.Join(s.Dir, "csi/images")); len(left) > 0 {
		s.t.Errorf("what is left: %v", left)
	}
}

// vanish deletes the last pod and the claim, of which nothing is left on the node.
func (s *storage) vanish(pod string) {
	s.t.Helper()
	s.delete(pod, nil)
	s.apiGone(pod)
	s.requireNoPods()
	core := s.plane.Client.CoreV1()
	err := core.PersistentVolumeClaims("default").Delete(s.t.Context(), "data", metav1.DeleteOptions{})
	err = errors.Join(err, core.PersistentVolumes().Delete(s.t.Context(), "pv-data", metav1.DeleteOptions{}))
	if err != nil {
		s.t.Error(err)
	}
	s.eventually("nothing to be left of the volume", func() error {
		left := filesIn(s.t, filepath.Join(s.Dir, "root/csi"))
		left = slices.DeleteFunc(left, func(path string) bool { return filepath.Ext(path) != ".json" && filepath.Ext(path) != ".note" })
		if len(left) > 0 {
			return fmt.Errorf("there is %v", left)
		}
		return nil
	})
}
