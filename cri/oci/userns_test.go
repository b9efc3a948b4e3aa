package oci

import (
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func podIDs(length uint32) *runtimeapi.UserNamespace {
	m := []*runtimeapi.IDMapping{{HostId: 100000, Length: length}}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: m, Gids: m}
}

func TestUserNamespaceOptions(t *testing.T) {
	for _, u := range []*runtimeapi.UserNamespace{nil, {Mode: runtimeapi.NamespaceMode_NODE}} {
		if ids, err := UserNamespace(u); ids != nil || err != nil || ids.Root() != (Owner{}) {
			t.Errorf("%v: got %v, %v", u, ids, err)
		}
	}
	ids, err := UserNamespace(podIDs(65536))
	if err != nil || ids.Root() != (Owner{UID: 100000, GID: 100000}) {
		t.Errorf("got %v, %v", ids, err)
	}
	if err := SameUserNamespace(nil, &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}); err != nil {
		t.Errorf("none and the node's: got %v", err)
	}
	if err := SameUserNamespace(podIDs(5), podIDs(6)); err == nil {
		t.Error("a container with other ids than its sandbox")
	}
}

func TestSpecWithIDsOfItsOwn(t *testing.T) {
	own := func(length uint32) func(*Input) {
		return func(in *Input) {
			var err error
			if in.IDs, err = UserNamespace(podIDs(length)); err != nil {
				t.Fatal(err)
			}
			in.Namespaces.User = "/ns/user"
			m := podIDs(length).Uids
			in.Container.Mounts = []*runtimeapi.Mount{
				{ContainerPath: "/v", HostPath: "/v", UidMappings: m, GidMappings: m},
				{ContainerPath: "/i", Image: &runtimeapi.ImageSpec{Image: "x"}, UidMappings: m, GidMappings: m},
			}
			in.ImageMounts = []string{"", "/mounted"}
		}
	}
	find := func(s *specs.Spec, at string) specs.Mount {
		return s.Mounts[slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == at })]
	}
	s := spec(t, own(65536))
	if !slices.Contains(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: "/ns/user"}) {
		t.Errorf("got %v", s.Linux.Namespaces)
	}
	if m := find(s, "/v"); len(m.UIDMappings) != 1 || len(m.GIDMappings) != 1 {
		t.Errorf("volume: got %v", m)
	}
	if m := find(s, "/i"); m.UIDMappings != nil || m.GIDMappings != nil {
		t.Errorf("image: got %v", m)
	}
	if m := find(s, "/dev/pts"); !slices.Contains(m.Options, "gid=5") {
		t.Errorf("terminals: got %v", m)
	}
	s = spec(t, func(in *Input) {
		own(1)(in)
		in.Namespaces.Network, in.Namespaces.UTS = "", ""
	})
	if m := find(s, "/dev/pts"); slices.Contains(m.Options, "gid=5") {
		t.Errorf("terminals of a group that is not mapped: got %v", m)
	}
	if m := find(s, "/sys"); m.Type != "bind" || !strings.Contains(strings.Join(m.Options, ","), "ro") {
		t.Errorf("sysfs of the host's network: got %v", m)
	}
	if _, err := Spec(input(func(in *Input) { in.Namespaces.User = "/ns/user" })); err == nil {
		t.Error("a user namespace without ids")
	}
}
