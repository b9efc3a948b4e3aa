package openapi

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/berth-node/berth/control/apiserver/scheme"
)

// TestDefinitions looks at what patches, applies and explanations need of a pod.
func TestDefinitions(t *testing.T) {
	external, err := scheme.External()
	if err != nil {
		t.Fatal(err)
	}
	get := Definitions(external)
	all := get(func(name string) spec.Ref { return spec.MustCreateRef("#/definitions/" + name) })
	for name, d := range all {
		for _, need := range d.Dependencies {
			if _, ok := all[need]; !ok {
				t.Errorf("%s needs %s, which has no definition", name, need)
			}
		}
		if len(d.Schema.Type) == 0 && strings.HasPrefix(name, "io.k8s.api.") {
			t.Errorf("%s has no type", name)
		}
	}
	pod := all["io.k8s.api.core.v1.PodSpec"].Schema
	containers := pod.Properties["containers"]
	if containers.Extensions["x-kubernetes-list-type"] != "map" || containers.Extensions["x-kubernetes-patch-merge-key"] != "name" ||
		containers.Description == "" || !slices.Contains(pod.Required, "containers") {
		t.Errorf("containers of a pod: %+v, required %v", containers, pod.Required)
	}
	ports := all["io.k8s.api.core.v1.ContainerPort"].Schema.Properties["protocol"]
	if ports.Default != "TCP" {
		t.Errorf("the protocol of a port, a key of their list, has the default %v", ports.Default)
	}
}
