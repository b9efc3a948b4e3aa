package cri

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/image/imagetest"
)

// TestPasswdThatIsNoFile: whoever opens a FIFO to read it waits for one who writes, and an image may have one anywhere.
func TestPasswdThatIsNoFile(t *testing.T) {
	n := newNode(t)
	const name = "berth.test/fifo:1"
	archive := boxWith(t, name, ocispec.ImageConfig{User: "1000"},
		imagetest.File{Name: "etc/passwd", Type: tar.TypeFifo, Mode: 0o666}, imagetest.File{Name: "etc/group", Type: tar.TypeFifo, Mode: 0o666})
	if _, err := n.Local().Images().Import(t.Context(), bytes.NewReader(archive), nil); err != nil {
		t.Fatal(err)
	}
	pod, _ := n.pod(t, "a", nil)
	id, err := n.tryCreate(pod, "c", func(cfg *runtimeapi.ContainerConfig) { cfg.Image.Image = name }, "sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	made, err := n.core.ctrs.Table.ByID.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	// A program that was just started has none until the kernel has laid out its stack.
	var env []byte
	for len(env) == 0 && err == nil && ctx.Err() == nil {
		env, err = os.ReadFile(fmt.Sprintf("/proc/%d/environ", made.Record().Pid))
	}
	if err != nil || !slices.Contains(strings.Split(string(env), "\x00"), "HOME=/") {
		t.Errorf("its environment is %q, %v", env, err)
	}
	if got := n.sh(t, id, "test -p /etc/passwd && echo $HOME"); got != "/" {
		t.Errorf("an exec has %q", got)
	}
	// A name cannot be looked up there, which is said.
	_, err = n.tryRun(pod, "named", func(cfg *runtimeapi.ContainerConfig) {
		cfg.Image.Image = name
		securityOf(cfg).RunAsUsername = "app"
	}, "sleep", "1000")
	if err == nil || !bytes.Contains([]byte(err.Error()), []byte("no users found in the image's /etc/passwd")) {
		t.Errorf("by name: %v", err)
	}
}
