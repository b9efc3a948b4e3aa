package oci

import (
	"encoding/json"
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// FuzzSpec builds the specification of any container: it is one, or there is an error.
func FuzzSpec(f *testing.F) {
	in := input(nil)
	seed, err := proto.Marshal(in.Container)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed, []byte(`{"defaultAction":"SCMP_ACT_ALLOW"}`))
	f.Fuzz(func(t *testing.T, raw, profile []byte) {
		c := &runtimeapi.ContainerConfig{}
		if proto.Unmarshal(raw, c) != nil {
			return
		}
		in := input(nil)
		in.Container, in.Seccomp = c, profile
		s, err := Spec(in)
		if err != nil {
			return
		}
		if len(s.Process.Args) == 0 || s.Process.Cwd == "" || s.Linux.Resources == nil {
			t.Errorf("not a whole specification: %+v", s)
		}
		if _, err := json.Marshal(s); err != nil {
			t.Error(err)
		}
	})
}
