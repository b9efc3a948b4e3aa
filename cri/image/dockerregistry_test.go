package image

import (
	"testing"

	"github.com/berth-node/berth/cri/image/imagetest"
)

func TestDockerRegistry(t *testing.T) {
	w := newWorld(t)
	host, ok := imagetest.StartDocker(t)
	if !ok {
		t.Skip("needs the package docker-registry")
	}
	for _, docker := range []bool{false, true} {
		spec := twoLayers
		spec.Docker = docker
		name, err := imagetest.Push(host, imagetest.Build(spec))
		if err != nil {
			t.Fatal(err)
		}
		if got := w.show(t, mustPull(t, w, name), "etc/a"); got != "two" {
			t.Errorf("etc/a is %q", got)
		}
		mustPull(t, w, name)
	}
}
