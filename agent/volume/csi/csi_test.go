package csi

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/token"
	"github.com/berth-node/berth/agent/volume/kind"
	drivers "github.com/berth-node/berth/csi"
	"github.com/berth-node/berth/csi/node"
)

// volumes remembers what was asked.
type volumes struct {
	asked     node.Request
	published node.Published
	users     []node.Pod
	err       error
}

func (v *volumes) Publish(_ context.Context, r node.Request) (node.Published, error) {
	v.asked = r
	return v.published, v.err
}

func (v *volumes) Release(context.Context, string) error { return v.err }

func (v *volumes) Users(string, string) []node.Pod { return v.users }

func said(s storagev1.CSIDriverSpec) func(*corev1.Pod, string) (*storagev1.CSIDriver, error) {
	return func(*corev1.Pod, string) (*storagev1.CSIDriver, error) { return &storagev1.CSIDriver{Spec: s}, nil }
}

func unsaid(*corev1.Pod, string) (*storagev1.CSIDriver, error) { return nil, errors.New("not found") }

func podWith(group *int64) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "u"},
		Spec:       corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{FSGroup: group}},
	}
}

func persistent(change func(*corev1.PersistentVolumeSpec)) kind.Source {
	s := corev1.PersistentVolumeSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, MountOptions: []string{"noatime"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: "d", VolumeHandle: "h", FSType: "ext4", VolumeAttributes: map[string]string{"a": "b"},
		}},
	}
	if change != nil {
		change(&s)
	}
	claim := &corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
	return kind.Source{Pod: claim, Bound: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: s}}
}

func TestRequest(t *testing.T) {
	v := &volumes{published: node.Published{Path: "/at"}}
	released := 0
	k := New(Config{Volumes: v, Driver: unsaid, Released: func() { released++ }})
	secrets := kind.Secrets{useStage: {"k": []byte("v")}, useExpand: {"x": nil}}
	made, err := k.Setup(t.Context(), &kind.Volume{Source: persistent(nil), Pod: podWith(new(int64)), Dir: "/pods/u", Name: "v", Secrets: secrets})
	if err != nil || made.Path != "/at" || !made.Group {
		t.Fatalf("%+v, %v", made, err)
	}
	want := node.Request{
		Volume: node.Volume{
			Driver: "d", Handle: "h", Name: "pv", AccessMode: node.ReadWriteOnce, FSType: "ext4", MountFlags: []string{"noatime"},
			Attributes: map[string]string{"a": "b"},
		},
		Pod: node.Pod{Namespace: "default", Name: "p", UID: "u"}, PodDir: "/pods/u", Group: new(int64),
		Secrets: node.Secrets{Stage: map[string]string{"k": "v"}, NodeExpand: map[string]string{"x": ""}},
	}
	if !reflect.DeepEqual(v.asked, want) {
		t.Errorf("asked\n%+v\nwant\n%+v", v.asked, want)
	}
	if err := k.Unpublish(t.Context(), "/pods/u"); err != nil || released != 1 {
		t.Errorf("%d, %v", released, err)
	}
	v.err = drivers.ErrNotRegistered
	if _, err := k.Setup(t.Context(), &kind.Volume{Source: persistent(nil), Pod: podWith(nil), Name: "v"}); !errors.Is(err, drivers.ErrNotRegistered) {
		t.Errorf("%v", err)
	}
	if err := k.Unpublish(t.Context(), "/pods/u"); err == nil || released != 1 {
		t.Errorf("%d, %v", released, err)
	}
}

// What a CSIDriver object says is done.
func TestBehaviour(t *testing.T) {
	yes, no := true, false
	none, file := storagev1.NoneFSGroupPolicy, storagev1.FileFSGroupPolicy
	both := []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}
	inline := kind.Source{Pod: &corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d"}}}
	bare := persistent(func(s *corev1.PersistentVolumeSpec) { s.CSI.FSType = "" })
	many := persistent(func(s *corev1.PersistentVolumeSpec) { s.AccessModes[0] = corev1.ReadWriteMany })
	read := persistent(func(s *corev1.PersistentVolumeSpec) { s.CSI.ReadOnly = true })
	block := corev1.PersistentVolumeBlock
	device := persistent(func(s *corev1.PersistentVolumeSpec) { s.VolumeMode = &block })
	for name, c := range map[string]struct {
		driver func(*corev1.Pod, string) (*storagev1.CSIDriver, error)
		source kind.Source
		gave   bool // the driver gives the files to the group
		group  bool
		err    string
	}{
		"without an object":          {unsaid, persistent(nil), false, true, ""},
		"without a file system":      {unsaid, bare, false, false, ""},
		"for many nodes":             {unsaid, many, false, false, ""},
		"to be read":                 {unsaid, read, false, false, ""},
		"a device":                   {said(storagev1.CSIDriverSpec{FSGroupPolicy: &file}), device, false, false, ""},
		"by the driver":              {unsaid, persistent(nil), true, false, ""},
		"policy File":                {said(storagev1.CSIDriverSpec{FSGroupPolicy: &file}), many, false, true, ""},
		"policy None":                {said(storagev1.CSIDriverSpec{FSGroupPolicy: &none}), persistent(nil), false, false, ""},
		"inline without an object":   {unsaid, inline, false, false, "need a CSIDriver object"},
		"inline where it may not be": {said(storagev1.CSIDriverSpec{}), inline, false, false, "and this volume is Ephemeral"},
		"inline":                     {said(storagev1.CSIDriverSpec{VolumeLifecycleModes: both}), inline, false, false, ""},
		"inline alone":               {said(storagev1.CSIDriverSpec{VolumeLifecycleModes: both[1:]}), persistent(nil), false, false, "this volume is Persistent"},
	} {
		v := &volumes{published: node.Published{Path: "/at", Group: c.gave}}
		k := New(Config{Volumes: v, Driver: c.driver})
		made, err := k.Setup(t.Context(), &kind.Volume{Source: c.source, Pod: podWith(new(int64)), Name: "v"})
		if made.Group != c.group || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %+v, %v", name, made, err)
		}
	}
	v := &volumes{}
	k := New(Config{Volumes: v, Driver: said(storagev1.CSIDriverSpec{AttachRequired: &no, PodInfoOnMount: &yes, RequiresRepublish: &yes})})
	if _, err := k.Setup(t.Context(), &kind.Volume{Source: persistent(nil), Pod: podWith(nil), Name: "v"}); err != nil ||
		!v.asked.Attached || !v.asked.PodInfo || !v.asked.Republish {
		t.Errorf("%+v, %v", v.asked, err)
	}
}

// A volume that one pod may have for itself is no second one's.
func TestAlone(t *testing.T) {
	v := &volumes{users: []node.Pod{{Namespace: "default", Name: "other", UID: "o"}}}
	k := New(Config{Volumes: v})
	once := persistent(func(s *corev1.PersistentVolumeSpec) { s.AccessModes[0] = corev1.ReadWriteOncePod })
	if _, err := k.Setup(t.Context(), &kind.Volume{Source: once, Pod: podWith(nil), Name: "v"}); err == nil || !strings.Contains(err.Error(), "pod default/other has it") {
		t.Errorf("%v", err)
	}
	v.users[0].UID = "u"
	if _, err := k.Setup(t.Context(), &kind.Volume{Source: once, Pod: podWith(nil), Name: "v"}); err != nil {
		t.Errorf("its own: %v", err)
	}
}

// The label of a volume is what all containers that have it say.
func TestLabelOptions(t *testing.T) {
	mounted := []corev1.VolumeMount{{Name: "v"}}
	with := func(level string) *corev1.SecurityContext {
		return &corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: level}}
	}
	pod := podWith(nil)
	pod.Spec.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Level: "s0:c1"}
	pod.Spec.Containers = []corev1.Container{{VolumeMounts: mounted}, {SecurityContext: with("s0:c9")}, {VolumeMounts: mounted, SecurityContext: with("s0:c1")}}
	if o, err := optionsOf(pod, "v"); err != nil || o == nil || o.Level != "s0:c1" {
		t.Errorf("%v, %v", o, err)
	}
	pod.Spec.Containers[1].VolumeMounts = mounted
	if o, err := optionsOf(pod, "v"); err == nil {
		t.Errorf("two labels: %v", o)
	}
	recursive := corev1.SELinuxChangePolicyRecursive
	pod.Spec.SecurityContext.SELinuxChangePolicy = &recursive
	if o, err := optionsOf(pod, "v"); err != nil || o != nil {
		t.Errorf("file by file: %v, %v", o, err)
	}
}

// TestFailedAttach wants an error of the controller to be known from others.
func TestFailedAttach(t *testing.T) {
	for method, want := range map[string]bool{"ControllerPublishVolume": true, "NodeStageVolume": false} {
		v := &volumes{err: fmt.Errorf("publish: %w", &drivers.Error{Driver: "d", Method: method})}
		_, err := New(Config{Volumes: v, Driver: unsaid}).Setup(t.Context(), &kind.Volume{Source: persistent(nil), Pod: podWith(nil), Dir: "/pods/u", Name: "v"})
		var attach interface {
			error
			FailedAttach()
		}
		if !errors.Is(err, v.err) || errors.As(err, &attach) != want {
			t.Errorf("%s: %v", method, err)
		}
	}
}

// TestServed wants the volume of an API server's pod to wait for what controllers say of it, to be attached by nobody
// here, and its driver to have the tokens that it wants, when it is called and no sooner.
func TestServed(t *testing.T) {
	pod := podWith(nil)
	pod.Annotations = map[string]string{desired.AnnotationSource: string(desired.API)}
	var attachment *storagev1.VolumeAttachment
	asked := 0
	v := &volumes{}
	spec := storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{}, {Audience: "vault", ExpirationSeconds: new(int64(600))}}}
	k := New(Config{
		Volumes: v, Driver: func(*corev1.Pod, string) (*storagev1.CSIDriver, error) { return &storagev1.CSIDriver{Spec: spec}, nil },
		Served: Served{
			Attachment: func(driver, handle string) (*storagev1.VolumeAttachment, error) {
				if attachment == nil || driver != "d" || handle != "h" {
					return nil, errors.New("volumeattachment not found")
				}
				return attachment, nil
			},
			Token: func(_ context.Context, _ *corev1.Pod, w token.Want) (token.Token, error) {
				asked++
				return token.Token{Text: fmt.Sprint(w.Audience, "-", w.Seconds), Expires: time.Unix(1000, 0)}, nil
			},
		},
	})
	complete := func(s kind.Source) (node.Request, error) {
		t.Helper()
		if _, err := k.Setup(t.Context(), &kind.Volume{Source: s, Pod: pod, Name: "v"}); err != nil {
			t.Fatal(err)
		}
		r := v.asked
		if !r.Attached || r.Complete == nil || r.Tokens != "" {
			t.Fatalf("asked %+v", r)
		}
		err := r.Complete(t.Context(), &r)
		return r, err
	}
	waits := func(what string) {
		t.Helper()
		_, err := complete(persistent(nil))
		if _, awaited := errors.AsType[*Waiting](err); !awaited || asked != 0 {
			t.Errorf("%s: %v, %d tokens", what, err, asked)
		}
	}
	waits("no attachment")
	attachment = &storagev1.VolumeAttachment{}
	waits("not attached")
	attachment.Status.AttachError = &storagev1.VolumeError{Message: "no such disk"}
	if _, err := complete(persistent(nil)); err == nil || !strings.Contains(err.Error(), "no such disk") {
		t.Errorf("cannot be attached: %v", err)
	}
	attachment.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"device": "x"}}
	attachment.DeletionTimestamp = new(metav1.Now())
	waits("being detached")
	attachment.DeletionTimestamp = nil
	const tokens = `{"":{"token":"-3600","expirationTimestamp":"1970-01-01T00:16:40Z"},"vault":{"token":"vault-600","expirationTimestamp":"1970-01-01T00:16:40Z"}}`
	if r, err := complete(persistent(nil)); err != nil || r.PublishContext["device"] != "x" || r.Tokens != tokens || r.TokensInSecrets {
		t.Errorf("%+v, %v", r, err)
	}
	// One that need not be attached, and an inline one, wait for nobody.
	attachment = nil
	spec.AttachRequired, spec.ServiceAccountTokenInSecrets = new(false), new(true)
	if r, err := complete(persistent(nil)); err != nil || r.PublishContext != nil || !r.TokensInSecrets {
		t.Errorf("%+v, %v", r, err)
	}
	spec.AttachRequired, spec.VolumeLifecycleModes = nil, []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
	if _, err := complete(kind.Source{Pod: &corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d"}}}); err != nil {
		t.Error(err)
	}
	// A static pod has none of that.
	pod.Annotations, spec.VolumeLifecycleModes = nil, nil
	if _, err := k.Setup(t.Context(), &kind.Volume{Source: persistent(nil), Pod: pod, Name: "v"}); err != nil || v.asked.Complete != nil || v.asked.Attached {
		t.Errorf("a static pod: %+v, %v", v.asked, err)
	}
}
