package conformance

import (
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var imageCases = []testCase{
	{"Images", images},
	{"ImageByDigest", imageByDigest},
	{"ImageUser", imageUser},
	{"ImageThatIsNot", imageThatIsNot},
	{"ImageFilesystem", imageFilesystem},
}

func ref(name string) *runtimeapi.ImageSpec {
	return &runtimeapi.ImageSpec{Image: name, UserSpecifiedImage: name}
}

// image is the status of an image, nil when there is none.
func (s *suite) image(t *testing.T, name string) *runtimeapi.Image {
	t.Helper()
	r, err := s.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: ref(name)})
	must(t)(err)
	return r.GetImage()
}

func (s *suite) pull(t *testing.T, name string) string {
	t.Helper()
	r, err := s.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: ref(name)})
	if err != nil {
		t.Fatalf("pull %s: %v", name, err)
	}
	return r.GetImageRef()
}

func (s *suite) removeImage(t *testing.T, name string) {
	t.Helper()
	_, err := s.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: ref(name)})
	must(t)(err)
}

func images(t *testing.T, s *suite) {
	name := s.Registry + "/images:1" // an image that no other case has
	if s.image(t, name) != nil {
		t.Fatal("it is there before it was pulled")
	}
	id := s.pull(t, name)
	img := s.image(t, name)
	if img == nil {
		t.Fatal("it is not there")
	}
	if again := s.pull(t, name); again != id {
		t.Errorf("pulled again: %s, not %s", again, id)
	}
	if len(strings.TrimPrefix(img.GetId(), "sha256:")) != 64 || !slices.Contains(img.GetRepoTags(), name) ||
		len(img.GetRepoDigests()) != 1 ||
		!strings.HasPrefix(img.GetRepoDigests()[0], s.Registry+"/images@sha256:") || img.GetSize() == 0 {
		t.Errorf("got %v", img)
	}
	if s.image(t, id).GetId() != img.GetId() || s.image(t, img.GetId()).GetId() != img.GetId() ||
		s.image(t, img.GetRepoDigests()[0]).GetId() != img.GetId() {
		t.Errorf("it is not found by the reference of the pull %s, its ID and its digest", id)
	}
	l, err := s.ListImages(t.Context(), &runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: ref(name)}})
	if err != nil || (len(l.GetImages()) != 1 || l.GetImages()[0].GetId() != img.GetId()) && !s.lacks(t, "Filter") {
		t.Errorf("filtered list: %v, %v", l, err)
	}
	l, err = s.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil || len(l.GetImages()) < 2 {
		t.Errorf("list: %v, %v", l, err)
	}
	s.removeImage(t, name)
	s.removeImage(t, name)
	if img := s.image(t, name); img != nil {
		t.Errorf("removed, and yet there: %v", img)
	}
}

func imageByDigest(t *testing.T, s *suite) {
	tag := s.Registry + "/bydigest:1"
	s.pull(t, tag)
	digest := s.image(t, tag).GetRepoDigests()[0]
	s.removeImage(t, tag)
	s.pull(t, digest)
	img := s.image(t, digest)
	if img == nil || slices.Contains(img.GetRepoTags(), tag) || !slices.Contains(img.GetRepoDigests(), digest) {
		t.Fatalf("got %v", img)
	}
	p := s.pod(t, nil)
	for i, name := range []string{digest, img.GetId()} {
		id := p.sleeper("c"+itoa(i), func(c *runtimeapi.ContainerConfig) {
			c.Image = &runtimeapi.ImageSpec{Image: name, UserSpecifiedImage: digest}
		})
		if st := p.status(id); st.GetImageRef() == "" || st.GetImage().GetImage() == "" {
			t.Errorf("got %v", st)
		}
		_, err := s.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
		must(t)(err)
	}
	s.removeImage(t, img.GetId())
	if s.image(t, digest) != nil {
		t.Error("removed by its ID, and yet there")
	}
}

func imageUser(t *testing.T, s *suite) {
	name := s.Registry + "/user:1"
	s.pull(t, name)
	defer s.removeImage(t, name)
	if img := s.image(t, name); img.GetUsername() != "app" || img.GetUid() != nil {
		t.Errorf("got %v", img)
	}
	p := s.pod(t, nil)
	id := p.sleeper("main", func(c *runtimeapi.ContainerConfig) { c.Image = ref(name) })
	p.expect(id, map[string]string{"id -u": "1000", "id -g": "1000", "echo $HOME": "/home/app"})
	id = p.sleeper("root", func(c *runtimeapi.ContainerConfig) {
		c.Image = ref(name)
		security(c).RunAsUser = number(0)
	})
	p.expect(id, map[string]string{"id -u": "0"})
	_, err := s.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id})
	must(t)(err)
}

func imageThatIsNot(t *testing.T, s *suite) {
	for _, name := range []string{s.Registry + "/busybox:no-such-tag", s.Registry + "/no/such:1", s.Registry +
		"/busybox@sha256:" + strings.Repeat("0", 64), "Not:A:Name", ""} {
		if _, err := s.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: ref(name)}); err == nil {
			t.Errorf("%q was pulled", name)
		}
	}
	s.removeImage(t, "berth.test/not-there:1")
	if s.image(t, "berth.test/not-there:1") != nil {
		t.Error("there is an image that is not")
	}
	l, err := s.ListImages(t.Context(),
		&runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: ref("berth.test/not-there:1")}})
	if err != nil || len(l.GetImages()) > 0 && !s.lacks(t, "Filter") {
		t.Errorf("got %v, %v", l, err)
	}
}

func imageFilesystem(t *testing.T, s *suite) {
	r, err := s.ImageFsInfo(t.Context(), &runtimeapi.ImageFsInfoRequest{})
	if err != nil || len(r.GetImageFilesystems()) == 0 {
		t.Fatalf("got %v, %v", r, err)
	}
	f := r.GetImageFilesystems()[0]
	if f.GetTimestamp() == 0 || f.GetFsId().GetMountpoint() == "" || f.GetUsedBytes() == nil || f.GetInodesUsed() == nil {
		t.Errorf("got %v", f)
	}
}
