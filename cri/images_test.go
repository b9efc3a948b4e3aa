package cri

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/image/imagetest"
	"github.com/berth-node/berth/cri/imageapi"
	"github.com/berth-node/berth/cri/keeper"
)

func TestAuth(t *testing.T) {
	both := base64.StdEncoding.EncodeToString([]byte("me:secret"))
	for name, tt := range map[string]struct {
		in         *runtimeapi.AuthConfig
		user, pass string
		bad        bool
	}{
		"apart":      {&runtimeapi.AuthConfig{Username: "me", Password: "secret"}, "me", "secret", false},
		"combined":   {&runtimeapi.AuthConfig{Auth: both}, "me", "secret", false},
		"identity":   {&runtimeapi.AuthConfig{IdentityToken: "id"}, "", "", false},
		"registry":   {&runtimeapi.AuthConfig{RegistryToken: "token"}, "", "", false},
		"both":       {&runtimeapi.AuthConfig{Username: "other", Password: "x", Auth: both}, "other", "x", false},
		"padded":     {&runtimeapi.AuthConfig{Auth: base64.StdEncoding.EncodeToString([]byte("me:secret\x00\x00"))}, "me", "secret", false},
		"with colon": {&runtimeapi.AuthConfig{Auth: base64.StdEncoding.EncodeToString([]byte("me:a:b"))}, "me", "a:b", false},
		"not base64": {&runtimeapi.AuthConfig{Auth: "%"}, "", "", true},
		"no colon":   {&runtimeapi.AuthConfig{Auth: base64.StdEncoding.EncodeToString([]byte("me"))}, "", "", true},
	} {
		a, err := authOf(tt.in)
		if (err != nil) != tt.bad || err == nil && (a.Username != tt.user || a.Password != tt.pass || a.IdentityToken != tt.in.IdentityToken || a.RegistryToken != tt.in.RegistryToken) {
			t.Errorf("%s: got %+v, %v", name, a, err)
		}
	}
}

func TestImages(t *testing.T) {
	n := newNode(t)
	ctx := t.Context()
	reg := imagetest.NewRegistry(t)
	img := imagetest.Build(imagetest.Spec{Name: "app:1", Layers: [][]imagetest.File{{{Name: "f", Body: "x"}}}, Config: ocispec.ImageConfig{User: "1000:5"}})
	ref, err := imagetest.Push(reg.Host, img)
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := n.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	if err != nil || pulled.ImageRef != img.ID {
		t.Fatalf("got %v, %v", pulled, err)
	}
	st, err := n.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}, Verbose: true})
	if err != nil || st.Image.GetId() != img.ID || st.Image.Uid.GetValue() != 1000 || len(st.Image.RepoTags) != 1 || len(st.Image.RepoDigests) != 1 || st.Info["info"] == "" {
		t.Errorf("got %v, %v", st, err)
	}
	if l, err := n.ListImages(ctx, &runtimeapi.ListImagesRequest{}); err != nil || len(l.Images) != 2 {
		t.Errorf("got %v, %v", l, err)
	}
	if l, err := n.ListImages(ctx, &runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: &runtimeapi.ImageSpec{Image: ref}}}); err != nil || len(l.Images) != 1 {
		t.Errorf("got %v, %v", l, err)
	}
	if fs, err := n.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{}); err != nil || fs.ImageFilesystems[0].UsedBytes.Value == 0 {
		t.Errorf("got %v, %v", fs, err)
	}
	for range 2 {
		if _, err := n.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
			t.Error(err)
		}
	}
	if st, err := n.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil || st.Image != nil {
		t.Errorf("got %v, %v", st, err)
	}
	for _, call := range []func(*runtimeapi.ImageSpec) error{
		func(i *runtimeapi.ImageSpec) error {
			_, err := n.PullImage(ctx, &runtimeapi.PullImageRequest{Image: i})
			return err
		},
		func(i *runtimeapi.ImageSpec) error {
			_, err := n.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: i})
			return err
		},
		func(i *runtimeapi.ImageSpec) error {
			_, err := n.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: i})
			return err
		},
	} {
		if err := call(&runtimeapi.ImageSpec{Image: ref, RuntimeHandler: "nobody"}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "nobody") {
			t.Errorf("unknown handler: got %v", err)
		}
		if err := call(&runtimeapi.ImageSpec{Image: ref, RuntimeHandler: ""}); err != nil {
			t.Errorf("default handler: got %v", err)
		}
	}
	if _, err := n.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: reg.Host + "/nope:1"}}); err == nil || status.Code(err) == codes.OK {
		t.Errorf("got %v", err)
	}
}

func TestImageHandler(t *testing.T) {
	n := newNode(t)
	srv := httptest.NewServer(n.Local().ImageHandler())
	defer srv.Close()
	reg := imagetest.NewRegistry(t)
	img := imagetest.Build(imagetest.Spec{Name: "app:1", Layers: [][]imagetest.File{{{Name: "f", Body: strings.Repeat("x", 1<<20)}}}})
	ref, err := imagetest.Push(reg.Host, img)
	if err != nil {
		t.Fatal(err)
	}
	post := func(path string, body []byte) (progress int, last imageapi.Line) {
		t.Helper()
		resp, err := http.Post(srv.URL+path, "application/x-tar", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		sc := bufio.NewScanner(resp.Body)
		for sc.Scan() {
			last = imageapi.Line{}
			if err := json.Unmarshal(sc.Bytes(), &last); err != nil {
				t.Fatalf("%q: %v", sc.Text(), err)
			}
			if last.Progress != nil {
				progress++
			}
		}
		return progress, last
	}
	if p, last := post("/images/pull?ref="+url.QueryEscape(ref), nil); p == 0 || len(last.Images) != 1 || last.Images[0].ID != img.ID {
		t.Errorf("got %d lines of progress, then %+v", p, last)
	}
	if _, last := post("/images/pull?ref="+url.QueryEscape(reg.Host+"/nope:1"), nil); last.Error == "" {
		t.Errorf("got %+v", last)
	}
	if _, last := post("/images/import", testImage(t)); len(last.Images) != 1 || last.Images[0].Tags[0] != boxImage {
		t.Errorf("got %+v", last)
	}
	if _, last := post("/images/import", []byte("not an archive")); last.Error == "" {
		t.Errorf("got %+v", last)
	}
	resp, err := http.Get(srv.URL + "/images/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var list []imageapi.Image
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || len(list) != 2 {
		t.Errorf("got %v, %v", list, err)
	}
	for _, want := range []int{http.StatusNoContent, http.StatusNotFound} {
		req, err := http.NewRequest(http.MethodDelete, srv.URL+"/images/?ref="+url.QueryEscape(ref), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("got %s, want %d", resp.Status, want)
		}
	}
}

func TestNoGoroutinesAreLeft(t *testing.T) {
	before := goleak.IgnoreCurrent()
	w := newWorld()
	s := fakeServer(t, w, t.TempDir())
	pod := runPod(t, s, "a")
	id := createContainer(t, s, pod, "c")
	startContainer(t, s, id)
	w.keeper(pod).exit(keeper.Exit{ContainerID: id})
	waitExited(t, s, id)
	if err := removePod(t, s, pod); err != nil {
		t.Fatal(err)
	}
	runPod(t, s, "b") // stays: its watch has to end with the server
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	goleak.VerifyNone(t, before)
}

// TestRegistryCodes: clients tell from the code whether to ask for credentials, or for another image.
func TestRegistryCodes(t *testing.T) {
	n := newNode(t)
	reg := imagetest.NewRegistry(t)
	for answer, want := range map[int]codes.Code{
		http.StatusNotFound: codes.NotFound, http.StatusUnauthorized: codes.Unauthenticated, http.StatusForbidden: codes.PermissionDenied,
		http.StatusTeapot: codes.Unknown,
	} {
		reg.Fault(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(answer) })
		_, err := n.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: reg.Host + "/app:1"}})
		if status.Code(err) != want || !strings.Contains(err.Error(), http.StatusText(answer)) {
			t.Errorf("%d: got %v, want %s", answer, err, want)
		}
	}
}

// TestImageInUse: who removes an image by hand is told what has it. Removed by force, it is gone, and what runs goes
// on.
func TestImageInUse(t *testing.T) {
	n := newNode(t)
	for _, name := range []string{"berth.test/run:1", "berth.test/volume:1"} {
		if _, err := n.Local().Images().Import(t.Context(), bytes.NewReader(boxWith(t, name, ocispec.ImageConfig{Labels: map[string]string{"of": name}})), nil); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(ref, force string) (int, string) {
		w := httptest.NewRecorder()
		n.Local().ImageHandler().ServeHTTP(w, httptest.NewRequest(http.MethodDelete, "/images/?"+url.Values{"ref": {ref}, "force": {force}}.Encode(), nil))
		return w.Code, w.Body.String()
	}
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
		cfg.Image.Image = "berth.test/run:1"
		cfg.Labels = map[string]string{"io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "default"}
		cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/v", Image: &runtimeapi.ImageSpec{Image: "berth.test/volume:1"}, Readonly: true}}
	}, "sleep", "1000")
	for _, ended := range []bool{false, true} {
		for _, name := range []string{"berth.test/run:1", "berth.test/volume:1"} {
			if code, said := remove(name, ""); code != http.StatusConflict || !strings.Contains(said, "default/web/main; --force") {
				t.Errorf("%s, ended %v: got %d, %s", name, ended, code, said)
			}
		}
		if !ended {
			if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
				t.Fatal(err)
			}
		}
	}
	other := n.run(t, pod, "other", func(cfg *runtimeapi.ContainerConfig) { cfg.Image.Image = "berth.test/run:1" }, "sleep", "1000")
	if code, said := remove("berth.test/run:1", "true"); code != http.StatusNoContent {
		t.Errorf("by force: got %d, %s", code, said)
	}
	if got := n.sh(t, other, "echo runs"); got != "runs" {
		t.Errorf("got %q", got)
	}
	if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	if code, said := remove("berth.test/volume:1", ""); code != http.StatusNoContent {
		t.Errorf("of nobody any more: got %d, %s", code, said)
	}
	if code, _ := remove("berth.test/none:1", ""); code != http.StatusNotFound {
		t.Errorf("not there: got %d", code)
	}
}
